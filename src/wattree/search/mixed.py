"""Mixes: other choices for some kinds of blocks or stages, found by an integer program.

Near a strategy each change alone is simulated. What changes cost and the memory that they save is
added up; an integer program (HiGHS) picks the changes of least cost that fit, and their mix is
simulated. What was simulated is excluded, and the program is solved again until it promises
nothing better.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import combinations, islice
from typing import Any

import numpy as np

from wattree.arrays import Floats
from wattree.closed_form.strategies import Shared, estimate
from wattree.errors import StrategyError
from wattree.graph import ModelGraph
from wattree.predict import Setting, predicted
from wattree.predict.execute import written_out
from wattree.search.objective import objective_of
from wattree.search.plan_result import RankedStrategy
from wattree.search.probability import likely_better, surely_below
from wattree.search.promising import misses
from wattree.search.refine import SURE, over_memory
from wattree.search.screen import Constraints, ScreenedSpace
from wattree.strategy import Strategy, StrategyOptions, options_in_words
from wattree.strategy.presets.data import REPLICAS
from wattree.strategy.presets.recompute import RECOMPUTED
from wattree.strategy.schedules import chunk_layers
from wattree.strategy.tree import MemoryChoice, StrategyTree, TreeNode
from wattree.trace import Result

#: Kinds of blocks that are distinguished, the ones with most parameters first.
_KINDS = 4
#: Strategies without enough memory that are mixed.
_LACKING = 3
#: Mixes simulated near one strategy besides single changes, at most.
_ROUNDS = 16
#: How much better than the best known a mix may be than what its changes add up to.
_SLACK = 0.01

_OVER = (*REPLICAS, "cp")
_SHARDED = TreeNode(memory=MemoryChoice(parameters=_OVER, gradients=_OVER, optimizer=_OVER))


@dataclass(frozen=True, slots=True, kw_only=True)
class MixChange:
    """Another choice for a kind of block, or for a stage.

    Attributes:
        place: The kind of block, or the stage; a mix has one change of each at most.
        words: What differs there, such as `sharded`.
    """

    place: str
    words: str
    tree: StrategyTree


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedStrategy:
    """A strategy with other choices for some blocks.

    Attributes:
        base: The strategy that is changed.
        changes: What differs, in words.
        result: Its prediction; `result.strategy` is a tree for a job file.
        probability: That it is better than the best strategy without mixes; None if not compared.
    """

    base: StrategyOptions
    changes: tuple[str, ...]
    result: Result
    probability: float | None = None

    @property
    def label(self) -> str:
        """The strategy in a few words."""
        return ", ".join((options_in_words(self.base), *self.changes))

    def as_json(self) -> dict[str, Any]:
        """Return the mix, then the fields of its result, in one flat mapping."""
        fields = self.result.as_json()
        head = {"label": self.label, "probability": self.probability}
        return {**head, "strategy": fields.pop("strategy"), **fields}


@dataclass(frozen=True, slots=True, kw_only=True)
class MixSearch:
    """The mixes near one strategy that were simulated.

    Attributes:
        best: The best one that meets every constraint, if any; near a plan, if surely better.
        simulated: How many were simulated.
    """

    best: MixedStrategy | None
    simulated: int


def mixed_near(
    setting: Setting,
    best: RankedStrategy,
    screened: ScreenedSpace,
    constraints: Constraints,
    objective: str,
) -> MixSearch:
    """Return the best mix near the best strategy, and near faster ones that lack memory.

    Only where a mix may surely be better: near strategies that stay far faster with as many changes
    as make them fit, and near those of which tensor-parallel ranks may take samples. All else that
    mixes change takes time.

    Args:
        best: The best strategy without mixes.
    """
    step_s = best.result.step_time_s
    near = (best.options, *islice(over_memory(screened, constraints, step_s), _LACKING))
    split = [base for base in near if any(_unsplit(setting, base))]
    sure_s = step_s * surely_below(setting.calibration, SURE)
    fast = islice(over_memory(screened, constraints, sure_s), _LACKING)
    shared = Shared()
    hopeful = [b for b in fast if fitting_s(setting, b, constraints, shared) < sure_s]
    bases = dict.fromkeys((*split, *hopeful))
    found = [best_mix(setting, base, constraints, objective=objective) for base in bases]
    mixes = [each.best for each in found if each.best is not None]
    first = min(mixes, key=lambda mix: objective_of(mix.result, objective), default=None)
    if first is not None:
        likely = likely_better(
            first.result, best.result, objective, calibration=setting.calibration
        )
        first = replace(first, probability=likely) if likely >= SURE else None
    return MixSearch(best=first, simulated=sum(each.simulated for each in found))


def fitting_s(
    setting: Setting, base: StrategyOptions, constraints: Constraints, shared: Shared
) -> float:
    """Return about the step time of a strategy with as many changes as make it fit. [s]

    In closed form, as if blocks were alike, each could be changed by itself, and changes added up;
    infinite if changing all blocks is not enough.
    """

    def estimated(**changes: str) -> tuple[float, float]:
        """Return time and memory, as a share of what is usable. [s]"""
        options = base.changed(**changes)
        found = estimate(setting, options, shared=shared)
        device = setting.job.cluster.pools[int(found.pool[0])].node.device
        return float(found.step_time_s[0]), float(
            found.process_bytes[0] / constraints.usable(device.memory_bytes)
        )

    start_s, start = estimated()
    ends = []
    for sharding in dict.fromkeys((base.memory.sharding, "zero3")):
        for recompute in dict.fromkeys((base.memory.recompute, "full")):
            end_s, end = estimated(sharding=sharding, recompute=recompute)
            if end <= 1.0 < start:
                least_s = start_s + (end_s - start_s) * (start - 1.0) / (start - end)
                ends.append(min(least_s, end_s))
    return min(ends, default=np.inf)


def best_mix(
    setting: Setting,
    base: StrategyOptions,
    constraints: Constraints,
    *,
    objective: str = "time",
    changes: Sequence[MixChange] | None = None,
) -> MixSearch:
    """Return the best mix near a strategy.

    Args:
        base: The strategy, which may lack memory.
        changes: Those to choose from; None: all that there are.
    """
    changes = changes_near(setting, base) if changes is None else changes
    whole = mix_result(setting, base, ())
    if whole is None or not changes:
        return MixSearch(best=None, simulated=0)
    singles = [mix_result(setting, base, (change,)) for change in changes]
    legal = [n for n, single in enumerate(singles) if single is not None]
    if not legal:
        return MixSearch(best=None, simulated=len(changes))
    known: dict[tuple[int, ...], Result | None] = {(): whole}
    known |= {(at,): singles[n] for at, n in enumerate(legal)}

    def values(result: Result) -> Floats:
        room = constraints.usable(result.memory.capacity_bytes)
        return np.array([objective_of(result, objective), result.memory.peak_bytes / room])

    start = values(whole)
    single_values = [values(result) for n in legal if (result := singles[n]) is not None]
    costs, memory = np.array(single_values).reshape(-1, 2).T - start[:, None]
    places = [changes[n].place for n in legal]
    for _ in range(_ROUNDS):
        picked = _cheapest(costs, memory, places, room=1.0 - start[1], without=known)
        least = min(
            (values(r)[0] for r in known.values() if r and not misses(r, constraints)),
            default=np.inf,
        )
        if picked is None or start[0] + costs[list(picked)].sum() > least * (1.0 + _SLACK):
            break
        known[picked] = mix_result(setting, base, [changes[legal[at]] for at in picked])
    fit = {
        picked: result
        for picked, result in known.items()
        if picked and result is not None and not misses(result, constraints)
    }
    best = None
    if fit:
        picked = min(fit, key=lambda each: objective_of(fit[each], objective))
        chosen = (changes[legal[at]] for at in picked)
        words = tuple(f"{change.place} {change.words}" for change in chosen)
        best = MixedStrategy(base=base, changes=words, result=fit[picked])
    return MixSearch(best=best, simulated=len(changes) + len(known) - len(legal))


def _cheapest(
    costs: Floats,
    memory: Floats,
    places: Sequence[str],
    *,
    room: float,
    without: Iterable[tuple[int, ...]],
) -> tuple[int, ...] | None:
    """Return the changes of least cost that leave enough memory; None if there are none.

    Args:
        costs: Of each change, `(n,)`.
        memory: That each change needs in addition, as a share of the memory, `(n,)`.
        places: Of each change; one change at each place at most.
        room: Share of the memory that is free without changes; negative if it lacks.
        without: Sets of changes that are excluded.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    rows, least, most = [memory], [-np.inf], [room]
    for place in dict.fromkeys(places):
        rows.append(np.array([each == place for each in places], dtype=np.float64))
        least.append(-np.inf)
        most.append(1.0)
    for excluded in without:  # at least one change more or less
        row = np.ones(len(costs))
        row[list(excluded)] = -1.0
        rows.append(row)
        least.append(1.0 - len(excluded))
        most.append(np.inf)
    found = milp(
        costs / max(float(np.abs(costs).max(initial=0.0)), 1e-300),
        integrality=np.ones(len(costs)),
        bounds=Bounds(0.0, 1.0),
        constraints=LinearConstraint(np.array(rows), least, most),
    )
    return None if found.x is None else tuple(np.flatnonzero(found.x > 0.5).tolist())


