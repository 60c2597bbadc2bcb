//! The only file with unsafe code: copies from the ring into the store, on a CPU or through the CUDA driver.
//!
//! Addresses come from tensors that the Python planner keeps alive as long as this object, at their sizes as derived
//! from the layout. The driver is loaded at run time, so one wheel serves machines with and without it.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr;

use libloading::Library;
use mstar_resident_core as core;
use mstar_resident_core::{CopyRun, Target};

/// The status that says an event has not happened yet.
const NOT_READY: i32 = 600;
/// An event that only orders: it takes no time stamp.
const EVENT_DISABLE_TIMING: u32 = 2;

/// Where copies go and come from.
#[derive(Default)]
pub(crate) struct Device {
    driver: Option<Driver>,
    narrow: usize,
    tables: Vec<usize>,
    leases: Vec<usize>,
    ring: Vec<RingBuffer>,
    bytes_each: usize,
    next: usize,
    /// Flushes that waited for the oldest buffer.
    pub(crate) ring_waits: u64,
}

struct RingBuffer {
    address: usize,
    event: usize,
    queued: bool,
}

impl Device {
    pub(crate) fn bind_store(
        &mut self,
        narrow: usize,
        tables: Vec<usize>,
        cuda: bool,
    ) -> Result<(), String> {
        if cuda && self.driver.is_none() {
            self.driver = Some(Driver::load()?);
        }
        self.narrow = narrow;
        self.tables = tables;
        Ok(())
    }

    pub(crate) fn bind_ring(
        &mut self,
        addresses: &[usize],
        bytes_each: usize,
        cuda: bool,
    ) -> Result<(), String> {
        let mut ring = Vec::with_capacity(addresses.len());
        for &address in addresses {
            if address == 0 || address % 8 != 0 {
                return Err(format!(
                    "ring buffer at {address:#x} is not 8-byte aligned memory"
                ));
            }
            let event = match &self.driver {
                Some(driver) if cuda => driver.create_event()?,
                _ => 0,
            };
            ring.push(RingBuffer {
                address,
                event,
                queued: false,
            });
        }
        self.ring = ring;
        self.bytes_each = bytes_each;
        Ok(())
    }

    /// Keeps the address of a lease's input buffer under its number.
    pub(crate) fn add_lease(&mut self, lease: usize, inputs: usize) {
        self.leases.resize(self.leases.len().max(lease + 1), 0);
        self.leases[lease] = inputs;
    }
}

impl core::Device for Device {
    type Wait = RingEvent;

    /// The event of the next ring buffer if its copies are still queued: the one wait of the step path.
    fn pending(&mut self) -> Result<Option<RingEvent>, String> {
        if self.ring.is_empty() {
            return Err("the store and the ring are not bound".to_owned());
        }
        let Some(driver) = &self.driver else {
            return Ok(None);
        };
        let buffer = &mut self.ring[self.next];
        if buffer.queued && !driver.is_done(buffer.event)? {
            self.ring_waits += 1;
            return Ok(Some(RingEvent {
                event: buffer.event,
                synchronize: driver.event_synchronize,
            }));
        }
        buffer.queued = false;
        Ok(None)
    }

    /// The next ring buffer, to be filled. Its earlier copies are done.
    fn buffer(&mut self) -> &mut [u8] {
        // SAFETY: the ring buffers are `bytes_each` bytes of live, 8-byte aligned host memory that nothing else
        // writes; no copy from this one is queued, and the borrow of `self` keeps a second slice from being made.
        unsafe {
            std::slice::from_raw_parts_mut(self.ring[self.next].address as *mut u8, self.bytes_each)
        }
    }

    /// Issues the copies of a flush from the buffer it was written to, then moves on in the ring.
    fn copy(&mut self, runs: &[CopyRun], cuda_stream: usize) -> Result<(), String> {
        if runs.is_empty() {
            return Ok(());
        }
        let source = self.ring[self.next].address;
        let target = |target: Target| match target {
            Target::Narrow => self.narrow,
            Target::Table(table) => self.tables[table],
            Target::Lease(lease) => self.leases[lease],
        };
        if let Some(driver) = &self.driver {
            driver.make_current()?;
            for run in runs {
                driver.copy(
                    target(run.target) + run.to_bytes,
                    source + run.from_bytes,
                    run.bytes,
                    cuda_stream,
                )?;
            }
            driver.record(self.ring[self.next].event, cuda_stream)?;
            self.ring[self.next].queued = true;
        } else {
            for run in runs {
                let (from, to) = (source + run.from_bytes, target(run.target) + run.to_bytes);
                // SAFETY: the core keeps every run inside the flush buffer and inside its target, both live; ring
                // and store are different allocations.
                unsafe { ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, run.bytes) };
            }
        }
        self.next = (self.next + 1) % self.ring.len();
        Ok(())
    }

    /// Launches an instantiated CUDA graph.
    fn launch(&mut self, graph_exec: usize, cuda_stream: usize) -> Result<(), String> {
        let driver = self.driver.as_ref().ok_or("a graph needs a CUDA store")?;
        driver.make_current()?;
        driver.launch(graph_exec, cuda_stream)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if let Some(driver) = &self.driver {
            for buffer in &self.ring {
                driver.destroy_event(buffer.event);
            }
        }
    }
}

/// An event that a flush must wait for, to be waited for outside every lock.
pub(crate) struct RingEvent {
    event: usize,
    synchronize: unsafe extern "C" fn(*mut c_void) -> i32,
}

