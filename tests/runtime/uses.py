"""What ranks do in the tests of how layers are used; `tests/distributed/ranks.py` starts them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.runtime.faults import disagreements, misuse
from wattree.runtime import (
    ColumnParallelLinear,
    GatherRowsLinear,
    Group,
    LowRankLinear,
    PhantomLinear,
    RowParallelLinear,
)

#: Ghosts here; 4 divides what all-reduces cut, so that bytes are whole numbers.
GHOSTS = 4


def contestants(group: Any, **made: Any) -> dict[str, Callable[[int, int], nn.Module]]:
    """Return makers of two-layer models of every contestant; widths `n`, then `h`, then `n`."""
    ghosts = {"group": group, "ghosts": GHOSTS, **made}
    rows, cut = {"group": group, **made}, {"group": group, "sequence_parallel": True, **made}

    def pair(first: Any, second: Any, one: dict[str, Any], two: dict[str, Any]) -> Any:
        return lambda n, h: nn.Sequential(first(n, h, **one), nn.GELU(), second(h, n, **two))

    again = {**ghosts, "regather": True}
    shared = {**ghosts, "variant": "shared"}
    column, row = ColumnParallelLinear, RowParallelLinear
    return {
        "phantom": pair(PhantomLinear, PhantomLinear, ghosts, ghosts),
        "shared": pair(PhantomLinear, PhantomLinear, shared, shared),
        "again": pair(PhantomLinear, PhantomLinear, again, again),
        "low rank": pair(LowRankLinear, LowRankLinear, ghosts, ghosts),
        "rows": pair(GatherRowsLinear, GatherRowsLinear, rows, rows),
        "megatron": pair(column, row, rows, rows),
        "sequence": pair(column, row, cut, cut),
    }


def input_of(name: str, n: int, size: int, rows: int = 8) -> Tensor:
    """Return an input for a contestant, the same on every rank where it has to be."""
    width = n if name in {"megatron", "sequence"} else n // size
    stream = torch.Generator().manual_seed(11)
    return torch.randn(rows, 2, width, generator=stream)


def gradients(model: nn.Module, x: Tensor, call: Callable[[Tensor], Tensor] | None = None) -> Any:
    """Return output and gradients of a step; the input's first."""
    for parameter in model.parameters():
        parameter.grad = None
    x = x.detach().clone().requires_grad_()
    y = (call or model)(x)
    y.float().square().sum().backward()
    return [y.detach(), x.grad, *[parameter.grad for parameter in model.parameters()]]


def differences(found: list[Tensor], wanted: list[Tensor]) -> float:
    """Return the largest difference, relative to the largest value of each tensor."""
    pairs = zip(found, wanted, strict=True)
    return max(float((a - b).abs().max() / b.abs().max().clamp_min(1e-12)) for a, b in pairs)


def recomputed(*, reentrant: bool) -> dict[str, float]:
    """Return by how much activation checkpointing changes gradients."""
    group = Group()
    found = {}
    for name, make in contestants(group).items():
        model, x = make(16, 32), input_of(name, 16, group.size)
        wanted = gradients(model, x)
        kept = gradients(model, x, lambda x, m=model: checkpoint(m, x, use_reentrant=reentrant))
        found[name] = differences(kept, wanted)
    return found


def accumulated() -> dict[str, float]:
    """Return by how much the gradients of two halves of a batch differ from those of the whole."""
    group = Group()
    found = {}
    for name, make in contestants(group).items():
        model = make(16, 32)
        whole = input_of(name, 16, group.size)
        wanted = gradients(model, whole)[2:]
        for parameter in model.parameters():
            parameter.grad = None
        for part in whole.chunk(2, dim=1):
            model(part).square().sum().backward()
        found[name] = differences([parameter.grad for parameter in model.parameters()], wanted)
    return found


