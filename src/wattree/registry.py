"""Names that resolve to extensions: built-in first, then entry points of other packages.

The versions of packages, too, are known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import Generic, TypeVar

from wattree.errors import UnknownNameError, WattreeError

T = TypeVar("T")


def installed_version(package: str = "wattree") -> str:
    """Return the version of a package; empty where it is not installed, as a source tree is not."""
    from importlib.metadata import PackageNotFoundError, version  # slow, and seldom wanted

    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def import_all(package: str, path: Iterable[str]) -> None:
    """Import every module of a package, so that those that register themselves do.

    Args:
        package: Its name.
        path: Its `__path__`.
    """
    for module in iter_modules(path):
        import_module(f"{package}.{module.name}")


class Registry(Generic[T]):
    """A set of named extensions of one kind.

    Attributes:
        kind: What the entries are, as an error message would say it.
        group: Entry-point group that other packages use to add entries.
    """

    def __init__(self, *, kind: str, group: str) -> None:
        self.kind = kind
        self.group = group
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that adds its target under `name`.

        Raises:
            WattreeError: The name is taken.
        """

        def add(entry: T) -> T:
            if name in self._entries:
                raise WattreeError(f"{self.kind} '{name}' is registered twice")
            self._entries[name] = entry
            return entry

        return add

    def __getitem__(self, name: str) -> T:
        """Return the entry called `name`; raise `UnknownNameError` if there is none."""
        if name not in self._entries:
            self._load_entry_points()
        if name not in self._entries:
            raise UnknownNameError(kind=self.kind, name=name, known=self._entries)
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def _load_entry_points(self) -> None:
        from importlib.metadata import entry_points  # most names are our own

        for entry_point in entry_points(group=self.group):
            if entry_point.name not in self._entries:
                self._entries[entry_point.name] = entry_point.load()
