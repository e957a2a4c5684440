"""Where a strategy becomes a running model: recomputation, then replicas, by PyTorch's libraries.

What ranks share of single layers along tp is in the layers already (`runtime.layers`), and what
they share of samples along cp in attention (`context`). Stages run by `pipeline`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from wattree.runtime.layers import ShardedLinear
from wattree.runtime.models.experts import experts_of
from wattree.runtime.models.trainable import Trainable
from wattree.runtime.parallel.context import AttentionCore
from wattree.runtime.parallel.cut import StageLayers
from wattree.runtime.train.session import RankSession


def blocks_of(part: nn.Module) -> dict[int, nn.Module]:
    """Return number in the whole model → layer, in order; none where nothing is a row of layers.

    Layers of the built-in models are named by their numbers. Of other modules they are what the
    outermost `ModuleList`s hold, counted one after another.

    Args:
        part: A model, or a rank's part of one.
    """
    layers = getattr(part, "layers", None)
    if isinstance(layers, nn.ModuleDict):
        return {int(name): layer for name, layer in layers.items()}
    return dict(enumerate(_listed(part)))


def _listed(module: nn.Module) -> Iterator[nn.Module]:
    if isinstance(module, nn.ModuleList):
        yield from module
        return
    for child in module.children():
        yield from _listed(child)


_MATMULS = frozenset({torch.ops.aten.mm.default, torch.ops.aten.addmm.default})
#: Whether the output of a layer's n-th matmul, counted from 0, is kept for backward.
_Keeps = Callable[[int], bool]
#: Recomputation → which outputs of products are kept, and whether those of attention are.
_KEPT: Mapping[str, tuple[_Keeps, bool]] = {
    "selective_matmul": (lambda _: True, False),
    "selective_operator": (lambda n: n % 2 == 0, True),
    "selective_attention_matmul": (lambda n: n <= 1, False),  # qkv is one product, then the output
    "selective_qkv": (lambda n: n == 0, False),
}
#: Shardings whose parameters are gathered anew for backward.
_GATHERED_AGAIN = ("zero3", "hybrid")


@dataclass(frozen=True, slots=True, kw_only=True)
class AssembledModel:
    """A rank's part of a model, as its strategy runs it.

    Attributes:
        trainable: What it is made of.
        parts: What to call, each instead of the part of the model that it wraps.
        partial: Parameters of which each rank of tp has the gradient of its positions alone.
        tied: Copies of the parameter that the first and the last stage have in common.
        tied_group: The ranks that have the copies; None where that is this one alone.
        twins: Parameters of parts that two stages hold, in the same order on both.
        experts: Parameters of experts, of which ranks of ep have others.
        copied: Elements of all these that another stage has already.
    """

    trainable: Trainable
    parts: tuple[nn.Module, ...]
    partial: tuple[nn.Parameter, ...]
    tied: tuple[nn.Parameter, ...] = ()
    tied_group: Any = None
    twins: tuple[nn.Parameter, ...] = ()
    twins_group: Any = None
    experts: tuple[nn.Parameter, ...] = ()
    copied: int = 0


def assemble(trainable: Trainable, session: RankSession) -> AssembledModel:
    """Return this rank's part of a model, recomputed, replicated and sharded as it should be.

    Args:
        trainable: Its modules, on their device; they are changed in place.
    """
    names = {
        name for name, each in _named(trainable) if getattr(each, "is_partial", False)
    }  # by name: sharded parameters are others
    for part in trainable.parts:
        recompute_in_backward(part, session.recipe.options.memory.recompute)
    parts = tuple(_replicated(part, session) for part in trainable.parts)
    partial = tuple(each for name, each in _named(trainable) if name in names)
    tied = list(_tied(trainable))
    twins = _twins(trainable, session, {id(each) for each, _ in tied})
    second = [part for part, cut in _parts_of(trainable) if cut.route]
    copies = {id(each): each for part in second for each in part.parameters()}
    copies |= {id(each): each for each, is_copy in tied if is_copy}
    return AssembledModel(
        trainable=trainable,
        parts=parts,
        partial=partial,
        tied=tuple(each for each, _ in tied),
        tied_group=None if trainable.tied is None else _ends_group(session),
        twins=twins,
        twins_group=_pair_group(session),
        experts=tuple(experts_of(trainable.module)) if session.recipe.options.ep > 1 else (),
        copied=sum(each.numel() for each in copies.values()),
    )


def _parts_of(trainable: Trainable) -> list[tuple[nn.Module, StageLayers]]:
    """Return the parts of a cut model with their positions, in model order."""
    if not trainable.cuts:
        return []
    return sorted(zip(trainable.parts, trainable.cuts, strict=True), key=lambda each: each[1].chunk)


def _twins(trainable: Trainable, session: RankSession, tied: set[int]) -> tuple[nn.Parameter, ...]:
    """Return the parameters of which another stage has a copy, but for tied ones."""
    if not session.recipe.is_two_way:
        return ()
    return tuple(
        each
        for part, _ in _parts_of(trainable)
        for each in part.parameters()
        if each.requires_grad and id(each) not in tied
    )


def _tied(trainable: Trainable) -> Iterator[tuple[nn.Parameter, bool]]:
    """Yield this rank's copies of parameters shared by first and last part; True: the last."""
    if trainable.tied is None:
        return
    first, last = trainable.tied
    for part, cut in _parts_of(trainable):
        if cut.is_first:
            yield part.get_parameter(first), False
        elif cut.is_last:
            yield part.get_parameter(last), True


def _ends_group(session: RankSession) -> Any:
    """Return the ranks of the first and the last part; None where one has both, or neither."""
    recipe = session.recipe
    route = recipe.schedule.placed(recipe.options.pp).routes[0]
    if route[0].stage == route[-1].stage:
        return None
    return _group_of_stages(session, [(route[0].stage, route[-1].stage)])


