"""A card of a report: one figure or one part of an answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One figure, or one part of the answer.

    Attributes:
        name: What it is.
        value: With its unit.
        note: Its interval, or what it is a share of.
        bad: It rules the strategy out.
    """

    name: str
    value: str
    note: str = ""
    bad: bool = False
