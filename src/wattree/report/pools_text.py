"""The pools of a mixed cluster as text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from wattree.report.parts import headed_table
from wattree.report.words import NOT_APPLICABLE, percent, quantity
from wattree.trace import PoolUse, TierUse
from wattree.units import format_bytes


def pool_table(pools: Sequence[PoolUse]) -> Table:
    """Return one row per pool: its nodes, its ranks, and its utilization and memory."""
    table = headed_table()
    table.add_column("nodes", no_wrap=True)
    table.add_column("rank classes", ratio=1)
    for head in ("computing", "memory", "energy"):
        table.add_column(head, justify="right", no_wrap=True)
    for pool in pools:
        full = (
            f"{format_bytes(pool.peak_memory_bytes)} of {format_bytes(pool.memory_capacity_bytes)}"
        )
        memory = Text(full, style="" if pool.memory_fits else "bold red")
        if not pool.ranks:
            table.add_row(f"{pool.node}", "idle", *[NOT_APPLICABLE] * 3)
            continue
        table.add_row(
            f"{pool.nodes} x {pool.node}",
            _classes(pool.rank_classes),
            percent(pool.computing),
            memory,
            quantity(pool.energy_j, "J"),
        )
    return table


def shortages(pools: Sequence[PoolUse]) -> str:
    """Return the pools whose memory is too small, with the ranks that do not fit; else nothing."""
    return "; ".join(
        f"{pool.fullest} needs {format_bytes(pool.peak_memory_bytes)} of "
        f"{format_bytes(pool.memory_capacity_bytes)}"
        for pool in pools
        if not pool.memory_fits
    )


def tier_shortages(tiers: Sequence[TierUse]) -> str:
    """Return the memories behind the devices that are too small, with what they need."""
    return "; ".join(
        f"{tier.name} needs {format_bytes(tier.used_bytes)} of "
        f"{format_bytes(tier.capacity_bytes)} "
        + ("pooled" if tier.capacity_of == "pool" else f"per {tier.capacity_of}")
        for tier in tiers
        if not tier.fits
    )


def _classes(names: Sequence[str]) -> str:
    """Return the names of rank classes without their device, shortened if there are many."""
    shown = ", ".join(re.sub(r" on .* \(", " (", name) for name in names[:4])
    return f"{shown} and {len(names) - 4} more" if len(names) > 4 else shown
