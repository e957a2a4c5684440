"""Checkpoints that are whole or not there, through `torch.distributed.checkpoint`.

A checkpoint is a folder `step-N` with PyTorch's files, which hold tensors only, and `wattree.json`,
which says what they are of. It is written beside, as `.step-N.partial`, and renamed once every rank
has written its part and all of it has reached the disk: whatever ends a job, and whenever, the last
one that was renamed is whole. Reading runs no code of the file (see `_Reader`).
"""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import checkpoint
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from wattree.errors import OutputError, RunError

#: Checkpoints that stay; older ones are removed once a newer one is whole.
MOST_CHECKPOINTS = 2
_FACTS = "wattree.json"
_NAME = re.compile(r"step-([0-9]{1,12})")


@dataclass(frozen=True, slots=True)
class TensorShape:
    """Shape and type of a tensor in a checkpoint."""

    shape: tuple[int, ...]
    dtype: Any


def save_checkpoint(
    folder: Path, step: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], group: Any
) -> Path:
    """Write a checkpoint; all ranks of `group` call it, and it is there for all when it returns.

    Args:
        folder: Where checkpoints lie; the same for all ranks.
        step: Steps that are done.
        tensors: This rank's; names that several ranks give are of equal tensors.
        facts: What they are of; of rank 0.
        group: Of all ranks, with a backend for the CPU.

    Raises:
        OutputError: It cannot be written; none is left half written.
    """
    rank = dist.get_rank(group)
    whole, partial = folder / f"step-{step}", folder / f".step-{step}.partial"
    if whole.exists() and latest_step(folder) == step:
        return whole  # a resumed run that was asked to stop at once
    problem = _attempt(lambda: _check_space(folder, partial)) if rank == 0 else ""
    _agree(problem, group, partial)
    dist.barrier(group)
    problem = _attempt(
        lambda: checkpoint.save(
            dict(tensors),
            storage_writer=FileSystemWriter(partial, sync_files=True),
            process_group=group,
        )
    )
    _agree(problem, group, partial)
    problem = _attempt(lambda: _finish(folder, partial, whole, facts)) if rank == 0 else ""
    _agree(problem, group, partial)
    return whole


def _attempt(act: Any) -> str:
    """Return what went wrong; empty if nothing did."""
    try:
        act()
    except OSError as error:
        return error.strerror or str(error)
    except (Exception, CheckpointException) as error:  # noqa: BLE001 - whatever a rank raised
        return _line(error)
    return ""


def _agree(problem: str, group: Any, partial: Path) -> None:
    """Raise on all ranks if one of them has a problem.

    Raises:
        OutputError: One has.
    """
    found: list[str | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, problem, group)
    fault = next((text for text in found if text), None)
    if fault is None:
        return
    if dist.get_rank(group) == 0:
        shutil.rmtree(partial, ignore_errors=True)
    rank = next(number for number, text in enumerate(found) if text)
    raise OutputError(
        f"{partial.parent}: rank {rank} cannot write a checkpoint ({fault}); the ones before are "
        "whole. Expected a folder with room, that all ranks see"
    )


