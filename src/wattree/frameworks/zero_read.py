"""DeepSpeed's JSON, read: what of it a strategy depends on.

DeepSpeed reads it itself; Accelerate and the Trainer hand it on. Facts are those of DeepSpeed
0.19.8 (`deepspeed/runtime/config.py` and what it calls).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field

from wattree.files import read_yaml
from wattree.frameworks.found import Found
from wattree.frameworks.launch import notes_of
from wattree.frameworks.read import known_of, refuse_sections, without, without_automatic
from wattree.frameworks.zero_json import (
    ELEMENT_BYTES,
    NARROW_COPIES,
    NARROW_MOMENTS,
    OPTIMIZERS,
    SHARDED_PIPELINE,
    STAGES,
)
from wattree.job.optimizers import WITH_MOMENTUM
from wattree.job.problems import Problems
from wattree.job.section import Section
from wattree.job.values import Degree, Samples
from wattree.strategy import ULYSSES

_LISTS: Final[Mapping[str, list[str]]] = read_yaml(Path(__file__).with_name("zero_json.yaml"))
#: Settings without effect on a step.
IGNORED: Final = tuple(_LISTS["ignored"])
#: Settings that DeepSpeed takes without `stage3_` as well (`populate_by_name`).
_SHORT: Final = {
    place.rpartition(".stage3_")[2]: place.rpartition(".")[2]
    for places in _LISTS.values()
    for place in places
    if place.startswith("zero_optimization.stage3_")
}
_SHARDINGS: Final = {stage: sharding for sharding, stage in STAGES.items()}
_MOST_STAGE: Final = max(_SHARDINGS)
#: Default of `reduce_bucket_size` (`runtime/zero/config.py`).
_USUAL_ELEMENTS: Final = 500_000_000
_MOST_ELEMENTS: Final = 10**13  # no model has more parameters


def _elements(value: object) -> int:
    """Return a whole number, which JSON may have as `5e8`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"found {value!r}, expected a whole number of elements, such as 5e8")
    if value != int(value) or not 1 <= value <= _MOST_ELEMENTS:
        raise ValueError(f"found {value!r}, expected a whole number of elements, such as 5e8")
    return int(value)


Elements = Annotated[int, BeforeValidator(_elements)]


class OffloadToSpec(Section):
    """Where a part of the state waits."""

    device: Literal["none", "cpu"] = Field(
        "none", description="'none' or 'cpu'; no strategy here stores state on NVMe"
    )
    ratio: Literal[1] = Field(1, description="1; no strategy here offloads a part of the state")
    super_offload: Literal[False] = Field(False, description="false")


class ZeroSpec(Section):
    """The section `zero_optimization`."""

    stage: Literal[0, 1, 2, 3] = Field(0, description="0, 1, 2 or 3")
    overlap_comm: bool | None = Field(None, description="true or false")
    reduce_bucket_size: Elements | None = Field(None, description="a number of elements")
    allgather_bucket_size: Elements | None = Field(None, description="a number of elements")
    offload_optimizer: OffloadToSpec | None = Field(None, description="a mapping with device")
    offload_param: OffloadToSpec | None = Field(None, description="a mapping with device")
    cpu_offload: bool | None = Field(None, description="true or false")
    cpu_offload_param: bool | None = Field(None, description="true or false")
    zero_hpz_partition_size: Literal[1] = Field(
        1, description="1; no strategy here has a second partition of parameters (ZeRO++)"
    )
    zero_quantized_weights: Literal[False] = Field(
        False, description="false; no strategy here sends parameters quantized (ZeRO++)"
    )
    zero_quantized_nontrainable_weights: Literal[False] = Field(False, description="false")
    zero_quantized_gradients: Literal[False] = Field(
        False, description="false; no strategy here sends gradients quantized (ZeRO++)"
    )
    mics_shard_size: Literal[-1] = Field(
        -1, description="-1; DeepSpeed has removed MiCS, use hybrid sharding of another framework"
    )


class SwitchSpec(Section):
    """A number format that is on or off."""

    enabled: bool = Field(False, description="true or false")


