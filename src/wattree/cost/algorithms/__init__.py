"""Collectives as message schedules, one algorithm per file, and their cost on a network."""

from wattree.cost.algorithms import (
    binomial,
    direct,
    grid,
    halving_doubling,
    hierarchical,
    in_network,
    rail,
    ring,
    tree,
)
from wattree.cost.algorithms.alone import link_loads, time_alone
from wattree.cost.algorithms.choose import choice_for, nccl_system, schedule_of
from wattree.cost.algorithms.group import RankGroup, group_of
from wattree.cost.algorithms.protocols import Protocol
from wattree.cost.algorithms.registry import ALGORITHMS, Call
from wattree.cost.algorithms.routes import Routes

__all__ = [
    "ALGORITHMS",
    "Call",
    "Protocol",
    "RankGroup",
    "Routes",
    "binomial",
    "choice_for",
    "direct",
    "grid",
    "group_of",
    "halving_doubling",
    "hierarchical",
    "in_network",
    "link_loads",
    "nccl_system",
    "rail",
    "ring",
    "schedule_of",
    "time_alone",
    "tree",
]