def mix_result(
    setting: Setting, base: StrategyOptions, changes: Iterable[MixChange]
) -> Result | None:
    """Return what a strategy would do with changes; None if that is not possible."""
    try:
        strategy = written_out(setting, base)
        tree = reduce(StrategyTree.merged, (change.tree for change in changes), strategy.tree)
        return predicted(setting, replace(strategy, tree=tree)).result
    except StrategyError:
        return None


def changes_near(setting: Setting, base: StrategyOptions) -> list[MixChange]:
    """Return the changes of a strategy at each place, and all that can be combined there.

    What two changes of the same blocks save is no sum, so combinations are changes of their own.
    """
    found: dict[str, list[MixChange]] = {}
    for ways in (_sharded, _recomputed, _unsplit):
        for change in ways(setting, base):
            found.setdefault(change.place, []).append(change)
    return [
        MixChange(
            place=place,
            words=" and ".join(change.words for change in some),
            tree=reduce(StrategyTree.merged, (change.tree for change in some)),
        )
        for place, own in found.items()
        for count in range(1, len(own) + 1)
        for some in combinations(own, count)
    ]


def _sharded(setting: Setting, base: StrategyOptions) -> Iterator[MixChange]:
    """Yield kinds of blocks whose parameters are sharded, where they are stored whole."""
    if base.memory.sharding not in {"none", "zero1"} or base.replicas * base.cp == 1:
        return
    kinds = block_kinds(setting.model)
    for name, paths in kinds.items() if len(kinds) > 1 else ():
        yield MixChange(place=name, words="sharded", tree=sharded(paths))


