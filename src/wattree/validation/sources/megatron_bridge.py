"""Megatron-Bridge's performance summaries: what its recipes say besides the table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from wattree.files import read_yaml
from wattree.job import Job
from wattree.strategy import StrategyOptions
from wattree.validation.cells import Cells
from wattree.validation.sources.generic import express
from wattree.validation.sources.registry import SOURCES

_STATED = read_yaml(Path(__file__).with_suffix(".yaml"))
_RECOMPUTE = "recompute"


@SOURCES.register("megatron-bridge")
def _express(cells: Cells) -> Job:
    job, traits = express(cells), _said(cells)
    assert isinstance(job.strategy, StrategyOptions)
    if recompute := traits.pop(_RECOMPUTE, None):
        memory = replace(job.strategy.memory, recompute=recompute)
        open_keys = tuple(key for key in job.left_open if key != _RECOMPUTE)
        job = replace(job, strategy=replace(job.strategy, memory=memory), left_open=open_keys)
    return replace(job, traits={**job.traits, **traits})


def _said(cells: Cells) -> dict[str, Any]:
    """Return the traits of a row's recipe, and how it recomputes."""
    row = cells.row
    container = (row.software_version or "").partition(" ")[0]
    recipes = _STATED["recipes"].get(row.model_name, {}).get(row.accelerator, {})
    words = [own for since, own in sorted(recipes.items()) if since <= container][-1:]
    found: dict[str, Any] = {}
    for word in (each for own in words for each in own):
        found |= _STATED["words"][word]
    if words:
        cells.assume(f"recipe at its release: {', '.join(words[0])}")
    return found
