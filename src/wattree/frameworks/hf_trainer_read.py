"""The Trainer's arguments, read: what of them a strategy depends on.

Facts are those of transformers 5.23 (`src/transformers/training_args.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field

from wattree.files import read_json, read_text, read_yaml
from wattree.frameworks.accelerate_read import FSDP1, Flag, file_next_to
from wattree.frameworks.command import model_next_to, read_flags
from wattree.frameworks.engines import CONTEXTS
from wattree.frameworks.found import Found
from wattree.frameworks.launch import notes_of, parsed
from wattree.frameworks.peft import AdaptersSpec, adapted_model
from wattree.frameworks.read import without
from wattree.frameworks.settings import Settings
from wattree.frameworks.zero_read import read_zero_json
from wattree.job.problems import Problems
from wattree.job.section import Section
from wattree.job.values import Degree, Rate, Samples, Tokens
from wattree.strategy import ULYSSES

_LISTS: Final[Mapping[str, list[str]]] = read_yaml(Path(__file__).with_name("trainer.yaml"))
#: Settings without effect on a step.
IGNORED: Final = tuple(_LISTS["ignored"])
#: Optimizer → its name here.
OPTIMIZERS: Final[Mapping[str, str]] = {
    "adamw": "adamw_torch",
    "sgd": "sgd",
    "rmsprop": "rmsprop",
    "adafactor": "adafactor",
    "lion": "lion_32bit",
    "adamw8bit": "adamw_8bit",
}
#: Other names of the same.
_SAME: Final = {
    "adamw_torch_fused": "adamw",
    "adamw_hf": "adamw",
    "adamw_bnb_8bit": "adamw8bit",
    "paged_adamw_32bit": "adamw",
    "paged_adamw_8bit": "adamw8bit",
}
PRECISIONS: Final[Mapping[str, Mapping[str, bool]]] = {
    "bf16": {"bf16": True},
    "fp16": {"fp16": True},
    "fp32": {},
}
#: PyTorch's own bucket sizes are in MiB. [B]
MIB: Final = 2**20

#: What DeepSpeed's settings may leave to the Trainer's own arguments.
_BATCH: Final = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
)


class FsdpConfigSpec(Section):
    """The argument `fsdp_config`."""

    version: Literal[1, 2] = Field(2, description="1 or 2")
    reshard_after_forward: bool | str | None = Field(None, description="true or false")
    cpu_offload: Flag = Field(False, description="true or false")
    activation_checkpointing: Flag = Field(False, description="true or false")


class ParallelismSpec(Section):
    """The argument `parallelism_config`, with what Accelerate's handlers take."""

    dp_replicate_size: Degree = Field(1, description="a whole number")
    dp_shard_size: Degree = Field(1, description="a whole number")
    tp_size: Degree = Field(1, description="a whole number")
    cp_size: Degree = Field(1, description="a whole number")
    sp_size: Degree = Field(1, description="a whole number")
    cp_comm_strategy: Literal["allgather", "alltoall"] = Field(
        "allgather", description="'allgather' or 'alltoall'"
    )


class TrainerSpec(AdaptersSpec):
    """Arguments that a strategy depends on, and those of its scripts that a job does."""

    config_name: str | None = Field(None, description="the folder or name of a model")
    model_name_or_path: str | None = Field(None, description="the folder or name of a model")
    block_size: Tokens | None = Field(None, description="a whole number of tokens")
    max_length: Tokens | None = Field(None, description="a whole number of tokens")
    max_seq_length: Tokens | None = Field(None, description="a whole number of tokens")
    per_device_train_batch_size: Samples = Field(8, description="a whole number")
    gradient_accumulation_steps: Samples = Field(1, description="a whole number")
    bf16: Flag = Field(False, description="true or false")
    fp16: Flag = Field(False, description="true or false")
    optim: str = Field("adamw_torch", description="the name of an optimizer")
    learning_rate: Rate | None = Field(None, description="a number")
    gradient_checkpointing: Flag = Field(False, description="true or false")
    activation_checkpointing: Flag = Field(False, description="true or false")
    torch_compile: Flag = Field(False, description="true or false")
    ddp_bucket_cap_mb: Degree | None = Field(None, description="a whole number of MiB")
    fsdp: bool | str | list[str] | None = Field(None, description="true or false")
    fsdp_config: FsdpConfigSpec | str | None = Field(None, description="a mapping, or a file")
    deepspeed: dict[str, Any] | str | None = Field(None, description="a JSON file, or a mapping")
    parallelism_config: ParallelismSpec = Field(ParallelismSpec(), description="a mapping")


