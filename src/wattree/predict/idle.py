"""What a strategy says to no effect on the model at hand: warnings, as those of `job.idle`."""

from __future__ import annotations

from wattree.graph import ModelGraph, OperatorKind
from wattree.job import Job
from wattree.strategy import SPATIAL, Strategy, StrategyOptions
from wattree.strategy.parts import has_roles, is_sample_table

__all__ = ["has_experts", "idle_choices"]


def idle_choices(job: Job, model: ModelGraph) -> tuple[str, ...]:
    """Return a line `key: why` for each choice of the job's strategy that does nothing here."""
    options = job.strategy
    if isinstance(options, str):
        return ()
    found = [*_idle_statistics(options, model), *_idle_splits(options, model)]
    if has_experts(model):
        return tuple(found)
    if (load := options.expert_load) is not None:
        key = "imbalance" if load.capacity is None else "capacity"
        found.append(f"strategy.expert_{key}: has no effect: {model.name} has no experts")
    if not isinstance(options, StrategyOptions):
        return tuple(found)
    if options.ep > 1:
        found.append(
            f"strategy.ep: {options.ep} has no effect of its own: {model.name} has no experts, so "
            "these ranks are replicas like those of dp; use dp"
        )
    if not options.expert_over_tensor:
        found.append(
            f"strategy.expert_over_tensor: false has no effect: {model.name} has no experts; leave "
            "it out"
        )
    return tuple(found)


def _idle_statistics(strategy: Strategy | StrategyOptions, model: ModelGraph) -> list[str]:
    """Statistics of batch norm that are asked for where there is none."""
    if not isinstance(strategy, StrategyOptions) or not strategy.sync_batch_norm:
        return []
    kinds = {o.kind for block in model.blocks.values() for o in block.operators}
    if OperatorKind.BATCH_NORM in kinds:
        return []
    return [f"strategy.sync_batch_norm: true has no effect: {model.name} has no batch norm"]


def _idle_splits(strategy: Strategy | StrategyOptions, model: ModelGraph) -> list[str]:
    """Ranks that would share positions or tables, of which there are none."""
    if not isinstance(strategy, StrategyOptions):
        return []
    operators = [o for block in model.blocks.values() for o in block.operators]
    found = []
    positions = strategy.cp > 1 and strategy.context != SPATIAL
    if positions and not any(dim.name == "seq" for o in operators for dim in o.dims):
        found.append(
            f"strategy.cp: {strategy.cp} has no effect of its own: {model.name} has no dim of "
            "positions to split, so these ranks do the same; use dp"
        )
    if strategy.tp > 1 and not model.own_family and not has_roles(model):
        found.append(
            f"strategy.tp: {strategy.tp} splits nothing: {model.name} has no pair of products in "
            "a row of which the first can be split by output and the second by input, so these "
            "ranks do the same; use dp, or a tree with {out: tp} and {in: tp} where wanted"
        )
    shared = strategy.tables != StrategyOptions().tables
    if shared and not any(is_sample_table(operator) for operator in operators):
        found.append(
            f"strategy.tables: '{strategy.tables}' has no effect: {model.name} has no tables that "
            "samples look up in"
        )
    return found


def has_experts(model: ModelGraph) -> bool:
    """Return whether any operator belongs to the experts of a mixture."""
    operators = (o for block in model.blocks.values() for o in block.operators)
    return any("experts" in operator.path for operator in operators)
