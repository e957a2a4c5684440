"""Features of the engines of Accelerate and the Trainer; `job.engines` chooses one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from wattree.frameworks.framework import ConcreteJob
from wattree.frameworks.launch import causal_misfits, on_cpus, recompute_misfits, unexpressed
from wattree.frameworks.zero_json import ZERO_KEYS, zero_json, zero_misfits
from wattree.job.engines import DDP, DEEPSPEED, FSDP, engine_of
from wattree.strategy import ULYSSES, StrategyOptions

#: Way of context parallelism → word of PyTorch's, which FSDP2 needs.
CONTEXTS: Final = {"gather": "allgather", "ring": "alltoall"}
#: Keys of a strategy that any of them has settings for.
ENGINE_KEYS: Final = ZERO_KEYS | {"reshard_after_forward"}
#: Trait → values that their scripts and arguments have a setting for.
ENGINE_TRAITS: Final[Mapping[str, tuple[object, ...]]] = {"early_stop": (False,)}
#: Traits of a model that is loaded in 16 bits and trained in them, without autocast.
STORED_NARROW: Final[Mapping[str, Any]] = {
    "autocast": False,
    "parameter_bytes": 2.0,
    "gradient_bytes": 2.0,
}
#: The same, as values that Accelerate's script and the Trainer's have a setting for.
NARROW_TRAITS: Final = {name: (value,) for name, value in STORED_NARROW.items()}
#: Precision → format that such a model is loaded in, by PyTorch's name.
_STORED_FORMATS: Final = {"bf16": "bfloat16", "fp16": "float16"}
_FSDP_KEYS: Final = frozenset(
    {"sharding", "recompute", "context", "sequence_parallel", "reshard_after_forward", "offload"}
)
_DDP_KEYS: Final = frozenset({"sharding", "recompute", "sequence_parallel"})


def runs_all_again(concrete: ConcreteJob) -> bool:
    """Whether a job states that its checkpoints are reentrant, as the library's own can be."""
    return concrete.job.traits.get("early_stop") is False


def stored_format(concrete: ConcreteJob) -> str:
    """Return the 16-bit format that a job's model is loaded and trained in; empty for none."""
    if engine_of(concrete.options) == DEEPSPEED:
        return ""  # which casts it
    is_narrow = STORED_NARROW.items() <= concrete.job.traits.items()
    return _STORED_FORMATS.get(concrete.job.precision, "") if is_narrow else ""


def _narrow_misfits(concrete: ConcreteJob) -> Iterator[tuple[str, str]]:
    """Yield why a job that states 16 bits for parameters or gradients is not run so."""
    job = concrete.job
    found = [name for name, value in STORED_NARROW.items() if job.traits.get(name) == value]
    if not found or (engine_of(concrete.options) == DEEPSPEED and job.precision in _STORED_FORMATS):
        return  # DeepSpeed's own, with copies of parameters in fp32
    if not stored_format(concrete):
        whole = ", ".join(f"{name}: {value:g}" for name, value in STORED_NARROW.items() if value)
        why = f"expected precision {' or '.join(_STORED_FORMATS)}, autocast: false, {whole}"
        yield f"traits.{found[0]}", f"{why}: a model that is loaded and trained in 16 bits"
    elif job.model.lora is not None:
        yield f"traits.{found[0]}", "with adapters, which PEFT trains in fp32"


