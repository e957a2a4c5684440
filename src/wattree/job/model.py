"""The `model` of a job file → where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from wattree.errors import ModelError
from wattree.files import is_folder
from wattree.job.inputs import Input, read_declaration
from wattree.job.job import Ffn, Lora, ModelSource
from wattree.job.module import ModuleSource, module_source, names_module
from wattree.job.problems import Problems, seen, shown
from wattree.job.schema import FfnSpec, JobFile, ModelSpec

_SOURCES = ("name", "transformer", "ffn", "module")
#: Keys of the mapping that say something of a Python function.
_OF_MODULES = ("inputs", "loss")


#: What is wrong with the name of a model, given the folder of its job; None: nothing. Packages
#: above this one know the catalog.
NameFault = Callable[[str, Path], str | None]


def model_source(
    value: object,
    *,
    folder: Path,
    is_guest: bool,
    problems: Problems,
    name_fault: NameFault | None = None,
) -> ModelSource | None:
    """Return the source of the model; None after recording problems.

    Args:
        value: Of the key `model`.
        folder: Where relative paths start.
        is_guest: The job is another one's neighbor, so Python in its file is not run.
        name_fault: Looks names up; without it that is left to those who build the model.
    """
    if not isinstance(value, str | Mapping):
        expected = JobFile.model_fields["model"].description
        problems.add("model", f"{seen(value)}, expected {expected}")
        return None
    spec = problems.read(ModelSpec, _as_mapping(value), "model")
    if spec is None:
        return None
    given = [key for key in _SOURCES if getattr(spec, key) is not None]
    if len(given) != 1:
        found = " and ".join(given) or "none of name, transformer, ffn and module"
        expected = f"exactly one of {', '.join(_SOURCES)}"
        problems.add("model", f"found {found}, expected {expected}")
        return None
    if spec.capture is not None and spec.name is None:
        problems.add("model.capture", "only a model given by 'name' has it")
    name = None if spec.name is None else _name(spec.name, folder=folder, problems=problems)
    if name and name == spec.name and name_fault is not None:
        fault = name_fault(name, folder)
        problems.lines += [f"model: {fault}"] if fault else []
    return ModelSource(
        name=name,
        transformer=spec.transformer,
        ffn=None if spec.ffn is None else _ffn(spec.ffn),
        module=_module(spec, folder=folder, is_guest=is_guest, problems=problems),
        capture=bool(spec.capture),
        arguments={} if spec.module is not None else spec.arguments or {},
        lora=_lora(spec),
        freeze=tuple(spec.freeze or ()),
        folder=folder,
    )


def needs_sequence(source: ModelSource) -> bool:
    """Return whether a source is known, before it is read, to be a model of tokens."""
    return source.transformer is not None


def _as_mapping(value: object) -> object:
    if not isinstance(value, str):
        return value
    return {"module" if names_module(value) else "name": value}


def _ffn(spec: FfnSpec) -> Ffn:
    """Return the stack that is described; widths that are left out are that of the others."""
    widths = {"inputs": spec.inputs or spec.width, "outputs": spec.outputs or spec.width}
    return Ffn(**{**spec.model_dump(), **widths})


def _lora(spec: ModelSpec) -> Lora | None:
    if spec.lora is None:
        return None
    targets = {} if spec.lora.targets is None else {"targets": tuple(spec.lora.targets)}
    return Lora(rank=spec.lora.rank, base=spec.lora.base or "", **targets)


def _module(
    spec: ModelSpec, *, folder: Path, is_guest: bool, problems: Problems
) -> ModuleSource | None:
    if spec.module is None:
        if spec.name is None and spec.arguments is not None:
            problems.add("model.arguments", "only a model given by 'module' or 'name' has it")
        for key in _OF_MODULES:
            if getattr(spec, key) is not None:
                problems.add(f"model.{key}", "only a model given by 'module' has it")
        return None
    if is_guest:
        problems.add(
            "model",
            f"found {shown(spec.module)}: a neighbour's Python is not run, as only its job's file "
            "was named; use a catalog name, a config.json or a transformer block",
        )
        return None
    rest: dict[str, Any] = {}
    if spec.arguments is not None:
        rest["arguments"] = spec.arguments
    if spec.loss is not None:
        rest["loss"] = spec.loss
    if spec.inputs is not None:
        rest["inputs"] = _declared_inputs(spec.inputs, problems=problems)
    try:
        return module_source(spec.module, folder, **rest)
    except ModelError as error:
        problems.add("model.module", str(error))
        return None


def _name(name: str, *, folder: Path, problems: Problems) -> str:
    """Return the name, with the path of a configuration file made relative to the job's folder."""
    if not name.strip():
        problems.add("model", "found an empty name, expected a catalog name or a config.json")
    elif name.endswith(".py"):
        problems.add(
            "model", f"found {shown(name)}, expected the function in it, too, such as {name}:build"
        )
    elif names_module(name):
        problems.add(
            "model.name", f"found {shown(name)}, expected it under 'module': it names Python code"
        )
    elif name.endswith(".json"):
        return str(folder / name)
    elif "/" in name and is_folder(folder / name):  # as downloaded model folders are
        return str(folder / name / "config.json")
    return name


def _declared_inputs(
    given: list[Any] | dict[str, Any], *, problems: Problems
) -> tuple[Input, ...] | dict[str, Input] | None:
    """Return the declarations of `model.inputs`; None after noting what is wrong with one."""
    items = given.items() if isinstance(given, dict) else enumerate(given)
    read: dict[Any, Input] = {}
    for key, text in items:
        try:
            read[key] = read_declaration(text)
        except ModelError as error:
            problems.add(f"model.inputs.{key}", str(error))
    if len(read) < len(given):
        return None
    return read if isinstance(given, dict) else tuple(read.values())
