"""Finds linear layers of any module that can be converted, and why others cannot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseLayer:
    """A linear layer of a model.

    Attributes:
        is_transposed: Whether its weight is stored `(in, out)`, as in `Conv1D` of transformers.
    """

    name: str
    module: Any
    in_features: int
    out_features: int
    is_transposed: bool

    @property
    def weight(self) -> Tensor:
        """Its weight `(out_features, in_features)`, without a gradient."""
        weight: Tensor = self.module.weight.detach()
        return weight.t() if self.is_transposed else weight

    @property
    def bias(self) -> Tensor | None:
        """Its bias `(out_features,)`, without a gradient."""
        bias = self.module.bias
        return None if bias is None else bias.detach()


def linear_layers(module: nn.Module) -> dict[str, DenseLayer]:
    """Return the modules that compute `x Wᵀ + b`: `nn.Linear` and `Conv1D` of transformers."""
    found = {}
    for name, each in module.named_modules():
        if isinstance(each, nn.Linear):
            found[name] = _layer(name, each, each.in_features, each.out_features)
        elif type(each).__name__ == "Conv1D" and hasattr(each, "nf"):
            inputs, outputs = each.weight.shape
            found[name] = _layer(name, each, inputs, outputs, is_transposed=True)
    return found


def why_not(module: nn.Module, layer: DenseLayer) -> str | None:
    """Return why a layer cannot be replaced; None if it can.

    Args:
        module: The whole model.
    """
    it = layer.module
    kind = type(it).__name__
    if isinstance(it, nn.Linear) and type(it).forward is not nn.Linear.forward:
        return f"is a {kind}, which computes something else than nn.Linear"
    if "weight" not in dict(it.named_parameters(recurse=False)):
        return "has a weight that is computed of others (weight norm, parametrization); remove it"
    if it._forward_hooks or it._forward_pre_hooks:  # noqa: SLF001 - no public way to ask
        return "has hooks, which would be lost; remove them, and set them again after converting"
    parent = module.get_submodule(layer.name.rpartition(".")[0])
    if isinstance(parent, nn.MultiheadAttention):
        return "belongs to nn.MultiheadAttention, which reads its weight and does not call it"
    tied = _others_with(module, layer)
    if tied:
        return f"shares its weights with {', '.join(tied)}; untie them or leave the layer out"
    return None


def set_layer(module: nn.Module, name: str, layer: nn.Module) -> None:
    """Replace the layer with that name."""
    parent, _, last = name.rpartition(".")
    setattr(module.get_submodule(parent), last, layer)


def _others_with(module: nn.Module, layer: DenseLayer) -> list[str]:
    mine = {id(parameter) for parameter in layer.module.parameters()}
    return [
        name
        for name, each in module.named_modules(remove_duplicate=False)
        if name != layer.name
        and any(id(parameter) in mine for parameter in each.parameters(recurse=False))
    ]


def _layer(
    name: str, module: nn.Module, inputs: int, outputs: int, *, is_transposed: bool = False
) -> DenseLayer:
    assert isinstance(module.weight, torch.Tensor)
    return DenseLayer(
        name=name,
        module=module,
        in_features=inputs,
        out_features=outputs,
        is_transposed=is_transposed,
    )
