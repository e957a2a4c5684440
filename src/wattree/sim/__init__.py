"""Executors that play an execution graph and return its trace."""

from typing import TYPE_CHECKING

from wattree.lazy import fetching as _fetching
from wattree.sim.ahead import compile_ahead, kernels_are_compiled
from wattree.sim.engine import execute, execute_events

if TYPE_CHECKING:  # checkers see them; at run time `__getattr__` fetches them
    from wattree.sim.reference import execute_reference, reference_events

__all__ = [
    "compile_ahead",
    "execute",
    "execute_events",
    "execute_reference",
    "kernels_are_compiled",
    "reference_events",
]

_REFERENCE = "wattree.sim.reference"  # checks the other; no command needs it
__getattr__ = _fetching(__name__, {"execute_reference": _REFERENCE, "reference_events": _REFERENCE})
