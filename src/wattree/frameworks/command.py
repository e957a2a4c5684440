"""The command that starts a training of the Hugging Face libraries, with flags of a script."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final, cast

from pydantic import BeforeValidator, Field

from wattree.capture.catalog_entries import catalog_entry, configuration_names
from wattree.files import is_file, read_json, read_yaml
from wattree.frameworks.accelerate_read import Flag, flag, read_accelerate
from wattree.frameworks.engines import STORED_NARROW
from wattree.frameworks.found import Found
from wattree.frameworks.launch import SIZES_ONLY
from wattree.frameworks.peft import AdaptersSpec, adapted_model
from wattree.frameworks.settings import is_declared
from wattree.frameworks.shell_files import NamedFile, read_named
from wattree.frameworks.shell_flags import script_text, shell_flags, shell_words
from wattree.job.optimizers import OPTIMIZERS as JOB_OPTIMIZERS
from wattree.job.optimizers import WITH_MOMENTUM
from wattree.job.problems import Problems
from wattree.job.values import Rate, Samples, Steps, Tokens


def _mapping(value: object) -> object:
    """Return a mapping that a command has as JSON; what is none is left to be refused."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _limit(value: object) -> object:
    """Return a number of steps; none where it is no limit, as libraries write with -1 or 0."""
    return None if value in (-1, 0) else value


def _reads(name: str, value: object) -> bool:
    """Whether an argument of checkpoints can be read: a script may fill it in from elsewhere."""
    if name == "use_reentrant":
        return isinstance(flag(value), bool)
    found = _mapping(value)
    return isinstance(found, dict) and isinstance(found.get("use_reentrant", False), bool)


