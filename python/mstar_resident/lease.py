"""The static buffers of one captured graph: what a step's prologue reads and writes."""

from __future__ import annotations

import torch
from torch import Tensor

from mstar_resident.errors import LayoutError
from mstar_resident.guarded import Guarded
from mstar_resident.layout import RowLayout
from mstar_resident.look_up import LookUp

#: Bytes that a buffer's address is a multiple of, for the widest loads.
ALIGNED = 16


class Lease:
    """Hold the fixed-address buffers of one (walk, bucket, buffer_idx).

    The planner creates it once per key and keeps it for life. A stage is valid for one lease only.

    Attributes:
        id: the number that the native planner knows it by.
        inputs: int64[b + b*2*K], cpu|cuda, contiguous: slots, then cells; written by a flush only.
        slots: int64[b], view of ``inputs``: the store row of each batch index, 0 for padding.
        cells: int64[b, K, 2], view of ``inputs``: column + 1 (0 = no cell) and value.
        lengths: per table int32[b]: attention length, this step's token included; 1 for padding.
        write_loc: per append table int64[b]: page * page_size + offset of the step's token; 0 for padding.
        columns: per named column int64[b] (position, scalar) or int32[b] (index); 0 for padding.
        look_ups: what the prologue looks up besides; see :meth:`look_up`.
        guarded: the buffers with their guard cells, which only a debug lease has.
    """

    __slots__ = (
        "_looked",
        "bucket",
        "buffer_idx",
        "cells",
        "columns",
        "guarded",
        "id",
        "inputs",
        "lengths",
        "look_ups",
        "prologue_arguments",
        "slots",
        "walk",
        "write_loc",
    )

    def __init__(
        self, layout: RowLayout, walk: str, bucket: int, buffer_idx: int, device: torch.device, debug: bool = False
    ) -> None:
        self.id = -1
        self.walk = walk
        self.bucket = bucket
        self.buffer_idx = buffer_idx
        K = layout.cells_per_row
        sizes = {"inputs": (bucket + bucket * 2 * K, torch.int64)}
        sizes |= {f"lengths {table.name}": (bucket, torch.int32) for table in layout.tables}
        sizes |= {f"write_loc {table.name}": (bucket, torch.int64) for table in layout.tables if table.span}
        sizes |= {
            f"column {column.name}": (bucket, torch.int32 if column.kind == "index" else torch.int64)
            for column in layout.columns
        }
        self.guarded: list[Guarded] = []
        if debug:
            self.guarded = [
                Guarded(f"{name} of {self}", (n,), dtype, device, True) for name, (n, dtype) in sizes.items()
            ]
            buffers = dict(zip(sizes, (guarded.tensor for guarded in self.guarded), strict=True))
        else:
            buffers = _side_by_side(sizes, device)
        self.inputs: Tensor = buffers["inputs"]
        self.slots: Tensor = self.inputs[:bucket]
        self.cells: Tensor = self.inputs[bucket:].view(bucket, K, 2)
        self.lengths: dict[str, Tensor] = {
            table.name: buffers[f"lengths {table.name}"].fill_(1) for table in layout.tables
        }
        self.write_loc: dict[str, Tensor] = {
            table.name: buffers[f"write_loc {table.name}"] for table in layout.tables if table.span
        }
        self.columns: dict[str, Tensor] = {column.name: buffers[f"column {column.name}"] for column in layout.columns}
        self.look_ups: list[LookUp] = []
        #: What every prologue takes after the store's tensors.
        self.prologue_arguments: tuple[Tensor, list[Tensor], list[Tensor | None], list[Tensor], list[LookUp]] = (
            self.inputs,
            list(self.lengths.values()),
            [self.write_loc.get(table.name) for table in layout.tables],
            list(self.columns.values()),
            self.look_ups,
        )
        self._looked = {column.name for column in layout.columns if column.kind != "position"}
        if device.type == "cuda":
            # The fills above ran on the current cuda_stream; the first flush may run on another.
            torch.cuda.current_stream(device).synchronize()

    def look_up(self, column: str, source: Tensor, out: Tensor) -> None:
        """Have every prologue write ``source[value]`` to ``out``, for the value of each row's column; before capture.

        So a step can begin with what lies on the device by seat or by state, such as the last drawn tokens, in the
        launch that reads the rows anyway.

        Args:
            column: a named column that is no position; no value of it may reach the end of ``source``.
            source: [n >= 1], on the lease's device, contiguous; padding rows look up element 0.
            out: [bucket], of its dtype and device, contiguous; kept, and overwritten by every prologue.

        Raises:
            LayoutError: another column, shape, dtype, device or stride; nothing is changed.
        """
        if column not in self._looked:
            raise LayoutError.of("column", expected=f"one of {sorted(self._looked)}", got=column)
        for name, tensor, cells in (("source", source, None), ("out", out, self.bucket)):
            where = (tensor.dim(), tensor.is_contiguous(), tensor.device, tensor.dtype)
            fits = where == (1, True, self.inputs.device, source.dtype)
            if not fits or not len(tensor) or cells not in (None, len(tensor)):
                length = "n >= 1" if cells is None else cells
                expected = f"{source.dtype}[{length}], contiguous, on {self.inputs.device}"
                raise LayoutError.of(name, expected=expected, got=(tensor.dtype, tuple(tensor.shape), tensor.device))
        self.look_ups.append(LookUp(column, source, out))

    @property
    def key(self) -> tuple[str, int, int]:
        """The walk, bucket and buffer_idx that name the lease."""
        return (self.walk, self.bucket, self.buffer_idx)

    def addresses(self) -> tuple[int, ...]:
        """Return the addresses of every buffer, which a captured graph has recorded."""
        tensors = [self.inputs, *self.lengths.values(), *self.write_loc.values(), *self.columns.values()]
        tensors += [tensor for look_up in self.look_ups for tensor in (look_up.source, look_up.out)]
        return tuple(tensor.data_ptr() for tensor in tensors)

    def __repr__(self) -> str:
        return f"Lease(walk={self.walk!r}, bucket={self.bucket}, buffer_idx={self.buffer_idx}, id={self.id})"


def _side_by_side(sizes: dict[str, tuple[int, torch.dtype]], device: torch.device) -> dict[str, Tensor]:
    """Allocate zeroed vectors in one block: what a small step reads of them is in a cache line or two."""
    starts, end = [], 0
    for cells, dtype in sizes.values():
        starts.append(end)
        end += -(-cells * dtype.itemsize // ALIGNED) * ALIGNED
    block = torch.zeros(end, dtype=torch.uint8, device=device)
    return {
        name: block[start : start + cells * dtype.itemsize].view(dtype)
        for start, (name, (cells, dtype)) in zip(starts, sizes.items(), strict=True)
    }
