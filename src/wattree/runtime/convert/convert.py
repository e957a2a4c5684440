"""Replaces a model's linear layers by phantom layers, on the ranks that share it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from wattree.errors import StrategyError
from wattree.runtime.convert.adjust import adjusted_by
from wattree.runtime.convert.cuts import LayerCut, cuts_of
from wattree.runtime.convert.dense import DenseLayer, linear_layers, set_layer
from wattree.runtime.convert.families import shipped_plan
from wattree.runtime.convert.inputs import InputBorder, borders_of
from wattree.runtime.convert.layers import built
from wattree.runtime.convert.moments import Moments, input_moments
from wattree.runtime.convert.plan import ConversionPlan, ConversionRule, CutKind, plan_of_mapping
from wattree.runtime.convert.report import ConversionReport, LayerReport, report_of
from wattree.runtime.convert.states import output_order, split_dense
from wattree.runtime.group import Group

#: Attribute of a converted module that says what became of it.
_ATTRIBUTE = "phantom_conversion"


def phantomize(
    module: nn.Module,
    mesh: Any = None,
    *,
    ghosts: int,
    plan: str | ConversionPlan | Mapping[str, str | ConversionRule],
    variant: str = "pair",
    from_dense: bool = True,
    calibration: Iterable[Any] | None = None,
    **options: Any,
) -> nn.Module:
    """Convert linear layers of a module to phantom layers over ranks; all of them call this.

    The module is changed and returned; what was done is in `conversion_of(module)`. Every rank
    gives the same whole module. Afterward, parameters outside the converted layers are copies,
    which stay equal if all ranks are given the same inputs and draw the same random numbers.

    Args:
        module: Dense; on the device and of the type that its layers are to have.
        mesh: `Group`, `ProcessGroup` or 1-D `DeviceMesh`; None for all ranks.
        ghosts: Ghost neurons of each rank, k; 0 leaves blocks on the diagonal.
        plan: Which layers, and how they lie: `ffn`, `mlp`, `all`, a `ConversionPlan`, or patterns
            of names → `[phantom] whole|shard -> whole|shard`, `column`, `row`, `rows` or `keep`.
        variant: `pair` or `shared` decompressors.
        from_dense: Approximate the module's weights (see `factor.py`). Otherwise draw initial
            values whose variance is that of the weights they replace.
        calibration: Inputs of the module, by which errors are weighed, others on each rank:
            tensors, tuples of positional or mappings of named arguments.
        options: Of `PhantomLinear`: `overlap`, `regather`.

    Raises:
        StrategyError: All that does not fit, with the layers' names; nothing has changed then.
        CommunicationError: Ranks have different modules or ask for different things.
    """
    group = Group.of(mesh)
    _check_options(options, from_dense=from_dense, calibration=calibration)
    chosen, cuts = planned(module, plan, size=group.size, ghosts=ghosts, variant=variant)
    _compare(module, cuts, group, from_dense=from_dense)
    adjusted = adjusted_by(chosen, module, cuts, group.size)
    moments: Mapping[str, Moments] = {}
    if calibration is not None:
        names = [name for name, cut in cuts.items() if cut.kind is CutKind.PHANTOM]
        moments = input_moments(module, names, calibration, group)
    reports, dense, borders = [], linear_layers(module), borders_of(cuts.values())
    for name, cut in cuts.items():
        layer, report = _converted(
            dense[name],
            cut,
            group,
            options,
            from_dense=from_dense,
            moments=moments.get(name),
            border=borders.get(name),
        )
        set_layer(module, name, layer)
        reports.append(report)
    for (place, attribute), value in adjusted.items():
        setattr(module.get_submodule(place), attribute, value)
    setattr(module, _ATTRIBUTE, ConversionReport(size=group.size, layers=tuple(reports)))
    return module


def conversion_of(module: nn.Module) -> ConversionReport:
    """Return the conversion of a module.

    Raises:
        StrategyError: It has not been converted.
    """
    found = getattr(module, _ATTRIBUTE, None)
    if not isinstance(found, ConversionReport):
        raise StrategyError({"module": f"is a {type(module).__name__} that was not converted"})
    return found


def export_dense(module: nn.Module) -> dict[str, Tensor]:
    """Return the state of the equivalent dense module, on every rank; a collective call.

    Returns:
        Keys and shapes of the original module's `state_dict`, which loads it.

    Raises:
        StrategyError: The module was not converted.
    """
    cuts = {layer.cut.name: layer.cut for layer in conversion_of(module).layers}
    state = module.state_dict()
    found = {key: each for key, each in state.items() if key.rpartition(".")[0] not in cuts}
    for name, cut in cuts.items():
        it: Any = module.get_submodule(name)
        order = output_order(cut).argsort().to(it.weight.device)
        weight, bias = it.dense_weight()[order], it.dense_bias()
        found[f"{name}.weight"] = (weight.t() if cut.is_transposed else weight).contiguous()
        if bias is not None:
            found[f"{name}.bias"] = bias[order]
    return found


def planned(
    module: nn.Module, plan: Any, *, size: int, ghosts: int, variant: str
) -> tuple[ConversionPlan, dict[str, LayerCut]]:
    """Return the plan of a module that is still dense, and the cut of each layer.

    Raises:
        StrategyError: It does not fit.
    """
    if hasattr(module, _ATTRIBUTE):
        raise StrategyError({"module": "has been converted; export its dense weights first"})
    chosen = plan
    if not isinstance(plan, ConversionPlan):
        chosen = shipped_plan(module, plan) if isinstance(plan, str) else plan_of_mapping(plan)
    return chosen, cuts_of(module, chosen, size=size, ghosts=ghosts, variant=variant)


def _check_options(options: Mapping[str, Any], *, from_dense: bool, calibration: Any) -> None:
    known = ("overlap", "regather")
    misfits = {
        name: f"is no option; expected one of {', '.join(known)}"
        for name in options
        if name not in known
    }
    if calibration is not None and not from_dense:
        misfits["calibration"] = "is for from_dense=True; initial values are drawn"
    if misfits:
        raise StrategyError(misfits)


def _converted(
    dense: DenseLayer,
    cut: LayerCut,
    group: Group,
    options: Mapping[str, Any],
    *,
    from_dense: bool,
    moments: Moments | None,
    border: InputBorder | None,
) -> tuple[nn.Module, LayerReport]:
    layer = built(cut, dense.module, group, options, border)
    if dense.weight.is_meta:
        return layer, report_of(cut, None, None, None)
    if not from_dense:
        _start(layer, dense.weight, dense.bias)
        return layer, report_of(cut, None, None, None)
    state, report = split_dense(cut, dense.weight, dense.bias, moments=moments, group=group)
    layer.load_state_dict(state)
    return layer, report


def _start(layer: Any, weight: Tensor, bias: Tensor | None) -> None:
    """Draw initial values with the variance of the dense layer."""
    layer.reset_parameters(gain=float(weight.double().square().mean()) * weight.shape[1])
    if bias is not None and not bool(bias.any()):
        nn.init.zeros_(layer.bias)


def _compare(
    module: nn.Module, cuts: Mapping[str, LayerCut], group: Group, *, from_dense: bool
) -> None:
    """Raise if modules differ between ranks: they would take parts of different layers."""
    if group.size == 1:
        return
    tensors = [each for each in module.state_dict().values() if isinstance(each, Tensor)]
    device = next((each.device for each in tensors if not each.is_meta), torch.device("cpu"))
    cut = hashlib.sha256(repr([replace(each, size=1) for each in cuts.values()]).encode())
    facts = {
        "kind": "phantomize",
        "layers": list(cuts)[:3],
        "plan": cut.hexdigest()[:12],
        "from_dense": from_dense,
        "weights": sum(_mark(each) for each in tensors if not each.is_meta) % 2**62,
    }
    group.compare(facts, "phantomize", device)


def _mark(tensor: Tensor) -> int:
    """Return a checksum of the bits that is independent of the order of summation."""
    widths = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    if tensor.numel() == 0 or tensor.element_size() not in widths or tensor.is_complex():
        return tensor.numel()
    bits = tensor.detach().contiguous().view(widths[tensor.element_size()]).reshape(-1).long()
    return int((bits * bits + bits).sum())