class Bf16Spec(SwitchSpec):
    """The section `bf16`, since 0.18 also with formats of the optimizer's copies."""

    bf16_master_weights_and_grads: bool = Field(False, description="true or false")
    bf16_optimizer_states: bool = Field(False, description="true or false")

    @property
    def traits(self) -> Mapping[str, float]:
        """Widths of copies and moments, as traits. [B]"""
        if not (self.enabled and self.bf16_master_weights_and_grads):
            return {}
        return {**NARROW_COPIES, **(NARROW_MOMENTS if self.bf16_optimizer_states else {})}


class AutocastSpec(SwitchSpec):
    """PyTorch's autocast."""

    dtype: Literal["float16", "fp16", "torch.float16"] | None = Field(
        None, description="'float16', the format of autocast here"
    )


def _format(value: object) -> object:
    """Return the short name of a number format (`DtypeEnum`)."""
    long = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
    return long.get(value, value) if isinstance(value, str) else value


_Format = Annotated[Literal["fp32", "fp16", "bf16"] | None, BeforeValidator(_format)]
#: Format → bytes of an element. [B]
_FORMATS: Final = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0}


class DataTypesSpec(Section):
    """The section `data_types`."""

    grad_accum_dtype: _Format = Field(None, description="fp32, fp16 or bf16")


class OptimizerSpec(Section):
    """The section `optimizer`."""

    type: str = Field(description="the name of an optimizer, such as AdamW")
    params: dict[str, Any] = Field(default_factory=dict, description="a mapping with lr")


class TensorSpec(Section):
    """The section `tensor_parallel`."""

    autotp_size: int = Field(0, ge=0, description="a whole number from 0")
    tp_overlap_comm: bool | None = Field(None, description="true or false")


class ExpertSpec(Section):
    """The section `expert_parallel`."""

    enabled: bool = Field(False, description="true or false")
    autoep_size: Degree = Field(1, description="a whole number")
    expert_tensor_parallel_size: Literal[1] = Field(1, description="1")


class PipelineSpec(Section):
    """The section `pipeline`."""

    stages: Degree = Field(1, description="a whole number, pipeline stages")
    activation_checkpoint_interval: int = Field(0, ge=0, le=1, description="0 or 1")


class ZeroJson(Section):
    """What of DeepSpeed's JSON a strategy depends on; the rest is in `zero_json.yaml`."""

    train_batch_size: Samples | None = Field(None, description="a whole number")
    train_micro_batch_size_per_gpu: Samples | None = Field(None, description="a whole number")
    gradient_accumulation_steps: Samples | None = Field(None, description="a whole number")
    zero_optimization: ZeroSpec = Field(ZeroSpec(), description="a mapping with stage")
    bf16: Bf16Spec = Field(Bf16Spec(), description="a mapping with enabled")
    fp16: SwitchSpec = Field(SwitchSpec(), description="a mapping with enabled")
    torch_autocast: AutocastSpec = Field(AutocastSpec(), description="a mapping with enabled")
    optimizer: OptimizerSpec | None = Field(None, description="a mapping with type and params")
    tensor_parallel: TensorSpec = Field(TensorSpec(), description="a mapping with autotp_size")
    expert_parallel: ExpertSpec = Field(ExpertSpec(), description="a mapping with autoep_size")
    pipeline: PipelineSpec = Field(PipelineSpec(), description="a mapping with stages")
    sequence_parallel_size: Degree = Field(1, description="a whole number")
    activation_checkpointing: dict[str, Any] | None = Field(None, description="a mapping")
    communication_data_type: _Format = Field(None, description="fp32, fp16 or bf16")
    data_types: DataTypesSpec = Field(DataTypesSpec(), description="a mapping")

    @property
    def traits(self) -> dict[str, float]:
        """Widths of gradients, copies and moments that are stated, as traits. [B]"""
        stated = {
            "reduce_bytes": self.communication_data_type,
            "gradient_bytes": self.data_types.grad_accum_dtype,
        }
        widths = {trait: _FORMATS[word] for trait, word in stated.items() if word is not None}
        return {**self.bf16.traits, **widths}


