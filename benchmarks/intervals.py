"""How often 80 % intervals of time and memory hold on measured rows left out, and their residuals.

    python -m benchmarks.intervals [DIR] [--calibration P] [--fit P] [--json P]

DIR holds `throughput_llm.csv`, `throughput_vision_dlrm.csv` and `memory.csv`; without it the
bundled rows are used. Rows are left out by source, device, scale, model family and at random.
Runs of published reports and recipes are in no fit of constants. Reports alone tell how far unknown
software and forms of training without rows are off; recipes tell more of experts, of which rows are
few. Those of a publisher or model are judged by the spreads that the others give. `--fit P` writes
the calibration with residuals that put 80 % of the rows of each class inside.
"""

from __future__ import annotations

import math
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.frame import plain_table, print_progress, report_parser, show_report
from benchmarks.recipe_files import FRAMEWORKS, RecipeJob, recipe_job, recipes
from benchmarks.reports import WITHOUT
from wattree import job_from_mapping
from wattree.accounts.constant_classes import constants_of
from wattree.accounts.interval import DEVIATIONS
from wattree.accounts.job_facts import facts_of
from wattree.accounts.known import measured_of
from wattree.arrays import Floats
from wattree.cost import Calibration, load_calibration
from wattree.errors import JobError, RowError, WattreeError
from wattree.files import read_yaml
from wattree.job import Job
from wattree.lowering.model import model_of
from wattree.predict import Setting, setting_of
from wattree.predict.simulation import predicted
from wattree.trace import MemoryUse, Result
from wattree.units import parse_quantity
from wattree.validation.coverage import (
    deviation_of,
    fitted_spreads,
    with_residuals,
)
from wattree.validation.express import express
from wattree.validation.fitting import fitted_groups, memory_rows, write_calibration
from wattree.validation.left_out import (
    AS_WRITTEN,
    PUBLISHED,
    RECIPES,
    UnseenError,
    left_out_errors,
    unseen_error,
)
from wattree.validation.memory_coverage import LeftOutMemory, left_out_memory
from wattree.validation.rows import MeasuredRow, bundled_rows, read_rows

