"""The command that starts a training of the Hugging Face libraries, with flags of a script."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pydantic import Field

from wattree.capture.catalog_entries import catalog_entry, configuration_names
from wattree.files import is_file, read_json, read_text
from wattree.frameworks.accelerate_read import file_next_to, read_accelerate
from wattree.frameworks.found import Found
from wattree.frameworks.launch import notes_of
from wattree.frameworks.peft import AdaptersSpec, adapted_model
from wattree.frameworks.shell_flags import shell_flags
from wattree.job.problems import Problems
from wattree.job.values import Rate, Samples, Tokens


class FlagsSpec(AdaptersSpec):
    """Flags that scripts of the transformers library have in common."""

    config_name: str | None = Field(None, description="the folder or name of a model")
    model_name_or_path: str | None = Field(None, description="the folder or name of a model")
    block_size: Tokens | None = Field(None, description="a whole number of tokens")
    per_device_train_batch_size: Samples | None = Field(None, description="a whole number")
    gradient_accumulation_steps: Samples | None = Field(None, description="a whole number")
    learning_rate: Rate | None = Field(None, description="a number")
    optim: str | None = Field(None, description="the name of an optimizer")
    gradient_checkpointing: bool = Field(False, description="nothing")


#: Flags of the launcher that only say where processes are.
_OF_LAUNCHERS: Final = {"config_file", "machine_rank", "main_process_ip", "main_process_port"}
_WITHOUT_EFFECT: Final = {"lora_alpha"}


def read_flags(path: Path) -> dict[str, Any]:
    """Return the flags of the command in a file: one value each but for modules, true for none."""
    found = {}
    for name, value in shell_flags(read_text(path)).items():
        # Behind the value of the last flag of a launcher stand the script, or further flags.
        first = value[0] if isinstance(value, list) else value
        found[name] = True if first == "$@" else scalar(first)
        if name == "lora_target_modules" and isinstance(value, list):
            found[name] = [each for word in value if word != "$@" for each in word.split(",")]
    return found


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
        problems: Where its faults go.
    """
    flags = read_flags(path)
    if "config_file" not in flags:
        problems.add("--config_file", "is missing, expected 'accelerate launch --config_file …'")
        return None
    recipe = read_accelerate(file_next_to(path, str(flags["config_file"])), problems)
    known = {name: value for name, value in flags.items() if name in FlagsSpec.model_fields}
    spec = problems.read(FlagsSpec, known, "")
    if recipe is None or spec is None:
        return None
    strategy: Mapping[str, Any] = recipe.strategy
    if spec.gradient_checkpointing:
        strategy = {**strategy, "recompute": "full"}
    name = spec.config_name or spec.model_name_or_path
    named = given or (None if name is None else model_next_to(path, name))
    model, said = adapted_model(spec, named, problems)
    return replace(
        recipe,
        model=model,
        sequence_length=spec.block_size,
        micro_batch=spec.per_device_train_batch_size or recipe.micro_batch,
        accumulation=spec.gradient_accumulation_steps or recipe.accumulation,
        learning_rate=spec.learning_rate or recipe.learning_rate,
        optimizer=spec.optim or recipe.optimizer,
        strategy=strategy,
        assumed=(
            *recipe.assumed,
            *said,
            *notes_of((), sorted(flags.keys() - known.keys() - _OF_LAUNCHERS - _WITHOUT_EFFECT)),
        ),
    )


def model_next_to(path: Path, name: str) -> str:
    """Return a model that a file names: the configuration in a folder next to it, or a name.

    A configuration that the catalog has goes by its name there.
    """
    config = path.parent / name / "config.json"
    if not is_file(config):
        return name
    values = read_json(config)
    names = (each for each in configuration_names() if catalog_entry(each).config == values)
    return next(names, str(config))
