"""Selects the checkpoint from which all ranks resume: the newest undamaged one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from wattree.errors import RunError
from wattree.runtime.checkpoint.folder import place_of, steps_in
from wattree.runtime.checkpoint.manifest import Manifest, file_fault, read_manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """The checkpoint to resume from.

    Attributes:
        step: Steps that are done.
        facts: What it is of.
        damaged: Newer step → what is wrong with its checkpoint.
    """

    step: int
    facts: Mapping[str, Any]
    damaged: Mapping[int, str]


def newest_whole(folder: Path, group: Any) -> Resumed | None:
    """Return the newest checkpoint with all files undamaged.

    All ranks of `group` call it, and all return the same: rank 0 says which there are, as another
    may see its folder a moment later, and each verifies a share of the files.

    Returns:
        None where there is no checkpoint at all.

    Raises:
        RunError: There are some, and all are damaged.
    """
    listed: list[Any] = [steps_in(folder) if dist.get_rank(group) == 0 else None]
    dist.broadcast_object_list(listed, src=0, group=group)
    damaged: dict[int, str] = {}
    for step in reversed(listed[0]):
        manifest, fault = _manifest(folder, step, group)
        fault = fault or _fault(place_of(folder, step), manifest, group)
        if not fault:
            return Resumed(step=step, facts=manifest.facts, damaged=damaged)
        damaged[step] = fault
    if not damaged:
        return None
    problems = [f"step-{step}: {fault}" for step, fault in damaged.items()]
    problems[-1] += (
        "; no checkpoint is whole: restore one, or start over, which moves these aside: --fresh"
    )
    raise RunError(str(folder), problems)


def _manifest(folder: Path, step: int, group: Any) -> tuple[Manifest, str]:
    """Return the manifest that rank 0 read, and its faults."""
    read: list[Any] = [None, ""]
    if dist.get_rank(group) == 0:
        try:
            read[0] = read_manifest(folder, step)
        except RunError as error:
            read[1] = f"{Path(error.source).name} {error.problems[0]}"
    dist.broadcast_object_list(read, src=0, group=group)
    return read[0], read[1]


def _fault(place: Path, manifest: Manifest, group: Any) -> str:
    """Return the faults in the files of a checkpoint; the same on all ranks."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    mine = list(manifest.files.items())[rank::ranks]
    fault = next((text for name, was in mine if (text := file_fault(place, name, was))), "")
    found: list[str] = [""] * ranks
    dist.all_gather_object(found, fault, group)
    return next((f"{text} (rank {number})" for number, text in enumerate(found) if text), "")
