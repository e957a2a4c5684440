"""What ranks do in the tests of converting; `tests/distributed/ranks.py` starts them."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.runtime.convert_models import FAMILIES, encoder, family, stack
from wattree.errors import WattreeError
from wattree.runtime import (
    PhantomLinear,
    conversion_of,
    export_dense,
    phantomize,
)
from wattree.runtime.convert.inputs import InputBorder, SharedColumnLinear
from wattree.runtime.convert.states import output_order


def relative(found: Tensor, wanted: Tensor) -> float:
    """Return the largest difference over the largest value.

    What is zero but for rounding, as the gradients of the biases of keys, counts as that large.
    """
    if found.shape != wanted.shape:
        return float("inf")
    return float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1e-6))


def pulled(module: nn.Module, x: Tensor) -> Tensor:
    """Return what a module answers, having sent a gradient back."""
    module.zero_grad()
    y = module(x)
    y.sin().sum().backward()
    return y.detach()


def differences(original: nn.Module, converted: nn.Module, x: Tensor) -> dict[str, float]:
    """Return errors of output and gradients against the module with the exported weights."""
    dense = copy.deepcopy(original)
    dense.load_state_dict(export_dense(converted))
    with torch.no_grad():
        errors = {"answer without gradients": relative(converted(x), dense(x))}
    errors["answer"] = relative(pulled(converted, x), pulled(dense, x))
    cuts = {layer.cut.name: layer.cut for layer in conversion_of(converted).layers}
    errors["common"] = max(
        (
            relative(each.grad, dense.get_parameter(name).grad)
            for name, each in converted.named_parameters()
            if name.rpartition(".")[0] not in cuts and each.grad is not None
        ),
        default=0.0,
    )
    errors["own"] = max(own_error(dense, converted, cut) for cut in cuts.values())
    return errors


def own_error(dense: nn.Module, converted: nn.Module, cut: Any) -> float:
    """Return the error of the gradients of a layer's own block and bias."""
    layer: Any = converted.get_submodule(cut.name)
    whole = dense.get_submodule(cut.name)
    gradient = whole.weight.grad.t() if cut.is_transposed else whole.weight.grad
    rank, order = layer.group.rank, output_order(cut)
    # Row and column layers have one side whole; their widths are of one part then.
    rows = [*order.split(list(cut.out_widths)), *[order] * cut.size][
        rank if len(cut.out_widths) > 1 or cut.size == 1 else 0
    ]
    columns = list(torch.arange(cut.in_features).split(list(cut.in_widths)))
    own = columns[rank if len(columns) > 1 else 0]
    if layer.weight.shape[1] == cut.in_features:
        own = torch.arange(cut.in_features)
    errors = [relative(layer.weight.grad, gradient[rows][:, own])]
    if cut.bias:
        errors.append(relative(layer.bias.grad, whole.bias.grad[rows]))
    return max(errors)


def four_ranks() -> dict[str, Any]:
    """Stacks, an encoder, and what is said of weights."""
    torch.manual_seed(5)
    found: dict[str, Any] = {"differences": {}}
    x = torch.randn(6, 13, dtype=torch.float64)
    for variant in ("pair", "shared"):
        for from_dense in (True, False):
            original = stack(13, 18, 15, 7)
            torch.manual_seed(8)
            made = phantomize(
                copy.deepcopy(original),
                ghosts=2,
                plan="ffn",
                variant=variant,
                from_dense=from_dense,
                calibration=[x] if from_dense and variant == "shared" else None,
            )
            found["differences"][f"stack, {variant}, {from_dense}"] = differences(original, made, x)
    original, plan = stack(13, 18, 15, 7), {"0": "column", "2": "rows", "4": "row"}
    made = phantomize(copy.deepcopy(original), ghosts=0, plan=plan)
    found["differences"]["exact kinds"] = differences(original, made, x)
    found["exact"] = relative(made(x).detach(), original(x).detach())
    words = torch.randn(3, 5, 16, dtype=torch.float64)
    original = encoder()
    made = phantomize(copy.deepcopy(original), ghosts=3, plan="mlp")
    found["differences"]["encoder"] = differences(original, made, words)
    return found | {"weights": weights(), "calibrated": calibrated()} | initial()


