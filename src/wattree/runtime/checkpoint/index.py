"""Reads the index of a checkpoint, a pickle, without executing its content."""

from __future__ import annotations

import io
import pickle
import re
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata


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
