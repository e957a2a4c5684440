"""Configurations and modules with known counts: parameters, FLOP and saved activations.

    python -m benchmarks.models [DIR] [--json P] [--only ID]... [--time-limit S] [--processes N]

DIR has the layout of `validation/models`, which is used without it: `config/*/config.json`,
`modules/*.py` with `build` and `example_inputs`, and `expected.json`. The Python files of DIR are
run. Each model has a process and a time limit of its own; what cannot be read or captured is a row
with the reason. Exits with 0 even where a figure is missed: the table says so.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from benchmarks.apart import Work, done_apart
from benchmarks.frame import percent, plain_table, report_parser, show_report
from benchmarks.measure import ROOT
from benchmarks.model_counts import (
    MEASURES,
    Row,
    config_row,
    empty_row,
    import_libraries,
    module_row,
)

BUNDLED = ROOT / "validation" / "models"

#: Largest error of each measure that counts as reached.
GOALS = {
    "parameters": 0.0,
    "flops_forward": 0.005,
    "flops_forward_backward": 0.01,
    "saved_bytes": 0.03,
    "saved_bytes_full": 0.03,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; write JSON on request."""
    parser = report_parser(__doc__)
    parser.add_argument("dir", nargs="?", type=Path, default=BUNDLED)
    parser.add_argument("--only", action="append", metavar="ID", help="this model; may be repeated")
    parser.add_argument("--time-limit", type=float, default=240, metavar="S", help="of one model")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="side by side")
    options = parser.parse_args(arguments)
    if not options.dir.is_dir():
        print(f"error: {options.dir}: no such folder", file=sys.stderr)
        return 2
    import_libraries()
    report = report_of(
        options.dir,
        only=options.only,
        time_limit_s=options.time_limit,
        processes=options.processes,
    )
    show(report, options.json_path)
    return 0


def report_of(
    folder: Path,
    *,
    only: Sequence[str] | None = None,
    time_limit_s: float = 240,
    processes: int = 2,
) -> dict[str, Any]:
    """Return everything that is printed, as plain values."""
    works = [work for work in works_of(folder) if not only or work.name in only]
    rows = [
        outcome if isinstance(outcome, dict) else refused(work, outcome)
        for work, outcome in zip(
            works,
            done_apart(works, time_limit_s=time_limit_s, processes=processes),
            strict=True,
        )
    ]
    return {"models": rows, "summary": summary(rows)}


def works_of(folder: Path) -> list[Work]:
    """Return what is to be counted: everything that `folder` holds or expects."""
    expected = _expected(folder / "expected.json")
    configs, modules = expected.get("configs") or {}, expected.get("modules") or {}
    works = []
    for name, answers in configs.items():
        path = folder / (answers.get("config") or f"config/{name.replace('/', '--')}/config.json")
        works.append(Work(name=name, run=config_row, arguments=(name, path, answers)))
    for path in sorted(folder.glob("config/*/config.json")):
        name = path.parent.name.replace("--", "/", 1)
        if path not in {work.arguments[1] for work in works}:
            works.append(Work(name=name, run=config_row, arguments=(name, path, {})))
    for name, answers in modules.items():
        path = folder / (answers.get("file") or f"modules/{name}.py")
        works.append(Work(name=name, run=module_row, arguments=(name, path, answers)))
    for path in sorted(folder.glob("modules/*.py")):
        if path not in {work.arguments[1] for work in works}:
            works.append(Work(name=path.stem, run=module_row, arguments=(path.stem, path, {})))
    return works


