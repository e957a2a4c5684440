"""Parallelization choices attached to the module tree; nodes inherit from their parents.

A node's key is a dotted pattern over module paths (`layers.*.attention.qkv`; the empty pattern
is the root). It applies to every operator at or below a matching module. Where several nodes
set the same item, the one with more segments wins, then the one with fewer wildcards.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import cache, lru_cache
from typing import NamedTuple

from wattree.strategy.phantom import PhantomLayers

#: Stands among the dims of `compute` for the operators themselves: an operator that is split over
#: axes by its `owner` is whole on one of their ranks. Tables of samples are shared out evenly, any
#: other operator lies on the first rank.
OWNER = "owner"


class ActivationStore(StrEnum):
    """Treatment of an activation that backward needs."""

    KEEP = "keep"
    RECOMPUTE = "recompute"


class GatheredStore(StrEnum):
    """Treatment of a gathered input that backward needs."""

    KEEP = "keep"
    AGAIN = "again"  # only the rank's own part is kept; it is gathered once more


class ContextExchange(StrEnum):
    """How attention gets keys and values of positions on other ranks.

    `ulysses`, the fourth way, exchanges positions for heads: it is a split of attention over heads
    (`compute`), so it needs no word here.
    """

    OVERLAPPED = "overlapped"  # gathered, hidden behind attention as far as attention lasts
    GATHER = "gather"  # gathered, and waited for
    RING = "ring"  # passed on block by block, each behind attention to the block before


class PositionOrder(StrEnum):
    """Assignment of a sample's positions to ranks."""

    ZIGZAG = "zigzag"  # an early and a late piece, so that a causal mask leaves all alike to do
    CONTIGUOUS = "contiguous"  # one piece: the last rank's queries see most keys


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryChoice:
    """How the tensors of a module are stored. Empty tuples mean replicated.

    Attributes:
        parameters: Axes the parameters are sharded over (FSDP, ZeRO-3); gathered for use.
        gradients: Axes the accumulated gradients are sharded over (ZeRO-2).
        optimizer: Axes the optimizer state is sharded over (ZeRO-1).
        activations: Keep, or recompute in backward.
        recompute_share: Share of each operator that is recomputed; the rest is kept (1 unless set).
        gathered: Keep what was gathered for an operator, or gather it again (unless set, as the
            software does).
    """

    parameters: tuple[str, ...] | None = None
    gradients: tuple[str, ...] | None = None
    optimizer: tuple[str, ...] | None = None
    activations: ActivationStore | None = None
    recompute_share: float | None = None
    gathered: GatheredStore | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeNode:
    """Choices of one node.

    Attributes:
        compute: Iteration dim → mesh axes it is split over, outermost first.
        memory: How tensors are stored.
        context: Attention only: how it gets keys and values that other ranks hold.
        context_order: Attention only: which positions each rank holds.
        sync_batch_norm: Batch norm only: statistics are those of all ranks that share its channels.
        phantom: Linear layers only: they are phantom layers.
        mesh: Name of the mesh whose ranks run it, where a strategy has several.
    """

    compute: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    memory: MemoryChoice = field(default_factory=MemoryChoice)
    context: ContextExchange | None = None
    context_order: PositionOrder | None = None
    sync_batch_norm: bool | None = None
    phantom: PhantomLayers | None = None
    mesh: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """Choices for one operator after inheritance.

    Attributes:
        compute: Iteration dim → axes.
        parameters, gradients, optimizer: Axes the three are stored sharded over.
        recompute: Share of the operator's forward work done again in backward; 0 keeps all.
        inside_region: It lies in a module that is recomputed, even if it is itself kept.
        context: How attention gets keys and values that other ranks hold.
        context_order: Which positions each rank holds.
        sync_batch_norm: Statistics of batch norm are those of all ranks that share its channels.
        phantom: It is a phantom layer, if it is linear.
        save_gathered: What was gathered for it is kept for backward; None: as its software does.
        save_output: What it makes is kept for backward, needed or not.
    """

    compute: Mapping[str, tuple[str, ...]]
    parameters: tuple[str, ...]
    gradients: tuple[str, ...]
    optimizer: tuple[str, ...]
    recompute: float
    inside_region: bool
    context: ContextExchange = ContextExchange.OVERLAPPED
    context_order: PositionOrder = PositionOrder.ZIGZAG
    sync_batch_norm: bool = False
    phantom: PhantomLayers | None = None
    save_gathered: bool | None = None
    save_output: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyTree:
    """Patterns and their nodes.

    Attributes:
        nodes: Pattern → choices.
    """

    nodes: Mapping[str, TreeNode]

    def __hash__(self) -> int:
        """Return equal hashes for equal trees; the mappings of choices have no hash."""
        return hash(frozenset(self.nodes))

    def matching(self, path: str) -> tuple[str, ...]:
        """Return the patterns that apply to the operator at `path`, weakest first."""
        return _matching(tuple(self.nodes), path)

    def matching_below(self, path: str) -> tuple[str, ...]:
        """Return the patterns that may apply to something at or below `path`."""
        return _reaching(tuple(self.nodes), path)

    def below(self, path: str) -> StrategyTree:
        """Return the tree of these patterns alone, which finds what lies below `path` faster."""
        return StrategyTree(nodes={name: self.nodes[name] for name in self.matching_below(path)})

    def choices(self, path: str) -> Choices:
        """Return the choices for the operator at `path` after inheritance."""
        return self.resolve(self.matching(path))

    def resolve(self, patterns: tuple[str, ...]) -> Choices:
        """Return the merged choices of `patterns`, weakest first."""
        compute: dict[str, tuple[str, ...]] = {}
        stored: dict[str, tuple[str, ...]] = {"parameters": (), "gradients": (), "optimizer": ()}
        recompute, region, share = False, False, 1.0
        context, order = ContextExchange.OVERLAPPED, PositionOrder.ZIGZAG
        synced, keep = False, None
        phantom: PhantomLayers | None = None
        for pattern in patterns:
            node = self.nodes[pattern]
            compute.update(node.compute)
            for item in stored:
                value = getattr(node.memory, item)
                if value is not None:
                    stored[item] = value
            if node.memory.activations is not None:
                recompute = node.memory.activations is ActivationStore.RECOMPUTE
                region = region or recompute
            if node.memory.recompute_share is not None:
                share = node.memory.recompute_share
            context = node.context or context
            order = node.context_order or order
            synced = synced if node.sync_batch_norm is None else node.sync_batch_norm
            phantom = node.phantom or phantom
            if node.memory.gathered is not None:
                keep = node.memory.gathered is GatheredStore.KEEP
        return Choices(
            compute=compute,
            recompute=share if recompute else 0.0,
            inside_region=region,
            context=context,
            context_order=order,
            sync_batch_norm=synced,
            phantom=phantom,
            save_gathered=keep,
            parameters=stored["parameters"],
            gradients=stored["gradients"],
            optimizer=stored["optimizer"],
        )

    def mesh_of(self, path: str) -> str | None:
        """Return the name of the mesh that runs the operator at `path`; None if none is named."""
        named = [self.nodes[pattern].mesh for pattern in self.matching(path)]
        return next((name for name in reversed(named) if name), None)

    def merged(self, other: StrategyTree) -> StrategyTree:
        """Return both trees merged; where both set an item, `other` takes precedence."""
        nodes = dict(self.nodes)
        for pattern, theirs in other.nodes.items():
            if (ours := nodes.get(pattern)) is None:
                nodes[pattern] = theirs
                continue
            nodes[pattern] = TreeNode(
                compute={**ours.compute, **theirs.compute},
                memory=_laid_over(ours.memory, theirs.memory),
                context=theirs.context or ours.context,
                context_order=theirs.context_order or ours.context_order,
                sync_batch_norm=(
                    ours.sync_batch_norm
                    if theirs.sync_batch_norm is None
                    else theirs.sync_batch_norm
                ),
                phantom=theirs.phantom or ours.phantom,
                mesh=theirs.mesh or ours.mesh,
            )
        return StrategyTree(nodes=nodes)