def read_arguments(settings: Settings, problems: Problems) -> Found | None:
    """Return what the Trainer's arguments say, in YAML or JSON, or a command that names them.

    Arguments of scripts and other trainers in the same file are left alone.
    """
    path, devices = settings.path, None
    if path.suffix not in {".yaml", ".yml", ".json"}:
        flags = read_flags(path)
        named = [word for word in read_text(path).split() if word.endswith((".yaml", ".json"))]
        counts = [flags.get("nproc_per_node"), flags.get("nnodes", 1)]
        if not named or not all(isinstance(count, int) and count > 0 for count in counts):
            problems.add("", "found no 'torchrun --nproc_per_node=… SCRIPT ARGUMENTS.yaml'")
            return None
        path = file_next_to(path, named[-1])
        devices = math.prod(counts)
    values = parsed(path)
    if not values.keys() & TrainerSpec.model_fields.keys():
        problems.add("", "found no argument of the Trainer, expected its YAML or JSON")
        return None
    known = {key: value for key, value in values.items() if value is not None}
    known, left_out = without(known, _LISTS["left_out"])
    known, _ = without(known, IGNORED)
    if isinstance(inner := known.get("fsdp_config"), Mapping):
        known["fsdp_config"] = {key.removeprefix("fsdp_"): value for key, value in inner.items()}
    known = {key: value for key, value in known.items() if key in TrainerSpec.model_fields}
    spec = problems.read(TrainerSpec, known, "")
    if spec is None:
        return None
    name = spec.config_name or spec.model_name_or_path
    optimizers = {word: ours for ours, word in OPTIMIZERS.items()} | _SAME
    if spec.optim not in optimizers:
        problems.add("optim", f"found '{spec.optim}', expected one of {', '.join(optimizers)}")
    assumed = list(notes_of((), left_out))
    if "per_device_train_batch_size" not in known:
        assumed.append("micro-batches of 8 samples, the Trainer's default")
    chosen = settings.given.model or (None if name is None else model_next_to(path, name))
    model, said = adapted_model(spec, chosen, problems)
    assumed += said
    found = Found(
        model=model,
        sequence_length=spec.block_size or spec.max_length or spec.max_seq_length,
        micro_batch=spec.per_device_train_batch_size,
        accumulation=spec.gradient_accumulation_steps,
        precision="bf16" if spec.bf16 else "fp16" if spec.fp16 else "fp32",
        optimizer=optimizers.get(spec.optim),
        learning_rate=spec.learning_rate,
        compiled=spec.torch_compile or None,
        devices=devices,
        assumed=tuple(assumed),
    )
    return _with_engine(found, spec, path, problems)


def _with_engine(found: Found, spec: TrainerSpec, path: Path, problems: Problems) -> Found | None:
    """Return it with the strategy of its engine."""
    recomputes = spec.gradient_checkpointing or spec.activation_checkpointing
    strategy: dict[str, Any] = {"recompute": "full" if recomputes else "none"}
    if spec.deepspeed is not None:
        inner = _deepspeed(found, spec, path, problems)
        if inner is None:
            return None
        strategy = {**inner.strategy, "recompute": strategy["recompute"]}
        found = replace(found, assumed=(*found.assumed, *inner.assumed))
    elif spec.fsdp:
        strategy |= _fsdp(spec, path, problems)
    elif spec.ddp_bucket_cap_mb is not None:
        strategy["bucket"] = {"gradients": f"{spec.ddp_bucket_cap_mb * MIB} B"}
    if spec.deepspeed is None and not spec.fsdp:
        strategy["sharding"] = "none"
    return replace(found, strategy=strategy | _degrees(spec.parallelism_config, problems))


def _deepspeed(found: Found, spec: TrainerSpec, path: Path, problems: Problems) -> Found | None:
    values = spec.deepspeed
    if isinstance(values, str):
        values = read_json(file_next_to(path, values))
    assert values is not None
    # The Trainer fills in its batch, and demands that both say the same.
    filled = {key for key in _BATCH if values.get(key) == "auto"}
    rest = {key: value for key, value in values.items() if key not in filled}
    inner = read_zero_json(rest, problems)
    if inner is None:
        return None
    own = {"micro_batch": found.micro_batch, "accumulation": found.accumulation}
    for name, value in own.items():
        said = getattr(inner, name)
        if said is not None and said != value:
            problems.add("deepspeed", f"found {name} {said}, the Trainer's arguments say {value}")
    return inner


def _fsdp(spec: TrainerSpec, path: Path, problems: Problems) -> dict[str, Any]:
    """Return the keys of FSDP, whose sharding older files have as a text."""
    config = spec.fsdp_config or FsdpConfigSpec()
    if isinstance(config, str):
        read = problems.read(FsdpConfigSpec, read_json(file_next_to(path, config)), "fsdp_config")
        config = read or FsdpConfigSpec()
    words = spec.fsdp if isinstance(spec.fsdp, str | list) else []
    words = words.split() if isinstance(words, str) else words
    sharding, reshards = next((FSDP1[word] for word in words if word in FSDP1), ("zero3", True))
    if (unknown := set(words) - {*FSDP1, "offload", "auto_wrap"}) and words != ["true"]:
        problems.add("fsdp", f"found {', '.join(sorted(unknown))}, expected true")
    reshard = config.reshard_after_forward
    if isinstance(reshard, str) and reshard.lower() in FSDP1:
        sharding, reshards = FSDP1[reshard.lower()]
    elif reshard is not None:
        reshards = reshard is True
    found: dict[str, Any] = {"sharding": sharding}
    if not reshards:
        found["reshard_after_forward"] = False
    if config.cpu_offload or "offload" in words:
        found["offload"] = {"optimizer": "host", "parameters": "host"}
    if config.activation_checkpointing:
        found["recompute"] = "full"
    return found


def _degrees(spec: ParallelismSpec, problems: Problems) -> dict[str, Any]:
    """Return the degrees of `parallelism_config`."""
    found: dict[str, Any] = {}
    if spec.tp_size > 1:
        found |= {"tp": spec.tp_size, "sequence_parallel": False}
    if spec.cp_size > 1:
        ways = {word: way for way, word in CONTEXTS.items()}
        found |= {"cp": spec.cp_size, "context": ways[spec.cp_comm_strategy]}
    if spec.sp_size > 1:
        found |= {"cp": spec.sp_size, "context": ULYSSES}
    if spec.dp_replicate_size > 1:
        found |= {"sharding": "hybrid", "dp": spec.dp_replicate_size, "fsdp": spec.dp_shard_size}
        if spec.cp_size > 1:
            problems.add("parallelism_config", "found copies of what sequences share, too")
    return found
