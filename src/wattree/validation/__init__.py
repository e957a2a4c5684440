"""Measured rows: reading them, expressing them as jobs, scoring predictions, showing errors."""

from wattree.validation.express import express
from wattree.validation.outcome import Validation
from wattree.validation.score import ALL_SOURCES, Scored, Summary, worst
from wattree.validation.table import hold_out_markdown, summary_markdown, worst_markdown
from wattree.validation.validate import validate

__all__ = [
    "ALL_SOURCES",
    "Scored",
    "Summary",
    "Validation",
    "express",
    "hold_out_markdown",
    "summary_markdown",
    "validate",
    "worst",
    "worst_markdown",
]
