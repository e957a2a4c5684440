"""Comparison of jobs and results: differing settings, and differences of their steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from string import ascii_uppercase
from typing import Any, Final

from wattree.accounts.bill import with_run
from wattree.accounts.evidence import NO_RENT
from wattree.cost import load_calibration
from wattree.errors import JobError, JsonTextError, OutputError
from wattree.files import is_file
from wattree.job import Job, WorkloadKind
from wattree.job.entered import checked_job, entering, path, several
from wattree.json_text import parsed_object
from wattree.lowering.job_file import load_job
from wattree.predict import Prediction, Setting, setting_of, simulate
from wattree.predict.checked import checked
from wattree.search.compared_figures import (
    adds_up,
    are_spans,
    differ,
    facts_of,
    figure_at,
    is_number,
    is_number_or_none,
    more_or_less,
    price_lists,
    units_per_step,
)
from wattree.search.compared_jobs import in_words, other_keys, stated_of
from wattree.search.explain import against, part_differences
from wattree.search.plan_result import SCHEMA, RankedStrategy
from wattree.shown import Shown
from wattree.strategy import StrategyOptions, options_in_words
from wattree.trace import Result, step_part_words
from wattree.units import counted, format_bytes

#: What is compared, before it has a name.
_Given = Job | Prediction | Result | Path
#: Figures that every result has, with the keys below those that have some.
_NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "step_time_s": (),
    "time_s": ("compute", "exposed_communication"),
    "memory": ("peak_bytes", "capacity_bytes"),
}
#: Figures that a result may have.
_OPTIONAL: Final = (
    *(("tokens_per_s",), ("samples_per_s",), ("mfu",), ("average_power_w",), ("pue",)),
    *(("energy_j", "total"), ("cost_usd",), ("carbon_gco2e",)),
    *(("run", "time_s"), ("run", "goodput"), ("run", "cost_usd")),
)
#: What adds up, where a result has it: numbers by name.
_BREAKDOWNS: Final = (
    ("time_s",),
    ("memory", "by_category"),
    ("energy_j", "by_component"),
    ("energy_j", "by_stage"),
    ("provenance", "step_time_s", "share"),
)
#: Longest file of a result. [B]
_LIMIT_BYTES: Final = 1 << 26
_NOT_APPLICABLE: Final = "–"
#: Steps closer than this are equally long.
_TIE: Final = 5e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """One of the compared runs.

    Attributes:
        name: A letter: A is the one that the others are held against.
        source: File, as the user gave it.
        facts: What it says of itself, name → words.
        figures: Fields of its result, as `Result.as_json` has them.
        job: Of a job: itself.
        setting: Of a job: what all its strategies share.
        ranked: Of a job whose strategy is given by options: these, with the result.
        warnings: Warnings about its figures.
    """

    name: str
    source: str
    facts: Mapping[str, str]
    figures: Mapping[str, Any]
    job: Job | None = None
    setting: Setting | None = None
    ranked: RankedStrategy | None = None
    warnings: tuple[str, ...] = ()

    @property
    def is_job(self) -> bool:
        """Whether it is a job that was simulated for the comparison."""
        return "software" in self.facts

    @property
    def fits(self) -> bool:
        """Whether it fits in memory, as far as its result states it."""
        return self.figures["memory"].get("fits") is not False

    @property
    def lacking(self) -> str:
        """What it needs of the memory that is too small: a device's, or one behind the devices."""
        device = self.figures["memory"]
        tiers = [tier for tier in self.figures.get("tiers") or () if not tier["fits"]]
        if tiers and device["peak_bytes"] <= device["capacity_bytes"]:
            name, need, room = (tiers[0][key] for key in ("name", "used_bytes", "capacity_bytes"))
            return f"its {name} needs {format_bytes(need)} of {format_bytes(room)}"
        need, room = (format_bytes(device[key]) for key in ("peak_bytes", "capacity_bytes"))
        return f"it needs {need} of {room} per device"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunComparison(Shown):
    """Several runs in comparison with the first.

    Attributes:
        runs: At least two, in the order given.
        differing: Fact → its words in each run, of those in which runs that have it differ.
        reasons: For each run but the first, a sentence on the differences of its step.
    """

    runs: tuple[ComparedRun, ...]
    differing: Mapping[str, tuple[str, ...]]
    reasons: tuple[str, ...]

    @property
    def shortages(self) -> tuple[str, ...]:
        """Sentences on the runs that do not fit in memory."""
        return tuple(
            f"{run.name} does not fit in memory: {run.lacking}" for run in self.runs if not run.fits
        )

    @property
    def units_per_step(self) -> tuple[str, tuple[float, ...]] | None:
        """What to compare unlike steps by, and how much each has of it; None if steps are alike."""
        return units_per_step([run.figures for run in self.runs])

    @property
    def assumed(self) -> tuple[str, ...]:
        """What every run assumes, one sentence each; what differs is among the facts."""
        found = [run.figures.get("assumed") for run in self.runs]
        first, *others = (each if isinstance(each, list | tuple) else () for each in found)
        return tuple(
            line for line in first if isinstance(line, str) and all(line in o for o in others)
        )

    def records(self) -> list[dict[str, Any]]:
        """Return the figures of each run, with its name and source."""
        return [{"name": run.name, "source": run.source, **run.figures} for run in self.runs]

    def as_json(self) -> dict[str, Any]:
        """Return plain dictionaries and lists, ready for JSON."""
        return {
            "runs": [
                {
                    "name": run.name,
                    "source": run.source,
                    "facts": dict(run.facts),
                    "result": dict(run.figures),
                }
                for run in self.runs
            ],
            "differing": {name: list(words) for name, words in self.differing.items()},
            "reasons": list(self.reasons),
        }