def _recomputed(setting: Setting, base: StrategyOptions) -> Iterator[MixChange]:
    """Yield layers of a stage, or of a kind, that are recomputed, where all are stored."""
    if base.memory.recompute != "none":
        return
    layers = [each for each in setting.model.instances if each.is_layer]
    if base.pp > 1 and base.pipeline.virtual_stages == 1:
        cut = base.pipeline.stage_layers or chunk_layers(len(layers), base.pp)
        ends = np.cumsum(cut).tolist() if len(cut) == base.pp else []
        for begin, end in zip([0, *ends], ends, strict=False):
            if begin == end:
                continue
            some = f"layers {begin} to {end - 1}" if end - begin > 1 else f"layer {begin}"
            place = some  # a stage's, but where schedules fold it
            paths = [each.path for each in layers[begin:end]]
            yield MixChange(place=place, words="recomputed", tree=recomputed(paths))
        return
    names = list(dict.fromkeys(each.block for each in layers))
    for name in names if 1 < len(names) <= _KINDS else ():
        paths = [each.path for each in layers if each.block == name]
        yield MixChange(place=name, words="recomputed", tree=recomputed(paths))


def _unsplit(setting: Setting, base: StrategyOptions) -> Iterator[MixChange]:
    """Yield kinds of blocks of which tensor-parallel ranks take samples, not features."""
    if base.tp == 1 or base.pipeline.micro_batch % base.tp:
        return
    strategy, model = written_out(setting, base), setting.model
    kinds = [name for name in block_kinds(model) if name in model.blocks]
    for name in kinds if len(kinds) > 1 else ():
        tree = unsplit(strategy, model, [name])
        yield MixChange(place=name, words="data-parallel over tp", tree=tree)


def block_kinds(model: ModelGraph) -> dict[str, list[str]]:
    """Return kind of block → where it is, of those with most parameters; experts are a kind."""
    found: dict[str, list[str]] = {}
    sizes: dict[str, int] = {}
    for instance in model.instances:
        name, block = instance.block, model.blocks[instance.block]
        found.setdefault(name, []).append(instance.path)
        sizes[name] = sizes.get(name, 0) + block.parameter_elements
        if any(o.path.startswith("moe.experts") for o in block.operators):
            found.setdefault("experts", []).append(f"{instance.path}.moe.experts")
            sizes["experts"] = sizes[name]
    largest = sorted(found, key=lambda name: -sizes[name])[:_KINDS]
    return {name: found[name] for name in largest}


def sharded(paths: Iterable[str]) -> StrategyTree:
    """Return the choice to store nothing of these modules whole."""
    return StrategyTree(nodes=dict.fromkeys(paths, _SHARDED))


def recomputed(paths: Iterable[str]) -> StrategyTree:
    """Return the choice to recompute these modules in backward."""
    return StrategyTree(nodes=dict.fromkeys(paths, RECOMPUTED))


def unsplit(strategy: Strategy, model: ModelGraph, blocks: Sequence[str]) -> StrategyTree:
    """Return the choice that tensor-parallel ranks take samples of these blocks, not features.

    Experts stay where they are; what is stored as shards of replicas has as many more.
    """
    nodes: dict[str, TreeNode] = {}
    for instance in model.instances:
        for operator in model.blocks[instance.block].operators if instance.block in blocks else ():
            path = f"{instance.path}.{operator.path}"
            chosen = strategy.tree.choices(path)
            if "expert" in chosen.compute:
                continue
            compute = {d: tuple(a for a in axes if a != "tp") for d, axes in chosen.compute.items()}
            stored: dict[str, Any] = {
                item: (*axes, "tp")
                for item in ("parameters", "gradients", "optimizer")
                if (axes := getattr(chosen, item))
            }
            compute["batch"] = (*compute["batch"], "tp")
            nodes[path] = TreeNode(compute=compute, memory=MemoryChoice(**stored))
    return StrategyTree(nodes=nodes)
