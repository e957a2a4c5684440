"""The executor against real traffic: emulated hosts, gloo, rate-limited links.

    python -m benchmarks.netlab [DIR] [--sharing max-min|proteus] [--json P]
    python -m benchmarks.netlab [DIR] --fit P

DIR holds `scenarios/*.json`; without it the recorded scenarios in `validation/netlab` are used.
Predictions use the topology and the tasks of a scenario and one calibration of the machine. A
scenario without a measurement is predicted and listed. `--fit` remakes the calibration from DIR
and writes it to P. Exits with 0 even where a figure is missed: the table says so.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.netlab import (
    Comparison,
    Machine,
    Scenario,
    bundled_scenarios,
    compare,
    fit_machine,
    load_folder,
    load_machine,
    predict,
    summary,
    unfitted,
    write_machine,
)
from wattree.errors import WattreeError
from wattree.files import write_atomic
from wattree.sim.rules import SHARING_POLICIES

#: Name → what is switched off. `ours` is what the errors above it are of.
ABLATIONS: dict[str, dict[str, Any]] = {
    "no mutual slowdown": {"mutual_slowdown": False},
    "no sharing": {"share_links": False},
    "Proteus' rules": {"sharing": "proteus"},
    "ours": {},
}
_SPLIT_SEED = 20240917  # any: it only decides which scenarios the halves of `--fit` hold


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; write JSON on request."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dir", nargs="?", type=Path, help="folder that holds scenarios/*.json")
    parser.add_argument("--sharing", choices=SHARING_POLICIES, default="max-min")
    parser.add_argument("--json", dest="json_path", metavar="P", help="file, or - for the screen")
    parser.add_argument("--fit", type=Path, metavar="P", help="write a new calibration to P")
    options = parser.parse_args(arguments)
    try:
        scenarios = bundled_scenarios() if options.dir is None else load_folder(options.dir)
        if options.fit:
            fit(scenarios, options.fit)
            return 0
        report = report_of(scenarios, load_machine(), sharing=options.sharing)
        show(report, options.json_path)
    except WattreeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def report_of(
    scenarios: Sequence[Scenario], machine: Machine, *, sharing: str = "max-min"
) -> dict[str, Any]:
    """Return everything that is printed, as plain values."""
    compared = compared_with(scenarios, machine, sharing=sharing)
    quiet = [one for one in compared if not one.multiplies]
    return {
        "sharing": sharing,
        "scenarios": [
            {
                "id": one.name,
                "measured_s": one.measured_s,
                "predicted_s": one.predicted_s,
                "error": one.error,
                "mean_end_error": one.mean_end_error,
                "matmul": one.multiplies,
            }
            for one in compared
        ],
        "summary": asdict(summary(quiet)),
        "summary_matmul": asdict(summary([one for one in compared if one.multiplies])),
        "summary_all": asdict(summary(compared)),
        "ablation": [
            {"rules": name} | ablation(scenarios, machine, switches)
            for name, switches in ABLATIONS.items()
        ],
    }


def compared_with(
    scenarios: Sequence[Scenario], machine: Machine, **switches: Any
) -> list[Comparison]:
    """Return predictions beside measurements."""
    return [compare(one, predict(one, machine, **switches)) for one in scenarios]


def ablation(
    scenarios: Sequence[Scenario], machine: Machine, switches: dict[str, Any]
) -> dict[str, Any]:
    """Return the errors of scenarios without and with matrix products under other rules."""
    compared = compared_with(scenarios, machine, **switches)
    quiet = summary([one for one in compared if not one.multiplies])
    matmul = summary([one for one in compared if one.multiplies])
    return {
        "mean_abs_error": quiet.mean_abs_error,
        "worst": quiet.worst,
        "worst_id": quiet.worst_id,
        "mean_end_error": quiet.mean_end_error,
        "matmul_mean_abs_error": matmul.mean_abs_error,
        "matmul_worst": matmul.worst,
    }


def fit(scenarios: Sequence[Scenario], path: Path) -> None:
    """Fit each half from plain guesses and try it on the other, then fit all; write it down."""
    start = load_machine()
    quiet = [one for one in scenarios if one.measured and not one.multiplies]
    shuffled = random.Random(_SPLIT_SEED).sample(quiet, len(quiet))
    halves = (shuffled[::2], shuffled[1::2])
    record = {"scenarios": f"{len(scenarios)}, recorded on one machine"}
    for number, (fitted_on, left_out) in enumerate((halves, halves[::-1]), 1):
        if fitted_on and left_out:
            machine = fit_machine(unfitted(start), fitted_on)
            seen = summary(compared_with(fitted_on, machine))
            unseen = summary(compared_with(left_out, machine))
            record[f"half_{number}"] = (
                f"fitted on {seen.count}: {_percent(seen.mean_abs_error)}; "
                f"on the other {unseen.count}: {_percent(unseen.mean_abs_error)}, "
                f"worst {_percent(unseen.worst)}, ends {_percent(unseen.mean_end_error)}"
            )
    write_machine(path, fit_machine(start, scenarios), record)


def show(report: dict[str, Any], json_path: str | None) -> None:
    """Print tables, or write JSON and leave the screen to it if it goes there."""
    text = json.dumps(report, indent=1, allow_nan=False) + "\n"
    if json_path == "-":
        sys.stdout.write(text)
        return
    console = Console(width=110)
    console.print(scenario_table(report))
    console.print(figure_table(report))
    console.print(ablation_table(report))
    if json_path:
        write_atomic(json_path, text)


def scenario_table(report: dict[str, Any]) -> Table:
    """Return one line per scenario."""
    table = Table(title=f"netlab, sharing {report['sharing']}")
    for name in ("scenario", "measured", "predicted", "error", "task ends"):
        table.add_column(name, justify="left" if name == "scenario" else "right")
    for row in report["scenarios"]:
        measured_s = row["measured_s"]
        table.add_row(
            row["id"],
            "–" if measured_s is None else f"{measured_s:.4f} s",
            f"{row['predicted_s']:.4f} s",
            _percent(row["error"]),
            _percent(row["mean_end_error"]),
        )
    return table


def figure_table(report: dict[str, Any]) -> Table:
    """Return what must be reached and what is."""
    table = Table(title="Figures")
    for name in ("measure", "at most", "found", ""):
        table.add_column(name)
    quiet, matmul = report["summary"], report["summary_matmul"]
    overlapped = [row["error"] for row in report["scenarios"] if _is_overlapped(row)]
    lines = [
        ("makespan, mean |error|", 0.006, quiet["mean_abs_error"]),
        (f"makespan, worst ({quiet['worst_id']})", 0.03, quiet["worst"]),
        ("task ends, share of the makespan", 0.022, quiet["mean_end_error"]),
        ("matmul, overlapped, worst", 0.08, max(overlapped, key=abs) if overlapped else None),
        ("matmul, all parts, mean |error|", None, matmul["mean_abs_error"]),
    ]
    for measure, wanted, found in lines:
        verdict = ""
        if wanted is not None and found is not None:
            verdict = "ok" if abs(found) <= wanted else "MISSED"
        table.add_row(measure, _percent(wanted), _percent(found), verdict)
    return table


def _is_overlapped(row: dict[str, Any]) -> bool:
    return bool(row["matmul"] and row["error"] is not None and "overlapped" in row["id"])


def ablation_table(report: dict[str, Any]) -> Table:
    """Return what each rule of the executor is worth."""
    table = Table(title="Ablation (scenarios without products; then with)")
    for name in ("rules", "mean", "worst", "task ends", "matmul mean", "matmul worst"):
        table.add_column(name, justify="left" if name == "rules" else "right")
    for row in report["ablation"]:
        table.add_row(
            row["rules"],
            _percent(row["mean_abs_error"]),
            _percent(row["worst"]),
            _percent(row["mean_end_error"]),
            _percent(row["matmul_mean_abs_error"]),
            _percent(row["matmul_worst"]),
        )
    return table


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.2%}"


if __name__ == "__main__":
    sys.exit(main())
