"""Shards as a folder: common data, one file per rank, and metadata.

shards.json        ranks, layers and their errors
common.pt          state that every rank has whole
rank-00000.pt …    `layer.parameter` → tensor
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from wattree.errors import OutputError, RunError
from wattree.json_text import parsed_object
from wattree.runtime.convert.report import ConversionReport
from wattree.runtime.convert.shards import Shards, put_shard
from wattree.runtime.convert.states import State
from wattree.runtime.group import Group
from wattree.trace.plain import from_plain

_FACTS, _COMMON, _FORMAT = "shards.json", "common.pt", "wattree-shards-1"


def write_shards(shards: Shards, folder: str | Path) -> Path:
    """Write shards to a new folder atomically.

    Raises:
        OutputError: It exists, or cannot be written.
    """
    place = Path(folder)
    if place.exists():
        raise OutputError(f"{place}: exists already; give a new folder")
    part = place.with_name(f".{place.name}.partial")
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        torch.save(dict(shards.common), part / _COMMON)
        for rank, state in enumerate(shards.states):
            torch.save(_flat(state), part / _name(rank))
        facts = {"format": _FORMAT, **asdict(shards.conversion)}
        (part / _FACTS).write_text(json.dumps(facts, indent=1), encoding="utf-8")
        part.rename(place)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as the latter
        shutil.rmtree(part, ignore_errors=True)
        raise OutputError(f"{place}: cannot be written: {error}") from error
    return place


def read_shards(folder: str | Path) -> Shards:
    """Return all ranks' shards, to merge or export them.

    Raises:
        RunError: The folder holds no shards, or not all.
    """
    place = Path(folder)
    conversion = _facts(place)
    names = [layer.cut.name for layer in conversion.layers]
    return Shards(
        conversion=conversion,
        common=_tensors(place / _COMMON),
        states=tuple(
            _nested(_tensors(place / _name(rank)), names) for rank in range(conversion.size)
        ),
    )


def load_shards(
    module: nn.Module, folder: str | Path, mesh: Any = None, **options: Any
) -> nn.Module:
    """Load a rank's shard into a module, reading no other rank's.

    Args:
        module: The dense module that was split, or one like it; may be on the meta device.
        folder: From `write_shards`.
        mesh: As of `phantomize`.
        options: Of `PhantomLinear`: `overlap`, `regather`.

    Raises:
        RunError: The folder holds no shards, or not this rank's.
        StrategyError: Ranks are not as many, or the module is another one.
    """
    place, group = Path(folder), Group.of(mesh)
    conversion = _facts(place)
    names = [layer.cut.name for layer in conversion.layers]
    states: list[Mapping[str, State]] = [{} for _ in range(max(conversion.size, group.size))]
    if group.rank < conversion.size:
        states[group.rank] = _nested(_tensors(place / _name(group.rank)), names)
    shards = Shards(conversion=conversion, common=_tensors(place / _COMMON), states=tuple(states))
    return put_shard(module, shards, group, **options)


def _facts(place: Path) -> ConversionReport:
    try:
        record = parsed_object((place / _FACTS).read_bytes())
    except FileNotFoundError as error:
        raise RunError(str(place), [f"holds no {_FACTS}; give a folder of write_shards"]) from error
    except (ValueError, OSError) as error:
        raise RunError(str(place), [f"{_FACTS}: cannot be read: {error}"]) from error
    found = record.pop("format", None)
    if found != _FORMAT:
        raise RunError(str(place), [f"{_FACTS}: found format {found}, expected {_FORMAT}"])
    problems: list[str] = []
    report = from_plain(ConversionReport, record, problems)
    if report is None:
        raise RunError(str(place), [f"{_FACTS}: {line}" for line in problems])
    return report


def _tensors(file: Path) -> dict[str, Tensor]:
    try:
        found: dict[str, Tensor] = torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise RunError(str(file.parent), [f"holds no {file.name}"]) from error
    except Exception as error:
        # A damaged archive raises whatever its reader meets first.
        message = str(error).partition("\n")[0]
        raise RunError(str(file.parent), [f"{file.name}: cannot be read: {message}"]) from error
    return found


def _name(rank: int) -> str:
    return f"rank-{rank:05d}.pt"


def _flat(state: Mapping[str, State]) -> dict[str, Tensor]:
    # Copies, since a view is written with all of the tensor that it is of.
    return {
        f"{layer}.{name}": tensor.clone()
        for layer, tensors in state.items()
        for name, tensor in tensors.items()
    }


def _nested(tensors: Mapping[str, Tensor], names: list[str]) -> dict[str, State]:
    found: dict[str, State] = {name: {} for name in names}
    for key, tensor in tensors.items():
        layer, _, name = key.rpartition(".")
        found[layer][name] = tensor
    return found
