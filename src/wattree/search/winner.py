"""What the figures of the first strategy of a plan say: where its step goes, and what is unsure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from wattree.accounts.interval import PROBABILITY
from wattree.cost import AUTO_SOFTWARE
from wattree.lowering.split_rules import has_equal_chunks
from wattree.predict import Setting
from wattree.search.ideas import NEAR
from wattree.search.objective import objective_of, share_behind
from wattree.search.plan_result import RankedStrategy
from wattree.search.sure_fit import first_sure, fits_surely
from wattree.strategy import StrategyOptions
from wattree.trace import PART_WORDS, Result, step_part_words
from wattree.units import format_bytes, format_time


def winner_sentences(
    setting: Setting, objective: str, ranked: Sequence[RankedStrategy]
) -> Iterator[str]:
    """Yield where the step of a winner goes and how sure it fits, and whether it waits for data.

    Args:
        ranked: Best first; a simpler one that is as good is named.
    """
    winner = ranked[0]
    unsure = "" if fits_surely(winner.result) else _unsure_fit(setting, objective, ranked)
    yield f"{_summary(winner)}{unsure}{_simpler(setting, objective, ranked)}"
    yield from _input_bound(winner.result)


def _simpler(setting: Setting, objective: str, ranked: Sequence[RankedStrategy]) -> str:
    """Return a sentence on a strategy of fewer parts that predictions cannot tell apart."""
    winner = ranked[0]
    least = objective_of(winner.result, objective)
    near = [
        entry
        for entry in ranked
        if objective_of(entry.result, objective) <= least * (1.0 + NEAR)
        and entry.power_limit_w == winner.power_limit_w
        and entry.result.dense_parameters == winner.result.dense_parameters
        and (fits_surely(entry.result) or not fits_surely(winner.result))
    ]
    found = min(near, key=lambda entry: _intricacy(setting, entry.options))
    if least <= 0.0 or _intricacy(setting, found.options) == _intricacy(setting, winner.options):
        return ""
    behind = share_behind(found.result, winner.result, objective)
    return f" {found.label} is simpler and predicted alike ({100 * behind:+.1f} %)."


def _intricacy(setting: Setting, options: StrategyOptions) -> tuple[int, bool, bool, bool]:
    """Return what makes a strategy hard to run and to change, what weighs most first."""
    pipeline = options.pipeline
    equal = has_equal_chunks(setting.model.layers, options.pp, pipeline.virtual_stages)
    return (
        sum(degree > 1 for degree in options.degrees.values()),
        options.cp > 1,
        options.pp > 1 and (not equal or pipeline.stage_layers is not None),
        pipeline.micro_batch & (pipeline.micro_batch - 1) != 0,
    )


def _summary(winner: RankedStrategy) -> str:
    result = winner.result
    step_s = result.step_time_s
    parts = {name: value for name, value in asdict(result.time_s).items() if value > 0}
    words = step_part_words(result.strategy)
    shares = sorted(((value / step_s, name) for name, value in parts.items()), reverse=True)
    reasons = ", ".join(f"{words[name]} {100 * x:.1f} %" for x, name in shares if x >= 1e-3)
    memory = result.memory
    category = max(memory.by_category, key=memory.by_category.__getitem__)
    return (
        f"{winner.label}: {format_time(step_s)} per {result.timed} ({reasons}); "
        f"the fullest device holds {format_bytes(memory.peak_bytes)} of "
        f"{format_bytes(memory.capacity_bytes)}, "
        f"{format_bytes(memory.by_category[category])} of it {category}."
    )


def _unsure_fit(setting: Setting, objective: str, ranked: Sequence[RankedStrategy]) -> str:
    """Return a sentence on a winner that may not fit, and what makes that less likely."""
    probability, surest = ranked[0].result.fit_probability, 100 * PROBABILITY
    assert probability is not None  # memory decides
    sure = first_sure(ranked)
    instead = f"nothing that was found fits with {surest:.0f} %"
    if sure is not None:
        more = share_behind(sure.result, ranked[0].result, objective)
        instead = f"{sure.label} does with {surest:.0f} % or more, {100 * more:+.1f} % {objective}"
    named = "; naming the software narrows that spread"
    return (
        f" It fits with {100 * probability:.0f} % probability, by the spread of predicted memory: "
        f"{instead}{named if setting.job.software == AUTO_SOFTWARE else ''}."
    )


def _input_bound(result: Result) -> Iterator[str]:
    """Yield a sentence on a step that waits for its data, and what would end that."""
    materials = result.materials
    if materials is None or not materials.is_input_bound:
        return
    share = 100 * materials.exposed_s / result.step_time_s
    reasons = (
        f"It is input-bound: {PART_WORDS[materials.bound]} give "
        f"{materials.samples_per_s[materials.bound]:,.4g} samples/s, and {share:.1f} % of the step "
        "waits for them."
    )
    if materials.fixes:
        reasons += f" It would take {'; '.join(fix.change for fix in materials.fixes)}."
    yield reasons
