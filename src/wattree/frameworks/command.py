"""The command that starts a training of the Hugging Face libraries, with flags of a script."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, cast

from wattree.capture.catalog_entries import catalog_entry, configuration_names
from wattree.files import is_file, read_json
from wattree.frameworks.accelerate_read import launched, read_accelerate
from wattree.frameworks.found import Found
from wattree.frameworks.launch import SIZES_ONLY
from wattree.frameworks.peft import adapted_model
from wattree.frameworks.programs import as_started
from wattree.frameworks.shell_files import NamedFile, read_named
from wattree.frameworks.shell_flags import script_text, shell_flags, shell_words, with_slurm
from wattree.frameworks.trainer_arguments import (
    PROGRAMS,
    FlagsSpec,
    optimizer_of,
    read_spec,
    renamed,
    scalar,
)
from wattree.job.problems import Problems

#: Programs that make files and start nothing.
_MAKING: Final = frozenset({"cat", "cp", "echo", "envsubst", "jq", "mv", "rm", "sed", "tee"})
#: Accelerate's launcher, which the flags of a command set up where no file does.
_LAUNCH: Final = re.compile(r"\baccelerate(?:[ \t]+|\.commands\.)launch\b")
#: Processes of a node and nodes, as launchers call them: torchrun, deepspeed.
_RANKS: Final = (("nproc_per_node", "nnodes"), ("num_gpus", "num_nodes"))


def read_flags(path: Path) -> dict[str, Any]:
    """Return the flags of the command in a file: one value each but for modules, true for none."""
    found = {}
    text = script_text(path)
    for name, value in with_slurm(shell_flags(text), text).items():
        # Behind the value of the last flag of a launcher stand the script, or further flags.
        first = value[0] if isinstance(value, list) else value
        found[name] = True if first == "$@" else scalar(first)
        if name.endswith("target_modules") and isinstance(value, list):
            found[name] = [each for word in value if word != "$@" for each in word.split(",")]
    return renamed(found)


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


def by_accelerate(path: Path, flags: Mapping[str, Any]) -> bool:
    """Return whether a command launches with Accelerate, whose flags others have, too."""
    return "config_file" in flags or _LAUNCH.search(script_text(path)) is not None


def read_command(path: Path, given: str | None, problems: Problems) -> Found | None:
    """Return the settings of a command that launches with Accelerate, and the YAML that it names.

    Args:
        path: A file with the command, on one line or continued.
        given: Model that the user names.
    """
    flags = read_flags(path)
    if not by_accelerate(path, flags):
        problems.add("--config_file", "is missing, expected 'accelerate launch --config_file …'")
        return None
    recipe = read_accelerate(path, problems, str(flags.get("config_file", "")), flags)
    if recipe is None:
        return None
    return with_flags(recipe, path, launched(flags)[1], given, problems)


def with_flags(
    recipe: Found, path: Path, flags: Mapping[str, Any], given: str | None, problems: Problems
) -> Found | None:
    """Return the settings of an engine with those of the flags of a script.

    Args:
        path: File with the command.
        given: Model that the user names.
    """
    file = read_arguments_file(path, flags)
    text = script_text(path)
    whole, own = as_started({**renamed(file.values), **flags}, text, PROGRAMS)
    spec, notes, unknown = read_spec(FlagsSpec, whole, problems)
    if spec is None:
        return None
    strategy: Mapping[str, Any] = recipe.strategy
    if spec.gradient_checkpointing:
        strategy = {**strategy, "recompute": "full"}
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
        compiled=recipe.compiled or spec.torch_compile or None,
        devices=launched_ranks(whole) or recipe.devices,
        nodes=launched_nodes(whole) or recipe.nodes,
        traits={**recipe.traits, **spec.traits},
        strategy=strategy,
        assumed=(*recipe.assumed, *file.assumed, *own, *notes, *spec.open),
        not_understood=(*recipe.not_understood, *unknown),
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
