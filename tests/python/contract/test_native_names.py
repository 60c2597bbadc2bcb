"""The stub, the binary and `help()` say the same."""

from __future__ import annotations

import ast
import inspect
import pydoc
from collections.abc import Iterator
from pathlib import Path

import pytest

from mstar_resident import _core


def _public(name: str) -> bool:
    return not name.startswith("_")


def native_names() -> Iterator[tuple[str, object]]:
    """Every public name of the native module, in order: classes, their methods and properties, functions."""
    for name, value in sorted(vars(_core).items()):
        if not _public(name):
            continue
        yield name, value
        if inspect.isclass(value):
            yield from ((f"{name}.{key}", member) for key, member in sorted(vars(value).items()) if _public(key))


def stub_names(root: Path) -> set[str]:
    names = set()
    for node in ast.parse((root / "python/mstar_resident/_core.pyi").read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and _public(node.name):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, ast.FunctionDef) and _public(member.name):
                    names.add(f"{node.name}.{member.name}")
                elif isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
                    names.add(f"{node.name}.{member.target.id}")
    return names


def test_the_stub_names_what_the_binary_has(root: Path) -> None:
    assert stub_names(root) == {name for name, _ in native_names()}


@pytest.mark.parametrize(("name", "value"), [pytest.param(n, v, id=n) for n, v in native_names()])
def test_help_of_every_native_name_says_something(name: str, value: object) -> None:
    said = (inspect.getdoc(value) or "").strip()
    assert len(said) > 10, f"help({name}) is empty"
    assert said.splitlines()[0] in pydoc.plain(pydoc.render_doc(value))


def test_help_of_the_native_module_says_something() -> None:
    assert (_core.__doc__ or "").strip()
