"""A request that could never run is refused before it changes anything."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mstar_resident.engine.config import EngineConfig
from mstar_resident.engine.request import Request, Sampling
from mstar_resident.engine.request_check import RequestError
from mstar_resident.engine.toy import ToyModel
from mstar_resident.errors import LayoutError

GOOD: dict[str, Any] = {"prompt": np.arange(5), "max_new": 3}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"prompt": np.zeros(0, np.int64)}, "prompt"),
        ({"prompt": np.zeros(3, np.int32)}, "int32"),
        ({"prompt": np.array([1, 509])}, "0..508"),
        ({"prompt": np.array([-1])}, "0..508"),
        ({"max_new": 0}, "max_new"),
        ({"prompt": np.arange(200), "max_new": 58}, "at most 256"),
        ({"sampling": Sampling(temperature=-1.0)}, "temperature"),
        ({"sampling": Sampling(temperature=float("nan"))}, "temperature"),
        ({"sampling": Sampling(top_p=0.0)}, "top_p"),
        ({"sampling": Sampling(top_k=-1)}, "top_k"),
        ({"positions": np.arange(4)}, "positions"),
        ({"context": np.arange(4)}, "context"),
    ],
)
def test_the_refusal_says_what_is_wrong(make: Any, fields: dict[str, Any], named: str) -> None:
    engine = make()
    with pytest.raises(RequestError, match=named):
        engine.add(Request("bad", **(GOOD | fields)))
    assert not engine.busy


def test_what_just_fits_the_table_is_accepted_and_runs(make: Any) -> None:
    engine = make()
    request = Request("long", np.arange(200), 57)  # the last output is not stored
    engine.add(request)
    engine.run()
    assert len(request.outputs) == 57


def test_a_context_is_needed_where_a_pool_is_read_only(make: Any) -> None:
    engine = make(ToyModel(read_only=("context",)))
    with pytest.raises(RequestError, match="context"):
        engine.add(Request("bad", **GOOD))


def test_a_request_is_not_added_twice(make: Any, submit: Any) -> None:
    engine = make()
    request = submit(engine, 3, 2)
    engine.run()
    with pytest.raises(RequestError, match="a new one, got 'done'"):
        engine.add(request)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_batch": 0},
        {"max_requests": 0},
        {"token_budget": 0},
        {"planning": "maybe"},
        {"order": "random"},
        {"pages_owner": "planner", "planning": "host"},
    ],
)
def test_an_engine_that_cannot_be_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(LayoutError):
        EngineConfig(**settings)