FILES = ("throughput_llm.csv", "throughput_vision_dlrm.csv", "memory.csv")
COMMAND = "python -m benchmarks.intervals DIR --fit"
#: Relative difference of one measured speed, as tables round it.
_SAME = 5e-3
#: The same of one model's parameters, with its vocabulary padded or not.
_SAME_MODEL = 2e-2
#: What a job says of its software.
_SOFTWARE = ("software", "traits", "compile")
#: How reports say that their step time is that of a whole run: "9.5 days for 1T tokens".
_DURATION = re.compile(r"\b(?:days?|weeks?|months?|hours?|h)\b.*(?:\bfor |/ )")
#: Runs of published reports that no row file has.
REPORTS = tuple(sorted((Path(__file__).parents[1] / "validation").glob("reports*.yaml")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Coverage of the intervals of a class.

    Attributes:
        hold_out: By what its rows were left out; `all` of all.
        known: Class of evidence; `all` of all.
        rows: How many.
        inside: Share of them in their intervals.
        spread: Median of the intervals' standard deviations.
        error: Mean absolute error of the rows.
    """

    hold_out: str
    known: str
    rows: int
    inside: float
    spread: float
    error: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; write JSON and a calibration on request."""
    parser = report_parser(__doc__)
    parser.add_argument("dir", nargs="?", type=Path, help="folder of measured rows")
    parser.add_argument("--calibration", type=Path, help="constants; those that ship if left out")
    parser.add_argument("--fit", type=Path, help="file to write constants and residuals to")
    options = parser.parse_args(arguments)
    rows = list(bundled_rows())
    if options.dir is not None:
        rows = [row for name in FILES for row in read_rows(options.dir / name)]
    constants = load_calibration(options.calibration)
    errors = []
    for fitted in fitted_groups(rows, constants, progress=print_progress):
        errors += list(left_out_errors(fitted, print_progress))
    measured = memory_rows(rows, constants, progress=print_progress)
    published = [*published_errors(constants), *recipe_errors(rows, constants)]
    peaks = list(published_memory(constants))
    if options.fit is not None:
        constants = with_residuals(
            constants,
            errors,
            measured,
            published=published,
            peaks=peaks,
            command=COMMAND,
        )
        write_calibration(options.fit, constants, constants.left_out)
    spreads = dict(constants.residuals.spreads)
    memory = [*left_out_memory(measured, constants), *peaks]
    found = coverages(errors, spreads) + judged_by_others(errors, published)
    found += memory_coverages(memory, spreads)
    show(found, spreads, options.json_path)
    return 0


def published_errors(constants: Calibration) -> Iterator[UnseenError]:
    """Yield the error of each published training that has a step time, or a duration."""
    for report in trainings("step_time"):
        job = job_from_mapping(report["job"], source=report["name"])
        measured_s = parse_quantity(report["step_time"], "s")
        error = _error(job, measured_s, constants, (report["kind"], _publisher(report["source"])))
        yield replace(error, whole=bool(_DURATION.search(str(report.get("how", "")))))


def recipe_errors(rows: Sequence[MeasuredRow], constants: Calibration) -> Iterator[UnseenError]:
    """Yield the error of each published recipe that is no row that is fitted."""
    named = [(framework, recipe) for framework in FRAMEWORKS for recipe in recipes(framework)]
    with tempfile.TemporaryDirectory() as folder:
        for framework, recipe in named:
            try:
                found = recipe_job(framework, recipe, Path(folder))
            except WattreeError:
                continue  # `benchmarks.recipes` tells why
            if not any(is_row(found, row) for row in rows if row.core):
                name = str(recipe.get("recipe", framework))
                yield _error(found.job, found.measured_s, constants, (RECIPES, name))


def is_row(recipe: RecipeJob, row: MeasuredRow) -> bool:
    """Return whether a recipe is what a row measured, by devices, step time and trained weights."""
    step_s = row.step_time_s or row.implied_step_time_s
    if row.n_accel != recipe.job.cluster.devices or step_s is None:
        return False
    if not math.isclose(step_s, recipe.measured_s, rel_tol=_SAME):
        return False
    try:
        own, other = (model_of(job).trainable_parameters for job in (recipe.job, express(row).job))
    except RowError:
        return False  # nothing is fitted to what is no job
    return math.isclose(own, other, rel_tol=_SAME_MODEL)


def _error(
    job: Job, measured_s: float, constants: Calibration, case: tuple[str, str]
) -> UnseenError:
    setting, result = predicted_step(job, constants)
    device = setting.job.cluster.pools[0].node.device
    facts = facts_of(setting, device, result.ranks)
    return unseen_error(
        math.log(result.step_time_s / measured_s),
        facts,
        result.interval_parts,
        constants_of(setting, device),
        measured_of(constants.residuals, facts.kind),
        case=case,
    )


def published_memory(constants: Calibration) -> Iterator[LeftOutMemory]:
    """Yield errors of each published peak of memory: as stated, and as a job without software."""
    for report in trainings(*WITHOUT):
        bare = {key: value for key, value in report["job"].items() if key not in _SOFTWARE}
        for keys in (report["job"], bare):
            setting, result = predicted_step(
                job_from_mapping(keys, source=report["name"]), constants
            )
            yield from _memory_errors(report, result.memory, setting.job.software)


def _memory_errors(
    report: Mapping[str, Any], memory: MemoryUse, software: str
) -> Iterator[LeftOutMemory]:
    """Yield the error of each peak that a report has."""
    others = {each: memory.by_category.get(each, 0.0) for each in WITHOUT["allocated"]}
    tensors = memory.peak_bytes - sum(others.values())
    for kind in WITHOUT.keys() & report.keys():
        peak = memory.peak_bytes - sum(others[each] for each in WITHOUT[kind])
        yield LeftOutMemory(
            kind="process" if kind == "used" else kind,
            software=software,
            hold_out=PUBLISHED,
            error=math.log(peak / parse_quantity(report[kind], "bytes")),
            overhead=1.0 - tensors / peak,
            publisher=_publisher(report["source"]),
        )


def trainings(*figures: str) -> Iterator[Mapping[str, Any]]:
    """Yield the reports of training runs that have any of some figures, with their hold-out."""
    for path in REPORTS:
        read = read_yaml(path)
        kind = AS_WRITTEN if read.get("as_written") else PUBLISHED
        for report in read["reports"]:
            if "workload" in report["job"] or report.keys().isdisjoint(figures):
                continue
            with suppress(JobError):  # `benchmarks.reports` tells which are refused
                job_from_mapping(report["job"], source=report["name"])
                yield {**report, "kind": kind}


def predicted_step(job: Job, constants: Calibration) -> tuple[Setting, Result]:
    """Return what a job means, and its result."""
    setting = setting_of(job, constants)
    return setting, predicted(setting, setting.job.strategy, detail=False).result


def _publisher(source: str) -> str:
    """Return who published a run: the owner of a repository, or the first words of a citation."""
    owner = re.search(r"github:([^/]+)", source)
    return owner.group(1) if owner else re.split(r"[,/(]", source)[0]


def judged_by_others(
    errors: Sequence[UnseenError], published: Sequence[UnseenError]
) -> list[Coverage]:
    """Return how often intervals hold on published runs, by spreads without their group's."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    of_rows = fitted_spreads(errors)
    for case in sorted({(each.hold_out, each.group) for each in published}):
        own = [each for each in published if (each.hold_out, each.group) == case]
        others = [each for each in published if (each.hold_out, each.group) != case]
        spreads = fitted_spreads([*errors, *others], of_rows)
        for each in own:
            for known in ("all", each.known.label):
                found[each.hold_out, known].append((each.error, deviation_of(each, spreads)))
    return _coverages(found)


def coverages(errors: Iterable[UnseenError], spreads: Mapping[str, float]) -> list[Coverage]:
    """Return how often intervals hold, by hold-out and by class of evidence."""
    groups: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for each in errors:
        for hold_out in (each.hold_out, "all"):
            for known in ("all", each.known.label):
                groups[hold_out, known].append((each.error, deviation_of(each, spreads)))
    return _coverages(groups)


def memory_coverages(
    errors: Sequence[LeftOutMemory], spreads: Mapping[str, float]
) -> list[Coverage]:
    """Return how often intervals of memory hold, by hold-out and by what was measured."""
    groups: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for each in errors:
        for known in ("memory", f"memory, {each.kind}, {each.software}"):
            groups[each.hold_out, known].append((each.error, each.deviation(spreads)))
    return _coverages(groups)


def _coverages(groups: Mapping[tuple[str, str], list[tuple[float, float]]]) -> list[Coverage]:
    """Return the coverage of each hold-out and class, from errors with their deviations."""
    return [_coverage(*key, *np.array(pairs).T) for key, pairs in sorted(groups.items())]


def _coverage(hold_out: str, known: str, errors: Floats, deviations: Floats) -> Coverage:
    return Coverage(
        hold_out=hold_out,
        known=known,
        rows=len(errors),
        inside=float(np.mean(np.abs(errors) <= DEVIATIONS * deviations)),
        spread=float(np.median(deviations)),
        error=float(np.mean(np.abs(np.expm1(errors)))),
    )


def show(found: Sequence[Coverage], spreads: dict[str, float], json_path: str | None) -> None:
    """Print coverage by hold-out and class, and the residuals."""
    lines = [
        (
            each.hold_out,
            each.known,
            str(each.rows),
            f"{100 * each.inside:.0f} %",
            f"{100 * each.spread:.1f} %",
            f"{100 * each.error:.1f} %",
        )
        for each in found
    ]
    head = ("hold-out", "evidence", "rows", "inside", "spread", "error")
    table = plain_table("80 % intervals", head, lines, left=2)
    show_report(
        {"coverage": [asdict(each) for each in found], "spreads": spreads},
        json_path,
        table,
        width=110,
    )


if __name__ == "__main__":
    sys.exit(main())