def engine_misfits(concrete: ConcreteJob, options: StrategyOptions) -> Iterator[tuple[str, str]]:
    """Yield the settings of a strategy that its engine does not support.

    Args:
        options: Its strategy, or the part that the engine has to implement.
    """
    yield from causal_misfits(concrete)
    yield from _narrow_misfits(concrete)
    yield from recompute_misfits(options)
    for axis in ("pp", "ep"):
        if (degree := options.value(axis)) > 1:
            yield f"strategy.{axis}", f"found {degree}, expected 1"
    if options.tp > 1 and options.parallelism.sequence_parallel:
        yield "strategy.sequence_parallel", "true: its plans split matmuls alone; expected false"
    engine = engine_of(options)
    if engine == DEEPSPEED:
        yield from _deepspeed_misfits(concrete, options)
        return
    yield from unexpressed(options, _FSDP_KEYS if engine == FSDP else _DDP_KEYS)
    if engine == FSDP:
        yield from _fsdp_misfits(options)
        if on_cpus(concrete):
            yield (
                "strategy.sharding",
                f"'{options.memory.sharding}' on CPUs; it has zero1 and zero2",
            )
    elif options.cp > 1:
        yield "strategy.cp", "above 1 without sharding; expected zero3, or context ulysses"
    elif options.tp > 1 and options.dp > 1:
        yield "strategy.tp", "above 1 with whole replicas; expected sharding zero3 or hybrid"


def makes_shards(options: StrategyOptions) -> bool:
    """Whether ranks make nothing but their shards of a model: `zero.Init` of DeepSpeed."""
    return engine_of(options) == DEEPSPEED and options.memory.sharding == "zero3"


def engine_zero_json(concrete: ConcreteJob) -> dict[str, Any]:
    """Return DeepSpeed's settings where it is the engine, batch and optimizer aside."""
    found = zero_json(concrete.options, concrete.job.precision)
    found.pop("sequence_parallel_size", None)  # Accelerate has groups of its own for it
    return found


def _deepspeed_misfits(
    concrete: ConcreteJob, options: StrategyOptions
) -> Iterator[tuple[str, str]]:
    yield from unexpressed(options, ZERO_KEYS)
    sharding, context = options.memory.sharding, options.parallelism.context
    for place, why in zero_misfits(options, concrete.job.precision):
        is_of_fsdp = place == "strategy.context" and context in CONTEXTS
        also = f" with DeepSpeed's {sharding}: FSDP2 has it, for zero3" if is_of_fsdp else ""
        yield place, f"{why}{also}"
    if options.tp > 1:
        yield (
            "strategy.tp",
            f"found {options.tp} with DeepSpeed's sharding, expected zero3 or hybrid with it",
        )


def _fsdp_misfits(options: StrategyOptions) -> Iterator[tuple[str, str]]:
    offload = options.traffic.offload
    if options.cp > 1 and options.parallelism.context not in CONTEXTS:
        expected = " or ".join((*CONTEXTS, ULYSSES))
        yield "strategy.context", f"'{options.parallelism.context}'; expected {expected}"
    if options.cp > 1 and options.memory.sharding == "hybrid":
        yield (
            "strategy.cp",
            "above 1 with hybrid sharding, which shards over cp too; expected zero3",
        )
    if options.cp > 1 and options.value("context_order") != "zigzag":
        yield "strategy.context_order", "'contiguous': PyTorch balances positions; expected zigzag"
    if options.memory.sharding == "zero3" and options.dp * options.cp == 1:
        expected = "none" if offload.optimizer is None else "zero2, offload of the optimizer alone"
        yield "strategy.sharding", f"'zero3' without replicas to shard over; expected {expected}"
    if (offload.optimizer is None) != (offload.parameters is None):
        yield "strategy.offload", "one of optimizer and parameters; FSDP2 offloads both"


def parallelism_of(options: StrategyOptions) -> dict[str, Any]:
    """Return Accelerate's degrees; empty where replicas are all there is."""
    hybrid = options.memory.sharding == "hybrid"
    shards = options.fsdp if hybrid else options.dp if engine_of(options) != DDP else 1
    ulysses = options.parallelism.context == ULYSSES
    degrees = {
        "dp_replicate_size": options.dp if hybrid else 1,
        "dp_shard_size": shards,
        "tp_size": options.tp,
        "cp_size": 1 if ulysses else options.cp,
    }
    if hybrid or options.tp * options.cp > 1:
        if options.cp > 1 and ulysses:
            return degrees | {"sp_size": options.cp}
        if options.cp > 1:
            return degrees | {"cp_comm_strategy": CONTEXTS[options.parallelism.context]}
        return degrees
    return {}