def _pair_group(session: RankSession) -> Any:
    """Return the two ranks that hold the same parts of the model; None where one has each."""
    if not session.recipe.is_two_way:
        return None
    last = session.recipe.options.pp - 1
    return _group_of_stages(session, [(stage, last - stage) for stage in range(last // 2 + 1)])


def _group_of_stages(session: RankSession, pairs: Sequence[tuple[int, int]]) -> Any:
    """Return the ranks of the pair of stages that this one is in; None where it is in none."""
    rows = session.recipe.grid.groups(("pp",)).tolist()
    ranks = [sorted((row[one], row[other])) for row in rows for one, other in pairs]
    return dist.new_subgroups_by_enumeration(ranks, timeout=session.timeout)[0]


def _named(trainable: Trainable) -> Iterator[tuple[str, nn.Parameter]]:
    for number, part in enumerate(trainable.parts):
        for name, parameter in part.named_parameters():
            yield f"{number}.{name}", parameter


def _replicated(part: nn.Module, session: RankSession) -> nn.Module:
    if not any(parameter.requires_grad for parameter in part.parameters()):
        return part
    if session.shard_mesh is not None:
        return _fully_sharded(part, session)
    return part if session.data_group is None else _by_buckets(part, session)


def _fully_sharded(part: nn.Module, session: RankSession) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    assert session.shard_mesh is not None
    recipe = session.recipe
    is_gathered_again = recipe.options.memory.sharding in _GATHERED_AGAIN
    options = {
        "mesh": session.shard_mesh,
        # Split backward passes run none of the hooks that gather parameters again: they would read
        # freed memory. The schedule itself gathers a stage and frees it.
        "reshard_after_forward": is_gathered_again and not recipe.splits_backward,
    }
    if session.expert_mesh is not None:
        options["shard_placement_fn"] = _placement(session.expert_mesh, set(experts_of(part)))
    for block in blocks_of(part).values():
        fully_shard(block, **options)
    return fully_shard(part, **options)


def _placement(mesh: Any, experts: set[nn.Parameter]) -> Callable[[nn.Parameter], Any]:
    """Return the argument of `fully_shard` that puts experts on their own mesh."""
    # Its documentation names these; only their module is private (torch 2.13).
    from torch.distributed.fsdp._fully_shard._fsdp_common import (
        FSDPMeshInfo,
        HSDPMeshInfo,
        ShardPlacementResult,
    )

    info = (
        FSDPMeshInfo(mesh, shard_mesh_dim=0)
        if mesh.ndim == 1
        else HSDPMeshInfo(mesh, shard_mesh_dim=1, replicate_mesh_dim=0)
    )
    there = ShardPlacementResult(placement=None, mesh_info=info)
    return lambda parameter: there if parameter in experts else None


def _by_buckets(part: nn.Module, session: RankSession) -> nn.Module:
    # Buckets are laid out anew after the first step unless parameters may be unused. Where more
    # than two add up their gradients in a ring that changes the order in which they do, so that a
    # run that was resumed would differ in the last bits. Replicas that share a device add up in
    # the order of ranks, whatever the buckets are, and one of them goes to the ring.
    keep_buckets = session.recipe.holders // session.recipe.processes_per_device > 2
    return DistributedDataParallel(
        part,
        device_ids=None if session.device.type == "cpu" else [session.device.index],
        process_group=session.data_group,
        find_unused_parameters=keep_buckets,
        gradient_as_bucket_view=True,
    )


def recompute_in_backward(part: nn.Module, kind: str) -> None:
    """Let layers recompute in backward the tensors that they do not save.

    Names of parameters stay as they are.

    Args:
        part: A model, or a rank's part of one.
        kind: One of `RECOMPUTATIONS`, or `block_N`.
    """
    if kind == "selective":
        cores = [each for each in part.modules() if isinstance(each, AttentionCore)]
        _checkpoint(iter(cores))
    elif kind in _KEPT:
        keeps, attention = _KEPT[kind]
        _checkpoint(iter(blocks_of(part).values()), keeps=keeps, attention=attention)
    elif kind != "none":
        every = 1 if kind == "full" else int(kind.removeprefix("block_"))
        blocks = blocks_of(part).items()
        _checkpoint(layer for number, layer in blocks if number % every == 0)


def _checkpoint(
    modules: Iterator[nn.Module], *, keeps: _Keeps | None = None, attention: bool = False
) -> None:
    for module in modules:
        options: dict[str, Any] = {"use_reentrant": False}
        if keeps is not None:
            options["context_fn"] = partial(_contexts, keeps, attention, _numbered(module))
        # Not a wrapper around the module: its parameters would have other names.
        module.forward = partial(checkpoint, module.forward, **options)


def _numbered(module: nn.Module) -> list[int]:
    """Return where to read the number of the linear layer that computes, in the order of calls."""
    current = [0]

    def hook(number: int) -> Callable[..., None]:
        def entered(*_: Any) -> None:
            current[0] = number

        return entered

    layers = (each for each in module.modules() if isinstance(each, (nn.Linear, ShardedLinear)))
    for number, layer in enumerate(layers):
        layer.register_forward_pre_hook(hook(number))
    return current


def _contexts(keeps: _Keeps, attention: bool, current: list[int]) -> Any:  # noqa: FBT001 - as above
    def policy(_: Any, operator: Any, *__: Any, **___: Any) -> CheckpointPolicy:
        is_kept = attention and "scaled_dot_product" in str(operator)
        if operator in _MATMULS:
            is_kept = keeps(current[0])
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
