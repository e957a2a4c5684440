"""Atomic checkpoints of one run in one folder, verified before they are read.

A checkpoint is a folder `step-N` with PyTorch's files, which hold tensors only (`tensors.py`,
`index.py`), and `wattree.json`, which says what they are of and carries the checksum of each
(`manifest.py`). `folder.py` knows the names in a folder of checkpoints, `owner.py` lets one run at
a time write there, `resume.py` finds the one to go on from.
"""

from wattree.runtime.checkpoint.folder import ask_fresh, set_damaged_aside, set_run_aside
from wattree.runtime.checkpoint.owner import PATIENCE_S, FolderOwner
from wattree.runtime.checkpoint.resume import Resumed, newest_whole
from wattree.runtime.checkpoint.tensors import (
    TensorShape,
    load_tensors,
    save_checkpoint,
    tensor_shapes,
)

__all__ = [
    "PATIENCE_S",
    "FolderOwner",
    "Resumed",
    "TensorShape",
    "ask_fresh",
    "load_tensors",
    "newest_whole",
    "save_checkpoint",
    "set_damaged_aside",
    "set_run_aside",
    "tensor_shapes",
]
