"""Lets unmodified DDP scripts share a device; `wattree launch` adds it to their path.

`FOLDER` goes first on `PYTHONPATH`. Once a script imports torch,

- a model that it wraps with DDP averages its gradients by `wattree.runtime.reduce` (`hook`),
- a process group of NCCL becomes one of gloo, as NCCL takes one rank of a device (`backend`),
- a `DataLoader` takes this process's share of the batch (`batch`) and of the workers (`workers`),
- learning rates grow with the batch under the rule fixed-per-process (`learning-rate`).

Each can be left out by name: `WATTREE_UNPATCHED=batch,workers`. Loads no torch.
"""

from wattree.runtime.patches.names import PARTS, UNPATCHED

__all__ = ["PARTS", "UNPATCHED"]
