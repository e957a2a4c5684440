"""What each rule of the executor is worth, over real traffic and over measured training rows.

    python -m benchmarks.ablation [DIR] [--netlab DIR] [--json P]

DIR holds measured rows (*.csv of the columns that `wattree validate --rows` reads); without it the
rows that ship with Wattree are used, and likewise the recorded scenarios without `--netlab`. Every
row is compiled and executed under each set of rules, with the calibration that ships, which was
fitted with our rules: the others might do better with one of their own (`wattree validate --fit
--sharing …`). Exits with 0 whatever comes out; rows that are missed widely are printed, too.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from benchmarks.frame import percent, plain_table, report_parser, show_report
from benchmarks.netlab import bundled_scenarios, load_folder, load_machine
from benchmarks.netlab.__main__ import ABLATIONS
from benchmarks.netlab.__main__ import ablation as netlab_ablation
from wattree.accounts.exposure import exposure
from wattree.cost import load_calibration
from wattree.errors import WattreeError
from wattree.graph import ModelGraph
from wattree.job import Job
from wattree.lowering.model import model_of
from wattree.predict import setting_of
from wattree.predict.execute import compilation_of
from wattree.sim import execute
from wattree.strategy import StrategyOptions
from wattree.strategy.presets import strategy_of
from wattree.validation import MeasuredRow, bundled_rows, express, measurement, read_rows

#: Name → rules of execution, for measured rows.
RULES: dict[str, dict[str, Any]] = {
    "ours": {},
    "no mutual slowdown": {"mutual_slowdown": False},
    "no sharing": {"sharing": "none"},
    "neither": {"sharing": "none", "mutual_slowdown": False},
    "Proteus' rules": {"sharing": "proteus"},
}
#: The same for scenarios, where collectives are messages: without sharing, those of one call meet
#: all the same, as they do in the times of collectives alone.
NETLAB_RULES: dict[str, dict[str, Any]] = ABLATIONS | {
    "neither": {"share_links": False, "mutual_slowdown": False}
}
#: The two ends of overlap, as `wattree.accounts.exposure` defines them.
HIDDEN, EXPOSED = "communication wholly hidden", "communication wholly exposed"
#: A row that ours misses by more is printed, whoever else misses it.
BAD_ERROR = 0.15


@dataclass(frozen=True, kw_only=True)
class Row:
    """A measured row and its step time under each set of rules. [s]"""

    row_id: str
    source: str
    model: str
    devices: int
    crosses: bool
    measured_s: float
    predicted_s: dict[str, float]

    def error(self, rules: str) -> float:
        """Return predicted over measured time, less 1."""
        return self.predicted_s[rules] / self.measured_s - 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; write JSON on request."""
    parser = report_parser(__doc__)
    parser.add_argument("dir", nargs="?", type=Path, help="folder of measured rows, *.csv")
    parser.add_argument("--netlab", type=Path, metavar="DIR", help="folder of scenarios/*.json")
    options = parser.parse_args(arguments)
    try:
        report = report_of(options.dir, options.netlab)
    except WattreeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    show_report(report, options.json_path, *tables(report), skipped(report))
    return 0


def report_of(folder: Path | None, netlab: Path | None) -> dict[str, Any]:
    """Return everything that is printed, as plain values."""
    machine = load_machine()
    scenarios = bundled_scenarios() if netlab is None else load_folder(netlab)
    rows, left_out = executed(rows_of(folder))
    parts = {"all": rows, "groups cross nodes": [row for row in rows if row.crosses]}
    return {
        "netlab": [
            {"rules": name} | netlab_ablation(scenarios, machine, switches)
            for name, switches in NETLAB_RULES.items()
        ],
        "rows": [
            {"rules": name, "part": part} | errors(chosen, name)
            for part, chosen in parts.items()
            for name in (*RULES, HIDDEN, EXPOSED)
        ],
        "bad_rows": [
            asdict(row) for row in sorted(rows, key=_miss) if abs(row.error("ours")) > BAD_ERROR
        ],
        "every_row": [asdict(row) for row in rows],
        "skipped": left_out,
    }


def rows_of(folder: Path | None) -> list[MeasuredRow]:
    """Return the measured rows of a folder, or those that ship."""
    if folder is None:
        return list(bundled_rows())
    return [row for path in sorted(folder.glob("*.csv")) for row in read_rows(path)]


def executed(measured: Iterable[MeasuredRow]) -> tuple[list[Row], dict[str, str]]:
    """Return the core rows of step time under all rules, and why others of them have none."""
    rows: list[Row] = []
    skipped: dict[str, str] = {}
    step_times = step_times_of()
    chosen = [row for row in measured if row.core]
    for row in track(chosen, "playing rows", console=Console(stderr=True), transient=True):
        found = measurement(row)
        if found.quantity != "step_time_s":
            continue
        if found.value is None:
            skipped[row.row_id] = found.reason or "no measured value"
            continue
        try:
            predicted_s, crosses = step_times(express(row).job)
        except WattreeError as error:
            skipped[row.row_id] = str(error)
            continue
        rows.append(
            Row(
                row_id=row.row_id,
                source=row.source_id,
                model=row.model_name or "",
                devices=row.n_accel or 0,
                crosses=crosses,
                measured_s=found.value,
                predicted_s=predicted_s,
            )
        )
    return rows, skipped


