"""Waits for the import of torch, and then patches it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from wattree.errors import RunError, WattreeError
from wattree.runtime.colocation.environment import ColocatedProcess, colocation_from
from wattree.runtime.launch.follow import follow
from wattree.runtime.patches import PARTS, UNPATCHED
from wattree.runtime.tune.trial import Trial, trial_from


def start() -> None:
    """Change torch when this process imports it, if several processes share its device.

    Ends the process if the environment has impossible settings: the script would run otherwise.
    The launcher reports the script's failure, once for all ranks.
    """
    follow(os.environ)
    try:
        colocation = colocation_from(os.environ)
        left = left_out(os.environ)
        trial = trial_from(os.environ)
    except WattreeError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.stderr.flush()
        os._exit(2)
    if colocation is None:
        return
    if colocation.processes == 1:  # nothing is shared; loader workers that were named are those
        left |= frozenset(PARTS) - ({"workers"} if colocation.loader_workers is not None else set())
    if "torch" in sys.modules:
        _change(colocation, left, trial)
    elif trial is not None or left < frozenset(PARTS):
        sys.meta_path.insert(0, _Waiting("torch", lambda: _change(colocation, left, trial)))


def left_out(environment: Mapping[str, str]) -> frozenset[str]:
    """Return the parts that the user does not want.

    Raises:
        RunError: A name is none of `PARTS`.
    """
    named = [name.strip() for name in environment.get(UNPATCHED, "").split(",")]
    found = frozenset(name for name in named if name)
    unknown = sorted(found - set(PARTS))
    if unknown:
        raise RunError(
            UNPATCHED, [f"found '{', '.join(unknown)}', expected any of {', '.join(PARTS)}"]
        )
    return found


def _change(colocation: ColocatedProcess, left: frozenset[str], trial: Trial | None) -> None:
    # What these import imports torch.
    from wattree.runtime.patches.apply import apply

    apply(colocation, left)
    if trial is not None:
        from wattree.runtime.tune.watch import begin

        begin(trial)


class _Waiting(MetaPathFinder):
    """Calls a function once a module has been imported."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name, self._then = name, then

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the result of the other finders, with a loader that calls the function."""
        if name != self._name:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find else None
            if spec is not None:
                # Asking where a module is does not import it: this stays until it is.
                if spec.loader is not None:
                    spec.loader = _Calling(spec.loader, self._call)
                return spec
        return None

    def _call(self) -> None:
        sys.meta_path.remove(self)
        self._then()


class _Calling(Loader):
    """A loader that calls a function after another loader has done its work."""

    def __init__(self, loader: Any, then: Callable[[], None]) -> None:
        self._loader, self._then = loader, then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return the module that the other loader creates."""
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, then the function."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._then()
