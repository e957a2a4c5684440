"""What a result says about the tokens of experts."""

from __future__ import annotations

from wattree.cost import Software
from wattree.graph import ModelGraph
from wattree.lowering import compile_model
from wattree.strategy import Strategy

__all__ = ["token_note"]


def token_note(model: ModelGraph, strategy: Strategy, software: Software) -> str:
    """Return how many tokens experts get, and how many are dropped."""
    load = strategy.expert_load
    active = frozenset(axis for axis, degree in strategy.mesh.axes if degree > 1)
    places = compile_model(model, strategy.tree, active).expert_places if load else ()
    if load is None or not places:
        return "experts receive equal numbers of tokens"
    place = places[0]
    ranks = strategy.mesh.size(place.axes)
    tokens = load.taken(experts=place.experts, ranks=ranks, dropless=software.moe_dropless)
    note = (
        f"the busiest of {ranks} expert-parallel ranks takes {tokens.max():.3g} x the mean tokens"
    )
    dropped = 1.0 - float(tokens.mean())
    return note if dropped < 1e-12 else f"{note}; {dropped:.2%} of routed tokens are dropped"
