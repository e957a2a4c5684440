"""Why the first strategy is best: differences of simulated results, largest first, with reasons.

Every number is taken from two results; every reason is a fact of the two strategies that shortens
that part of the step (the parts that differ decide which reasons are printed).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict

from wattree.hardware import Cluster
from wattree.predict import Setting
from wattree.search.ideas import ideas
from wattree.search.objective import objective_of
from wattree.search.plan_result import RankedStrategy
from wattree.search.probability import likely_better
from wattree.search.promising import misses
from wattree.search.screen import OUT_OF_MEMORY, Constraints
from wattree.search.winner import winner_sentences
from wattree.strategy import StrategyOptions
from wattree.trace import Result, step_part_words
from wattree.trace.bill import SUREST
from wattree.units import format_bytes, format_quantity, format_time

#: Differences below this share of all of them are not worth a word.
_TELLING = 0.1
#: Shardings under which parameters are gathered for use.
_GATHERING = frozenset({"zero3", "hybrid"})
#: Objectives closer than this are called a tie.
_TIE = 5e-4
#: Differences below this share of the whole are nothing to people.
_NOTHING = 1e-4


def explanation(
    setting: Setting,
    objective: str,
    ranked: Sequence[RankedStrategy],
    rivals: Mapping[str, RankedStrategy | None],
    *,
    constraints: Constraints,
) -> tuple[str, ...]:
    """Return sentences: the parts of the winner's step, and its advantage over each rival.

    Args:
        ranked: Best first.
        rivals: Hand choices by name; None for one that the model or the cluster does not admit.
    """
    winner = ranked[0]
    sentences = [*winner_sentences(setting, objective, ranked)]
    sentences += [*_another_function(setting, objective, ranked), *_device_limit(ranked)]
    sentences += _idle_devices(setting, objective, ranked)
    # The next row of the ranking; a variant of the winner is no other idea.
    if len(apart := ideas(ranked, objective)) > 1:
        sentences.append(against(setting, objective, winner, apart[1][0], "the runner-up"))
    elif len(ranked) > 1:
        sentences.append(against(setting, objective, winner, ranked[1], "its nearest variant"))
    else:
        sentences.append("No other strategy that was simulated meets every constraint.")
    for name, rival in rivals.items():
        if rival is None:
            sentences.append(f"{_capital(name)} is not a legal strategy for this job.")
        elif rival.options == winner.options and winner.power_limit_w is None:
            sentences.append(f"{_capital(name)} is the winner.")
        elif not rival.result.memory.fits:
            sentences.append(_does_not_fit(name, rival))
        else:
            lacks = _lacks(rival.result, constraints)
            sentences.append(against(setting, objective, winner, rival, name, lacks=lacks))
    return tuple(sentences)


def _device_limit(ranked: Sequence[RankedStrategy]) -> Iterator[str]:
    """Yield a sentence on a winner whose devices need a lower power limit."""
    if (limit_w := ranked[0].power_limit_w) is None:
        return
    own = next((entry for entry in ranked if entry.power_limit_w is None), None)
    without = "nothing that was found meets every constraint"
    if own is not None:
        took = format_time(own.result.step_time_s)
        without = f"the best is {own.label}, {took} per {own.result.timed}"
    yield (
        f"A power limit of {limit_w:g} W on each device (cluster.power_limit) is part of it; "
        f"without one {without}."
    )


def _idle_devices(
    setting: Setting, objective: str, ranked: Sequence[RankedStrategy]
) -> Iterator[str]:
    """Yield a sentence on a fastest strategy that is slower on more of the devices."""
    used = ranked[0].options.ranks
    larger = next((entry for entry in ranked if entry.options.ranks > used), None)
    if objective == "time" and larger is not None:
        took, more = format_time(larger.result.step_time_s), larger.options.ranks
        yield (
            f"It uses {used} of {setting.job.cluster.devices} devices: the best on {more} "
            f"({larger.label}) takes {took}."
        )


def _another_function(
    setting: Setting, objective: str, ranked: Sequence[RankedStrategy]
) -> Iterator[str]:
    """Yield sentences on a winner that trains another function, and the best that does not."""
    winner = ranked[0]
    if winner.result.dense_parameters is None:
        return
    yield (
        f"It trains a different function from {setting.model.name}, with "
        f"{100 * winner.result.parameter_ratio:.1f} % of its parameters: whether that reaches the "
        "same loss, and in how many steps, is not predicted."
    )
    exact = next((entry for entry in ranked if entry.result.dense_parameters is None), None)
    if exact is None:
        yield f"No strategy of {setting.model.name} itself meets every constraint."
    else:
        yield against(setting, objective, winner, exact, "the best of the model itself")


def _does_not_fit(name: str, rival: RankedStrategy) -> str:
    memory = rival.result.memory
    return (
        f"{_capital(name)} ({rival.label}) does not fit: it needs "
        f"{format_bytes(memory.peak_bytes)} on a device of {format_bytes(memory.capacity_bytes)}."
    )


def _lacks(result: Result, constraints: Constraints) -> str:
    """Return, as a clause, which constraint a strategy misses that fits in the memory."""
    reason = misses(result, constraints)
    if reason == OUT_OF_MEMORY:
        free = f"{100 * constraints.margin:.3g} % of the memory"
        return f"which does not leave {free} free (--margin 0 admits it)"
    return f"which is {reason}" if reason else "which misses a constraint"


def against(
    setting: Setting,
    objective: str,
    winner: RankedStrategy,
    rival: RankedStrategy,
    name: str,
    *,
    lacks: str = "",
) -> str:
    """Return one sentence that compares the winner with a rival that fits.

    Args:
        objective: What the winner has less of, unless the rival misses a constraint.
        lacks: Which constraint the rival misses if it has less, as a clause.
    """
    ours, theirs = winner.result, rival.result
    mine, other = objective_of(ours, objective), objective_of(theirs, objective)
    shown = f"{_shown(mine, objective)} against {_shown(other, objective)}"
    # Speed is compared with the rival's, amounts with the rival's amount.
    least = mine if objective == "time" else other
    share = (other - mine) / least if least > 0 else 0.0
    more, less = ("slower", "faster") if objective == "time" else _amounts(objective)
    about = f"{name} ({rival.label})"
    if abs(share) < _TIE:
        head = f"Level with {about}, {shown}"
    elif share > 0:
        likely = likely_better(ours, theirs, objective, calibration=setting.calibration)
        sure = f"with {100 * min(likely, SUREST):.0f} % probability"
        much = f"{100 * share:.1f} % {less} than"
        if share >= 1.0:  # of speed alone
            much = f"{1.0 + share:.1f} times as fast as"
        head = f"{much} {about}, {shown}, {sure}"
    else:  # only one that misses a constraint can be better, or it would have won
        head = f"{-100 * share:.1f} % {more} than {about}, {lacks}, {shown}"
    reasons = list(_differences(setting, winner, rival))
    if objective in {"energy", "carbon"}:
        reasons = [_energy_difference(ours, theirs), *reasons]
    if objective == "cost":
        reasons = [_node_difference(setting, ours, theirs), *reasons]
    memory = ours.memory.peak_bytes - theirs.memory.peak_bytes
    if abs(memory) > 0.01 * theirs.memory.peak_bytes:
        reasons.append(f"{format_bytes(abs(memory))} {'less' if memory < 0 else 'more'} memory")
    reasons = [words for words in reasons if words]
    return f"{head}: {'; '.join(reasons)}." if reasons else f"{head}."


def _amounts(objective: str) -> tuple[str, str]:
    return f"more {objective}", f"less {objective}"


def _differences(setting: Setting, winner: RankedStrategy, rival: RankedStrategy) -> Iterator[str]:
    """Yield how the parts of the step differ, those that favor the winner first."""

    def reason(name: str, gain_s: float) -> str:
        better, worse = (winner, rival) if gain_s > 0 else (rival, winner)
        return _reason(name, better, worse, setting, favors_winner=gain_s > 0)

    ours, theirs = winner.result, rival.result
    words, step_s = step_part_words(ours.strategy, theirs.strategy), theirs.step_time_s
    parts = asdict(ours.time_s), asdict(theirs.time_s)
    return part_differences(*parts, step_s, words, reason=reason)


def part_differences(
    mine: Mapping[str, float],
    other: Mapping[str, float],
    step_s: float,
    words: Mapping[str, str],
    *,
    reason: Callable[[str, float], str] = lambda *_: "",
) -> Iterator[str]:
    """Yield how the parts of two steps differ, what the first has less of before all others.

    Args:
        mine: Part of the first step → its time. [s]
        other: The same of the other step. [s]
        step_s: Time of the other step. [s]
        words: Part → as people call it.
        reason: Of a part, and of what the first saves of it [s]: a clause that explains it.
    """
    gains = {name: other.get(name, 0.0) - mine.get(name, 0.0) for name in words}
    least = max(_TELLING * sum(abs(gain) for gain in gains.values()), _NOTHING * step_s)
    for name, gain in sorted(gains.items(), key=lambda item: -item[1]):
        if abs(gain) >= least:
            word = "less" if gain > 0 else "more"
            yield f"{format_time(abs(gain))} {word} {words[name]}{reason(name, gain)}"


def _reason(
    part: str,
    better: RankedStrategy,
    worse: RankedStrategy,
    setting: Setting,
    *,
    favors_winner: bool,
) -> str:
    """Return a clause on why a part of the step is shorter; nothing if no fact explains it."""
    facts = _FACTS.get(part)
    found = facts(better.options, worse.options, setting) if facts else ()
    reasons = list(found)[:2]
    if not reasons:
        return ""
    who = "it" if favors_winner else "the other"
    return f", because {who} {' and '.join(reasons)}"


Facts = Callable[[StrategyOptions, StrategyOptions, Setting], Iterator[str]]


def _recomputation(
    better: StrategyOptions, worse: StrategyOptions, setting: Setting
) -> Iterator[str]:
    del setting
    if better.memory.recompute == "none" != worse.memory.recompute:
        yield "recomputes nothing"
    elif better.memory.recompute != worse.memory.recompute:
        yield f"recomputes {_scope(better)}, not {_scope(worse)}"


def _scope(options: StrategyOptions) -> str:
    return (
        "every layer"
        if options.memory.recompute == "full"
        else f"the '{options.memory.recompute}' part"
    )


def _bubble(better: StrategyOptions, worse: StrategyOptions, setting: Setting) -> Iterator[str]:
    batch = setting.job.data.global_batch
    yield from _cut_by_speed(better, worse, setting.job.cluster)
    if better.pp == 1 < worse.pp:
        yield "has no pipeline to fill"
    elif better.pp < worse.pp:
        yield f"fills a pipeline of {better.pp} stages, not {worse.pp}"
    count, other = (batch // (o.replicas * o.pipeline.micro_batch) for o in (better, worse))
    if better.pp > 1 and count > other:
        yield f"keeps it busy with {count} micro-batches, not {other}"
    if better.pipeline.virtual_stages > worse.pipeline.virtual_stages and better.pp > 1:
        yield f"interleaves {better.pipeline.virtual_stages} chunks per stage"


def _cut_by_speed(
    better: StrategyOptions, worse: StrategyOptions, cluster: Cluster
) -> Iterator[str]:
    if (
        better.pipeline.stage_layers is not None
        and worse.pp > 1
        and worse.pipeline.stage_layers is None
    ):
        differ = cluster.is_mixed or cluster.slowdown
        yield "gives slower devices fewer layers" if differ else "balances the layers of its stages"


def _communication(  # noqa: C901 - one sentence per kind of traffic
    better: StrategyOptions, worse: StrategyOptions, setting: Setting
) -> Iterator[str]:
    domain = min(pool.domain_devices for pool in setting.job.cluster.pools)
    if better.phantoms.enabled and not worse.phantoms.enabled and worse.tp > 1:
        yield f"exchanges {better.phantoms.ghosts} ghosts of a rank and layer, not activations"
    if better.tp == 1 < worse.tp:
        yield "exchanges no activations between tensor-parallel ranks"
    elif better.tp <= domain < worse.tp:
        yield f"keeps tensor-parallel traffic inside a domain of {domain} devices"
    elif better.tp < worse.tp:
        yield f"exchanges activations among {better.tp} tensor-parallel ranks, not {worse.tp}"
    if worse.memory.sharding in _GATHERING and better.memory.sharding not in _GATHERING:
        yield "gathers no parameters for use"
    elif worse.memory.sharding == "zero3" and better.memory.sharding == "hybrid":
        yield f"gathers parameters over {better.fsdp} ranks only"
    often, others_often = better.memory.shards_gradients, worse.memory.shards_gradients
    batch = setting.job.data.global_batch
    count, other = (batch // (o.replicas * o.pipeline.micro_batch) for o in (better, worse))
    if others_often and not often and other > 1:
        yield f"reduces gradients once, not after each of {other} micro-batches"
    elif often and others_often and count < other:
        yield f"moves parameters and gradients for {count} micro-batches, not {other}"
    if better.cp == 1 < worse.cp:
        yield "gathers no keys and values over context-parallel ranks"
    if better.ep == 1 < worse.ep:
        yield "exchanges no tokens between replicas"
    elif better.ep < worse.ep:
        yield f"exchanges tokens among {better.ep} expert-parallel ranks, not {worse.ep}"
    yield from _stage_traffic(better, worse)


def _stage_traffic(better: StrategyOptions, worse: StrategyOptions) -> Iterator[str]:
    chunks, others = (o.pp * o.pipeline.virtual_stages for o in (better, worse))
    if better.pp == 1 < worse.pp:
        yield "passes no activations between stages"
    elif better.pp > 1 and chunks < others:
        yield f"passes each micro-batch through {chunks} chunks of layers, not {others}"


def _compute(better: StrategyOptions, worse: StrategyOptions, setting: Setting) -> Iterator[str]:
    yield from _cut_by_speed(better, worse, setting.job.cluster)
    if better.phantoms.enabled and not worse.phantoms.enabled:
        yield "has fewer weights, as phantom layers have"
    if better.pipeline.micro_batch > worse.pipeline.micro_batch:
        sizes = f"{better.pipeline.micro_batch} instead of {worse.pipeline.micro_batch}"
        yield f"works on micro-batches of {sizes}"
    if better.tp == 1 < worse.tp:
        yield f"keeps matmuls whole instead of splitting them over {worse.tp} ranks"
    elif better.tp < worse.tp:
        yield f"splits matmuls over {better.tp} ranks, not {worse.tp}"
    if better.parallelism.sequence_parallel and not worse.parallelism.sequence_parallel:
        yield "splits norms and residuals over tensor-parallel ranks too"
    if better.pp == 1 < worse.pp:
        yield "has no stage that holds more than others"
    elif better.pp < worse.pp:
        stages = f"{better.pp} stages, not {worse.pp}"
        yield f"cuts the layers into {stages}, so its slowest stage is closer to the mean"
    is_slowed = max(rates.overlap_compute_rate for rates in setting.pool_rates) < 1
    ours, theirs = (each.memory.sharding in _GATHERING for each in (better, worse))
    if theirs and not ours and is_slowed:
        yield "has fewer gathers alongside its matmuls, which slow them down"


def _optimizer(better: StrategyOptions, worse: StrategyOptions, setting: Setting) -> Iterator[str]:
    del setting
    if better.phantoms.enabled and not worse.phantoms.enabled:
        yield "has fewer weights to update"
    if worse.memory.sharding == "none" != better.memory.sharding:
        yield "updates only its shard of the parameters"


_FACTS: Mapping[str, Facts] = {
    "recomputation": _recomputation,
    "bubble": _bubble,
    "exposed_communication": _communication,
    "compute": _compute,
    "optimizer": _optimizer,
}


def _energy_difference(ours: Result, theirs: Result) -> str:
    static = theirs.energy_j.static - ours.energy_j.static
    dynamic = theirs.energy_j.dynamic - ours.energy_j.dynamic
    words = [
        f"{format_quantity(abs(value), 'J')} {'less' if value > 0 else 'more'} {kind}"
        for kind, value in (("at rest", static), ("for work and traffic", dynamic))
        if abs(value) >= _NOTHING * theirs.energy_j.total
    ]
    return ", ".join(words)


def _node_difference(setting: Setting, ours: Result, theirs: Result) -> str:
    mine, other = (sum(setting.job.cluster.pool_nodes(r.ranks)) for r in (ours, theirs))
    return "" if mine == other else f"{mine} nodes rented, not {other}"


def _shown(value: float, objective: str) -> str:
    if objective == "time":
        return f"{value:.4g} s"
    if objective == "energy":
        return f"{value / 1e3:,.4g} kJ" if value < 1e7 else f"{value / 1e6:,.4g} MJ"
    return f"{value:.4g} {'USD' if objective == 'cost' else 'gCO2e'}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
