"""Public names: what a package exports is what it says it exports."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

from tests.each import each

SOURCE = Path(__file__).resolve().parents[2] / "src"
PACKAGES = sorted(path.parent for path in SOURCE.rglob("__init__.py"))


def dotted(path: Path) -> str:
    """Return the import name of a file or folder."""
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


def public_names(path: Path) -> list[str]:
    """Return `__all__` of a file as written, or nothing."""
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and "__all__" in map(ast.unparse, statement.targets):
            names = ast.literal_eval(statement.value)
            return [str(name) for name in names]
    return []


def re_exported(path: Path) -> set[str]:
    """Return the names that an `__init__` binds publicly: imported or defined there."""
    names: set[str] = set()
    for statement in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith("wattree"):
            names.update(alias.asname or alias.name for alias in statement.names)
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            names.add(statement.name)
    return {name for name in names if not name.startswith("_")}


@each("package", PACKAGES, ids=dotted)
def test_a_package_re_exports_what_it_lists(package: Path) -> None:
    """`__all__` is the contract; a name outside it is an accident, one missing a broken promise."""
    listed = public_names(package / "__init__.py")

    assert {name for name in listed if not name.startswith("__")} == re_exported(
        package / "__init__.py"
    )


@each("package", PACKAGES, ids=dotted)
def test_every_listed_name_of_a_package_exists(package: Path) -> None:
    """`from wattree.x import *` must not fail, lazily loaded names included."""
    module = importlib.import_module(dotted(package))
    missing = [name for name in public_names(package / "__init__.py") if not hasattr(module, name)]

    assert missing == []