def _run(value: object) -> _Given:
    if isinstance(value, Prediction | Result):
        return value
    if isinstance(value, Job):
        return checked_job(value)
    return path(value, "a job, a prediction, a result, or the path of a file")


@entering(runs=several(_run, "jobs and paths of files"))
def compare(
    runs: Iterable[str | Path | Job | Prediction | Result], *, calibration: str | Path | None = None
) -> RunComparison:
    """Compare jobs and results.

    Args:
        runs: 2 to 26 jobs or job files, which are simulated, predictions, and results, also those
            that were written as JSON.
        calibration: Constants for the jobs, instead of those that ship.

    Raises:
        WattreeError: A file is neither, a job cannot be simulated, or their number is another.
    """
    given = _numbered(runs)
    if not 2 <= len(given) <= len(ascii_uppercase):
        raise JobError("compare", [f"found {counted(len(given), 'run')}, expected 2 to 26"])
    named = zip(ascii_uppercase, given, strict=False)
    return compared([_run_of(each, name, calibration) for name, each in named])


def _numbered(runs: Iterable[str | _Given]) -> list[str | _Given]:
    """Return runs, of which jobs with one source, such as those in memory, say which they are."""
    given = [*runs]
    sources = Counter(each.source for each in given if isinstance(each, Job))
    return [
        replace(each, source=f"{each.source} {number}")
        if isinstance(each, Job) and sources[each.source] > 1
        else each
        for number, each in enumerate(given, start=1)
    ]


def _run_of(given: str | _Given, name: str, calibration: str | Path | None) -> ComparedRun:
    if isinstance(given, Prediction | Result):
        result = given.result if isinstance(given, Prediction) else given
        figures, label = result.as_json(), f"{result.model} on {result.cluster}"
        return ComparedRun(name=name, source=label, facts=facts_of(figures), figures=figures)
    if isinstance(given, Path) and given.suffix == ".json":
        return run_of_result(given, name)
    return run_of_job(given, name, calibration=calibration)


