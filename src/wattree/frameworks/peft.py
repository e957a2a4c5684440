"""Low-rank adapters as PEFT names them: modules of the transformers library, and operators."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from wattree.capture.linear_layers import ALL_LINEAR, LIBRARY_MODULES
from wattree.errors import nearest
from wattree.frameworks.framework import ConcreteJob
from wattree.graph import OperatorKind, joined_parts
from wattree.job.problems import Problems

_ADAPTER: Final = ".lora_a"
#: `lora_r` of TRL's `ModelConfig`.
DEFAULT_RANK: Final = 16


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
        problems: Take unknown modules.
    """
    names = ["q_proj", "v_proj"] if named is None else [named] if isinstance(named, str) else named
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
            guess = nearest(last, known)
            hint = f"; did you mean '{guess}'?" if guess else ""
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
