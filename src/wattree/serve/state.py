"""The state of the page's controls, and the job that it describes.

The whole state is in the address of the page: names and values of its controls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from wattree.capture import catalog_entry, model_names
from wattree.cost.other_software import family_named
from wattree.errors import JobError, UnknownNameError, WattreeError, nearest
from wattree.files import yaml_of
from wattree.hardware import describe, is_path, node_names, site_names
from wattree.job import Job, job_from_mapping
from wattree.job.written import job_yaml, yaml_text
from wattree.strategy import StrategyOptions
from wattree.strategy.described import describe_options
from wattree.units import whole_number

#: Longest value of a control: a line of further keys. [characters]
_LONGEST: Final = 4000
#: What the page shows first.
START: Final[Mapping[str, str]] = {
    "model": "llama-3.1-8b",
    "node": "dgx-h100",
    "nodes": "1",
    "sequence_length": "8192",
    "global_batch": "128",
    "precision": "bf16",
    "software": "torchtitan",
    "sharding": "zero3",
    "micro_batch": "1",
    "tp": "1",
    "pp": "1",
    "cp": "1",
    "ep": "1",
}
_JOB_KEYS: Final = ("model", "precision", "software")
_DATA_KEYS: Final = ("sequence_length", "global_batch")
_CLUSTER_KEYS: Final = ("node", "nodes", "site", "power_limit")
#: Controls of low-rank adapters → keys of `model.lora`.
_LORA_KEYS: Final[Mapping[str, str]] = {"lora_rank": "rank", "lora_base": "base"}
#: What names a model, a node and a site.
_EXPECTED: Final = dict.fromkeys(
    ("model", "node"), "a name of the catalog, or an uploaded file"
) | {"site": "a name of the catalog"}
#: Degrees that have controls; data parallelism takes what they leave.
AXES: Final = ("tp", "pp", "cp", "ep", "fsdp")
#: How `model.lora.base` may store the frozen weights.
LORA_BASES: Final = ("nf4", "nf4-double", "int8")
#: Controls of the strategy; what else a strategy says stands in `more`, as YAML.
STRATEGY_KEYS: Final[tuple[str, ...]] = (
    *("tp", "pp", "cp", "ep", "micro_batch", "sharding", "fsdp", "recompute", "schedule"),
    *("virtual_stages", "sequence_parallel", "context"),
)
_NAMES: Final = (*(*_JOB_KEYS, *_DATA_KEYS, *_CLUSTER_KEYS, *_LORA_KEYS, *STRATEGY_KEYS, "more"),)


@dataclass(frozen=True, slots=True)
class PageState:
    """The values of the controls, by name; those that are empty are left out."""

    values: Mapping[str, str]

    @classmethod
    def of(cls, query: Mapping[str, str]) -> PageState:
        """Return the state that an address names.

        Raises:
            JobError: A control is unknown, or its value is too long.
        """
        state, problems = cls.known_of(query)
        if problems:
            raise JobError("the address of the page", problems)
        return state

    @classmethod
    def known_of(cls, query: Mapping[str, str]) -> tuple[PageState, list[str]]:
        """Return the state that an address names, and what of the address is left out, and why."""
        unknown = [name for name in query if name not in _NAMES]
        long = [name for name, value in query.items() if len(value) > _LONGEST]
        problems = [f"{name}: unknown; expected one of {', '.join(_NAMES)}" for name in unknown]
        problems += [f"{name}: found more than {_LONGEST} characters" for name in long]
        wrong = {*unknown, *long}
        values = {name: value.strip() for name, value in query.items() if name not in wrong}
        if values.get("software"):
            with suppress(UnknownNameError):  # which the job is refused for
                values["software"] = family_named(values["software"])
        return cls({name: value for name, value in values.items() if value}), problems

    def mapping(self, renamed: Mapping[str, str]) -> dict[str, Any]:
        """Return the job, as its file has it.

        Args:
            renamed: Model or node of the controls → what the file calls it.

        Raises:
            WattreeError: `more` is no YAML mapping, or has what a control has.
        """
        own = {name: self.values[name] for name in ("model", "node") if name in self.values}
        values = {**self.values, **{name: renamed.get(own[name], own[name]) for name in own}}
        found: dict[str, Any] = {name: values[name] for name in _JOB_KEYS if name in values}
        if lora := _numbers(values, _LORA_KEYS):
            found["model"] = {"name": values.get("model", "")}
            found["model"]["lora"] = {_LORA_KEYS[name]: each for name, each in lora.items()}
        found["data"] = _numbers(values, _DATA_KEYS)
        found["cluster"] = _numbers(values, _CLUSTER_KEYS)
        strategy = _numbers(values, STRATEGY_KEYS) | _further(values.get("more", ""))
        found["strategy"] = strategy or "auto"
        return found

    def job(self, files: Mapping[str, Path]) -> Job:
        """Return the job.

        Args:
            files: Name → file of what was uploaded, which models and nodes may name.

        Raises:
            WattreeError: The controls describe no job; every problem is listed.
        """
        named = _named(self.values, files)
        return job_from_mapping(self.mapping(named), "the page")

    def yaml(self, files: Mapping[str, Path]) -> str:
        """Return the job as the text of a file.

        Args:
            files: Name → file of what was uploaded; the job names what its user has.
        """
        own = [self.values.get(name, "") for name in ("model", "node")]
        renamed = {label: label.rpartition(" (")[0] for label in own if label in files}
        head = ["Written by the page of `wattree serve`."]
        head += [f"Put {name} into the folder of this file." for name in renamed.values()]
        return job_yaml(self.mapping(renamed), head="\n".join(head))

    def with_options(self, options: StrategyOptions, files: Mapping[str, Path]) -> PageState:
        """Return the state with the strategy of a plan in its controls.

        What controls and software decide alike is not written, so that it follows when a control is
        moved: what other degrees leave to data parallelism, or no offload.

        Args:
            files: Name → file of what was uploaded.
        """
        described = written = describe_options(options)
        for keys in (("dp", "fsdp"), *((key,) for key in described if key not in STRATEGY_KEYS)):
            fewer = {key: value for key, value in written.items() if key not in keys}
            if self._with(fewer).means(described, files):
                written = fewer
        return self._with(written)

    def _with(self, strategy: Mapping[str, object]) -> PageState:
        """Return the state with a strategy, as the section of a job file."""
        further = {key: value for key, value in strategy.items() if key not in STRATEGY_KEYS}
        values = {key: str(strategy[key]).lower() for key in STRATEGY_KEYS if key in strategy}
        return PageState(
            {**self.without_strategy().values, **values}
            | ({"more": yaml_text(further).strip()} if further else {})
        )

    def without_strategy(self) -> PageState:
        """Return the state with a strategy left open, as it is for plans."""
        left = {k: v for k, v in self.values.items() if k not in (*STRATEGY_KEYS, "more")}
        return PageState(left)

    def means(self, described: Mapping[str, object], files: Mapping[str, Path]) -> bool:
        """Return whether the job has this strategy, as `describe_options` writes it."""
        try:
            strategy = self.job(files).strategy
        except WattreeError:
            return False
        return isinstance(strategy, StrategyOptions) and describe_options(strategy) == described


def suggestions() -> dict[str, list[str]]:
    """Return known names of models, nodes and sites."""
    return {"model": list(model_names()), "node": list(node_names()), "site": list(site_names())}


def _numbers(values: Mapping[str, str], names: Iterable[str]) -> dict[str, Any]:
    return {name: _number(values[name]) for name in names if name in values}


def _number(text: str) -> Any:
    """Return a whole number or truth where the text is one."""
    if (number := whole_number(text)) is not None:
        return number
    return {"true": True, "false": False}.get(text, text)


def _further(text: str) -> dict[str, Any]:
    found = yaml_of(text, "further keys of the strategy") if text.strip() else {}
    if twice := [f"{key}: has a control of its own" for key in STRATEGY_KEYS if key in found]:
        raise JobError("further keys of the strategy", twice)
    return found


def _named(values: Mapping[str, str], files: Mapping[str, Path]) -> dict[str, str]:
    """Return model and node of the controls → the name in the catalog, or the uploaded file.

    Raises:
        JobError: One is missing, or neither: paths are refused, as some files could be run.
    """
    found, problems = {}, []
    for kind in ("model", "node", "site"):
        value = values.get(kind, "")
        name = str(files.get(value, "")) if kind != "site" else ""
        if not value and kind != "site":
            problems.append(f"{kind}: is missing, expected {_EXPECTED[kind]}")
        elif value and not (name := name or _catalog_name(kind, value)):
            guess = nearest(value, suggestions()[kind])
            hint = f"; did you mean '{guess}'?" if guess else ""
            problems.append(f"{kind}: found '{value}', expected {_EXPECTED[kind]}{hint}")
        found[value] = name
    if problems:
        raise JobError("the page", problems)
    return found


def _catalog_name(kind: str, name: str) -> str:
    """Return how the catalog may be asked for a name or alias; empty where it has none."""
    try:
        if kind == "model":
            return catalog_entry(name).name
        if not is_path(name):
            describe(kind, name)
            return name
    except WattreeError:
        pass
    return ""
