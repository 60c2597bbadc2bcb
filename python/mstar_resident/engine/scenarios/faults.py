"""The faults by name."""

from mstar_resident.engine.scenarios import course_faults, row_faults
from mstar_resident.engine.scenarios.fault import FIRST_STEP, KINDS, Fault

FAULTS: dict[str, type[Fault]] = {
    fault.name: fault
    for fault in (
        row_faults.StaleCell,
        row_faults.WrongSlot,
        row_faults.DroppedStageSent,
        row_faults.ReusedSlot,
        row_faults.PaddingWrite,
        row_faults.OverwrittenSource,
        row_faults.LostAdvance,
        row_faults.StaleTail,
        row_faults.WrongPage,
        row_faults.LostState,
        row_faults.MixedPools,
        row_faults.WrongSeat,
        row_faults.LostOffset,
        row_faults.MovedBuffer,
        course_faults.SlotExchanged,
        course_faults.OldPages,
        course_faults.WrappedPage,
        course_faults.ResentRows,
        course_faults.LostRelease,
    )
}

__all__ = ["FAULTS", "FIRST_STEP", "KINDS", "Fault"]
