"""Low-rank adapters as PEFT has them: arguments of scripts, modules of the library, operators."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic import Field

from wattree.capture.linear_layers import ALL_LINEAR, LIBRARY_MODULES
from wattree.errors import did_you_mean
from wattree.frameworks.accelerate_read import Flag
from wattree.frameworks.framework import ConcreteJob
from wattree.graph import OperatorKind, joined_parts
from wattree.job.problems import Problems
from wattree.job.section import Section
from wattree.job.values import Degree

_ADAPTER: Final = ".lora_a"
#: `lora_r` of TRL's `ModelConfig`.
_DEFAULT_RANK: Final = 16
_PEFT: Final = "PEFT, which makes the adapters: `pip install peft`."
_QUANTIZED: Final = "bitsandbytes, which stores 4 bits."


class AdaptersSpec(Section):
    """Arguments of low-rank adapters, by their names in TRL's `ModelConfig`."""

    use_peft: Flag = Field(False, description="true or false")
    lora_r: Degree = Field(_DEFAULT_RANK, description="a whole number")
    lora_target_modules: str | list[str] | None = Field(None, description="a list of modules")
    load_in_4bit: Flag = Field(False, description="true or false")
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
    if lora.base:
        found |= {"load_in_4bit": True, "use_bnb_nested_quant": lora.base == "nf4-double"}
    return found


def adapter_misfits(concrete: ConcreteJob) -> dict[str, str]:
    """Return why PEFT cannot have a job's adapters, by key of the job."""
    problem = "" if concrete.job.model.lora is None else adapted_modules(concrete)[1]
    return {"model.lora": problem} if problem else {}


def adapter_needs(concrete: ConcreteJob) -> tuple[str, ...]:
    """Return what has to be installed for a job's adapters."""
    lora = concrete.job.model.lora
    return () if lora is None else (_PEFT, _QUANTIZED) if lora.base else (_PEFT,)


def adapted_model(
    spec: AdaptersSpec, model: str | dict[str, Any] | None, problems: Problems
) -> tuple[str | dict[str, Any] | None, list[str]]:
    """Return a model with the adapters that arguments name, and what was assumed."""
    if not spec.use_peft and not spec.load_in_4bit:
        return model, []
    if not spec.use_peft:
        problems.add("load_in_4bit", "found true, but 4 bits cannot be trained; add use_peft")
    if model is None:
        problems.add("use_peft", "found true, but no model to adapt; name it with --model")
    targets, said = adapted_operators(spec.lora_target_modules, problems)
    lora: dict[str, Any] = {"rank": spec.lora_r, "targets": targets}
    if spec.load_in_4bit:
        lora["base"] = "nf4-double" if spec.use_bnb_nested_quant else "nf4"
    return {"name": model, "lora": lora}, said


def adapted_modules(concrete: ConcreteJob) -> tuple[list[str], str]:
    """Return the modules that a job adapts, and why PEFT cannot have them so, if it cannot."""
    modules = LIBRARY_MODULES.get(str(concrete.config.get("model_type")), {})
    lora = concrete.job.model.lora
    if concrete.config and not concrete.model.own_family:  # captured, so by its modules' names
        if lora is not None and lora.targets == (ALL_LINEAR,):
            return [ALL_LINEAR], ""
        matmuls = (each for block in concrete.model.blocks.values() for each in block.operators)
        modules = {
            each.path: [part.path.rsplit(".", 1)[-1] for part in joined_parts(each)]
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
    found = [module for path in modules if path in adapted for module in modules[path]]
    return list(dict.fromkeys(found)), ""


def adapted_operators(
    named: str | Sequence[str] | None, problems: Problems
) -> tuple[list[str], list[str]]:
    """Return the operators that modules compute, and what was assumed, in words.

    Args:
        named: `target_modules`; None is PEFT's own choice for most models, queries and values.
    """
    if isinstance(named, str):
        named = named.split(",")  # as a flag has them
    names = ["q_proj", "v_proj"] if named is None else named
    if list(names) == [ALL_LINEAR]:
        return [ALL_LINEAR], []
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
    said = [
        f"adapters of {', '.join(modules)} as one of all that {path} computes"
        for path, modules in computed.items()
        if not any(set(of_type.get(path, ["?"])) <= set(modules) for of_type in _last_names())
    ]
    return list(computed), said


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
