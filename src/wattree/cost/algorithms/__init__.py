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
from wattree.cost.algorithms.messages import EVERY, MessageSchedule, Round
from wattree.cost.algorithms.protocols import Protocol
from wattree.cost.algorithms.registry import ALGORITHMS, KINDS, Call
from wattree.cost.algorithms.routes import Routes
from wattree.cost.algorithms.tuning import NcclSystem, nccl_choice, nccl_times_s

__all__ = [
    "ALGORITHMS",
    "EVERY",
    "KINDS",
    "Call",
    "MessageSchedule",
    "NcclSystem",
    "Protocol",
    "RankGroup",
    "Round",
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
    "nccl_choice",
    "nccl_system",
    "nccl_times_s",
    "rail",
    "ring",
    "schedule_of",
    "time_alone",
    "tree",
]
