"""The state of the page's controls, and the job that it describes.

The whole state is in the address of the page: names and values of its controls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from wattree.capture import model_names
from wattree.cost import SOFTWARE
from wattree.errors import JobError, WattreeError, nearest
from wattree.files import yaml_of
from wattree.hardware import Precision
from wattree.hardware.load import node_names, site_names
from wattree.job import Job, job_from_mapping
from wattree.job.offers import offer_of
from wattree.job.written import job_yaml, yaml_text
from wattree.strategy import CONTEXTS, RECOMPUTATIONS, SHARDINGS
from wattree.strategy.described import describe_options
from wattree.strategy.schedules import PIPELINE_SCHEDULES
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
    "recompute": "selective_operator",
    "micro_batch": "1",
    "tp": "1",
    "pp": "1",
    "cp": "1",
    "ep": "1",
}
_JOB_KEYS: Final = ("model", "precision", "software")
_DATA_KEYS: Final = ("sequence_length", "global_batch")
_CLUSTER_KEYS: Final = ("node", "nodes", "site", "power_limit")
#: Controls of the strategy; what else a strategy says stands in `more`, as YAML.
STRATEGY_KEYS: Final[tuple[str, ...]] = (
    *("tp", "pp", "cp", "ep", "micro_batch", "sharding", "recompute", "schedule"),
    *("virtual_stages", "sequence_parallel", "context"),
)
_NAMES: Final = (*_JOB_KEYS, *_DATA_KEYS, *_CLUSTER_KEYS, *STRATEGY_KEYS, "more")


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
        unknown = [name for name in query if name not in _NAMES]
        long = [name for name, value in query.items() if len(value) > _LONGEST]
        problems = [f"{name}: unknown; expected one of {', '.join(_NAMES)}" for name in unknown]
        problems += [f"{name}: found more than {_LONGEST} characters" for name in long]
        if problems:
            raise JobError("the address of the page", problems)
        values = {name: value.strip() for name, value in query.items() if value.strip()}
        return cls(values)

    @property
    def mapping(self) -> dict[str, Any]:
        """The job, as its file has it.

        Raises:
            WattreeError: `more` is no YAML mapping.
        """
        found: dict[str, Any] = {name: self.values[name] for name in _JOB_KEYS if self._has(name)}
        found["data"] = {name: _number(self.values[name]) for name in _DATA_KEYS if self._has(name)}
        found["cluster"] = {
            name: _number(self.values[name]) for name in _CLUSTER_KEYS if self._has(name)
        }
        strategy: dict[str, Any] = {
            name: _number(self.values[name]) for name in STRATEGY_KEYS if self._has(name)
        }
        strategy |= _further(self.values.get("more", ""))
        found["strategy"] = strategy or "auto"
        return found

    def job(self, files: Mapping[str, Path]) -> Job:
        """Return the job.

        Args:
            files: Name → file of what was uploaded, which models and nodes may name.

        Raises:
            WattreeError: The controls describe no job; every problem is listed.
        """
        mapping = self.mapping
        _refuse_paths(mapping, files)
        if (model := str(mapping.get("model"))) in files:
            mapping["model"] = str(files[model])
        if (node := str(mapping["cluster"].get("node"))) in files:
            mapping["cluster"]["node"] = str(files[node])
        return job_from_mapping(mapping, "the page")

    def yaml(self, files: Mapping[str, Path]) -> str:
        """Return the job as the text of a file.

        Args:
            files: Name → file of what was uploaded; the job names what its user has.
        """
        mapping, head = self.mapping, ["Written by the page of `wattree serve`."]
        for keys, name in ((mapping, "model"), (mapping["cluster"], "node")):
            if keys.get(name) in files:
                keys[name] = str(keys[name]).rpartition(" (")[0]
                head.append(f"Put {keys[name]} into the folder of this file.")
        return job_yaml(mapping, head="\n".join(head))

    def with_options(self, options: Any) -> PageState:
        """Return the state with the strategy of a plan in its controls."""
        kept = {name: value for name, value in self.values.items() if name not in STRATEGY_KEYS}
        described = describe_options(options)
        further = {key: value for key, value in described.items() if key not in STRATEGY_KEYS}
        shown = {name: str(described[name]).lower() for name in STRATEGY_KEYS if name in described}
        kept.pop("more", None)
        if further:
            shown["more"] = yaml_text(further).strip()
        return PageState({**kept, **shown})

    def _has(self, name: str) -> bool:
        return name in self.values


@dataclass(frozen=True, slots=True)
class ControlChoice:
    """One value of a control.

    Attributes:
        value: As a job file writes it.
        label: For people.
        why_not: Why it cannot be chosen; empty where it can.
    """

    value: str
    label: str = ""
    why_not: str = ""


def choices(state: PageState, files: Mapping[str, Path]) -> dict[str, list[ControlChoice]]:
    """Return the values of each control that is a list; what the software lacks is marked."""
    software = state.values.get("software", "")
    offer = offer_of(software)
    values = {
        "sharding": SHARDINGS,
        "recompute": RECOMPUTATIONS,
        "schedule": tuple(PIPELINE_SCHEDULES),
        "context": CONTEXTS,
        "sequence_parallel": ("false", "true"),
    }
    found = {
        name: [ControlChoice(value, why_not=_lacks(offer, software, name, value)) for value in each]
        for name, each in values.items()
    }
    found["precision"] = [ControlChoice(str(each)) for each in Precision]
    found["software"] = [ControlChoice(name, label=each.title) for name, each in SOFTWARE.items()]
    degrees = _degrees(state, files)
    for axis in ("tp", "pp", "cp", "ep"):
        why = f"{software} has no {axis}" if offer and axis not in offer.axes else ""
        found[axis] = [
            ControlChoice(str(each), why_not=why if each > 1 else "") for each in degrees
        ]
    return found


def suggestions() -> dict[str, list[str]]:
    """Return known names of models, nodes and sites."""
    return {"model": list(model_names()), "node": list(node_names()), "site": list(site_names())}


def _lacks(offer: Any, software: str, name: str, value: str) -> str:
    known: object = value == "true" if name == "sequence_parallel" else value
    return "" if offer is None or offer.has(name, known) else f"{software} does not have it"


def _degrees(state: PageState, files: Mapping[str, Path]) -> list[int]:
    """Return the degrees that divide the devices of the cluster; some where it is none yet."""
    try:
        values = {name: value for name, value in state.values.items() if name not in STRATEGY_KEYS}
        devices = PageState({**values, "more": ""}).job(files).cluster.devices
    except WattreeError:
        devices = 64
    return [each for each in range(1, min(devices, 256) + 1) if devices % each == 0]


def _number(text: str) -> Any:
    """Return a whole number or truth where the text is one."""
    if (number := whole_number(text)) is not None:
        return number
    return {"true": True, "false": False}.get(text, text)


def _further(text: str) -> dict[str, Any]:
    return yaml_of(text, "further keys of the strategy") if text.strip() else {}


def _refuse_paths(mapping: Mapping[str, Any], files: Mapping[str, Path]) -> None:
    """Refuse paths: the page takes names of the catalog and uploads, nothing that could be run."""
    cluster = mapping["cluster"]
    given = {"model": mapping.get("model", ""), "node": cluster.get("node", "")}
    given["site"] = cluster.get("site", "")
    known = suggestions()
    problems = [
        f"{name}: found '{value}', expected a name of the catalog, or an uploaded file"
        + (f"; did you mean '{guess}'?" if (guess := nearest(str(value), known[name])) else "")
        for name, value in given.items()
        if value and value not in known[name] and value not in files
    ]
    problems += [
        f"{name}: is missing, expected a name of the catalog, or an uploaded file"
        for name in ("model", "node")
        if not given[name]
    ]
    if problems:
        raise JobError("the page", problems)
