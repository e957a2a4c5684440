"""Low-rank adapters as PEFT has them: arguments of scripts, modules of the library, operators."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import Field

from wattree.capture.catalog_entries import catalog_entry, is_model_name
from wattree.capture.linear_layers import ALL_LINEAR, LIBRARY_MODULES, partial_targets
from wattree.capture.operator_names import matches
from wattree.errors import did_you_mean
from wattree.files import is_file, read_json
from wattree.frameworks.accelerate_read import Flag
from wattree.frameworks.framework import ConcreteJob
from wattree.graph import Operator, OperatorKind, joined_parts
from wattree.job.problems import Problems
from wattree.job.section import Section
from wattree.job.values import Degree

_ADAPTER: Final = ".lora_a"
#: What computes queries and values, in our own families.
_BEFORE: Final = "attention.qkv"
#: `lora_r` of TRL's `ModelConfig`.
_DEFAULT_RANK: Final = 16
#: What no name of a module has.
_OF_PATTERNS: Final = frozenset("\\()[]|*+?")
#: Names of the transformers library: of decoders, alone and next to encoders of images, and of what
#: in a layer has operators.
_DECODERS: Final = ("model.", "model.language_model.", "language_model.model.")
_PARTS: Final = {"attention": ("self_attn",), "mlp": ("mlp",)}
_PEFT: Final = "PEFT, which makes the adapters: `pip install peft`."
_QUANTIZED: Final = "bitsandbytes, which stores 4 or 8 bits."
#: `model.lora.base` of 8 bits.
_IN_8_BITS: Final = "int8"


class AdaptersSpec(Section):
    """Arguments of low-rank adapters, by their names in TRL's `ModelConfig`."""

    use_peft: Flag = Field(False, description="true or false")
    lora_r: Degree = Field(_DEFAULT_RANK, description="a whole number")
    lora_target_modules: str | list[str] | None = Field(None, description="a list of modules")
    load_in_4bit: Flag = Field(False, description="true or false")
    load_in_8bit: Flag = Field(False, description="true or false")
    use_bnb_nested_quant: Flag = Field(False, description="true or false")


def adapter_settings(concrete: ConcreteJob) -> dict[str, Any]:
    """Return the arguments of a job's adapters; none without any."""
    lora = concrete.job.model.lora
    if lora is None:
        return {}
    modules = adapted_modules(concrete)[0]
    found: dict[str, Any] = {
        "use_peft": True,
        "lora_r": lora.rank,
        "lora_alpha": 2 * lora.rank,
        "lora_target_modules": ALL_LINEAR if modules == [ALL_LINEAR] else modules,
    }
    if lora.base == _IN_8_BITS:
        found["load_in_8bit"] = True
    elif lora.base:
        found |= {"load_in_4bit": True, "use_bnb_nested_quant": lora.base == "nf4-double"}
    return found


def adapter_misfits(concrete: ConcreteJob) -> dict[str, str]:
    """Return why PEFT cannot have a job's adapters, by key of the job."""
    lora, memory = concrete.job.model.lora, concrete.options.memory
    problem = "" if lora is None else adapted_modules(concrete)[1]
    if lora is not None and lora.base == _IN_8_BITS and memory.sharding in {"zero3", "hybrid"}:
        problem = f"{problem}; " * bool(problem) + (
            f"8 bits of bitsandbytes are no type that {memory.sharding} can shard; "
            "expected base: nf4, or whole weights"
        )
    return {"model.lora": problem} if problem else {}


def adapter_needs(concrete: ConcreteJob) -> tuple[str, ...]:
    """Return what has to be installed for a job's adapters."""
    lora = concrete.job.model.lora
    return () if lora is None else (_PEFT, _QUANTIZED) if lora.base else (_PEFT,)


def adapted_model(
    spec: AdaptersSpec, model: str | dict[str, Any] | None, problems: Problems
) -> str | dict[str, Any] | None:
    """Return a model with the adapters that arguments name."""
    bits = 4 if spec.load_in_4bit else 8 if spec.load_in_8bit else 0
    if not spec.use_peft and not bits:
        return model
    if not spec.use_peft:
        words = f"found true, but {bits} bits cannot be trained; add use_peft"
        problems.add(f"load_in_{bits}bit", words)
    if model is None:
        problems.add("use_peft", "found true, but no model to adapt; name it with --model")
    targets = adapted_operators(spec.lora_target_modules, model, problems)
    lora: dict[str, Any] = {"rank": spec.lora_r, "targets": targets}
    if bits == 4:
        lora["base"] = "nf4-double" if spec.use_bnb_nested_quant else "nf4"
    elif bits:
        lora["base"] = _IN_8_BITS
    return {"name": model, "lora": lora}


