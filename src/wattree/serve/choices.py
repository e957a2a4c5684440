"""Values of the page's controls, and why some cannot be chosen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from wattree.cost import PRECISIONS, SOFTWARE
from wattree.errors import JobError, StrategyError, WattreeError
from wattree.hardware import Cluster
from wattree.job.offers import lacking, offer_of
from wattree.predict import check_strategy, usual_limits_w
from wattree.serve.state import AXES, LORA_BASES, PageState
from wattree.serve.worker import defect_in_words
from wattree.strategy import CONTEXTS, RECOMPUTATIONS, SHARDINGS
from wattree.strategy.schedules import PIPELINE_SCHEDULES
from wattree.units import whole_number

#: Largest degree, micro-batch and number of chunks of a stage that are listed.
_MOST_RANKS: Final = 1024
_MOST_SAMPLES: Final = 64
_MOST_CHUNKS: Final = 8
#: Devices of a cluster that is none yet.
_SOME_DEVICES: Final = 64


@dataclass(frozen=True, slots=True)
class ControlChoice:
    """One value of a control.

    Attributes:
        value: As a job file writes it; empty for what applies without one.
        label: For people.
        why_not: Why it cannot be chosen; empty where it can.
    """

    value: str
    label: str = ""
    why_not: str = ""


def choices(
    state: PageState, files: Mapping[str, Path]
) -> Iterator[tuple[str, list[ControlChoice]]]:
    """Yield controls that are lists, each with its values; of those of the strategy with reasons.

    A value is refused for what it adds to the problems that the state has: where one control is
    wrong, the others can still be moved.
    """
    yield "software", [ControlChoice(name, label=each.title) for name, each in SOFTWARE.items()]
    yield "lora_base", [ControlChoice(value) for value in LORA_BASES]
    cluster = _cluster(state, files)
    yield "power_limit", [] if cluster is None else _power_limits(cluster)
    known = _objections(state, files)
    devices = _SOME_DEVICES if cluster is None else cluster.devices
    for name, values in _values(state, devices).items():
        yield (
            name,
            [ControlChoice(v, why_not=_why_not(state, files, name, v, known)) for v in values],
        )


def _power_limits(cluster: Cluster) -> list[ControlChoice]:
    """Return the limits that devices can keep, the rated power first, which needs none."""
    rated_w, *lower_w = usual_limits_w(cluster)
    rated = ControlChoice("", label=f"{rated_w:g} W (rated)")
    return [rated, *(ControlChoice(f"{limit_w:g} W") for limit_w in lower_w)]


def _values(state: PageState, devices: int) -> dict[str, Sequence[str]]:
    """Return the values of the controls of precision and strategy, legal or not."""
    degrees = _divisors(devices, _MOST_RANKS)
    batch = whole_number(state.values.get("global_batch", "")) or 1
    return {
        "precision": PRECISIONS,
        "sharding": SHARDINGS,
        "recompute": RECOMPUTATIONS,
        "schedule": tuple(PIPELINE_SCHEDULES),
        "context": CONTEXTS,
        "sequence_parallel": ("false", "true"),
        **dict.fromkeys(AXES, degrees),
        "micro_batch": _divisors(batch, _MOST_SAMPLES),
        "virtual_stages": tuple(map(str, range(1, _MOST_CHUNKS + 1))),
    }


def _divisors(number: int, most: int) -> tuple[str, ...]:
    return tuple(str(each) for each in range(1, min(number, most) + 1) if number % each == 0)


def _why_not(
    state: PageState, files: Mapping[str, Path], name: str, value: str, known: Sequence[str]
) -> str:
    software = state.values.get("software", "")
    offer = offer_of(software)
    if name in AXES:
        if offer and name not in offer.axes and value != "1":
            return f"{software} has no {name}"
    elif offer and not offer.has(name, value == "true" if name == "sequence_parallel" else value):
        return f"{software} does not have it"
    moved = PageState({**state.values, name: value})
    return next((each for each in _objections(moved, files) if each not in known), "")


def _objections(state: PageState, files: Mapping[str, Path]) -> list[str]:
    """Return why a state cannot be predicted, its software cannot run it, or part of it is idle."""
    try:
        job = state.job(files)
        idle = check_strategy(job)
    except (JobError, StrategyError) as error:
        return [_brief(problem) for problem in error.problems]
    except WattreeError as error:
        return [str(error)]
    except Exception as error:  # noqa: BLE001 - of one choice: the others are still to choose from
        return [defect_in_words(error)]
    software = state.values.get("software")
    lacks = lacking(job.strategy, software, job.left_open, job.data, traits=job.traits)
    return [*(words for words, _ in lacks), *map(_brief, idle)]


def _brief(problem: str) -> str:
    """Return a problem without its place and its advice."""
    return problem.partition("; ")[0].rpartition(": ")[2]


def _cluster(state: PageState, files: Mapping[str, Path]) -> Cluster | None:
    """Return the cluster of a state; None where it is none yet."""
    values = {**state.without_strategy().values, "power_limit": ""}
    try:
        return PageState({k: v for k, v in values.items() if v}).job(files).cluster
    except WattreeError:
        return None
