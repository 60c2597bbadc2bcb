"""Scenarios by name: random, seeded runs of the engine with a toy model, every resident step checked row by row."""

from mstar_resident.engine.scenarios import arms, attention, life, mix, pools, pressure, ranks, traffic
from mstar_resident.engine.scenarios.faults import FAULTS, KINDS
from mstar_resident.engine.scenarios.outcome import Outcome
from mstar_resident.engine.scenarios.scenario import Scenario

SCENARIOS: dict[str, type[Scenario]] = {
    scenario.name: scenario
    for scenario in (
        traffic.Steady,
        traffic.RaggedCrossings,
        traffic.JoinLeave,
        traffic.ChunkedPrefill,
        traffic.MixedSteps,
        traffic.ImagePositions,
        pressure.RecurrentStates,
        life.Aborts,
        life.AbortStorm,
        life.RecycledHandles,
        pressure.SlotPressure,
        pressure.MemoryPressure,
        pressure.RecurrentMemoryPressure,
        pressure.RefusedPages,
        life.PreplanAbandoned,
        life.Overshoot,
        life.FailedSteps,
        life.FailedRecurrentSteps,
        pools.TwoPools,
        pools.ReadOnlyPool,
        pools.NoTable,
        pools.PlannerOwnedPages,
        pools.PrefixSharing,
        attention.PlannedAttention,
        arms.OffByKnob,
        ranks.Ranks,
        mix.RandomMix,
    )
}

__all__ = ["FAULTS", "KINDS", "SCENARIOS", "Outcome", "Scenario"]