def _laid_over(ours: MemoryChoice, theirs: MemoryChoice) -> MemoryChoice:
    chosen = {f.name: getattr(theirs, f.name) for f in fields(theirs)}
    return replace(ours, **{name: value for name, value in chosen.items() if value is not None})


class _Branch(NamedTuple):
    """Patterns that begin alike: those that end here, and the others by their next segment.

    `names` has the segments that match no other name, `wild` the rest.
    """

    ends: list[str]
    names: dict[str, _Branch]
    wild: dict[str, _Branch]

    def at(self, name: str) -> list[_Branch]:
        """Return what goes on with a segment that matches `name`."""
        found = [branch for want, branch in self.wild.items() if _fits(want, name)]
        return [self.names[name], *found] if name in self.names else found


@lru_cache(maxsize=256)  # trees of a search share their patterns
def _branches(patterns: tuple[str, ...]) -> _Branch:
    root = _Branch([], {}, {})
    for pattern in patterns:
        branch = root
        for segment in pattern.split(".") if pattern else ():
            known = branch.names if _LITERAL(segment) else branch.wild
            branch = known.setdefault(segment, _Branch([], {}, {}))
        branch.ends.append(pattern)
    return root


@lru_cache(maxsize=2**16)  # and models their paths
def _matching(patterns: tuple[str, ...], path: str) -> tuple[str, ...]:
    branches = [_branches(patterns)]
    found = [*branches[0].ends]
    for name in path.split("."):
        branches = [each for branch in branches for each in branch.at(name)]
        found += [pattern for branch in branches for pattern in branch.ends]
    return tuple(sorted(found, key=_strength))


@lru_cache(maxsize=2**16)
def _reaching(patterns: tuple[str, ...], path: str) -> tuple[str, ...]:
    branches = [_branches(patterns)]
    found = {*branches[0].ends}
    for name in path.split("."):
        branches = [each for branch in branches for each in branch.at(name)]
        found.update(pattern for branch in branches for pattern in branch.ends)
    while branches:
        found.update(pattern for branch in branches for pattern in branch.ends)
        branches = [each for b in branches for each in (*b.names.values(), *b.wild.values())]
    return tuple(pattern for pattern in patterns if pattern in found)


#: Most segments are names. Only others are worth a pattern's while.
_LITERAL = re.compile(r"[^*?\[]*").fullmatch


def _fits(want: str, name: str) -> bool:
    return want in ("*", name) or fnmatch.fnmatchcase(name, want)


@cache
def _strength(pattern: str) -> tuple[int, int, str]:
    segments = pattern.split(".") if pattern else []
    return len(segments), -sum("*" in s or "?" in s or "[" in s for s in segments), pattern
