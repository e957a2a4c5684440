"""Why the winner wins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wattree.predict import Setting
from wattree.search.plan_result import RankedStrategy

__all__ = ["explanation"]


def explanation(
    setting: Setting,
    objective: str,
    ranked: Sequence[RankedStrategy],
    rivals: Mapping[str, RankedStrategy | None],
) -> tuple[str, ...]:
    """Return sentences."""
    return (f"{ranked[0].label} takes {ranked[0].result.step_time_s:.3f} s",)