def _expected(path: Path) -> dict[str, Any]:
    """Return the answers; none, with a word to standard error, where they cannot be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        print(f"{path}: no answers to compare with: {error}", file=sys.stderr)
        return {}
    return found if isinstance(found, dict) else {}


def refused(work: Work, reason: str) -> Row:
    """Return the row of a model that could not be counted."""
    name, _, answers = work.arguments
    kind = "config" if work.run is config_row else "module"
    full, small = answers.get("full") or answers, answers.get("small") or {}
    return empty_row(name, kind, answers, full=full, small=small) | {"refused": reason}


def error_of(pair: Mapping[str, Any]) -> float | None:
    """Return found / expected - 1; None where there is nothing to compare."""
    found, expected = pair["found"], pair["expected"]
    if found is None or expected is None:
        return None
    if expected == 0:
        return 0.0 if found == 0 else float("inf")
    return float(found / expected - 1)


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Return counts, errors and what is missed, by measure."""
    found: dict[str, Any] = {
        "count": len(rows),
        "refused": [row["id"] for row in rows if row["refused"]],
        "capture_s": sum(row["capture_s"] or 0 for row in rows),
    }
    for measure, goal in GOALS.items():
        errors = {row["id"]: error_of(row[measure]) for row in rows}
        found[measure] = _errors({k: e for k, e in errors.items() if e is not None}, goal)
    found["small"] = {
        measure: _errors(
            {
                row["id"]: error
                for row in rows
                if "small" in row and (error := error_of(row["small"][measure])) is not None
            },
            GOALS[measure],
        )
        for measure in MEASURES[:3]
    }
    found["both_roads"] = {
        measure: _errors(
            {
                row["id"]: row["captured"][measure] / row[measure]["found"] - 1
                for row in rows
                if measure in row.get("captured", {})
            },
            GOALS[measure],
        )
        for measure in MEASURES[:3]
    }
    return found


def _errors(errors: Mapping[str, float], goal: float) -> dict[str, Any]:
    worst = max(errors, key=lambda name: abs(errors[name]), default=None)
    return {
        "compared": len(errors),
        "exact": sum(error == 0 for error in errors.values()),
        "mean_abs_error": sum(map(abs, errors.values())) / len(errors) if errors else None,
        "worst": _finite(errors[worst]) if worst is not None else None,
        "worst_id": worst,
        "goal": goal,
        "missed": [name for name, error in errors.items() if abs(error) > goal],
    }


def _finite(value: float) -> float | None:
    return None if value in (float("inf"), float("-inf")) else value


def show(report: dict[str, Any], json_path: str | None) -> None:
    """Print tables, or write JSON and leave the screen to it if it goes there."""
    notes = Text("", style="dim", end="")
    for line, names in _notes(report["models"]).items():
        who = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        notes.append(f"{who}: {line}\n")
    models, figures = model_table(report["models"]), figure_table(report)
    show_report(report, json_path, models, notes, figures, width=140)


def _notes(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Return refusals and notes, each with the models it is about."""
    found: dict[str, list[str]] = {}
    for row in rows:
        for line in (row["refused"], *row["notes"], row.get("captured", {}).get("refused")):
            if line:
                found.setdefault(line, []).append(row["id"])
    return found


def model_table(rows: Sequence[Row]) -> Table:
    """Return one line per model."""
    head = (
        "model",
        "road",
        "parameters",
        "error",
        "forward",
        "fwd + bwd",
        "saved",
        "full",
        "capture",
    )
    table = plain_table("Found against expected", head)
    for row in rows:
        seconds = row["capture_s"]
        table.add_row(
            row["id"],
            "REFUSED" if row["refused"] else row["road"],
            _count(row["parameters"]["found"]),
            *(_error(row[measure], GOALS[measure]) for measure in MEASURES),
            "–" if seconds is None else f"{seconds:.1f} s",
        )
    return table


def figure_table(report: dict[str, Any]) -> Table:
    """Return what must be reached and what is."""
    head = ("measure", "at most", "compared", "exact", "mean", "worst", "", "")
    table = plain_table("Figures", head, left=8)
    found = report["summary"]
    lines = [(measure, found[measure]) for measure in GOALS]
    lines += [(f"small modules: {name}", one) for name, one in found["small"].items()]
    lines += [(f"capture against family: {name}", one) for name, one in found["both_roads"].items()]
    for measure, one in lines:
        table.add_row(
            measure,
            f"{one['goal']:.1%}",
            str(one["compared"]),
            str(one["exact"]),
            percent(one["mean_abs_error"], digits=3),
            percent(one["worst"], digits=3),
            one["worst_id"] if one["worst"] else "",
            "MISSED" if one["missed"] else "ok" if one["compared"] else "–",
        )
    table.add_row("refused", "0", str(found["count"]), "", "", str(len(found["refused"])))
    return table


def _error(pair: Mapping[str, Any], goal: float) -> str:
    error = error_of(pair)
    if error is None:
        return "–"
    text = "exact" if error == 0 else f"{error:+.2%}"
    return text if abs(error) <= goal else f"[bold red]{text}[/]"


def _count(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


if __name__ == "__main__":
    sys.exit(main())
