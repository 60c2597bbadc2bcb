"""Run the random scenario over many seeds: soak.py SEEDS STEPS FIRST_SEED; exits 1 at the first that is not clean."""

from __future__ import annotations

import sys
import time
from collections import Counter

from mstar_resident.engine.scenarios import SCENARIOS


def main() -> int:
    """Run the seeds in order and print what they add up to."""
    seeds, steps, first = (int(argument) for argument in sys.argv[1:4])
    if seeds < 1 or steps < 1:
        print(f"soak: expected at least one seed and one step, got {seeds} and {steps}", file=sys.stderr)
        return 2
    total: Counter[str] = Counter()
    started = time.monotonic()
    for done, seed in enumerate(range(first, first + seeds), 1):
        outcome = SCENARIOS["random"]().run(seed, steps)
        total.update({key: value for key, value in outcome.case().items() if isinstance(value, int)})
        if not outcome.good:
            print(f"seed {seed} is not clean:", *outcome.found[:10], *outcome.unmet, sep="\n  ")
            return 1
        if done % 10 == 0 or done == seeds:
            spent = time.monotonic() - started
            print(
                f"[{spent:5.0f}s] {done} of {seeds} seeds, " + ", ".join(f"{k} {v}" for k, v in total.items()),
                flush=True,
            )
    print(f"clean: {seeds} seeds of {steps} steps from seed {first}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
