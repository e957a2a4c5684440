"""Shards of all ranks of a converted module in one process: split, merge, export to dense."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from wattree.errors import StrategyError
from wattree.runtime.convert.adjust import adjusted_by, set_adjusted
from wattree.runtime.convert.convert import conversion_of, keep_conversion, moments_for, planned
from wattree.runtime.convert.cuts import LayerCut
from wattree.runtime.convert.dense import linear_layers, set_layer
from wattree.runtime.convert.inputs import borders_of
from wattree.runtime.convert.layers import built
from wattree.runtime.convert.plan import ConversionPlan, ConversionRule
from wattree.runtime.convert.report import ConversionReport, parameters_of
from wattree.runtime.convert.states import (
    State,
    dense_of,
    merged_states,
    output_order,
    split_dense,
    state_shapes,
)
from wattree.runtime.group import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """All ranks of a converted module.

    Attributes:
        conversion: What became of its layers.
        common: What every rank has whole: the rest of the state, by key.
        states: By rank: layer → its parameters.
    """

    conversion: ConversionReport
    common: Mapping[str, Tensor]
    states: tuple[Mapping[str, State], ...]

    def dense(self) -> dict[str, Tensor]:
        """Return the state of the equivalent dense module, which the original module can load."""
        found = dict(self.common)
        for layer in self.conversion.layers:
            cut = layer.cut
            weight, bias = dense_of(cut, [state[cut.name] for state in self.states])
            found |= _original(cut, weight, bias)
        return found

    def merged(self, size: int) -> Shards:
        """Return the same function on fewer ranks, exact up to rounding.

        Raises:
            StrategyError: Some layers cannot be merged to so many.
        """
        states = [dict[str, State]() for _ in range(max(size, 0))]
        cuts, misfits = [], dict[str, str]()
        for layer in self.conversion.layers:
            name = layer.cut.name
            try:
                cut, parts = merged_states(layer.cut, [each[name] for each in self.states], size)
            except StrategyError as error:
                misfits |= {f"{name}.{key}": why for key, why in error.misfits.items()}
                continue
            for state, part in zip(states, parts, strict=True):
                state[name] = part
            cuts.append(
                replace(layer, cut=cut, off_diagonal_error=None, parameters=parameters_of(cut))
            )
        if misfits:
            raise StrategyError(misfits)
        conversion = replace(self.conversion, size=size, layers=tuple(cuts))
        return replace(self, conversion=conversion, states=tuple(states))


def split_model(
    module: nn.Module,
    *,
    ranks: int,
    ghosts: int,
    plan: str | ConversionPlan | Mapping[str, str | ConversionRule],
    variant: str = "pair",
    calibration: Iterable[Any] | None = None,
) -> Shards:
    """Return the result of `phantomize` for each of `ranks`, computed in this process alone.

    The module stays as it is.

    Args:
        module: Dense.
        ghosts, plan, variant, calibration: As of `phantomize`.

    Raises:
        StrategyError: All that does not fit.
    """
    chosen, cuts = planned(module, plan, size=ranks, ghosts=ghosts, variant=variant)
    adjusted = adjusted_by(chosen, module, cuts)
    moments = moments_for(module, cuts, calibration)
    layers = linear_layers(module)
    reports, states = [], [dict[str, State]() for _ in range(ranks)]
    for name, cut in cuts.items():
        parts, report = split_dense(
            cut, layers[name].weight, layers[name].bias, moments=moments.get(name)
        )
        reports.append(report)
        for state, part in zip(states, parts, strict=True):
            state[name] = part
    return Shards(
        conversion=ConversionReport(size=ranks, layers=tuple(reports), adjusted=adjusted),
        common=_common(module, cuts),
        states=tuple(states),
    )


def gather_shards(module: nn.Module) -> Shards:
    """Return the parameters of all ranks of a converted module, on every rank; a collective call.

    Raises:
        StrategyError: It was not converted, or has ghosts that are not linear.
    """
    conversion = conversion_of(module)
    states = [dict[str, State]() for _ in range(conversion.size)]
    for layer in conversion.layers:
        cut = layer.cut
        it = module.get_submodule(cut.name)
        if getattr(it, "ghost_activation", None) or getattr(it, "ghost_bias", None) is not None:
            raise StrategyError(
                {cut.name: "ghosts with an activation or a bias have no dense equivalent"}
            )
        for state, part in zip(states, _gathered(it, cut), strict=True):
            state[cut.name] = part
    cuts = {layer.cut.name: layer.cut for layer in conversion.layers}
    return Shards(conversion=conversion, common=_common(module, cuts), states=tuple(states))


def export_dense(module: nn.Module) -> dict[str, Tensor]:
    """Return the state of the equivalent dense module, on every rank; a collective call.

    Returns:
        Keys and shapes of the original module's `state_dict`, which loads it.

    Raises:
        StrategyError: The module was not converted, or has ghosts that are not linear.
    """
    conversion = conversion_of(module)
    found = _common(module, {layer.cut.name: layer.cut for layer in conversion.layers})
    for layer in conversion.layers:
        cut: LayerCut = layer.cut
        it: Any = module.get_submodule(cut.name)
        order = output_order(cut).argsort().to(it.weight.device)
        bias = it.dense_bias()
        found |= _original(cut, it.dense_weight()[order], None if bias is None else bias[order])
    return found


def merge(module: nn.Module, mesh: Any) -> nn.Module:
    """Merge ranks of a converted module; all of its ranks call this.

    Args:
        module: Converted.
        mesh: Ranks that share it afterward, as of `phantomize`. Each of them takes the place of
            as many of the former ones as there are more. What every rank was before does not
            matter: other ranks may share a copy.

    Returns:
        The module, changed: the same function to rounding.

    Raises:
        StrategyError: It cannot be merged to so many; nothing has changed then.
    """
    group = Group.of(mesh)
    return put_shard(module, gather_shards(module).merged(group.size), group)


def put_shard(module: nn.Module, shards: Shards, mesh: Any = None, **options: Any) -> nn.Module:
    """Load a rank's parameters into a module, converting its layers; no communication.

    Args:
        module: The dense module they were made of, or one converted from it.
        shards: Of all ranks, or only with this rank's states.
        mesh: As of `phantomize`.
        options: Of `PhantomLinear`: `overlap`, `regather`.

    Raises:
        StrategyError: Ranks are not as many, or the module is another one; nothing has changed.
    """
    group, conversion = Group.of(mesh), shards.conversion
    _check_fit(module, conversion, group)
    own = shards.states[group.rank]
    borders = borders_of(layer.cut for layer in conversion.layers)
    for layer in conversion.layers:
        border = borders.get(layer.cut.name)
        it = built(layer.cut, module.get_submodule(layer.cut.name), group, options, border)
        it.load_state_dict(own[layer.cut.name], assign=it.weight.is_meta)
        set_layer(module, layer.cut.name, it)
    rest = module.load_state_dict(shards.common, strict=False, assign=_is_meta(module))
    assert not rest.unexpected_keys, rest.unexpected_keys
    set_adjusted(module, conversion.adjusted, group.size)
    return keep_conversion(module, conversion)


def _check_fit(module: nn.Module, conversion: ConversionReport, group: Group) -> None:
    misfits = {}
    if group.size != conversion.size:
        misfits["mesh"] = (
            f"has {group.size} ranks, but the shards are of {conversion.size}; merge them first, "
            "or start as many ranks"
        )
    for layer in conversion.layers:
        cut = layer.cut
        try:
            it: Any = module.get_submodule(cut.name)
        except AttributeError:
            misfits[cut.name] = "is in the shards, but not in the module"
            continue
        dense = linear_layers(it).get("")
        widths = (
            (dense.in_features, dense.out_features)
            if dense is not None
            else (getattr(it, "in_features", None), getattr(it, "out_features", None))
        )
        if widths != (cut.in_features, cut.out_features):
            misfits[cut.name] = (
                f"is {widths[1]} x {widths[0]} in the module, {cut.out_features} x "
                f"{cut.in_features} in the shards"
            )
    if misfits:
        raise StrategyError(misfits)


def _is_meta(module: nn.Module) -> bool:
    return any(each.is_meta for each in module.parameters())


def _common(module: nn.Module, cuts: Mapping[str, LayerCut]) -> dict[str, Tensor]:
    return {
        key: each for key, each in module.state_dict().items() if key.rpartition(".")[0] not in cuts
    }


def _original(cut: LayerCut, weight: Tensor, bias: Tensor | None) -> State:
    found = {f"{cut.name}.weight": (weight.t() if cut.is_transposed else weight).contiguous()}
    return found if bias is None else found | {f"{cut.name}.bias": bias}


def _gathered(layer: nn.Module, cut: LayerCut) -> list[State]:
    states: list[State] = [{} for _ in range(cut.size)]
    shapes = [state_shapes(cut, rank) for rank in range(cut.size)]
    for name in shapes[0]:
        own = getattr(layer, name).detach().reshape(-1)
        sizes = [torch.Size(each[name]).numel() for each in shapes]
        whole = layer.group.all_gather(own, sizes, cut.name).wait()
        for state, shape, part in zip(states, shapes, whole.split(sizes), strict=True):
            state[name] = part.view(shape[name])
    return states
