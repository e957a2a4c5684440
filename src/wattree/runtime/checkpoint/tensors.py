"""Saves and loads tensors of all ranks as a checkpoint, by `torch.distributed.checkpoint`.

A checkpoint is written as `.step-N.partial`, and renamed once every rank has written its
part and all of it has reached the disk: whatever ends a job, and whenever, the last one that was
renamed is whole. Reading runs no code of the file (`IndexedReader`).
"""

from __future__ import annotations

import io
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
from wattree.runtime.checkpoint.folder import begin_partial, finish_partial, partial_of, place_of
from wattree.runtime.checkpoint.manifest import FileSum, Manifest, file_sum, write_manifest


@dataclass(frozen=True, slots=True)
class TensorShape:
    """Shape and dtype of a tensor in a checkpoint."""

    shape: tuple[int, ...]
    dtype: Any


def save_checkpoint(
    folder: Path, step: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], group: Any
) -> Path:
    """Write a checkpoint; all ranks of `group` call it. It is visible to all on return.

    Args:
        folder: Where checkpoints lie; the same for all ranks.
        step: Steps that are done.
        tensors: This rank's; names that several ranks give are of equal tensors.
        facts: What they are of; of rank 0.
        group: Of all ranks, with a backend for the CPU.

    Raises:
        OutputError: It cannot be written; none is left half written.
    """
    rank, partial = dist.get_rank(group), partial_of(folder, step)
    problem = _attempt(lambda: begin_partial(folder, step)) if rank == 0 else ""
    _agree(problem, group, partial)
    problem = _attempt(
        lambda: checkpoint.save(
            dict(tensors),
            storage_writer=FileSystemWriter(partial, sync_files=True),
            process_group=group,
        )
    )
    _agree(problem, group, partial)
    manifest = Manifest(facts=facts, files=_sums(partial, group))

    def finish() -> None:
        write_manifest(partial, manifest)
        finish_partial(folder, step)

    _agree(_attempt(finish) if rank == 0 else "", group, partial)
    return place_of(folder, step)


def _sums(partial: Path, group: Any) -> dict[str, FileSum]:
    """Return the checksums of all files; each rank reads a share of them.

    Which there are is asked of the index, not of the folder: on a shared file system a name that
    another host made may be seen later.

    Raises:
        OutputError: One cannot be read, on some rank.
    """
    names: list[Any] = [None]
    if dist.get_rank(group) == 0:
        _attempt(lambda: names.append(IndexedReader(partial).files()))
        names = names[-1:]
    dist.broadcast_object_list(names, src=0, group=group)
    mine: dict[str, FileSum] = {}

    def read() -> None:
        for name in names[0][dist.get_rank(group) :: dist.get_world_size(group)]:
            mine[name] = file_sum(partial / name)

    _agree(_attempt(read), group, partial)
    found: list[Mapping[str, FileSum]] = [{}] * dist.get_world_size(group)
    dist.all_gather_object(found, mine, group)
    return {name: each for part in found for name, each in part.items()}


def _attempt(act: Any) -> str:
    """Return the error; empty without one."""
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


def tensor_shapes(folder: Path, step: int) -> dict[str, TensorShape]:
    """Return the tensors in a checkpoint, by name.

    Raises:
        RunError: It is damaged.
    """
    place = place_of(folder, step)
    try:
        known = IndexedReader(place).read_metadata().state_dict_metadata
    except Exception as error:
        raise RunError(str(place), [f"is damaged ({_line(error)})"]) from error
    return {
        name: TensorShape(tuple(found.size), found.properties.dtype)
        for name, found in known.items()
        if isinstance(found, TensorStorageMetadata)
    }


def load_tensors(folder: Path, step: int, into: Mapping[str, Tensor], group: Any) -> None:
    """Copy tensors of a checkpoint into those of this rank, by name; all ranks call it.

    Raises:
        RunError: The checkpoint is damaged, or has other tensors; names the rank and the tensor.
    """
    place, where = place_of(folder, step), f"rank {dist.get_rank(group)}"
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
        checkpoint.load(dict(into), storage_reader=IndexedReader(place), process_group=group)
    except (Exception, CheckpointException) as error:
        raise RunError(str(place), [f"{where}: is damaged ({_line(error)})"]) from error


def _words(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape)) or "a number"


def _line(error: BaseException) -> str:
    """Return one line of an error; if several ranks raised, that of the first one."""
    if isinstance(error, CheckpointException) and error.failures:
        error = error.failures[min(error.failures)][0]
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


class IndexedReader(FileSystemReader):
    """Reads PyTorch's tensor files without executing their content.

    PyTorch reads tensors with `weights_only=True`, but the index of a checkpoint is a pickle that
    it reads as any other: here only the few classes that an index is made of are known.
    """

    def files(self) -> list[str]:
        """Return the names of all files of the checkpoint, including the index.

        Raises:
            Exception: The index is damaged.
        """
        storage = self.read_metadata().storage_data or {}
        return [".metadata", *sorted({each.relative_path for each in storage.values()})]

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
    """An unpickler that allows only the classes of an index."""

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
        """Return an allowed class by its name.

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