def strategy_keys(found: ZeroJson, precision: str) -> dict[str, Any]:
    """Return the keys of a job's strategy in a JSON, without `dp`.

    Args:
        found: As read.
        precision: Number format of the job, in which buckets are counted.
    """
    zero, width = found.zero_optimization, ELEMENT_BYTES.get(precision, 2)
    keys: dict[str, Any] = {
        "sharding": _SHARDINGS[zero.stage],
        "recompute": "none" if found.activation_checkpointing is None else "full",
    }
    degrees = {
        "tp": max(1, found.tensor_parallel.autotp_size),
        "cp": found.sequence_parallel_size,
        "pp": found.pipeline.stages,
        "ep": found.expert_parallel.autoep_size if found.expert_parallel.enabled else 1,
    }
    keys |= {axis: degree for axis, degree in degrees.items() if degree > 1}
    if degrees["pp"] > 1:
        if zero.stage == 0 and precision == SHARDED_PIPELINE:
            keys["sharding"] = "zero1"
        recomputes = found.pipeline.activation_checkpoint_interval > 0
        keys |= {"schedule": "1f1b", "recompute": "full" if recomputes else keys["recompute"]}
    if degrees["cp"] > 1:
        keys["context"] = ULYSSES
    if degrees["tp"] > 1:
        keys["sequence_parallel"] = False
        if found.tensor_parallel.tp_overlap_comm is not None:
            keys["overlap_tensor"] = found.tensor_parallel.tp_overlap_comm
    if zero.overlap_comm is not None:
        keys["overlap_gradients"] = zero.overlap_comm
    bucket = {
        "gradients": zero.reduce_bucket_size if zero.stage else None,
        "parameters": zero.allgather_bucket_size if zero.stage in {1, 2} else None,
    }
    if sizes := {name: f"{size * width} B" for name, size in bucket.items() if size is not None}:
        keys["bucket"] = sizes
    if offload := _offload(zero):
        keys["offload"] = offload
    return keys


def run_by_deepspeed(strategy: Mapping[str, Any], precision: str) -> dict[str, Any]:
    """Return a strategy with what makes DeepSpeed its engine in Accelerate and the Trainer.

    Their ZeRO-3 without sizes of buckets is FSDP2 (`job.engines`): so the default is stated.

    Args:
        strategy: Keys of a job's strategy that DeepSpeed runs.
        precision: Number format of the job, in which buckets are counted.
    """
    alone = strategy.get("context") != ULYSSES and len(strategy.get("offload", ())) != 1
    if strategy["sharding"] != "zero3" or not alone:
        return dict(strategy)
    usual = {"gradients": f"{_USUAL_ELEMENTS * ELEMENT_BYTES.get(precision, 2)} B"}
    return {**strategy, "bucket": usual | strategy.get("bucket", {})}


def _on_host(zero: ZeroSpec) -> set[str]:
    places = {
        "optimizer": (zero.offload_optimizer, zero.cpu_offload),
        "parameters": (zero.offload_param, zero.cpu_offload_param),
    }
    return {
        name
        for name, (section, old) in places.items()
        if old or (section is not None and section.device == "cpu")
    }


def _offload(zero: ZeroSpec) -> dict[str, str]:
    found = _on_host(zero)
    if zero.stage != _MOST_STAGE:
        found.discard("parameters")  # which only the last stage looks at
    # ZeRO-3 that offloads parameters updates them where they lie.
    names = ("optimizer", "parameters") if "parameters" in found else sorted(found)
    return dict.fromkeys(names, "host")


def _ignored(zero: ZeroSpec) -> tuple[str, ...]:
    if zero.stage == _MOST_STAGE or "parameters" not in _on_host(zero):
        return ()
    return (f"offload_param has no effect with stage {zero.stage}, only with stage {_MOST_STAGE}",)


def precision_of(found: ZeroJson, automatic: Collection[str], filled: str | None) -> str:
    """Return the number format of a JSON; without a section it is fp32.

    Args:
        found: As read.
        automatic: Settings that are left to whoever starts DeepSpeed.
        filled: The format that is filled in there; None if that is not known: one that can be.
    """
    if found.torch_autocast.enabled:
        return "amp"
    formats = {"bf16": found.bf16.enabled, "fp16": found.fp16.enabled}
    left = [name for name in formats if f"{name}.enabled" in automatic]
    stated = [name for name, is_on in formats.items() if is_on]
    return next(iter([*stated, *(left if filled is None else [filled] if left else [])]), "fp32")


