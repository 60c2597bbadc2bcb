"""Serve six requests on a small random model, once host-planned and once resident: the tokens are the same."""

from __future__ import annotations

import numpy as np

from mstar_resident.engine import Engine, EngineConfig, PoolConfig, Request, Sampling
from mstar_resident.models.config import LlamaConfig
from mstar_resident.models.llama import Llama
from mstar_resident.models.rope import RopeConfig

MODEL = LlamaConfig(
    vocab_size=500,
    hidden_size=64,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    intermediate_size=128,
    rope=RopeConfig(theta=1e4, rotary_dim=16),
)


def serve(planning: str) -> list[list[int]]:
    """Run the same six requests in one arm and return their tokens."""
    config = EngineConfig(
        max_batch=4,  # rows of the widest captured bucket: the store has 9
        pools={"kv": PoolConfig(page_size=16, pool_pages=64, max_seq_len=256)},
        planning=planning,  # type: ignore[arg-type]
        check=True,  # compare every resident step's rows with the engine's own streams
    )
    engine = Engine(Llama.seeded(MODEL), config)
    rng = np.random.default_rng(0)
    requests = [
        Request(f"request {i}", rng.integers(0, 500, 10 + 7 * i), 24, Sampling(temperature=0.8, seed=i))
        for i in range(6)
    ]
    for request in requests:
        engine.add(request)
    engine.run()
    done = engine.counters
    print(
        f"{planning}: {done.steps} steps, {done.decode_steps} of them decode only, {done.resident_steps} resident, "
        f"{done.promoted} staged ahead and promoted, {done.rows_checked} rows checked, "
        f"{len(done.mismatches)} mismatches"
    )
    return [request.outputs for request in requests]


if serve("host") != serve("resident"):
    raise SystemExit("the arms differ")
print("both arms said the same")
