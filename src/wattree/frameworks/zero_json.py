"""A strategy as DeepSpeed's JSON; `zero_read.py` is the inverse.

DeepSpeed reads it itself; Accelerate and the Trainer hand it on. Facts are those of DeepSpeed
0.19.8 (`deepspeed/runtime/config.py` and what it calls).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from wattree.strategy import ULYSSES, StrategyOptions

#: Sharding → stage of ZeRO.
STAGES: Final[Mapping[str, int]] = {"none": 0, "zero1": 1, "zero2": 2, "zero3": 3}
#: The section of a number format.
PRECISIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "bf16": {"bf16": {"enabled": True}},
    "fp16": {"fp16": {"enabled": True}},
    "amp": {"torch_autocast": {"enabled": True, "dtype": "float16"}},
    "fp32": {},
}
#: Traits of `bf16_master_weights_and_grads`, whose gradients need no copy in fp32, and of
#: `bf16_optimizer_states` (runtime/base_optimizer.py, `_configure_master_weights`).
NARROW_COPIES: Final = {"master_bytes": 2.0, "master_gradient_bytes": 2.0}
NARROW_MOMENTS: Final = {"first_moment_bytes": 2.0, "second_moment_bytes": 2.0}
#: Bytes of an element of a bucket, by number format: buckets are counted in elements. [B]
ELEMENT_BYTES: Final[Mapping[str, int]] = {"bf16": 2, "fp16": 2, "amp": 4, "fp32": 4}
#: Optimizer → its name in the JSON, and arguments besides its learning rate.
OPTIMIZERS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "adamw": ("AdamW", {}),
    "adam": ("Adam", {"adam_w_mode": False}),
    "lamb": ("Lamb", {}),
    "lion": ("Lion", {}),
    "sgd": ("SGD", {}),
    "momentum": ("SGD", {"momentum": 0.9}),
    "rmsprop": ("RMSprop", {}),
    "rmsprop_momentum": ("RMSprop", {"momentum": 0.9}),
    "adafactor": ("Adafactor", {}),
    # By default products of Gram matrices take their place.
    "muon": ("Muon", {"ns_method": "standard"}),
}
#: Format in which DeepSpeed gives a pipeline without ZeRO its BF16_Optimizer, which shards the
#: optimizer's state as stage 1 does (`_do_optimizer_sanity_check` of runtime/engine.py).
SHARDED_PIPELINE: Final = "bf16"
_ON_HOST: Final = {"device": "cpu", "pin_memory": True}
#: Keys of a strategy that the JSON has settings for, degrees aside.
ZERO_KEYS: Final = frozenset(
    {
        *("sharding", "recompute", "context", "schedule", "virtual_stages", "sequence_parallel"),
        *("overlap_gradients", "overlap_tensor", "offload"),
        *("gradient_bucket_bytes", "parameter_bucket_bytes"),
    }
)
#: What tells DeepSpeed that there are no accelerators.
CPU: Final = "DS_ACCELERATOR=cpu"


def zero_json(options: StrategyOptions, precision: str) -> dict[str, Any]:
    """Return the keys of a strategy in DeepSpeed's JSON; `zero_misfits` found none."""
    found: dict[str, Any] = {"zero_optimization": _zero_section(options, precision)}
    found |= PRECISIONS[precision]
    if options.memory.recompute == "full":
        # What there is of it is said by the section itself; the script turns it on.
        found["activation_checkpointing"] = {
            "partition_activations": False,
            "contiguous_memory_optimization": False,
            "cpu_checkpointing": False,
        }
    if options.tp > 1:
        overlap = options.traffic.overlap_tensor
        found["tensor_parallel"] = {"autotp_size": options.tp} | (
            {} if overlap is None else {"tp_overlap_comm": overlap}
        )
    if options.cp > 1:
        found["sequence_parallel_size"] = options.cp
    if options.ep > 1:
        found["expert_parallel"] = {"enabled": True, "autoep_size": options.ep}
    if options.pp > 1:
        found["pipeline"] = {
            "stages": options.pp,
            "activation_checkpoint_interval": int(options.memory.recompute == "full"),
        }
    return found


def narrow_keys(traits: Mapping[str, Any]) -> dict[str, bool]:
    """Return the keys of the section `bf16` for copies and moments that a job states."""
    found = {
        "bf16_master_weights_and_grads": NARROW_COPIES.items() <= traits.items(),
        "bf16_optimizer_states": NARROW_MOMENTS.items() <= traits.items(),
    }
    return {key: is_on for key, is_on in found.items() if is_on}


