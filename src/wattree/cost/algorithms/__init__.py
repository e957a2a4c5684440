"""Collectives as message schedules, one algorithm per file, and their cost on a network."""

from wattree.cost.algorithms.alone import link_loads, time_alone
from wattree.cost.algorithms.choose import schedule_of
from wattree.cost.algorithms.group import group_of
from wattree.cost.algorithms.protocols import Protocol
from wattree.cost.algorithms.registry import ALGORITHMS, Call
from wattree.cost.algorithms.routes import Routes
from wattree.registry import import_all as _import_all

__all__ = [
    "ALGORITHMS",
    "Call",
    "Protocol",
    "Routes",
    "group_of",
    "link_loads",
    "schedule_of",
    "time_alone",
]

_import_all(__name__, __path__)
