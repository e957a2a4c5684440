"""Low-rank adapters as PEFT names them: modules of the transformers library, and operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from wattree.errors import nearest
from wattree.files import read_yaml
from wattree.frameworks.framework import ConcreteJob
from wattree.job.problems import Problems

#: Model type → operator → its modules.
_MODULES: Final[Mapping[str, Mapping[str, list[str]]]] = read_yaml(
    Path(__file__).with_name("peft.yaml")
)
_ADAPTER: Final = ".lora_a"
#: Every linear layer but the one that makes logits.
_ALL: Final = "all-linear"
#: `lora_r` of TRL's `ModelConfig`.
DEFAULT_RANK: Final = 16


def adapted_modules(concrete: ConcreteJob) -> tuple[list[str], str]:
    """Return the modules that a job adapts, and why PEFT cannot have them so, if it cannot."""
    modules = _MODULES.get(str(concrete.config.get("model_type")), {})
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
        return [], f"found adapters of {', '.join(sorted(unknown))}, which are no linear layers"
    if both := adapted & left:
        return [], f"found adapters of {', '.join(sorted(both))} in some layers, expected in all"
    return [module for path in modules if path in adapted for module in modules[path]], ""


def adapted_operators(
    named: str | Sequence[str] | None, problems: Problems
) -> tuple[list[str], str]:
    """Return the operators that modules compute, and what was assumed, in words.

    Args:
        named: `target_modules`; None is PEFT's own choice for most models, queries and values.
        problems: Take unknown modules.
    """
    if named == _ALL:
        return ["attention.*", "mlp.*"], ""
    names = ["q_proj", "v_proj"] if named is None else [named] if isinstance(named, str) else named
    paths: dict[str, set[str]] = {}
    for of_type in _MODULES.values():
        for path, modules in of_type.items():
            paths.setdefault(path, set()).update(module.rsplit(".", 1)[-1] for module in modules)
    found, known = [], {module for modules in paths.values() for module in modules}
    for name in names:
        last = name.rsplit(".", 1)[-1]
        if last not in known:
            guess = nearest(last, known)
            hint = f"; did you mean '{guess}'?" if guess else ""
            problems.add("lora_target_modules", f"found '{name}', which is no linear layer{hint}")
        found += [path for path, modules in paths.items() if last in modules and _fits(name, path)]
    is_part = "q_proj" in names and not {"k_proj", "v_proj"} <= set(names)
    assumed = "adapters of queries, keys and values as one of all three" if is_part else ""
    return list(dict.fromkeys(found)), assumed


def _fits(name: str, path: str) -> bool:
    """Return whether a module of a name that several have can compute an operator."""
    parent = name.rpartition(".")[0].rsplit(".", 1)[-1]
    if not parent:
        return True
    return path.startswith("attention") == ("attn" in parent or "attention" in parent)
