"""The wheel holds what a user needs, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path, PurePosixPath
from zipfile import ZipFile

import pytest

pytestmark = pytest.mark.timeout(900)


def test_the_wheel_is_abi3_for_python_3_11_and_newer(wheel: ZipFile) -> None:
    name = Path(wheel.filename or "").name
    assert "-cp311-abi3-" in name, name


def test_the_wheel_holds_the_native_module_its_stub_and_the_typing_mark(wheel: ZipFile) -> None:
    names = set(wheel.namelist())
    assert {"mstar_resident/_core.pyi", "mstar_resident/py.typed", "mstar_resident/__init__.py"} <= names
    assert [n for n in names if n.endswith(".so")] == ["mstar_resident/_core.abi3.so"]


def test_every_kernel_file_is_in_the_wheel_and_reads_the_same(wheel: ZipFile, root: Path) -> None:
    sources = [path for path in (root / "kernels").iterdir() if path.is_file() and path.suffix != ".pyc"]
    assert sources
    names = set(wheel.namelist())
    missing = [path.name for path in sources if f"mstar_resident/kernels/{path.name}" not in names]
    assert not missing, f"link them: ln -s ../../../kernels/FILE python/mstar_resident/kernels/FILE: {missing}"
    for path in sources:
        assert wheel.read(f"mstar_resident/kernels/{path.name}") == path.read_bytes(), path.name


def test_every_python_file_of_the_package_is_in_the_wheel(wheel: ZipFile, root: Path, tracked: list[Path]) -> None:
    package = root / "python"
    expected = {str(p.relative_to(package)) for p in tracked if p.is_relative_to(package)}
    assert expected - set(wheel.namelist()) == set()


def test_the_wheel_holds_no_stray_file(wheel: ZipFile, root: Path, tracked: list[Path]) -> None:
    expected = {str(p.relative_to(root / "python")) for p in tracked if p.is_relative_to(root / "python")}
    stray = [
        name
        for name in wheel.namelist()
        if name not in expected
        and name != "mstar_resident/_core.abi3.so"
        and ".dist-info" not in PurePosixPath(name).parts[0]
    ]
    assert stray == []


def test_the_wheel_names_its_command_its_licence_and_its_needs(wheel: ZipFile) -> None:
    info = {name.split("/", 1)[1]: name for name in wheel.namelist() if ".dist-info/" in name}
    assert "mstar-resident=mstar_resident.cli:main" in wheel.read(info["entry_points.txt"]).decode().replace(" ", "")
    metadata = wheel.read(info["METADATA"]).decode()
    for line in ("Requires-Dist: numpy", "Requires-Dist: torch>=2.11", "Requires-Python: >=3.11"):
        assert line in metadata
    assert "licenses/LICENSE" in info


def test_the_wheel_works_where_there_is_no_checkout(wheel: ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import mstar_resident, mstar_resident._core, mstar_resident.kernels.reference as reference\n"
        "for module in (mstar_resident, mstar_resident._core, reference): print(module.__file__)\n"
        "mstar_resident.ResidentPlanner(mstar_resident.RowLayout([mstar_resident.KVTable('kv', 16, 8, 64)]), 2).check()"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert all(line.startswith(str(tmp_path)) for line in ran.stdout.splitlines()), ran.stdout
