"""Data movement concurrent with compute: the keys that presets and trees share → `Traffic`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from wattree.job.problems import Problems
from wattree.job.strategy_schema import MovementSpec, OffloadSpec, PrefetchSpec
from wattree.strategy import (
    IN_LINE,
    Offload,
    Prefetch,
    Strategy,
    StrategyOptions,
    StrategyTree,
    Traffic,
    knobs_of,
)
from wattree.strategy.presets.data import data_parallel

#: Keys of a strategy that make up its `Traffic`, and those that are read as they are.
MOVEMENT_KEYS = frozenset(MovementSpec.model_fields)
_PLAIN = set(knobs_of(Traffic)) - {"in_line", "prefetch", "offload"}
#: PyTorch's words for prefetch in backward (`BackwardPrefetch`): before the gradients of the
#: block that computes, after them, or not at all.
_BACKWARD = {"pre": 1, "post": 0, "none": 0}
#: Kind of communication in line → the axes without which there is none.
_AXES_OF_KIND = {
    "gradients": ("dp", "fsdp", "ep", "cp"),
    "parameters": ("dp", "fsdp", "ep", "cp"),
    "tensor": ("tp",),
    "context": ("cp",),
    "experts": ("ep", "tp"),
    "pipeline": ("pp",),
}


def traffic_of(spec: MovementSpec, *, problems: Problems) -> Traffic:
    """Return what the keys of a strategy say, after noting what contradicts itself."""
    _check(spec, problems=problems)
    bucket = spec.bucket
    return Traffic(
        **spec.model_dump(include=_PLAIN, exclude_none=True),
        in_line=tuple(kind for kind in IN_LINE if kind in (spec.in_line or ())),
        prefetch=None if spec.prefetch is None else _prefetch(spec.prefetch),
        gradient_bucket_bytes=None if bucket is None else bucket.gradients,
        parameter_bucket_bytes=None if bucket is None else bucket.parameters,
        offload=Offload() if spec.offload is None else _offload(spec.offload),
    )


def _prefetch(spec: PrefetchSpec) -> Prefetch:
    backward = spec.backward
    return Prefetch(
        forward=spec.forward,
        backward=_BACKWARD[backward] if isinstance(backward, str) else backward,
        gathers_in_flight=spec.gathers_in_flight,
        after_reductions=backward == "none",
    )


def _offload(spec: OffloadSpec) -> Offload:
    activations, tables = spec.activations, spec.tables
    kept: dict[str, Any] = {}
    if activations is not None:
        kept = {
            "activations": activations.to,
            "layers": activations.layers,
            "tensors": tuple(activations.tensors or ()),
            "prefetch": activations.prefetch,
        }
    if tables is not None:
        kept |= {"tables": tables.to, "cached": tables.cached, "hits": tables.hits}
    return Offload(
        optimizer=spec.optimizer, parameters=spec.parameters, overflow=spec.overflow, **kept
    )


def _check(spec: MovementSpec, *, problems: Problems) -> None:
    for kind in spec.in_line or ():
        if getattr(spec, f"overlap_{kind}", None):
            problems.add(
                f"strategy.overlap_{kind}",
                f"found true with '{kind}' in line, where nothing overlaps; leave one of them out",
            )
    if spec.overlap_optimizer and spec.overlap_gradients is False:
        problems.add(
            "strategy.overlap_optimizer",
            "found true with overlap_gradients false: gradients that are reduced at the end of the "
            "step cannot be used before it; leave one of them out",
        )
    if spec.prefetch is not None and spec.overlap_parameters is False:
        problems.add(
            "strategy.prefetch",
            "found with overlap_parameters false, which is a prefetch of 0; leave one of them out",
        )
    offload = spec.offload
    if offload is not None and offload.tables is not None and offload.parameters is not None:
        problems.add(
            "strategy.offload.tables",
            "found together with offload.parameters, which brings whole tables in for each use; "
            "leave one "
            "of them out",
        )
    if offload is not None and offload.parameters is not None and offload.optimizer is None:
        problems.add(
            "strategy.offload.parameters",
            f"found '{offload.parameters}' with the optimizer on the device: parameters are "
            "updated where they are stored; set offload.optimizer too",
        )


# ---------------------------------------------------------------- settings without effect


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """What there is to move.

    Attributes:
        degrees: Axis of the presets, or role → degree.
        gathers: Parameters are stored as shards of those that are used.
        updates: Optimizer state is sharded, and parameters are not.
    """

    degrees: Mapping[str, int]
    gathers: bool
    updates: bool

    def has(self, kind: str) -> bool:
        """Return whether anything of a kind of communication is sent."""
        return any(self.degrees.get(axis, 1) > 1 for axis in _AXES_OF_KIND[kind])


def warn_of_idle_traffic(
    strategy: Strategy | StrategyOptions, spec: MovementSpec, *, problems: Problems
) -> None:
    """Warn of keys in the file that have no effect on this strategy."""
    if isinstance(strategy, Strategy) and len(strategy.meshes) > 1:
        return  # what one mesh has no use for, another may have
    for key, why in _idle(_setting(strategy), spec):
        problems.warn(f"strategy.{key}", f"has no effect: {why}")


def _setting(strategy: Strategy | StrategyOptions) -> _Setting:
    if isinstance(strategy, Strategy):
        tree, axes, degrees = strategy.tree, dict(strategy.mesh.axes), strategy.degrees
    else:
        tree = data_parallel(strategy)  # nothing else shards what is stored
        axes = degrees = strategy.degrees
    gathers = _shards(tree, axes, ("parameters",))
    return _Setting(
        degrees=degrees,
        gathers=gathers,
        updates=not gathers and _shards(tree, axes, ("optimizer", "gradients")),
    )


def _shards(tree: StrategyTree, degrees: Mapping[str, int], items: tuple[str, ...]) -> bool:
    return any(
        degrees.get(axis, 1) > 1
        for node in tree.nodes.values()
        for item in items
        for axis in getattr(node.memory, item) or ()
    )


def _idle(setting: _Setting, spec: MovementSpec) -> Iterator[tuple[str, str]]:
    yield from _idle_gathers(setting, spec)
    for kind in spec.in_line or ():
        if not setting.has(kind):
            axes = ", ".join(_AXES_OF_KIND[kind])
            yield f"in_line.{kind}", f"nothing of it is sent; set {axes} above 1"
    if spec.overlap_pipeline is not None and not setting.has("pipeline"):
        yield "overlap_pipeline", "there is no pipeline; set pp above 1"
    if spec.bucket is not None:
        if spec.bucket.gradients is not None and not setting.has("gradients"):
            yield "bucket.gradients", "there are no replicas to reduce gradients over"
        if spec.bucket.parameters is not None and not setting.updates:
            yield "bucket.parameters", "no optimizer is sharded over whole parameters"


def _idle_gathers(setting: _Setting, spec: MovementSpec) -> Iterator[tuple[str, str]]:
    no_shards = "no parameters are sharded, so none are gathered for use"
    if spec.prefetch is not None and not setting.gathers:
        yield "prefetch", no_shards
    elif spec.prefetch is not None and "parameters" in (spec.in_line or ()):
        yield "prefetch", "parameters are gathered in line with the computation"
    elif spec.prefetch is not None:
        yield from _idle_limit(_prefetch(spec.prefetch))
    if spec.reshard_after_forward is False and not setting.gathers:
        yield "reshard_after_forward", no_shards


def _idle_limit(prefetch: Prefetch) -> Iterator[tuple[str, str]]:
    deepest = max(prefetch.forward, prefetch.backward)
    limit = prefetch.gathers_in_flight
    if limit is not None and limit > deepest + 1:
        yield (
            "prefetch.gathers_in_flight",
            f"a prefetch of {deepest} has no more than {deepest + 1} in flight",
        )
