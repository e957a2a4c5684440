"""Copies of sharded parameters: what PyTorch's FSDP makes of them, and what a step has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.compiler.jobs import Job, dense
from wattree.graph import TaskKind
from wattree.job import job_from_mapping
from wattree.predict import estimate
from wattree.strategy import StrategyOptions, Traffic

#: Copies of FSDP1 and FSDP2 by the names of their operators in PyTorch.
_GATHER, _REDUCE = ("split_with_sizes_copy",), ("chunk_cat", "aten.cat")
_RANKS = 4


@pytest.fixture
def ranks() -> Iterator[Any]:
    """Give a mesh of ranks of which only one exists; collectives do nothing."""
    pytest.importorskip("torch")
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=_RANKS)
    yield dist.init_device_mesh("cpu", (_RANKS,))
    dist.destroy_process_group()


def sharded(version: int, mesh: Any, reduce_bytes: int) -> Any:
    """Return two linear layers in 16 bits, sharded by FSDP1 or 2."""
    import torch
    from torch.distributed.fsdp import (
        FullyShardedDataParallel,
        MixedPrecision,
        MixedPrecisionPolicy,
        fully_shard,
    )
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    widths = {2: torch.bfloat16, 4: torch.float32}
    layers = torch.nn.Sequential(*(torch.nn.Linear(64, 64, bias=False) for _ in range(2)))
    words = {"param_dtype": torch.bfloat16, "reduce_dtype": widths[reduce_bytes]}
    if version == 1:
        return FullyShardedDataParallel(
            layers,
            auto_wrap_policy=ModuleWrapPolicy({torch.nn.Linear}),
            mixed_precision=MixedPrecision(**words),
            device_id=torch.device("cpu"),
            use_orig_params=True,
        )
    for module in (*layers, layers):
        fully_shard(
            module,
            mesh=mesh,
            mp_policy=MixedPrecisionPolicy(**words),
            reshard_after_forward=True,
        )
    return layers


def copied_bytes(model: Any) -> tuple[float, float]:
    """Return what a training step of layers reads and writes in copies, per parameter. [B]"""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    found = {_GATHER: 0, _REDUCE: 0}

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = function(*args, **(kwargs or {}))
            written = (kwargs or {}).get("out", result)
            for names in found:
                if any(name in str(function) for name in names):
                    tensors = [t for t in tree_leaves((args, written)) if torch.is_tensor(t)]
                    found[names] += sum(t.nbytes for t in tensors)
            return result

    with Counting():
        model(torch.randn(8, 64)).sum().backward()
    elements = 2 * 64 * 64
    return found[_GATHER] / elements, found[_REDUCE] / elements


@pytest.mark.parametrize(
    ("version", "family"), [(1, "llm-foundry"), (2, "torchtitan"), (2, "accelerate")]
)
def test_copies_are_those_of_pytorch(version: int, family: str, ranks: Any) -> None:
    """Per parameter and pass; FSDP2 copies what it gathers in forward and again in backward."""
    options = StrategyOptions(dp=_RANKS, sharding="zero3")
    job = Job.of(dense(norm="rms"), options, family=family)

    copied = copied_bytes(sharded(version, ranks, int(job.software.reduce_bytes)))

    (group, *_) = job.synchronised("layer")
    elements = group.gather_bytes[0] / job.software.gather_bytes
    counted = (2 * group.gather_copy_bytes[0] / elements, group.reduce_copy_bytes[0] / elements)
    assert copied == counted


@pytest.mark.parametrize(("keeps", "gathers"), [(False, 2), (True, 1)])
def test_copies_are_computation_of_the_step(keeps: bool, gathers: int) -> None:  # noqa: FBT001
    """They are in the stream of computation; what stays gathered is copied once."""
    options = StrategyOptions(
        dp=_RANKS, sharding="zero3", traffic=Traffic(reshard_after_forward=not keeps)
    )
    job = Job.of(dense(), options, family="torchtitan", global_batch=_RANKS)

    graph = job.compiled().graph

    names = [graph.names[name] for name in graph.name_ids]
    copies = np.array([name in {"parameters.copy", "gradients.copy"} for name in names])
    whole = sum(
        gathers * float(group.gather_copy_bytes[0]) + float(group.reduce_copy_bytes[0])
        for instance in job.model.instances
        for group in job.synchronised(instance.block)
    )
    assert set(graph.kind[copies]) == {TaskKind.COMPUTE}
    assert graph.memory_traffic_bytes[copies].sum() == pytest.approx(whole)


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_closed_form_copies_gradients_that_are_reduced_once(micro_batches: int) -> None:
    """With one micro-batch, once is after every one; with more, that much rarer."""
    costs = {}
    for often in (False, True):
        pairs = []
        for copies in ("none", "both"):
            job = job_from_mapping(
                {
                    "model": {
                        "transformer": {"layers": 8, "hidden": 1024, "heads": 8, "vocab": 8192}
                    },
                    "data": {"sequence_length": 1024, "global_batch": 8 * micro_batches},
                    "cluster": {"node": "dgx-h100"},
                    "software": "torchtitan",
                    "traits": {"shard_copies": copies},
                    "strategy": {
                        "dp": 8,
                        "sharding": "zero3",
                        "micro_batch": 1,
                        "reduce_every_micro_batch": often,
                    },
                }
            )
            found = estimate(job)
            pairs.append(np.array([found.step_time_s, found.energy_j.total]))
        costs[often] = pairs[1] - pairs[0]

    # Parameters are copied twice a micro-batch at 4 B; gradients read at 2 B and written at 4 B.
    share = (8 * micro_batches + 6) / (14 * micro_batches)
    # Energy also waits less, and what waits draws less.
    assert costs[False][0] == pytest.approx(share * costs[True][0], rel=0.02)
    assert costs[False][1] == pytest.approx(share * costs[True][1], rel=0.06)