def compared(runs: Sequence[ComparedRun]) -> RunComparison:
    """Return runs side by side, with their differences."""
    runs = _alike_in_cost(runs)
    names = dict.fromkeys(name for run in runs for name in run.facts)
    differing = {
        name: tuple(run.facts.get(name, _NOT_APPLICABLE) for run in runs)
        for name in names  # a job has every fact that applies; what a file of figures lacks is open
        if differ([run.facts.get(name) for run in runs if name in run.facts or run.is_job])
    }
    same = differing.keys() <= {"strategy", "mesh", "schedule"} and "strategy" in names
    reasons = tuple(_reason(runs[0], other, same=same) for other in runs[1:])
    return RunComparison(runs=tuple(runs), differing=differing, reasons=reasons)


def _alike_in_cost(runs: Sequence[ComparedRun]) -> list[ComparedRun]:
    """Return runs, of which those without a known rent have no cost if others pay for nodes."""
    evidence = [figure_at(run.figures, ("provenance", "cost_usd")) or {} for run in runs]
    notes = [each.get("note") for each in evidence]
    # Older results, which do not say what is missing, have the same note for owned nodes.
    unknown = [
        "rent" in each["missing"]
        if each.get("missing") is not None
        else str(each.get("note")).endswith("nothing for the hardware")
        for each in evidence
    ]
    costs = [run.figures.get("cost_usd") is not None for run in runs]
    rented = any(cost and not no_rent for cost, no_rent in zip(costs, unknown, strict=True))
    if not (rented and any(unknown)):
        return [*runs]
    found = []
    for run, note, no_rent in zip(runs, notes, unknown, strict=True):
        price = f"{NO_RENT}, so no cost is compared" if no_rent else run.facts.get("price", note)
        cost = {"cost_usd": None} if no_rent else {}
        facts = run.facts if price is None else {**run.facts, "price": price}
        found.append(replace(run, figures={**run.figures, **cost}, facts=facts))
    return found


def run_of_job(
    given: Job | str | Path, name: str, *, calibration: str | Path | None = None
) -> ComparedRun:
    """Return a job's facts and the result of its simulation.

    Raises:
        WattreeError: It cannot be read or simulated.
    """
    job = given if isinstance(given, Job) else load_job(given)
    _refuse_open(job)
    prediction = simulate(job, calibration=calibration)
    figures = with_run(prediction.result, job).as_json()
    ranked = setting = None
    if job.workload is not WorkloadKind.GENERATE:  # which has no step whose parts could tell why
        setting = setting_of(job, load_calibration(calibration))
    if setting is not None and isinstance(options := setting.job.strategy, StrategyOptions):
        label = options_in_words(options)
        ranked = RankedStrategy(options=options, label=label, result=prediction.result)
    return ComparedRun(
        name=name,
        source=job.source,
        facts={**checked(job).facts, **stated_of(job), **facts_of(figures)},
        figures=figures,
        job=job,
        setting=setting,
        ranked=ranked,
        warnings=prediction.warnings,
    )


def run_of_result(path: Path, name: str) -> ComparedRun:
    """Return the figures of a JSON file that `simulate`, `train` or `plan` wrote.

    Of a plan: those of its best strategy.

    Raises:
        OutputError: It cannot be read, or is no result.
    """
    try:
        found = parsed_object(path.read_bytes(), limit_bytes=_LIMIT_BYTES)
    except OSError as error:
        raise OutputError(f"cannot read '{path}': {error.strerror}") from error
    except JsonTextError as error:
        raise _incomparable(path, str(error)) from error
    whole = _plan_of(found)
    is_plan = "ranked" in whole or "tried" in found
    if is_plan and (form := whole.get("schema", found.get("schema"))) != SCHEMA:
        what = "is missing" if form is None else f"found {form!r}"
        why = "the plan is of another version of Wattree; plan the job again"
        raise _incomparable(path, f"schema: {what}, expected '{SCHEMA}': {why}")
    figures = _best_of(whole)
    if is_plan and figures is whole:
        raise _incomparable(path, "no strategy of that plan meets its constraints")
    if missing := [name for name in _NEEDED if not _has(figures, name)]:
        asked = "a job (YAML), or the JSON of 'wattree simulate', 'train' or 'plan'"
        raise _incomparable(path, f"found no number for {', '.join(missing)}; expected {asked}")
    if odd := [".".join(place) for place in _OPTIONAL if not is_number_or_none(figures, place)]:
        raise _incomparable(path, f"{', '.join(odd)}: expected a number")
    if odd := [".".join(place) for place in _BREAKDOWNS if not adds_up(figures, place)]:
        raise _incomparable(path, f"{', '.join(odd)}: expected numbers by name")
    if not are_spans(figures.get("interval")):
        raise _incomparable(path, "interval: expected [low, high] by name")
    return ComparedRun(name=name, source=str(path), facts=facts_of(figures), figures=figures)


