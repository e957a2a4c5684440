"""The Trainer's arguments, read: what of them a strategy depends on.

Facts are those of transformers 5.23 (`src/transformers/training_args.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field

from wattree.files import read_json, read_yaml
from wattree.frameworks.accelerate_read import (
    FSDP1,
    Flag,
    ParallelismSpec,
    degrees_of,
    flag,
    launched,
    read_accelerate,
    traits_of_fsdp,
)
from wattree.frameworks.command import (
    by_accelerate,
    launched_nodes,
    launched_ranks,
    model_next_to,
    read_arguments_file,
    read_flags,
)
from wattree.frameworks.found import Found
from wattree.frameworks.launch import parsed
from wattree.frameworks.named_files import file_next_to
from wattree.frameworks.peft import adapted_model
from wattree.frameworks.programs import as_started
from wattree.frameworks.settings import Settings
from wattree.frameworks.shell_files import NamedFile, read_named
from wattree.frameworks.shell_flags import script_text
from wattree.frameworks.trainer_arguments import (
    PROGRAMS,
    FlagsSpec,
    optimizer_of,
    read_spec,
    renamed,
)
from wattree.frameworks.zero_read import read_zero_json, run_by_deepspeed
from wattree.job.problems import Problems
from wattree.job.section import Section
from wattree.job.values import Degree, Samples

_LISTS: Final[Mapping[str, list[str]]] = read_yaml(Path(__file__).with_name("trainer.yaml"))
#: Settings without effect on a step.
IGNORED: Final = tuple(_LISTS["ignored"])
PRECISIONS: Final[Mapping[str, Mapping[str, bool]]] = {
    "bf16": {"bf16": True},
    "fp16": {"fp16": True},
    "fp32": {},
}
#: PyTorch's own bucket sizes are in MiB. [B]
MIB: Final = 2**20
#: Accelerate's names of settings of FSDP → those of `fsdp_config`.
_OF_ACCELERATE: Final = {
    "offload_params": "cpu_offload",
    "sharding_strategy": "reshard_after_forward",
}

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


class TrainerSpec(FlagsSpec):
    """Arguments that a strategy depends on, and those of its scripts that a job does."""

    per_device_train_batch_size: Samples = Field(8, description="a whole number")
    gradient_accumulation_steps: Samples = Field(1, description="a whole number")
    optim: str = Field("adamw_torch", description="the name of an optimizer")
    activation_checkpointing: Flag = Field(False, description="true or false")
    ddp_bucket_cap_mb: Degree | None = Field(None, description="a whole number of MiB")
    fsdp: Annotated[bool | str | list[str] | None, BeforeValidator(flag)] = Field(
        None, description="true or false"
    )
    fsdp_config: FsdpConfigSpec | None = Field(None, description="a mapping, or a file")
    deepspeed: dict[str, Any] | str | None = Field(None, description="a JSON file, or a mapping")
    parallelism_config: ParallelismSpec = Field(ParallelismSpec(), description="a mapping")


def read_arguments(settings: Settings, problems: Problems) -> Found | None:
    """Return what the Trainer's arguments say, in YAML or JSON, or in a command.

    Others that a step may depend on are not understood: scripts and trainers have many more.
    """
    path, engine = settings.path, None
    flags: dict[str, Any] = {}
    if path.suffix in {".yaml", ".yml", ".json"}:
        file = NamedFile(dict(parsed(path)), path)
    else:
        flags = read_flags(path)
        if by_accelerate(path, flags):
            engine = read_accelerate(path, problems, str(flags.get("config_file", "")), flags)
            _, flags = launched(flags)
        file = read_arguments_file(path, flags)
    text = script_text(path) if flags else ""
    values, own = as_started(renamed(file.values) | flags, text, PROGRAMS)
    if not values.keys() & TrainerSpec.model_fields.keys():
        expected = "its YAML or JSON, or a command such as 'torchrun --nproc_per_node=8 SCRIPT …'"
        problems.add("", f"found no argument of the Trainer, expected {expected}")
        return None
    _take_fsdp_config(values, file.path, problems)
    settings.expect(TrainerSpec.model_fields)
    spec, notes, unknown = read_spec(TrainerSpec, values, problems)
    if spec is None:
        return None
    stated = spec.model_dump(include=spec.model_fields_set)
    name = spec.config_name or spec.model_name_or_path
    chosen = settings.given.model or (None if name is None else model_next_to(path, name))
    model = adapted_model(spec, chosen, problems)
    found = Found(
        model=model,
        sequence_length=spec.block_size,
        micro_batch=stated.get("per_device_train_batch_size"),
        accumulation=stated.get("gradient_accumulation_steps"),
        precision=spec.precision,
        optimizer=optimizer_of(spec, problems),
        learning_rate=spec.learning_rate,
        steps=spec.max_steps,
        compiled=spec.torch_compile or None,
        devices=launched_ranks(values),
        nodes=launched_nodes(values),
        traits=spec.traits,
        assumed=(*file.assumed, *own, *notes, *spec.open),
        not_understood=unknown,
        usual={"micro_batch": TrainerSpec.model_fields["per_device_train_batch_size"].default},
    )
    if engine is not None:
        found = replace(
            found,  # the precision by ACCELERATE_MIXED_PRECISION
            precision=engine.precision if found.precision == "fp32" else found.precision,
            devices=found.devices or engine.devices,
            nodes=found.nodes or engine.nodes,
        )
    if engine is None or spec.deepspeed is not None or spec.fsdp:
        whole = _with_engine(found, spec, (file.path, path), problems)
    else:
        whole = _launched_by(engine, found, spec)
    return None if whole is None else spec.stored(whole)


def _launched_by(engine: Found, found: Found, spec: TrainerSpec) -> Found:
    """Return the arguments with what the configuration of Accelerate that starts them says."""
    strategy = {**engine.strategy, **({"recompute": "full"} if spec.gradient_checkpointing else {})}
    return replace(
        found,
        strategy=strategy,
        compiled=found.compiled or engine.compiled,
        optimizer=engine.optimizer or found.optimizer,
        traits={**engine.traits, **found.traits},
        assumed=(*engine.assumed, *found.assumed),
        not_understood=(*engine.not_understood, *found.not_understood),
    )


def _take_fsdp_config(values: dict[str, Any], path: Path, problems: Problems) -> None:
    """Replace the file or JSON of `fsdp_config` by its keys, without the prefix of older ones."""
    config = values.get("fsdp_config")
    if isinstance(config, str) and config.lstrip().startswith("{"):
        try:
            config = json.loads(config)
        except ValueError:
            problems.add("fsdp_config", "expected a file, or valid JSON")
            config = {}
    elif isinstance(config, str):
        config = read_json(file_next_to(path, config))
    if isinstance(config, Mapping):
        own = {str(key).removeprefix("fsdp_"): each for key, each in config.items()}
        for name, same in _OF_ACCELERATE.items():
            if name in own:
                own[same] = own.pop(name)
        values["fsdp_config"] = own


def _with_engine(
    found: Found, spec: TrainerSpec, named_by: tuple[Path, Path], problems: Problems
) -> Found | None:
    """Return it with the strategy of its engine.

    Args:
        named_by: The file with the arguments, and the script that uses it.
    """
    recomputes = spec.gradient_checkpointing or spec.activation_checkpointing
    strategy: dict[str, Any] = {"recompute": "full" if recomputes else "none"}
    if spec.deepspeed is not None:
        inner = _deepspeed(found, spec, named_by, problems)
        if inner is None:
            return None
        strategy = {**inner.strategy, "recompute": strategy["recompute"]}
        traits = {**found.traits, **inner.traits}
        found = replace(
            found,
            optimizer=inner.optimizer or found.optimizer,
            traits=traits,
            assumed=(*found.assumed, *inner.assumed),
            not_understood=(*found.not_understood, *inner.not_understood),
        )
    elif spec.fsdp:
        strategy |= _fsdp(spec, problems)
        version = 2 if spec.fsdp_config is None else spec.fsdp_config.version
        found = replace(found, traits={**found.traits, **traits_of_fsdp(version)})
    elif spec.ddp_bucket_cap_mb is not None:
        strategy["bucket"] = {"gradients": f"{spec.ddp_bucket_cap_mb * MIB} B"}
    if spec.deepspeed is None and not spec.fsdp:
        strategy["sharding"] = "none"
    strategy |= degrees_of(spec.parallelism_config, problems)
    if spec.deepspeed is not None:
        strategy = run_by_deepspeed(strategy, found.precision)
    return replace(found, strategy=strategy)


def _deepspeed(
    found: Found, spec: TrainerSpec, named_by: tuple[Path, Path], problems: Problems
) -> Found | None:
    values = spec.deepspeed
    notes: tuple[str, ...] = ()
    if isinstance(values, str):
        path, script = named_by
        config = read_named(path, values, script=script)
        values, notes = config.values, config.assumed
    assert values is not None
    # The Trainer fills in its batch, and demands that both say the same.
    filled = {key for key in _BATCH if values.get(key) == "auto"}
    rest = {key: value for key, value in values.items() if key not in filled}
    inner = read_zero_json(rest, problems, filled=found.precision)
    if inner is None:
        return None
    own = {
        "micro_batch": spec.per_device_train_batch_size,
        "accumulation": spec.gradient_accumulation_steps,
    }
    for name, value in own.items():
        said = getattr(inner, name)
        if said is not None and said != value:
            problems.add("deepspeed", f"found {name} {said}, the Trainer's arguments say {value}")
    return replace(inner, assumed=(*notes, *inner.assumed))


def _fsdp(spec: TrainerSpec, problems: Problems) -> dict[str, Any]:
    """Return the keys of FSDP, whose sharding older files have as a text."""
    config = spec.fsdp_config or FsdpConfigSpec()
    words = spec.fsdp if isinstance(spec.fsdp, str | list) else []
    words = words.split() if isinstance(words, str) else words
    sharding, reshards = next((FSDP1[word] for word in words if word in FSDP1), ("zero3", True))
    if unknown := set(words) - {*FSDP1, "offload", "auto_wrap"}:
        problems.add("fsdp", f"found {', '.join(sorted(unknown))}, expected true")
    reshard = config.reshard_after_forward
    if isinstance(reshard, str) and reshard.lower() in FSDP1:
        sharding, reshards = FSDP1[reshard.lower()]
    elif reshard is not None:
        reshards = flag(reshard) is True
    found: dict[str, Any] = {"sharding": sharding}
    if not reshards:
        found["reshard_after_forward"] = False
    if config.cpu_offload or "offload" in words:
        found["offload"] = {"optimizer": "host", "parameters": "host"}
    if config.activation_checkpointing:
        found["recompute"] = "full"
    return found