def weights() -> dict[str, Any]:
    """Return stated errors of conversions and those of the exported weights, and what is exact."""
    found: dict[str, Any] = {"stated": [], "again": [], "fewer": []}
    half = [dist.new_group([0, 1]), dist.new_group([2, 3])][dist.get_rank() // 2]
    x = torch.randn(6, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for variant in ("pair", "shared"):
        dense = stack(12, 20, 12)
        as_dict: dict[str, Any] = {"plan": "ffn", "variant": variant}
        made = phantomize(copy.deepcopy(dense), ghosts=1, **as_dict)
        state = export_dense(made)
        for layer in conversion_of(made).layers:
            weight = dense.get_parameter(f"{layer.cut.name}.weight")
            missed = (weight - state[f"{layer.cut.name}.weight"]).norm() / weight.norm()
            found["stated"].append((layer.error, float(missed)))
        dense.load_state_dict(state)
        again = conversion_of(phantomize(copy.deepcopy(dense), ghosts=1, **as_dict))
        found["again"] += [layer.off_diagonal_error for layer in again.layers]
        # A rank in the place of two has the ghosts of both.
        fewer = phantomize(copy.deepcopy(dense), half, ghosts=2, **as_dict)
        found["fewer"].append(relative(fewer(x).detach(), made(x).detach()))
    for name, ghosts in (("full", 3), ("none", 0)):
        made = phantomize(stack(12, 12, 12), ghosts=ghosts, plan="ffn")
        found[name] = [layer.off_diagonal_error for layer in conversion_of(made).layers]
    return found


def calibrated() -> dict[str, Any]:
    """Return errors of outputs without and with calibration, and what the report states."""
    stream = torch.Generator().manual_seed(1)
    mixed = torch.randn(16, 16, generator=stream).double() * 0.7 ** torch.arange(16)
    inputs = torch.randn(2000, 16, generator=stream).double() @ mixed.t() + 0.5
    found: dict[str, Any] = {}
    mine = inputs[dist.get_rank() :: 4]
    for variant in ("pair", "shared"):
        original, missed = stack(16, 16, 16), []
        for calibration in (None, [mine[:300], (mine[300:],)]):
            made = phantomize(
                copy.deepcopy(original),
                ghosts=2,
                plan="ffn",
                variant=variant,
                calibration=calibration,
            )
            state = export_dense(made)
            with torch.no_grad():
                wanted = original[0](inputs)
                answer = inputs @ state["0.weight"].t() + state["0.bias"]
            missed.append(float((answer - wanted).norm() / (wanted - wanted.mean(0)).norm()))
        found[variant] = (*missed, conversion_of(made).layers[0].weighted_error)
    return found


def initial() -> dict[str, Any]:
    """Return the variance of initial weights over that of the weights they replace."""
    torch.manual_seed(9)
    made = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))
    for layer in (made[0], made[2]):
        nn.init.normal_(layer.weight, std=0.02)
        nn.init.zeros_(layer.bias)
    phantomize(made, ghosts=16, plan="ffn", from_dense=False)
    state = export_dense(made)
    return {
        "variances": [
            float(state[f"{name}.weight"].square().mean()) / 0.02**2 for name in ("0", "2")
        ],
        "biases": float(state["0.bias"].abs().max()),
    }


def two_ranks() -> dict[str, Any]:
    """Models of transformers, and what ranks cannot agree on."""
    ids = torch.randint(32, (2, 7), generator=torch.Generator().manual_seed(1))
    found: dict[str, Any] = {"differences": {}, "layers": {}}
    for name in FAMILIES:
        for plan in ("mlp", "all"):
            if name == "opt" and plan == "all":
                continue
            original = family(name)
            made = phantomize(copy.deepcopy(original), ghosts=3, plan=plan)
            key = f"{name}, {plan}"
            found["differences"][key] = differences(original, made, ids)
            found["layers"][key] = sum(isinstance(each, PhantomLinear) for each in made.modules())
    return found | {"refused": refusals(), "compiled": compiled(), "copies": copies(ids)}


def refusals() -> dict[str, str]:
    """Return what is said of meshes and modules that do not do."""
    rank = dist.get_rank()
    mesh = dist.init_device_mesh("cpu", (1, 2), mesh_dim_names=("data", "model"))
    as_dict: dict[str, Any] = {"plan": "ffn", "ghosts": 1}
    column = SharedColumnLinear(8, 8, border=InputBorder(), name="key")
    x = torch.ones(2, 8, requires_grad=rank == 1)
    calls = {
        "gradients": lambda: column(x),
        "mesh": lambda: phantomize(stack(8, 8, 8), mesh, **as_dict),
        "weights": lambda: phantomize(stack(8, 8, 8, seed=rank), **as_dict),
        "ghosts": lambda: phantomize(stack(8, 8, 8), **{**as_dict, "ghosts": 1 + rank}),
        "nothing": lambda: phantomize(stack(8, 8, 8), mesh["model"], **as_dict),
    }
    found = {}
    for name, call in calls.items():
        found[name] = "nothing"
        try:
            call()
        except WattreeError as error:
            found[name] = str(error)
    return found


def compiled() -> float:
    """Return how a converted model differs once it is compiled around its layers."""
    made = phantomize(stack(8, 12, 8), plan="ffn", ghosts=2)
    x = torch.randn(5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    quick = torch.compile(made, backend="aot_eager")
    return relative(pulled(quick, x), pulled(made, x))


def copies(ids: Tensor) -> float:
    """Return how far what ranks have copies of is apart after steps of learning."""
    made = phantomize(
        family("llama"), ghosts=3, plan="all", calibration=[ids[dist.get_rank()][None]]
    )
    optimizer = torch.optim.AdamW(made.parameters(), 1e-2)
    for _ in range(5):
        pulled(made, ids)
        optimizer.step()
    cuts = {layer.cut.name for layer in conversion_of(made).layers}
    apart = 0.0
    for name, each in made.named_parameters():
        if name.rpartition(".")[0] not in cuts:
            first = each.detach().clone()
            dist.broadcast(first, 0)
            apart = max(apart, relative(each.detach(), first))
    return apart