def step_times_of() -> Callable[[Job], tuple[dict[str, float], bool]]:
    """Return a function that plays a job under all rules; it remembers jobs and models.

    The function tells the step times [s] and whether a group of the job crosses nodes.
    """
    constants = load_calibration()
    models: dict[str, ModelGraph] = {}
    done: dict[str, tuple[dict[str, float], bool]] = {}

    def step_times(job: Job) -> tuple[dict[str, float], bool]:
        key = repr(replace(job, source=""))
        if key not in done:
            kind = repr(job.model)
            if kind not in models:
                models[kind] = model_of(job)
            done[key] = _step_times(job, models[kind])
        return done[key]

    def _step_times(job: Job, model: ModelGraph) -> tuple[dict[str, float], bool]:
        setting = setting_of(job, constants, model=model)
        assert isinstance(job.strategy, StrategyOptions)
        strategy = strategy_of(job.strategy, model=model, global_batch=job.data.global_batch)
        merged = compilation_of(setting, strategy, detail=False).graph
        ends = exposure(merged)
        # Rules that slow whole tasks are meant for operators, not for runs of them.
        single = compilation_of(setting, strategy).graph
        mesh, per_node = strategy.mesh, job.cluster.node.devices
        crosses = any(
            (mesh.groups((axis,)) // per_node != mesh.groups((axis,))[:, :1] // per_node).any()
            for axis, _ in mesh.axes
        )
        times = {
            name: execute(single if "proteus" in rules.values() else merged, **rules).makespan_s
            for name, rules in RULES.items()
        }
        return times | {HIDDEN: ends.hidden_s, EXPOSED: ends.exposed_s}, crosses

    return step_times


def errors(rows: Sequence[Row], rules: str) -> dict[str, Any]:
    """Return how far one set of rules is from what was measured."""
    found = {row.row_id: row.error(rules) for row in rows}
    worst = max(found, key=lambda row_id: abs(found[row_id]), default=None)
    absolute = [abs(error) for error in found.values()]
    return {
        "count": len(rows),
        "mean_abs_error": statistics.fmean(absolute) if absolute else None,
        "median_abs_error": statistics.median(absolute) if absolute else None,
        "bias": statistics.fmean(found.values()) if found else None,
        "worst": None if worst is None else found[worst],
        "worst_id": worst,
        "mean_change": _mean_change(rows, rules),
    }


def _mean_change(rows: Sequence[Row], rules: str) -> float | None:
    """Return by how much the rules move the step time from ours, in the mean of all rows."""
    changes = [abs(row.predicted_s[rules] / row.predicted_s["ours"] - 1) for row in rows]
    return statistics.fmean(changes) if changes else None


def _miss(row: Row) -> float:
    return -abs(row.error("ours"))


def skipped(report: dict[str, Any]) -> Text:
    """Return how many rows have no prediction, and why some of them have none."""
    rows = report["skipped"]
    lines = [f"  {row_id}: {reason}" for row_id, reason in list(rows.items())[:5]]
    head = f"{len(rows)} core rows of step time have no prediction."
    return Text("\n".join([head, *lines]))


def tables(report: dict[str, Any]) -> Iterator[Table]:
    """Return the tables of a report."""
    head = ("rules", "mean", "worst", "task ends", "with products: mean", "worst")
    keys = ("mean_abs_error", "worst", "mean_end_error", "matmul_mean_abs_error", "matmul_worst")
    lines = [(row["rules"], *(percent(row[key]) for key in keys)) for row in report["netlab"]]
    yield plain_table("netlab: makespans against real traffic", head, lines)
    head = ("rules", "rows", "mean", "median", "bias", "worst", "of row", "moved by")
    for part in dict.fromkeys(row["part"] for row in report["rows"]):
        yield plain_table(
            f"step times of measured rows ({part}); the calibration was fitted with ours",
            head,
            [_line(row) for row in report["rows"] if row["part"] == part],
        )
    names = (*RULES, HIDDEN, EXPOSED)
    yield plain_table(
        f"rows that ours misses by more than {BAD_ERROR:.0%}: errors",
        ("row", "source", "devices", *(name.replace("communication ", "") for name in names)),
        [
            (row["row_id"], row["source"], str(row["devices"]), *_misses(row, names))
            for row in report["bad_rows"]
        ],
    )


def _line(row: dict[str, Any]) -> tuple[str, ...]:
    signed = (percent(row[name], sign=True, digits=1) for name in ("bias", "worst"))
    means = (percent(row[name]) for name in ("mean_abs_error", "median_abs_error"))
    moved = percent(row["mean_change"])
    return (row["rules"], str(row["count"]), *means, *signed, row["worst_id"] or "–", moved)


def _misses(row: dict[str, Any], names: Sequence[str]) -> Iterator[str]:
    for name in names:
        yield percent(row["predicted_s"][name] / row["measured_s"] - 1, sign=True, digits=1)


if __name__ == "__main__":
    sys.exit(main())