def narrow_misfits(
    options: StrategyOptions, traits: Mapping[str, Any], precision: str
) -> Iterator[tuple[str, str]]:
    """Yield why copies and moments in 16 bits are not run (`runtime/config.py`, 0.19.8)."""
    stated = [name for name in (*NARROW_COPIES, *NARROW_MOMENTS) if name in traits]
    if not stated:
        return
    keys = set(narrow_keys(traits))
    on_host = options.traffic.offload.optimizer is not None
    expected = NARROW_COPIES if on_host else {**NARROW_COPIES, **NARROW_MOMENTS}
    words = ", ".join(f"{name}: {width:g}" for name, width in expected.items())
    if precision != "bf16" or options.memory.sharding == "none":
        yield f"traits.{stated[0]}", "in 16 bits needs bf16, and sharding zero1, zero2 or zero3"
    elif set(stated) != set(expected) or len(keys) != (1 if on_host else 2):
        where = "with the optimizer on the host" if on_host else "on the device"
        yield f"traits.{stated[0]}", f"expected {words}, alone: what DeepSpeed has {where}"


def _zero_section(options: StrategyOptions, precision: str) -> dict[str, Any]:
    traffic, width = options.traffic, ELEMENT_BYTES[precision]
    found: dict[str, Any] = {"stage": STAGES[options.memory.sharding]}
    if traffic.overlap_gradients is not None:
        found["overlap_comm"] = traffic.overlap_gradients
    if traffic.gradient_bucket_bytes is not None:
        found["reduce_bucket_size"] = round(traffic.gradient_bucket_bytes / width)
    if traffic.parameter_bucket_bytes is not None:
        found["allgather_bucket_size"] = round(traffic.parameter_bucket_bytes / width)
    if traffic.offload.optimizer is not None:
        found["offload_optimizer"] = dict(_ON_HOST)
    if traffic.offload.parameters is not None:
        found["offload_param"] = dict(_ON_HOST)
    return found


def zero_misfits(options: StrategyOptions, precision: str) -> Iterator[tuple[str, str]]:
    """Yield the settings of a strategy that DeepSpeed's JSON cannot express: place and reason.

    Args:
        options: The strategy; its keys are `ZERO_KEYS`.
    """
    memory, traffic = options.memory, options.traffic
    if precision not in PRECISIONS:
        yield "precision", f"found {precision}, expected one of {', '.join(PRECISIONS)}"
    if memory.sharding not in STAGES:
        yield "strategy.sharding", f"found '{memory.sharding}', expected one of {', '.join(STAGES)}"
    yield from _axis_misfits(options)
    yield from _bucket_misfits(options, ELEMENT_BYTES.get(precision, 1))
    offload = traffic.offload
    if offload.optimizer is not None and memory.sharding == "none":
        yield "strategy.offload.optimizer", "needs a sharding of zero1, zero2 or zero3"
    if offload.parameters is not None and memory.sharding != "zero3":
        yield "strategy.offload.parameters", "needs the sharding zero3"


def _axis_misfits(options: StrategyOptions) -> Iterator[tuple[str, str]]:
    if options.cp > 1 and options.parallelism.context != ULYSSES:
        yield "strategy.context", f"'{options.parallelism.context}': expected '{ULYSSES}'"
    if options.tp > 1 and options.parallelism.sequence_parallel:
        yield "strategy.sequence_parallel", "true: AutoTP splits matmuls alone; expected false"
    others = [axis for axis in ("tp", "cp", "pp", "ep") if options.value(axis) > 1]
    if len(others) > 1:
        rest = " and ".join(f"{axis} {options.value(axis)}" for axis in others[:-1])
        yield (
            f"strategy.{others[-1]}",
            f"found {options.value(others[-1])} together with {rest}, expected one of them",
        )
    if options.pp == 1:
        return
    if options.pipeline.schedule != "1f1b" or options.pipeline.virtual_stages > 1:
        chunks = options.pipeline.virtual_stages
        yield (
            "strategy.schedule",
            f"found {options.pipeline.schedule}{f' with {chunks} chunks' if chunks > 1 else ''}, "
            "expected 1f1b",
        )
    if options.memory.sharding not in {"none", "zero1"}:
        yield "strategy.sharding", f"'{options.memory.sharding}' with a pipeline: at most zero1"


def _bucket_misfits(options: StrategyOptions, width: int) -> Iterator[tuple[str, str]]:
    buckets = {
        "gradients": (options.traffic.gradient_bucket_bytes, {"zero1", "zero2", "zero3"}),
        "parameters": (options.traffic.parameter_bucket_bytes, {"zero1", "zero2"}),
    }
    for name, (size_bytes, shardings) in buckets.items():
        if size_bytes is None:
            continue
        if size_bytes % width:
            yield (
                f"strategy.bucket.{name}",
                f"{size_bytes:g} B: expected whole elements of {width} B",
            )
        if options.memory.sharding not in shardings:
            yield (
                f"strategy.bucket.{name}",
                f"with {options.memory.sharding}: expected {' or '.join(sorted(shardings))}",
            )