def _incomparable(path: Path, why: str) -> OutputError:
    return OutputError(f"cannot compare '{path}': {why}")


def _plan_of(found: dict[str, Any]) -> dict[str, Any]:
    """Return the plan of the smallest cluster, or of the best family; other values unchanged."""
    if isinstance(sized := found.get("smallest"), dict):  # plan --nodes
        return sized
    if isinstance(families := found.get("software"), dict):  # plan --software, the best first
        return next((each for each in families.values() if isinstance(each, dict)), found)
    return found


def _best_of(found: dict[str, Any]) -> dict[str, Any]:
    """Return the result of the best strategy of a plan; other values unchanged."""
    best = found.get("best")
    return best if isinstance(best, dict) else found


def _refuse_open(job: Job) -> None:
    if isinstance(job.strategy, str):
        of_file = f"'wattree plan {job.source} --out best.yaml'"
        plan = of_file if is_file(Path(job.source)) else "wattree.plan"
        raise JobError(job.source, [f"strategy: found '{job.strategy}'; {plan} finds one"])


def _has(figures: Mapping[str, Any], name: str) -> bool:
    """Return whether a figure is there, and is a number or holds the numbers it must."""
    value, parts = figures.get(name), _NEEDED[name]
    if not parts:
        return is_number(value)
    return isinstance(value, dict) and all(is_number(value.get(part)) for part in parts)


def _reason(first: ComparedRun, other: ComparedRun, *, same: bool) -> str:
    """Return a sentence on two runs; of strategies of the same job it names their choices."""
    fit = first.figures["memory"].get("fits") and other.figures["memory"].get("fits")
    keys = other_keys(first.job, other.job) if first.job and other.job else []
    if keys or not (same and fit and first.ranked and other.ranked and first.setting):
        return _sentence(first, other, in_words(keys))
    runs = sorted((other, first), key=lambda run: run.figures["step_time_s"])
    better, worse = (run.ranked for run in runs)
    assert better is not None
    assert worse is not None
    words = against(first.setting, "time", better, worse, runs[1].name)
    return f"{runs[0].name}: {words[0].lower()}{words[1:]}"


def _sentence(first: ComparedRun, other: ComparedRun, settings: str) -> str:
    """Return what the step of a run, which has other settings, has more and less of."""
    mine, theirs = other.figures, first.figures
    longer = mine["step_time_s"] / theirs["step_time_s"] - 1 if theirs["step_time_s"] else 0.0
    head = f"{other.name}{settings}: the step"
    if units := units_per_step((theirs, mine)):
        name, (there, here) = units
        head += f", with {here / there:.3g} times the {name.split()[-1]},"
    if abs(longer) < _TIE:
        head += f" is as long as that of {first.name}"
    else:
        word = "longer" if longer > 0 else "shorter"
        head += f" is {100 * abs(longer):.1f} % {word} than that of {first.name}"
    words = step_part_words(mine.get("strategy"), theirs.get("strategy"))
    reasons = list(part_differences(mine["time_s"], theirs["time_s"], theirs["step_time_s"], words))
    reasons = [*(reversed(reasons) if longer > 0 else reasons), *more_or_less(mine, theirs)]
    summary = f"{head}: {'; '.join(reasons)}." if reasons else f"{head}."
    lists = [price_lists(run.facts, run.figures) for run in (other, first)]
    if not all(lists) or lists[0] == lists[1]:
        return summary
    whose = " and ".join(", ".join(sorted(names)) for names in lists)
    return f"{summary} Rents are list prices of {whose}, which also differ for equal nodes."
