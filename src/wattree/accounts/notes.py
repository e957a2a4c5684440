"""Notes of a result: assumptions and execution rules."""

from __future__ import annotations

from wattree.accounts.colocation import colocation_notes
from wattree.accounts.executed import ExecutedStep
from wattree.accounts.expansion import tier_notes
from wattree.accounts.fabric import Rules
from wattree.accounts.input_pipeline import notes_of_loading
from wattree.cost import AUTO_SOFTWARE
from wattree.job import WorkloadKind
from wattree.lowering.idle import has_experts


def assumptions_of(step: ExecutedStep, rules: Rules) -> tuple[str, ...]:
    """Return one sentence for each assumption."""
    notes = [f"defaults and measured constants of the software '{step.setting.software.name}'"]
    trains = step.setting.job.workload is WorkloadKind.TRAIN
    if trains and step.setting.job.software == AUTO_SOFTWARE:
        notes[0] += "; intervals cover any software; name yours ('software') to narrow them"
    if has_experts(step.setting.model):
        notes.append(_token_note(step))
    if step.strategy.traffic.offload.tiers:
        notes.append(
            "memory behind the devices and the links to it draw no energy beyond the host's own"
        )
    return (
        *notes,
        *step.job.assumed,
        *colocation_notes(step),
        *notes_of_loading(step),
        *_idle_pools(step),
        *tier_notes(step),
        *_rule_notes(rules),
    )


def _token_note(step: ExecutedStep) -> str:
    """Return how many tokens experts get, and how many are dropped."""
    strategy, places = step.strategy, step.compilation.program.expert_places
    load = strategy.expert_load
    if load is None or not places:
        return "experts receive equal numbers of tokens"
    place = places[0]
    ranks = strategy.mesh.size(place.axes)
    dropless = step.setting.software.moe_dropless
    tokens = load.taken(experts=place.experts, ranks=ranks, dropless=dropless)
    note = (
        f"the busiest of {ranks} expert-parallel ranks takes {tokens.max():.3g} x the mean tokens"
    )
    dropped = 1.0 - float(tokens.mean())
    return note if dropped < 1e-12 else f"{note}; {dropped:.2%} of routed tokens are dropped"


def _idle_pools(step: ExecutedStep) -> list[str]:
    return [
        f"pool {number} ({pool.label}) stays idle and counts for nothing: {step.ranks} ranks"
        for number, (pool, used) in enumerate(
            zip(step.cluster.pools, step.cluster.pool_nodes(step.ranks), strict=True), start=1
        )
        if not used
    ]


def _rule_notes(rules: Rules) -> list[str]:
    """Return what a reader must know of rules that are not the usual ones."""
    notes = []
    if rules.sharing != "max-min":
        notes.append(
            f"links shared by the rule '{rules.sharing}', under which slow links are as fast as any"
        )
    if not rules.mutual_slowdown:
        notes.append("computation and communication do not slow each other")
    return notes