def autocasted() -> dict[str, list[Any]]:
    """Return types, and by how much gradients under autocast differ from those in float32."""
    group = Group()
    found = {}
    for name, make in contestants(group).items():
        model, x = make(16, 32), input_of(name, 16, group.size)
        wanted = gradients(model, x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y, *others = gradients(model, x)
        types = sorted({str(each.dtype) for each in others})
        found[name] = [str(y.dtype), types, differences([y.float(), *others], wanted)]
    return found


def compiled() -> float:
    """Return by how much a model differs that is compiled around its layers."""
    group = Group()
    model, x = contestants(group)["phantom"](16, 32), input_of("phantom", 16, group.size)
    other = copy.deepcopy(model)
    call = torch.compile(other, backend="aot_eager")
    return differences(gradients(other, x, call), gradients(model, x))


def all_together() -> dict[str, float]:
    """Return by how much gradients differ under all at once: autocast, in halves, computed again.

    Against the same in bfloat16, in one go, with everything kept.
    """
    group = Group()
    found = {}
    for name, make in contestants(group).items():
        model, x = make(16, 32), input_of(name, 16, group.size)
        other = copy.deepcopy(model)
        for part in x.chunk(2, dim=1):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = checkpoint(other, part, use_reentrant=False)
                loss = y.float().square().sum()
            loss.backward()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            whole = model(x).float().square().sum()
        whole.backward()
        found[name] = differences(
            [each.grad for each in other.parameters()], [each.grad for each in model.parameters()]
        )
    return found


def on_a_mesh() -> dict[str, float]:
    """Return by how much gradients differ from the mean over replicas; 2 replicas of 2 ranks."""
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    data, rank = mesh.get_group("data"), mesh.get_local_rank("data")
    found = {}
    for name, make in contestants(mesh["model"]).items():
        model = make(16, 32)
        x = input_of(name, 16, 2) * (1 + rank)  # replicas see different batches
        wrapped = nn.parallel.DistributedDataParallel(model, process_group=data)
        averaged = gradients(model, x, wrapped)[2:]
        with wrapped.no_sync():
            own = gradients(model, x)[2:]
        for each in own:
            dist.all_reduce(each, group=data)
        found[name] = differences(averaged, [each / 2 for each in own])
    return found


def payload(n: int, h: int, rows: int) -> dict[str, dict[str, int]]:
    """Return the bytes that each collective of one step sent from this rank."""
    found = {}
    for name in contestants(None):
        group = Group()
        model = contestants(group)[name](n, h)
        gradients(model, input_of(name, n, group.size, rows))
        found[name] = dict(group.traffic.sent_bytes)
    return found


class Cut(torch.autograd.Function):
    """This rank's part of what all ranks have; backward puts the parts together."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, dim: int) -> Tensor:
        """Return the part."""
        ctx.dim = dim
        return whole.chunk(dist.get_world_size(), dim)[dist.get_rank()].clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Return the whole gradient."""
        return joined(grad, ctx.dim), None


class Join(torch.autograd.Function):
    """All ranks' parts; of one scalar that all ranks compute, each takes back its part."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, dim: int) -> Tensor:
        """Return the whole."""
        ctx.dim = dim
        return joined(part, dim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of the part."""
        return grad.chunk(dist.get_world_size(), ctx.dim)[dist.get_rank()].clone(), None


def joined(part: Tensor, dim: int) -> Tensor:
    """Return everybody's parts along a dim."""
    found = [torch.empty_like(part) for _ in range(dist.get_world_size())]
    dist.all_gather(found, part.contiguous())
    return torch.cat(found, dim)


def checked() -> dict[str, bool]:
    """Return what `gradcheck` says, over everybody's inputs and parameters.

    Each rank perturbs what all ranks have, so that numeric gradients are those of the whole layer.
    """
    group = Group()
    made: dict[str, Any] = {"group": group, "dtype": torch.float64}
    torch.manual_seed(0)
    layers = {
        "pair": PhantomLinear(4, 4, ghosts=1, **made),
        "regathered": PhantomLinear(4, 2, ghosts=1, regather=True, **made),
        "shared": PhantomLinear(4, 2, ghosts=2, variant="shared", **made),
        "rows": GatherRowsLinear(4, 2, **made),
        "low rank": LowRankLinear(4, 2, ghosts=1, **made),
    }
    found = {}
    for name, layer in layers.items():
        names = [key for key, _ in layer.named_parameters()]
        whole = [joined(p.detach(), 0).requires_grad_() for p in layer.parameters()]
        x = torch.randn(2, 4, dtype=torch.float64).requires_grad_()

        def call(x: Tensor, *whole: Tensor, layer: Any = layer, names: Any = names) -> Tensor:
            own = {key: Cut.apply(each, 0) for key, each in zip(names, whole, strict=True)}
            return Join.apply(torch.func.functional_call(layer, own, (Cut.apply(x, 1),)), 1)

        found[name] = torch.autograd.gradcheck(call, (x, *whole))
    return found


def any_dense() -> float:
    """Return the error of a dense layer made of ghosts as many as neurons, compressors identity."""
    group = Group()
    n, size = 4 * group.size, group.size
    stream = torch.Generator().manual_seed(2)
    dense = torch.randn(n, n, dtype=torch.float64, generator=stream)
    x = torch.randn(5, n, dtype=torch.float64, generator=stream)
    layer = PhantomLinear(n, n, ghosts=4, bias=False, group=group, dtype=torch.float64)
    blocks = [row.chunk(size, 1) for row in dense.chunk(size, 0)]
    with torch.no_grad():
        layer.weight.copy_(blocks[group.rank][group.rank])
        layer.compressor.copy_(torch.eye(4))
        own = [blocks[group.rank][peer] for peer in group.peers]
        layer.decompressor.copy_(torch.cat(own, 1))
    wanted = (x @ dense.t()).chunk(size, 1)[group.rank]
    return differences([layer(x.chunk(size, 1)[group.rank]), layer.dense_weight()], [wanted, dense])


def variances(n: int, ghosts: int) -> dict[str, float]:
    """Return the variance of the dense weight times `n`, by variant; and how alike blocks are."""
    group = Group()
    torch.manual_seed(0)
    found = {}
    for variant in ("pair", "shared"):
        layer = PhantomLinear(n, n, ghosts=ghosts, variant=variant, group=group)
        dense = layer.dense_weight()
        found[variant] = float(dense.var() * n)
        # Off the diagonal alone: the diagonal blocks are drawn directly.
        own = dense.chunk(group.size, 0)[0].chunk(group.size, 1)
        found[f"{variant}, off the diagonal"] = float(torch.cat(own[1:], 1).var() * n)
        diagonal = [row.chunk(group.size, 1)[i] for i, row in enumerate(dense.chunk(group.size, 0))]
        found[f"{variant}, ranks alike"] = float((diagonal[0] == diagonal[1]).double().mean())
    return found


def four_ranks() -> dict[str, Any]:
    """Return what four ranks find."""
    torch.manual_seed(1)
    return {
        "recomputed": {
            str(reentrant): recomputed(reentrant=reentrant) for reentrant in (True, False)
        },
        "accumulated": accumulated(),
        "autocasted": autocasted(),
        "mesh": on_a_mesh(),
        "any dense": any_dense(),
        "payload": payload(16, 32, 8),
        "variances": variances(256, 16),
    }


def two_ranks() -> dict[str, Any]:
    """Return what two ranks find; the compiler's loading takes seconds of each."""
    torch.manual_seed(1)
    return {
        "compiled": compiled(),
        "together": all_together(),
        "checked": checked(),
        "disagreements": disagreements(),
        "misuse": misuse(),
    }
