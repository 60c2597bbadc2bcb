"""The runner of captured graphs, as far as no device is needed."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch.distributed as dist

from mstar_resident.engine.config import EngineConfig
from mstar_resident.engine.engine import Engine
from mstar_resident.engine.graph_runner import GraphRunner, _key
from mstar_resident.engine.ranks import TorchGroup
from mstar_resident.engine.toy import ToyModel


class Graph:
    """Count replays."""

    replays = 0

    def replay(self) -> None:
        self.replays += 1


def test_graphs_that_are_dropped_are_gone_and_their_steps_run_eagerly() -> None:
    engine = Engine(ToyModel(), EngineConfig())
    ran: list[Any] = []
    runner = engine.graphs = GraphRunner(engine.runner)  # type: ignore[arg-type]
    runner.eager.decode = ran.append  # type: ignore[method-assign]
    view, graph = engine.arm.views()[0], Graph()
    runner._graphs[_key(view)] = graph
    runner.decode(view)
    assert (graph.replays, ran) == (1, [])
    gone = weakref.ref(graph)
    del graph
    runner.drop()
    assert gone() is None
    runner.decode(view)
    assert ran == [view]


def test_a_rank_leaves_its_group_without_its_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, ended = Engine(ToyModel(), EngineConfig()), []
    runner = engine.graphs = GraphRunner(engine.runner)  # type: ignore[arg-type]
    runner._graphs[_key(engine.arm.views()[0])] = Graph()
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    end = dist.destroy_process_group

    def destroy() -> None:
        ended.append(dict(runner._graphs))
        end()

    monkeypatch.setattr(dist, "destroy_process_group", destroy)
    TorchGroup().leave(engine)
    assert ended == [{}]
    assert not dist.is_initialized()
