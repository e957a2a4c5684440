"""Lazy imports: names of a package, and modules, that are loaded on first use."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

#: Where a package that is not loaded keeps variables of the environment.
_VARIABLES = "_variables_while_loading"


def fetching(package: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package that imports heavy modules on first use.

    Its names are those that the package imports under `if TYPE_CHECKING:`.
    """

    def fetch(name: str) -> Any:
        home = _homes(package).get(name)
        if home is None:
            module = sys.modules[package]  # of whose names the interpreter suggests the nearest
            words = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(words, name=name, obj=module)
        return getattr(import_module(home), name)

    return fetch


@cache
def _homes(package: str) -> Mapping[str, str]:
    """Return name → module of the imports that a package makes for type checkers alone."""
    import ast

    source = import_module(package).__loader__.get_source(package)  # type: ignore[union-attr]
    return {
        each.name: str(statement.module)
        for block in ast.parse(source).body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for each in statement.names
    }


class _Unloaded(ModuleType):
    """A package that is loaded when anything in it is used, modules of it included.

    Unlike that of `importlib.util.LazyLoader`, it is not loaded by a second import statement.
    """

    def __getattr__(self, name: str) -> Any:
        variables = self.__dict__.pop(_VARIABLES, None)
        if variables is not None:  # it is asked again while it is loaded
            self._load(variables)
        return ModuleType.__getattribute__(self, name)

    def _load(self, variables: Mapping[str, str]) -> None:
        spec = self.__spec__
        assert spec is not None
        assert spec.loader is not None
        self.__path__ = spec.submodule_search_locations or []
        unset = [key for key in variables if key not in os.environ]
        os.environ.update({key: variables[key] for key in unset})
        try:
            spec.loader.exec_module(self)
        finally:
            for key in unset:  # not for programs that this one starts
                del os.environ[key]
        self.__class__ = ModuleType  # type: ignore[assignment]


def load_when_used(package: str, variables: Mapping[str, str] | None = None) -> None:
    """Let imports of an installed package load it when it is first used.

    For programs of one thread: two could load it at once.

    Args:
        variables: Of the environment while it is loaded, where they are not set.
    """
    if package in sys.modules or (spec := find_spec(package)) is None:
        return
    module = sys.modules[package] = module_from_spec(spec)
    del module.__path__  # modules of the package need the package
    module.__dict__[_VARIABLES] = variables or {}
    module.__class__ = _Unloaded