def split_unread(values: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return arguments less those of checkpoints that cannot be read, and the names of these."""
    unread = tuple(
        name for name in _OF_CHECKPOINTS if name in values and not _reads(name, values[name])
    )
    return {name: value for name, value in values.items() if name not in unread}, unread


class FlagsSpec(AdaptersSpec):
    """Arguments that scripts of the transformers library have in common."""

    config_name: str | None = Field(None, description="the folder or name of a model")
    model_name_or_path: str | None = Field(None, description="the folder or name of a model")
    block_size: Tokens | None = Field(None, description="a whole number of tokens")
    per_device_train_batch_size: Samples | None = Field(None, description="a whole number")
    gradient_accumulation_steps: Samples | None = Field(None, description="a whole number")
    learning_rate: Rate | None = Field(None, description="a number")
    max_steps: Annotated[Steps | None, BeforeValidator(_limit)] = Field(
        None, description="a whole number, or -1"
    )
    num_train_epochs: int | float | str | None = Field(None, description="a number")
    optim: str | None = Field(None, description="the name of an optimizer")
    optim_args: str | None = Field(None, description="settings such as momentum=0.9")
    gradient_checkpointing: Flag = Field(False, description="true or false")
    gradient_checkpointing_kwargs: Annotated[dict[str, Any] | None, BeforeValidator(_mapping)] = (
        Field(None, description="a mapping such as {use_reentrant: false}")
    )
    use_reentrant: Flag = Field(False, description="true or false")
    bf16: Flag = Field(False, description="true or false")
    fp16: Flag = Field(False, description="true or false")
    dtype: str | None = Field(None, description="a number format, such as bfloat16")
    attn_implementation: str | None = Field(None, description="the name of kernels")

    @property
    def open_length(self) -> tuple[str, ...]:
        """What to say of a run whose steps depend on its data."""
        if self.num_train_epochs is None or self.max_steps is not None:
            return ()
        many = f"{self.num_train_epochs} epochs have depends on the data"
        return (f"one step: how many {many}; training.steps sets them",)

    @property
    def precision(self) -> str:
        """The number format that the arguments turn on."""
        return "bf16" if self.bf16 else "fp16" if self.fp16 else "fp32"

    @property
    def traits(self) -> dict[str, Any]:
        """The traits of attention, and of checkpoints: reentrant ones run all of a region again."""
        arguments = self.gradient_checkpointing_kwargs or {}
        reentrant = arguments.get("use_reentrant", self.use_reentrant)
        found = dict(ATTENTION.get(self.attn_implementation or "sdpa", {}))
        return found | ({"early_stop": False} if self.gradient_checkpointing and reentrant else {})

    def stored(self, found: Found) -> Found:
        """Return a configuration with the format that its model is loaded in.

        Parameters of 16 bits have gradients and moments of 16 bits. DeepSpeed, and FSDP with mixed
        precision, store fp32 all the same (`fsdp2_prepare_model` of Accelerate); adapters are in
        fp32, and software here has what is frozen in 16 bits.
        """
        word = (self.dtype or "float32").removeprefix("torch.")
        notes = [] if word in _FORMATS else [f"dtype {word} is left out: parameters as by default"]
        kernels = self.attn_implementation
        if kernels not in (None, "sdpa", *ATTENTION):
            notes.append(f"attn_implementation {kernels} is left out: attention as by default")
        found = replace(found, assumed=(*found.assumed, *notes))
        if self.use_peft:
            is_wide = self.dtype is not None and word == "float32" and not self.load_in_4bit
            return (
                replace(found, traits={**found.traits, "frozen_bytes": 4.0}) if is_wide else found
            )
        is_mixed = found.precision != "fp32"
        if _FORMATS.get(word) != _HALF_BYTES or (
            is_mixed and found.strategy.get("sharding") != "none"
        ):
            return found
        own = {"bfloat16": "bf16", "float16": "fp16"}[word]
        precision = found.precision if is_mixed else own
        return replace(found, precision=precision, traits={**found.traits, **STORED_NARROW})


#: `attn_implementation` of the library → traits.
ATTENTION: Final[Mapping[str, Mapping[str, Any]]] = {
    "eager": {"fused_attention": False},
    "flash_attention_2": {"attention_kernels": "ampere"},
    "flash_attention_3": {"attention_kernels": "native"},
}
#: Format that a model is loaded in → bytes of a parameter. [B]
_FORMATS: Final = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}
_HALF_BYTES: Final = 2.0
#: What says how checkpoints run.
_OF_CHECKPOINTS: Final = ("gradient_checkpointing_kwargs", "use_reentrant")
#: Optimizer → its name in the Trainer's arguments.
OPTIMIZERS: Final[Mapping[str, str]] = {
    "adamw": "adamw_torch",
    "adagrad": "adagrad",
    "sgd": "sgd",
    "momentum": "sgd",
    "rmsprop": "rmsprop",
    "rmsprop_momentum": "rmsprop",
    "adafactor": "adafactor",
    "lion": "lion_32bit",
    "adamw8bit": "adamw_8bit",
}
#: Optimizer → its `optim_args`.
OPTIMIZER_ARGUMENTS: Final = dict.fromkeys(WITH_MOMENTUM.values(), "momentum=0.9")
#: Other names of the same.
_SAME_OPTIMIZERS: Final = {
    "adamw_torch_fused": "adamw",
    "adamw_apex_fused": "adamw",
    "adamw_hf": "adamw",
    "adamw_bnb_8bit": "adamw8bit",
    "paged_adamw_32bit": "adamw",
    "paged_adamw_8bit": "adamw8bit",
}
#: Other names of arguments, in scripts of the libraries' own examples and of TRL.
_SAME: Final = {
    "max_length": "block_size",
    "max_seq_length": "block_size",
    "max_seq_len": "block_size",
    "model_max_length": "block_size",
    "max_train_steps": "max_steps",
    "torch_dtype": "dtype",
    "use_peft_lora": "use_peft",
    "lora_enable": "use_peft",
    "use_4bit_quantization": "load_in_4bit",
    "use_nested_quant": "use_bnb_nested_quant",
    "bnb_4bit_use_double_quant": "use_bnb_nested_quant",
}
#: Flags and arguments that no step depends on.
_LISTS: Final[Mapping[str, list[str]]] = read_yaml(Path(__file__).with_name("trainer.yaml"))
_WITHOUT_EFFECT: Final = tuple(_LISTS["other"])
#: Programs that make files and start nothing.
_MAKING: Final = frozenset({"cat", "cp", "echo", "envsubst", "jq", "mv", "rm", "sed", "tee"})
#: Processes of a node and nodes, as launchers call them: torchrun, deepspeed.
_RANKS: Final = (("nproc_per_node", "nnodes"), ("num_gpus", "num_nodes"))


def renamed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments by the one of their names that is read here."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if value is not None:
            found.setdefault(_SAME.get(name, str(name)), value)
    if "lora_enable" in values:  # LLaVA's: of all linear layers (find_all_linear_names)
        found.setdefault("lora_target_modules", "all-linear")
    return found


def refuse_preferences(values: Iterable[str], problems: Problems) -> None:
    """Note arguments of trainers that do more in a step than train on the tokens of samples."""
    patterns = _LISTS["preferences"]
    found = [name for name in values if any(fnmatchcase(name, each) for each in patterns)]
    if found:
        why = (
            "found training on preferences or by reinforcement, with further answers and models "
            "in a step, expected training on the tokens of samples: no job has more"
        )
        problems.add(", ".join(sorted(found)), why)


def optimizer_of(spec: FlagsSpec, problems: Problems) -> str | None:
    """Return the optimizer of a job that the Trainer's arguments name, or its own name."""
    alone = [(word, ours) for ours, word in OPTIMIZERS.items() if ours not in OPTIMIZER_ARGUMENTS]
    words = dict(alone) | _SAME_OPTIMIZERS
    word = spec.optim
    if word is None or word in JOB_OPTIMIZERS:
        name = word
    elif (name := words.get(word)) is None:
        problems.add("optim", f"found '{word}', expected one of {', '.join(words)}")
    stated = (each.partition("=") for each in (spec.optim_args or "").replace(" ", "").split(","))
    has_momentum = any(key == "momentum" and scalar(value) for key, _, value in stated)
    return WITH_MOMENTUM.get(name, name) if name and has_momentum else name


def read_flags(path: Path) -> dict[str, Any]:
    """Return the flags of the command in a file: one value each but for modules, true for none."""
    found = {}
    for name, value in shell_flags(script_text(path)).items():
        # Behind the value of the last flag of a launcher stand the script, or further flags.
        first = value[0] if isinstance(value, list) else value
        found[name] = True if first == "$@" else scalar(first)
        if name == "lora_target_modules" and isinstance(value, list):
            found[name] = [each for word in value if word != "$@" for each in word.split(",")]
    return renamed(found)


def matters(name: str) -> bool:
    """Return whether a step may depend on a flag or argument that no reader knows."""
    return not is_declared(name, _WITHOUT_EFFECT)


def launched_ranks(flags: Mapping[str, Any]) -> int | None:
    """Return the ranks that a launcher starts; None where its flags leave that open."""
    if "num_processes" in flags:
        return flags["num_processes"] if isinstance(flags["num_processes"], int) else None
    for here, nodes in _RANKS:
        counts = flags.get(here), flags.get(nodes, 1)
        if all(isinstance(count, int) and count > 0 for count in counts):
            return math.prod(cast("tuple[int, int]", counts))
    return None


def launched_nodes(flags: Mapping[str, Any]) -> int | None:
    """Return the machines that a launcher starts ranks on; None where its flags leave that open."""
    counts = (flags.get(name) for name in ("num_machines", *(nodes for _, nodes in _RANKS)))
    return next((count for count in counts if isinstance(count, int) and count > 0), None)


def read_arguments_file(path: Path, flags: Mapping[str, Any]) -> NamedFile:
    """Return the arguments in the file that a command gives its script, if any.

    Args:
        path: File with the command.
        flags: Of the command; their own files are others, but for `--config`.
    """
    others = [value for name, value in flags.items() if name != "config"]
    words = (
        word.partition("=")[2] if word.startswith("--") else word
        for line in shell_words(script_text(path))
        if _MAKING.isdisjoint(line[:2])  # the first may be `sudo`, or the end of `&&`
        for before, word in pairwise(["", *line])
        if not before.endswith((">", "tee", "-a"))  # what is written is no argument
    )
    named = [
        word for word in words if word.endswith((".yaml", ".yml", ".json")) and word not in others
    ]
    return read_named(path, named[-1]) if named else NamedFile({}, path)


def scalar(text: str | bool) -> object:  # noqa: FBT001 - a flag without a value is true
    """Return a number, true or false, or else the text."""
    if isinstance(text, bool):
        return text
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


def read_command(path: Path, given: str | None, problems: Problems) -> Found | None:
    """Return the settings of a command that launches with Accelerate, and the YAML that it names.

    Args:
        path: A file with the command, on one line or continued.
        given: Model that the user names.
    """
    flags = read_flags(path)
    if "config_file" not in flags:
        problems.add("--config_file", "is missing, expected 'accelerate launch --config_file …'")
        return None
    recipe = read_accelerate(path, problems, str(flags["config_file"]))
    return None if recipe is None else with_flags(recipe, path, flags, given, problems)


def with_flags(
    recipe: Found, path: Path, flags: Mapping[str, Any], given: str | None, problems: Problems
) -> Found | None:
    """Return the settings of an engine with those of the flags of a script.

    Args:
        path: File with the command.
        given: Model that the user names.
    """
    file = read_arguments_file(path, flags)
    whole = {**renamed(file.values), **flags}
    refuse_preferences(whole, problems)
    arguments, unread = split_unread(whole)
    known = {name: value for name, value in arguments.items() if name in FlagsSpec.model_fields}
    spec = problems.read(FlagsSpec, known, "")
    if spec is None:
        return None
    strategy: Mapping[str, Any] = recipe.strategy
    if spec.gradient_checkpointing:
        strategy = {**strategy, "recompute": "full"}
    rest = whole.keys() - known.keys() - set(unread)
    name = spec.config_name or spec.model_name_or_path
    named = given or (None if name is None else model_next_to(path, name))
    model = adapted_model(spec, named, problems)
    found = replace(
        recipe,
        model=model,
        sequence_length=spec.block_size,
        micro_batch=spec.per_device_train_batch_size or recipe.micro_batch,
        accumulation=spec.gradient_accumulation_steps or recipe.accumulation,
        learning_rate=spec.learning_rate or recipe.learning_rate,
        steps=spec.max_steps or recipe.steps,
        # Of DeepSpeed's JSON, which makes the optimizer itself.
        optimizer=recipe.optimizer or optimizer_of(spec, problems),
        precision=spec.precision if recipe.precision == "fp32" else recipe.precision,
        devices=launched_ranks(flags) or recipe.devices,
        nodes=launched_nodes(flags) or recipe.nodes,
        traits={**recipe.traits, **spec.traits},
        strategy=strategy,
        assumed=(*recipe.assumed, *file.assumed, *spec.open_length),
        not_understood=(*recipe.not_understood, *unread, *filter(matters, sorted(rest))),
    )
    return spec.stored(found)


def model_next_to(path: Path, name: str) -> str:
    """Return a model that a file names: the configuration in a folder next to it, or a name.

    A configuration that the catalog has goes by its name there.
    """
    config = path.parent / name / "config.json"
    if not is_file(config):
        return name
    values = {key: value for key, value in read_json(config).items() if key != SIZES_ONLY}
    names = (each for each in configuration_names() if catalog_entry(each).config == values)
    return next(names, str(config))