def optimizer_of(found: OptimizerSpec) -> str | None:
    """Return the job's name of a JSON's optimizer; None if no optimizer here matches."""
    kind, params = found.type.lower(), found.params
    if kind == "adam" and params.get("adam_w_mode", True):
        return "adamw"  # DeepSpeed's Adam decouples weight decay by default
    alike = (name for name, (written, _) in OPTIMIZERS.items() if written.lower() == kind)
    name = next(alike, None)
    return WITH_MOMENTUM.get(name, name) if name and params.get("momentum") else name


def _of_muon(found: ZeroJson) -> Iterator[str]:
    """Yield what of Muon is predicted otherwise."""
    if found.optimizer is None or found.optimizer.type.lower() != "muon":
        return
    if found.optimizer.params.get("ns_method", "gram") == "gram":
        yield "ns_method gram, the default, is taken as standard, which multiplies more"
    if found.zero_optimization.stage == _MOST_STAGE:
        yield "gradients are scattered, though Muon needs reduce_scatter: false with stage 3"


def _assumed(precision: str, automatic: Collection[str]) -> tuple[str, ...]:
    is_left = f"{precision}.enabled" in automatic
    return (f"precision {precision}: the file leaves it to whoever starts it",) if is_left else ()


def read_zero_json(
    values: Mapping[str, Any], problems: Problems, *, filled: str | None = None
) -> Found | None:
    """Return the settings of DeepSpeed's JSON.

    Args:
        values: As read from a file.
        filled: Number format of whoever starts DeepSpeed, where that is known.
    """
    said = {key: value for key, value in values.items() if not key.startswith("_")}  # comments
    plain, automatic = without_automatic(without(said, ("gradient_clipping",))[0])
    if isinstance(plain.get("zero_optimization"), bool):  # an old way to say stage 1
        plain["zero_optimization"] = {"stage": int(plain["zero_optimization"])}
    if "bfloat16" in plain:
        plain["bf16"] = plain.pop("bfloat16")
    if isinstance(zero := plain.get("zero_optimization"), Mapping):
        plain["zero_optimization"] = {_SHORT.get(key, key): value for key, value in zero.items()}
    plain, _ = without(plain, IGNORED)
    plain, left_out = without(plain, _LISTS["left_out"])
    refuse_sections(ZeroJson, plain, problems)
    known, unknown = known_of(ZeroJson, plain)
    found = problems.read(ZeroJson, known, "")
    if found is None:
        return None
    if found.bf16.enabled and found.fp16.enabled:
        problems.add("bf16.enabled", "found true with fp16.enabled: expected one of them")
    precision = precision_of(found, automatic, filled)
    strategy, stage = strategy_keys(found, precision), found.zero_optimization.stage
    if stage == 0 and "offload" in strategy:
        why = "found with stage 0, expected stage 1, 2 or 3"
        problems.add("zero_optimization.offload_optimizer", why)
    optimizer, rate = None, None
    if found.optimizer is not None:
        optimizer, rate = optimizer_of(found.optimizer), found.optimizer.params.get("lr")
        if optimizer is None:
            names = ", ".join(sorted({written for written, _ in OPTIMIZERS.values()}))
            problems.add(
                "optimizer.type", f"found '{found.optimizer.type}', expected one of {names}"
            )
    return Found(
        global_batch=found.train_batch_size,
        micro_batch=found.train_micro_batch_size_per_gpu,
        accumulation=found.gradient_accumulation_steps,
        precision=precision,
        optimizer=optimizer,
        learning_rate=rate if isinstance(rate, float) else None,
        strategy=strategy,
        traits=found.traits,
        assumed=(
            *notes_of(automatic, left_out),
            *_ignored(found.zero_optimization),
            *_of_muon(found),
            *(_assumed(precision, automatic) if filled is None else ()),
        ),
        not_understood=tuple(unknown),
    )
