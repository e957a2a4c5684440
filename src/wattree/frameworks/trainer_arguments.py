"""Arguments that scripts of the Hugging Face libraries have in common, in commands and files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from pydantic import BeforeValidator, Field

from wattree.files import read_yaml
from wattree.frameworks.accelerate_read import Flag, flag
from wattree.frameworks.engines import STORED_NARROW
from wattree.frameworks.found import Found
from wattree.frameworks.launch import notes_of
from wattree.frameworks.peft import AdaptersSpec
from wattree.frameworks.read import foreign_program, refuse_sections, without
from wattree.frameworks.settings import is_declared
from wattree.frameworks.shell_flags import LAUNCHER_FLAGS
from wattree.job.optimizers import OPTIMIZERS as JOB_OPTIMIZERS
from wattree.job.optimizers import OTHER_NAMES, WITH_MOMENTUM
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


def _split_unread(values: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
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
    use_flash_attn: Flag = Field(False, description="true or false")
    torch_compile: Flag = Field(False, description="true or false")
    use_liger_kernel: Flag = Field(False, description="true or false")
    liger_kernel_config: Annotated[dict[str, bool] | None, BeforeValidator(_mapping)] = Field(
        None, description="a mapping"
    )

    @property
    def open(self) -> tuple[str, ...]:
        """What to say of adapters that nothing turns on, and of steps that depend on data."""
        found = []
        if "use_peft" not in self.model_fields_set and self.model_fields_set & _OF_ADAPTERS:
            found.append("the whole model is trained: adapters need use_peft; model.lora adds them")
        if self.num_train_epochs is not None and self.max_steps is None:
            many = f"how many steps {self.num_train_epochs} epochs take depends on the data"
            found.append(f"one step: {many}; training.steps sets them")
        return tuple(found)

    @property
    def precision(self) -> str:
        """The number format that the arguments turn on."""
        return "bf16" if self.bf16 else "fp16" if self.fp16 else "fp32"

    @property
    def traits(self) -> dict[str, Any]:
        """The traits of attention, of Liger's kernels, and of reentrant checkpoints.

        Liger's are all on unless its configuration says so; such checkpoints run all again.
        """
        arguments = self.gradient_checkpointing_kwargs or {}
        reentrant = arguments.get("use_reentrant", self.use_reentrant)
        usual = "flash_attention_2" if self.use_flash_attn else "sdpa"
        found = dict(ATTENTION.get(self.attn_implementation or usual, {}))
        if self.use_liger_kernel:
            chosen = self.liger_kernel_config or {}
            found |= {"fused_loss": True} if chosen.get(LIGER_LOSS, True) else {}
            found |= {"written_out": False} if chosen.get(LIGER_MODULES[0], True) else {}
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
            narrow = self.load_in_4bit or self.load_in_8bit
            is_wide = self.dtype is not None and word == "float32" and not narrow
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


S = TypeVar("S", bound=FlagsSpec)
#: `attn_implementation` of the library → traits.
ATTENTION: Final[Mapping[str, Mapping[str, Any]]] = {
    "eager": {"fused_attention": False},
    "flash_attention_2": {"attention_kernels": "ampere"},
    "flash_attention_3": {"attention_kernels": "native"},
}
#: Arguments of `apply_liger_kernel_to_…` (Liger-Kernel, transformers/monkey_patch.py), on by
#: default: the loss, and what replaces modules written out.
LIGER_LOSS: Final = "fused_linear_cross_entropy"
LIGER_MODULES: Final = ("rms_norm", "rope", "swiglu", "geglu")
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
#: Other names of arguments, in scripts of the libraries' own examples and of TRL.
_SAME: Final = {
    "max_length": "block_size",
    "max_seq_length": "block_size",
    "max_seq_len": "block_size",
    "model_max_length": "block_size",
    "max_train_steps": "max_steps",
    "model_name": "model_name_or_path",
    "use_gradient_checkpointing": "gradient_checkpointing",
    "torch_dtype": "dtype",
    "use_peft_lora": "use_peft",
    "lora_enable": "use_peft",
    "use_lora": "use_peft",
    "lora_rank": "lora_r",
    "use_4bit_quantization": "load_in_4bit",
    "use_8bit_quantization": "load_in_8bit",
    "use_nested_quant": "use_bnb_nested_quant",
    "bnb_4bit_use_double_quant": "use_bnb_nested_quant",
}
#: Flags and arguments that no step depends on.
_LISTS: Final[Mapping[str, Any]] = read_yaml(Path(__file__).with_name("trainer.yaml"))
#: Programs with names and defaults of their own.
PROGRAMS: Final[Sequence[Mapping[str, Any]]] = _LISTS["programs"]
#: Arguments of adapters that turn none on.
_OF_ADAPTERS: Final = {"lora_r", "lora_target_modules"}
_WITHOUT_EFFECT: Final = (*LAUNCHER_FLAGS, *_LISTS["other"])


def renamed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments by the one of their names that is read here."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if value is not None:
            found.setdefault(_SAME.get(name, str(name)), value)
    if "lora_enable" in values:  # LLaVA's: of all linear layers (find_all_linear_names)
        found.setdefault("lora_target_modules", "all-linear")
    return found


def read_spec(
    kind: type[S], values: Mapping[str, Any], problems: Problems
) -> tuple[S | None, tuple[str, ...], tuple[str, ...]]:
    """Return arguments as read, what to say of those left out, and those not understood.

    Args:
        kind: Arguments that are read.
        values: By the names of `renamed`.
        problems: Takes those of values, and training that is on no tokens of samples.
    """
    values = {name: value for name, value in values.items() if value is not None}
    _refuse_preferences(values, problems)
    if why := foreign_program(values.keys()):
        problems.add("", why)
    arguments, unread = _split_unread(values)
    found, left_out = without(arguments, _LISTS["left_out"])
    found, _ = without(found, _LISTS["ignored"])
    refuse_sections(kind, found, problems)
    known = {name: value for name, value in found.items() if name in kind.model_fields}
    unknown = [name for name in found if name not in known and matters(name)]
    return problems.read(kind, known, ""), notes_of((), left_out), (*unknown, *unread)


def _refuse_preferences(values: Iterable[str], problems: Problems) -> None:
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
    word = spec.optim
    name = None if word is None else OTHER_NAMES.get(word, word)
    if name is not None and name not in JOB_OPTIMIZERS:
        words = sorted({*OPTIMIZERS.values(), *OTHER_NAMES})
        problems.add("optim", f"found '{word}', expected one of {', '.join(words)}")
    stated = (each.partition("=") for each in (spec.optim_args or "").replace(" ", "").split(","))
    has_momentum = any(key == "momentum" and scalar(value) for key, _, value in stated)
    return WITH_MOMENTUM.get(name, name) if name and has_momentum else name


def matters(name: str) -> bool:
    """Return whether a step may depend on a flag or argument that no reader knows."""
    return not is_declared(name, _WITHOUT_EFFECT)


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
