"""Single-process training on all devices of a node, as PyTorch's `nn.DataParallel` does.

Each step scatters the samples from the first device, sends the parameters to all, computes the
replicas' forward from threads that share an interpreter, gathers the outputs on the first device,
which makes the loss; gradients go the way back, and are summed on the first device, which alone
updates (torch/nn/parallel/data_parallel.py; Li et al., "PyTorch Distributed", VLDB 2020, §2.2).
"""

from __future__ import annotations

from wattree.errors import StrategyError
from wattree.graph import ModelGraph, OperatorKind
from wattree.strategy.options import StrategyOptions
from wattree.strategy.parts import operator_patterns
from wattree.strategy.tree import OWNER, StrategyTree, TreeNode


def single_process(model: ModelGraph) -> StrategyTree:
    """Return the place of the loss: the first device, for the samples of all."""
    first = TreeNode(compute={"batch": (), OWNER: ("dp",)})
    losses = operator_patterns(model, lambda o: o.kind is OperatorKind.CROSS_ENTROPY)
    return StrategyTree(nodes={pattern: first for pattern, _ in losses})


def samples_of_a_device(options: StrategyOptions, global_batch: int) -> int:
    """Return the samples of a forward pass on one device: a step has a single one."""
    return (
        global_batch // options.dp
        if options.parallelism.single_process
        else options.pipeline.micro_batch
    )


def check_single_process(options: StrategyOptions, global_batch: int) -> None:
    """Raise an error for settings that a single process does not support.

    Raises:
        StrategyError: Other axes than `dp`, sharded state, or several micro-batches.
    """
    if not options.parallelism.single_process:
        return
    found = {
        f"strategy.{axis}": f"found {options.value(axis)} with a single process "
        "(nn.DataParallel), which knows replicas only; use dp, or another preset"
        for axis in ("fsdp", "tp", "cp", "pp", "ep")
        if options.value(axis) > 1
    }
    if (sharding := options.memory.sharding) != "none":
        found["strategy.sharding"] = (
            f"found '{sharding}' with a single process (nn.DataParallel), which keeps all "
            "state on the first device; leave it out"
        )
    if (tables := options.parallelism.tables) != "data-parallel":
        found["strategy.tables"] = (
            f"found '{tables}' with a single process (nn.DataParallel), which sends whole "
            "parameters to every device; leave it out"
        )
    whole = global_batch / options.dp
    if (micro_batch := options.pipeline.micro_batch) not in (1, whole):
        found["strategy.micro_batch"] = (
            f"found {micro_batch} with a single process (nn.DataParallel), which sends the "
            f"whole batch at once: {whole:g} samples on each of {options.dp} devices; leave it out"
        )
    if found:
        raise StrategyError(found)