impl RingEvent {
    pub(crate) fn wait(&self) -> Result<(), String> {
        // SAFETY: the event was created by this process and lives as long as the ring.
        check("cuEventSynchronize", unsafe {
            (self.synchronize)(self.event as *mut c_void)
        })
    }
}

/// The entry points of the CUDA driver that a step needs.
struct Driver {
    context: usize,
    get_current: unsafe extern "C" fn(*mut *mut c_void) -> i32,
    set_current: unsafe extern "C" fn(*mut c_void) -> i32,
    copy_to_device: unsafe extern "C" fn(u64, *const c_void, usize, *mut c_void) -> i32,
    event_create: unsafe extern "C" fn(*mut *mut c_void, u32) -> i32,
    event_destroy: unsafe extern "C" fn(*mut c_void) -> i32,
    event_record: unsafe extern "C" fn(*mut c_void, *mut c_void) -> i32,
    event_query: unsafe extern "C" fn(*mut c_void) -> i32,
    event_synchronize: unsafe extern "C" fn(*mut c_void) -> i32,
    graph_launch: unsafe extern "C" fn(*mut c_void, *mut c_void) -> i32,
    _library: Library,
}

macro_rules! symbol {
    ($library:expr, $name:literal) => {{
        // SAFETY: the name belongs to the driver's stable interface, with the signature of the field it is put in.
        let symbol = unsafe { $library.get($name) };
        *symbol.map_err(|error| format!("CUDA driver: {error}"))?
    }};
}

impl Driver {
    /// Loads the driver and keeps the calling thread's current context: the one that owns the store.
    fn load() -> Result<Self, String> {
        // SAFETY: loading the driver runs only its own initialisers; torch has loaded it already.
        let library = unsafe { Library::new("libcuda.so.1") }
            .map_err(|error| format!("CUDA driver: {error}"))?;
        let mut driver = Self {
            context: 0,
            get_current: symbol!(library, b"cuCtxGetCurrent\0"),
            set_current: symbol!(library, b"cuCtxSetCurrent\0"),
            copy_to_device: symbol!(library, b"cuMemcpyHtoDAsync_v2\0"),
            event_create: symbol!(library, b"cuEventCreate\0"),
            event_destroy: symbol!(library, b"cuEventDestroy_v2\0"),
            event_record: symbol!(library, b"cuEventRecord\0"),
            event_query: symbol!(library, b"cuEventQuery\0"),
            event_synchronize: symbol!(library, b"cuEventSynchronize\0"),
            graph_launch: symbol!(library, b"cuGraphLaunch\0"),
            _library: library,
        };
        driver.context = driver.current()?;
        if driver.context == 0 {
            return Err(
                "no CUDA context is current on the thread that builds the planner".to_owned(),
            );
        }
        Ok(driver)
    }

    fn current(&self) -> Result<usize, String> {
        let mut context = ptr::null_mut();
        // SAFETY: `context` is a valid place for one pointer.
        check("cuCtxGetCurrent", unsafe {
            (self.get_current)(&raw mut context)
        })?;
        Ok(context as usize)
    }

    /// Makes the store's context current on this thread.
    fn make_current(&self) -> Result<(), String> {
        if self.current()? == self.context {
            return Ok(());
        }
        // SAFETY: the context was current when the store was allocated in it, and torch keeps it for the process.
        check("cuCtxSetCurrent", unsafe {
            (self.set_current)(self.context as *mut c_void)
        })
    }

    fn copy(&self, to: usize, from: usize, bytes: usize, cuda_stream: usize) -> Result<(), String> {
        // SAFETY: the core keeps the run inside its target and inside the pinned flush buffer; the buffer is not
        // written again before the event recorded behind this copy.
        let status = unsafe {
            (self.copy_to_device)(
                to as u64,
                from as *const c_void,
                bytes,
                cuda_stream as *mut c_void,
            )
        };
        check("cuMemcpyHtoDAsync", status)
    }

    fn create_event(&self) -> Result<usize, String> {
        let mut event = ptr::null_mut();
        // SAFETY: `event` is a valid place for one pointer.
        check("cuEventCreate", unsafe {
            (self.event_create)(&raw mut event, EVENT_DISABLE_TIMING)
        })?;
        Ok(event as usize)
    }

    fn destroy_event(&self, event: usize) {
        // SAFETY: the event is destroyed once, with the ring that owned it. A status has no receiver here.
        let _ = unsafe { (self.event_destroy)(event as *mut c_void) };
    }

    fn record(&self, event: usize, cuda_stream: usize) -> Result<(), String> {
        // SAFETY: the event lives as long as the ring; the stream is the caller's, alive for this call.
        check("cuEventRecord", unsafe {
            (self.event_record)(event as *mut c_void, cuda_stream as *mut c_void)
        })
    }

    fn is_done(&self, event: usize) -> Result<bool, String> {
        // SAFETY: the event lives as long as the ring.
        match unsafe { (self.event_query)(event as *mut c_void) } {
            NOT_READY => Ok(false),
            status => check("cuEventQuery", status).map(|()| true),
        }
    }

    fn launch(&self, graph_exec: usize, cuda_stream: usize) -> Result<(), String> {
        // SAFETY: the caller names a live instantiated graph and a live stream of this context.
        let status =
            unsafe { (self.graph_launch)(graph_exec as *mut c_void, cuda_stream as *mut c_void) };
        check("cuGraphLaunch", status)
    }
}

fn check(call: &str, status: i32) -> Result<(), String> {
    if status == 0 {
        Ok(())
    } else {
        Err(format!("{call} returned CUDA error {status}"))
    }
}
