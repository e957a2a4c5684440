"""A rank of an MPI program whose gradients are averaged by mpi4py; `test_reduce_mpi.py` starts it.

Its arguments are a folder for what it finds, and for the store through which ranks meet.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from wattree.runtime.reduce import attach


def mean(method: str, dtype: torch.dtype, compress: str | None = None) -> list[float]:
    """Return the mean over ranks of known gradients."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    mine = torch.randn(1000, generator=generator, dtype=torch.float64).to(dtype)
    layer = nn.Linear(1000, 1, bias=False).to(dtype)
    model = DistributedDataParallel(layer)
    attach(model, method=method, processes_per_device=2, compress=compress, timeout_s=300.0)
    model(mine[None]).sum().backward()
    return [float(value) for value in layer.weight.grad.flatten()]


def main() -> None:
    """Average by MPI, and by gloo."""
    folder = Path(sys.argv[1])
    rank, world = (int(os.environ[f"OMPI_COMM_WORLD_{name}"]) for name in ("RANK", "SIZE"))
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world
    )
    found = {
        f"{method} {name}": mean(method, dtype, compress)
        for method in ("mpi", "flat")
        for name, dtype, compress in (
            ("float64", torch.float64, None),
            ("float32", torch.float32, None),
            ("bfloat16", torch.bfloat16, None),
            ("compressed", torch.float32, "bf16"),
        )
    }
    (folder / f"found-{rank}").write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