def adapted_modules(concrete: ConcreteJob) -> tuple[list[str], str]:
    """Return the modules that a job adapts, and why PEFT cannot have them so, if it cannot."""
    modules = LIBRARY_MODULES.get(str(concrete.config.get("model_type")), {})
    lora = concrete.job.model.lora
    if concrete.config and not concrete.model.own_family:  # captured, so by its modules' names
        if lora is not None and lora.targets == (ALL_LINEAR,):
            return [ALL_LINEAR], ""
        matmuls = (each for block in concrete.model.blocks.values() for each in block.operators)
        targets = () if lora is None else lora.targets
        modules = {
            each.path: _named_parts(each, targets)
            for each in matmuls
            if each.kind is OperatorKind.MATMUL
        }
    if not modules:
        name = concrete.model.name
        return (
            [],
            f"adapters of {name}: its modules have no known names; name a config.json",
        )
    adapted, left = set(), set()
    for instance in concrete.model.instances:
        paths = {each.path for each in concrete.model.blocks[instance.block].operators}
        adapters = {path.removesuffix(_ADAPTER) for path in paths if path.endswith(_ADAPTER)}
        adapted |= adapters
        left |= paths - adapters
    if unknown := adapted - modules.keys():
        return [], f"found adapters of {', '.join(sorted(unknown))}, which have no module here"
    if both := adapted & left:
        return [], f"found adapters of {', '.join(sorted(both))} in some layers, expected in all"
    some = {} if lora is None else partial_targets(concrete.model, lora.targets)
    found = [
        module
        for path in modules
        if path in adapted
        for place, module in enumerate(modules[path])
        if path not in some or place in some[path]
    ]
    return list(dict.fromkeys(found)), ""


def _named_parts(operator: Operator, targets: Sequence[str]) -> list[str]:
    """Return the modules that a matmul joins, those alone that are targets if any are."""
    parts = [part.path for part in joined_parts(operator)]
    named = [path for path in parts if any(matches(path, target) for target in targets)]
    return [path.rsplit(".", 1)[-1] for path in named or parts]


def adapted_operators(
    named: str | Sequence[str] | None, model: object, problems: Problems
) -> list[str]:
    """Return the operators that modules compute, or the modules where others share an operator.

    Args:
        named: `target_modules`; None is PEFT's own choice for the model.
        model: A name, a file, or sizes.
    """
    if isinstance(named, str):
        named = _matching(named) or named.split(",")  # as a flag has them
    names = _own_choice(model) if named is None else named
    if list(names) == [_BEFORE]:
        return [_BEFORE]
    if list(names) == [ALL_LINEAR]:
        return [ALL_LINEAR]
    if ALL_LINEAR in names:  # which PEFT reads only as the whole value
        problems.add("lora_target_modules", f"found '{ALL_LINEAR}' with others, expected it alone")
        names = [name for name in names if name != ALL_LINEAR]
    if not names:
        problems.add("lora_target_modules", "found none, expected at least one")
    computed: dict[str, list[str]] = {}  # operator → modules that are named
    known = {module.rsplit(".", 1)[-1] for _, module in _every_module()}
    for name in names:
        last = name.rsplit(".", 1)[-1]
        paths = {path for path, module in _every_module() if module.rsplit(".", 1)[-1] == last}
        if not paths:
            hint = did_you_mean(last, known, before="; ", after="")
            problems.add("lora_target_modules", f"found '{name}', which is no linear layer{hint}")
        for path in sorted(paths) if len(paths) == 1 else sorted(_of_parent(name, paths)):
            computed.setdefault(path, []).append(last)
    found: dict[str, None] = {}
    for path, modules in computed.items():
        every = [set(of_type[path]) for of_type in _last_names() if path in of_type]
        is_whole = all(each <= set(modules) for each in every if each & set(modules))
        found |= dict.fromkeys([path] if is_whole else modules)
    return list(found)


def _matching(pattern: str) -> list[str]:
    """Return the modules whose whole name in a model a pattern has, as PEFT reads a text."""
    if not set(pattern) & _OF_PATTERNS:
        return []
    try:
        whole = re.compile(pattern)
    except re.error:
        return []
    found = (
        module
        for path, module in _every_module()
        for part in _PARTS.get(path.partition(".")[0], ())
        if any(whole.fullmatch(f"{first}layers.0.{part}.{module}") for first in _DECODERS)
    )
    return list(dict.fromkeys(found))


def _own_choice(model: object) -> list[str]:
    """Return PEFT's own choice for most models: queries and values, or what computes both."""
    config: Mapping[str, Any] = {}
    if isinstance(model, str) and is_model_name(model):
        config = catalog_entry(model).config or {}
    elif isinstance(model, str) and is_file(Path(model)):
        config = read_json(Path(model))
    modules = LIBRARY_MODULES.get(str(config.get("model_type")), {}).get(_BEFORE, [])
    return [modules[0], modules[-1]] if len(modules) > 1 else [_BEFORE]


def _every_module() -> Iterator[tuple[str, str]]:
    for of_type in LIBRARY_MODULES.values():
        for path, modules in of_type.items():
            yield from ((path, module) for module in modules)


def _last_names() -> Iterator[Mapping[str, list[str]]]:
    for of_type in LIBRARY_MODULES.values():
        yield {path: [m.rsplit(".", 1)[-1] for m in modules] for path, modules in of_type.items()}


def _of_parent(name: str, paths: Collection[str]) -> set[str]:
    """Return which of the operators that share a name the module before it says; all if none."""
    parent = name.rpartition(".")[0].rsplit(".", 1)[-1]
    is_attention = "attn" in parent or "attention" in parent
    said = {path for path in paths if path.startswith("attention") == is_attention}
    return said if parent and said else set(paths)
