"""The JSON that a command leaves behind: one object with schema, machine, commit and cases."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mstar_resident.cli.exits import UsageError


def write_json(path: str, command: str, cases: Sequence[dict[str, Any]]) -> None:
    """Write a record of a command's cases.

    Raises:
        UsageError: the file cannot be written.
    """
    record = {"schema": f"mstar-resident/{command}/1", "machine": machine(), "commit": commit(), "cases": list(cases)}
    try:
        Path(path).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--json: cannot write {path}: {error.strerror}") from error


def check_writable(path: str | None, option: str = "--json") -> None:
    """Check that a record can be written, before a long run.

    Raises:
        UsageError: its folder does not exist, or it is a folder.
    """
    if path is not None and (not Path(path).absolute().parent.is_dir() or Path(path).is_dir()):
        raise UsageError(f"{option}: cannot write {path}: no such folder, or a folder")


def machine() -> str:
    """Return what ran the command: processor, cores, system, torch, GPU."""
    import torch

    parts = [processor(), f"{os.cpu_count()} cores", f"{platform.system()} {platform.machine()}"]
    parts += [f"Python {platform.python_version()}", f"torch {torch.__version__}"]
    if torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name(0))
    return ", ".join(parts)


def processor() -> str:
    """Return the processor's name."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown processor"


def commit() -> str:
    """Return the commit of the checkout that the package lies in, with ``+`` if files differ; else ``unknown``."""
    root = Path(__file__).resolve().parents[3]
    if not (root / "pyproject.toml").is_file():
        return os.environ.get("MSTAR_RESIDENT_COMMIT", "unknown")
    try:
        said = [
            subprocess.run(["git", *command], cwd=root, capture_output=True, text=True, check=True).stdout.strip()
            for command in (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        ]
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("MSTAR_RESIDENT_COMMIT", "unknown")
    return said[0] + ("+" if said[1] else "")
