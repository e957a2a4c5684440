"""The executor against real traffic: emulated hosts, gloo, rate-limited links.

    python -m benchmarks.netlab [DIR] [--sharing max-min|proteus] [--json P]

DIR holds `scenarios/*.json`; without it the recorded scenarios in `validation/netlab` are used.
Predictions use the topology and the tasks of a scenario and one calibration of the machine. A
scenario without a measurement is predicted and listed. Exits with 0 even where a
figure is missed: the table says so.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.frame import percent, plain_table, report_parser, show_report
from benchmarks.netlab import (
    Comparison,
    Machine,
    Scenario,
    bundled_scenarios,
    compare,
    load_folder,
    load_machine,
    predict,
    summary,
)
from wattree.errors import WattreeError
from wattree.sim.rules import SHARING_POLICIES

#: Name → what is switched off. `ours` is what the errors above it are of.
ABLATIONS: dict[str, dict[str, Any]] = {
    "no mutual slowdown": {"mutual_slowdown": False},
    "no sharing": {"share_links": False},
    "Proteus' rules": {"sharing": "proteus"},
    "ours": {},
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; write JSON on request."""
    parser = report_parser(__doc__)
    parser.add_argument("dir", nargs="?", type=Path, help="folder that holds scenarios/*.json")
    parser.add_argument("--sharing", choices=SHARING_POLICIES, default="max-min")
    given = parser.parse_args(arguments)
    try:
        scenarios = bundled_scenarios() if given.dir is None else load_folder(given.dir)
        report = report_of(scenarios, load_machine(), sharing=given.sharing)
        tables = scenario_table(report), figure_table(report), ablation_table(report)
        show_report(report, given.json_path, *tables, width=110)
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
    """Return predictions with measurements."""
    return [compare(one, predict(one, machine, **switches)) for one in scenarios]


def ablation(
    scenarios: Sequence[Scenario], machine: Machine, switches: dict[str, Any]
) -> dict[str, Any]:
    """Return the errors of scenarios without and with matmuls under other rules."""
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


def scenario_table(report: dict[str, Any]) -> Table:
    """Return one line per scenario."""
    head = ("scenario", "measured", "predicted", "error", "task ends")
    lines = [
        (
            row["id"],
            "–" if row["measured_s"] is None else f"{row['measured_s']:.4f} s",
            f"{row['predicted_s']:.4f} s",
            percent(row["error"]),
            percent(row["mean_end_error"]),
        )
        for row in report["scenarios"]
    ]
    return plain_table(f"netlab, sharing {report['sharing']}", head, lines)


def figure_table(report: dict[str, Any]) -> Table:
    """Return what must be reached and what is."""
    quiet, matmul = report["summary"], report["summary_matmul"]
    overlapped = [row["error"] for row in report["scenarios"] if _is_overlapped(row)]
    table = plain_table("Figures", ("measure", "at most", "found", ""), left=4)
    for measure, wanted, found in (
        ("makespan, mean |error|", 0.006, quiet["mean_abs_error"]),
        (f"makespan, worst ({quiet['worst_id']})", 0.03, quiet["worst"]),
        ("task ends, share of the makespan", 0.022, quiet["mean_end_error"]),
        ("matmul, overlapped, worst", 0.08, max(overlapped, key=abs) if overlapped else None),
        ("matmul, all parts, mean |error|", None, matmul["mean_abs_error"]),
    ):
        verdict = ""
        if wanted is not None and found is not None:
            verdict = "ok" if abs(found) <= wanted else "MISSED"
        table.add_row(measure, percent(wanted), percent(found), verdict)
    return table


def _is_overlapped(row: dict[str, Any]) -> bool:
    return bool(row["matmul"] and row["error"] is not None and "overlapped" in row["id"])


def ablation_table(report: dict[str, Any]) -> Table:
    """Return what each rule of the executor is worth."""
    head = ("rules", "mean", "worst", "task ends", "matmul mean", "matmul worst")
    keys = ("mean_abs_error", "worst", "mean_end_error", "matmul_mean_abs_error", "matmul_worst")
    lines = [(row["rules"], *(percent(row[key]) for key in keys)) for row in report["ablation"]]
    return plain_table("Ablation (scenarios without products; then with)", head, lines)


if __name__ == "__main__":
    sys.exit(main())