def _check_space(folder: Path, partial: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(".step-*.partial"):  # of a run that was killed while it wrote
        shutil.rmtree(left)
    partial.mkdir()


def _finish(folder: Path, partial: Path, whole: Path, facts: Mapping[str, Any]) -> None:
    with (partial / _FACTS).open("w", encoding="utf-8") as file:
        json.dump(facts, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    _sync(partial)
    if whole.exists():  # of another run that `--fresh` replaces
        shutil.rmtree(whole)
    partial.rename(whole)
    _sync(folder)
    for step in _steps(folder)[:-MOST_CHECKPOINTS]:
        shutil.rmtree(folder / f"step-{step}", ignore_errors=True)


def _sync(folder: Path) -> None:
    """Let the names in a folder reach the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _steps(folder: Path) -> list[int]:
    if not folder.is_dir():
        return []
    found = (_NAME.fullmatch(path.name) for path in folder.iterdir())
    return sorted(int(match.group(1)) for match in found if match is not None)


def latest_step(folder: Path) -> int | None:
    """Return the step of the newest whole checkpoint of a folder; None if there is none."""
    steps = _steps(folder)
    return steps[-1] if steps else None


def read_facts(folder: Path, step: int) -> dict[str, Any]:
    """Return what a checkpoint says that it is of.

    Raises:
        RunError: It is none of ours.
    """
    path = folder / f"step-{step}" / _FACTS
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(str(path), [f"cannot be read ({error}); expected a checkpoint"]) from error
    if not isinstance(found, dict):
        raise RunError(str(path), ["expected an object"])
    return found


def tensor_shapes(folder: Path, step: int) -> dict[str, TensorShape]:
    """Return what tensors a checkpoint holds, by name.

    Raises:
        RunError: It is damaged.
    """
    place = folder / f"step-{step}"
    try:
        known = _Reader(place).read_metadata().state_dict_metadata
    except Exception as error:
        raise RunError(str(place), [f"is damaged ({_line(error)})"]) from error
    return {
        name: TensorShape(tuple(found.size), found.properties.dtype)
        for name, found in known.items()
        if isinstance(found, TensorStorageMetadata)
    }


def load_tensors(folder: Path, step: int, into: Mapping[str, Tensor], group: Any) -> None:
    """Copy the tensors of a checkpoint into those of this rank, by name; all ranks call it.

    Raises:
        RunError: The checkpoint is damaged, or has other tensors; names the rank and the tensor.
    """
    place, where = folder / f"step-{step}", f"rank {dist.get_rank(group)}"
    known = tensor_shapes(folder, step)
    problems = []
    for name, tensor in into.items():
        there = known.get(name)
        if there is None:
            problems.append(f"{where}: has no '{name}'")
        elif there.shape != tuple(tensor.shape):
            problems.append(
                f"{where}: '{name}': found {_words(there.shape)}, the job's model has "
                f"{_words(tuple(tensor.shape))}"
            )
    if problems:
        more = [f"{where}: and {len(problems) - 5} more"] if len(problems) > 5 else []
        raise RunError(str(place), problems[:5] + more)
    try:
        checkpoint.load(dict(into), storage_reader=_Reader(place), process_group=group)
    except (Exception, CheckpointException) as error:
        raise RunError(str(place), [f"{where}: is damaged ({_line(error)})"]) from error


def _words(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape)) or "a number"


def _line(error: BaseException) -> str:
    """Return one line of an error; of what several ranks raised, that of the first one."""
    if isinstance(error, CheckpointException) and error.failures:
        error = error.failures[min(error.failures)][0]
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


class _Reader(FileSystemReader):
    """Reads PyTorch's files of tensors without running what they might hold.

    PyTorch reads tensors with `weights_only=True`, but the index of a checkpoint is a pickle that
    it reads as any other: here only the few classes that an index is made of are known.
    """

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the index.

        Raises:
            pickle.UnpicklingError: It holds what no index does.
        """
        del args, kwargs
        content = (Path(self.path) / ".metadata").read_bytes()
        found = _IndexReader(io.BytesIO(content)).load()
        if not isinstance(found, Metadata):
            raise pickle.UnpicklingError("expected the index of a checkpoint")
        return found


class _IndexReader(pickle.Unpickler):
    """An unpickler that knows the classes of an index and no others."""

    _KNOWN = frozenset(
        {
            ("builtins", "set"),
            ("collections", "OrderedDict"),
            ("pathlib", "PosixPath"),
            ("pathlib", "PurePosixPath"),
            ("torch", "Size"),
            ("torch", "device"),
            ("torch.serialization", "_get_layout"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        """Return a class by its name.

        Raises:
            pickle.UnpicklingError: No index is made of it.
        """
        is_record = module in {
            "torch.distributed.checkpoint.metadata",
            "torch.distributed.checkpoint.filesystem",
        } and name in {
            "BytesStorageMetadata",
            "ChunkStorageMetadata",
            "MEM_FORMAT_ENCODING",
            "Metadata",
            "MetadataIndex",
            "StorageMeta",
            "TensorProperties",
            "TensorStorageMetadata",
            "_MEM_FORMAT_ENCODING",
            "_StorageInfo",
        }
        is_dtype = module == "torch" and re.fullmatch(r"(b?float|u?int|complex|bool)[0-9]*", name)
        if is_record or is_dtype or (module, name) in self._KNOWN:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"the index names {module}.{name}, which none is made of")
