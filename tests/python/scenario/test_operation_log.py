"""The operation log of a run: one file that replays bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mstar_resident import KVTable, ResidentPlanner, RowLayout, _core
from mstar_resident.cli import main
from mstar_resident.errors import LogError, ReplayError
from mstar_resident.journal import RECORD_VARIABLE, recording

LAYOUT = RowLayout([KVTable("kv", page_size=4, pool_pages=30, max_seq_len=32)])


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("log") / "run.log"
    scenarios = "join_leave,failed_steps,planner_owned_pages"
    assert main(["check", "--scenario", scenarios, "--steps", "40", "--record", str(file)]) == 0
    return file


def steps(planner: ResidentPlanner, count: int) -> None:
    handle = planner.open()
    planner.set_stream(handle, "kv", [5, 3], 2)
    batch, lease = planner.batch([handle]), planner.lease(1)
    for _ in range(count):
        stage = planner.stage(batch, lease)
        planner.flush(stage, 0)
        planner.prologue(lease)
        planner.commit(stage)


def test_a_recorded_run_replays_and_ends_in_0(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (json.loads(line) for line in log.read_text().splitlines()[:2])
    assert first["log"]["version"] == 1
    assert set(second["planner"]) == {"tables", "columns", "max_batch"}
    assert main(["check", "--replay", str(log)]) == 0
    assert "3 planners replayed" in capsys.readouterr().out


def test_a_log_with_one_changed_byte_ends_in_1_and_names_the_operation(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = log.read_text().splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if n > 100 and '"digest":' in line)
    place = lines[at].index('"digest":') + len('"digest":')
    lines[at] = lines[at][:place] + ("2" if lines[at][place] == "1" else "1") + lines[at][place + 1 :]
    changed = tmp_path / "changed.log"
    changed.write_text("".join(lines))
    assert main(["check", "--replay", str(changed)]) == 1
    said = capsys.readouterr().err
    operation = sum(line.startswith('{"call"') for line in lines[: at + 1])
    assert f"operation {operation}, " in said
    assert "flush" in said
    assert "expected" in said
    with pytest.raises(ReplayError) as raised:
        _core.replay(str(changed))
    assert raised.value.operation == operation


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1"),
        ("{}\n", "line 1"),
        ('{"log":{"version":9,"library":"9.0.0"}}\n', "expected version 1, got version 9"),
        ('{"log":{"version":1,"library":"0.1.0"}}\n{"call":', "line 2"),
        ("\udcff\udcfe", "line 1"),
    ],
)
def test_a_file_that_is_no_log_ends_in_2_with_one_sentence(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "no.log"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert main(["check", "--replay", str(file)]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert said in lines[0]
    with pytest.raises(LogError):
        _core.replay(str(file))


def test_an_engine_of_ones_own_records_what_it_builds_inside(tmp_path: Path) -> None:
    file = tmp_path / "own.log"
    outside = ResidentPlanner(LAYOUT, 1)
    with recording(str(file)) as journal:
        steps(ResidentPlanner(LAYOUT, 1), 6)
    steps(outside, 1)
    assert _core.replay(str(file)) == (1, journal.calls())


def test_the_environment_names_a_file_that_every_planner_records_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "environment.log"
    monkeypatch.setattr("mstar_resident.journal._current", None)
    monkeypatch.setenv(RECORD_VARIABLE, str(file))
    for count in (2, 3):
        steps(ResidentPlanner(LAYOUT, 1), count)
    monkeypatch.setattr("mstar_resident.journal._current", None)
    planners, calls = _core.replay(str(file))
    assert (planners, calls) == (2, file.read_text().count('{"call"'))


def test_a_log_that_cannot_be_written_is_said_at_the_end_and_breaks_no_step() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no device that is always full")
    with pytest.raises(OSError, match="space"), recording(str(full)):
        steps(ResidentPlanner(LAYOUT, 1), 4)
