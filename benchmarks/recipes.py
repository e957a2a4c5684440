"""Published recipes with published speeds: imported, predicted, and held against what was measured.

    python -m benchmarks.recipes [--full] [--only FRAMEWORK] [--json P]

A recipe counts as inside if the published tokens per second lie in the 80 % interval that
`simulate` gives. `--full` shows every recipe.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.frame import percent, plain_table, report_parser, show_report
from benchmarks.recipe_files import FRAMEWORKS, recipe_job, recipes
from wattree import simulate
from wattree.errors import WattreeError

_HEAD = ("recipes", "imported", "mean error", "median error", "inside")
_ROW_HEAD = ("recipe", "published", "predicted", "80 %", "error", "inside", "evidence")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; write JSON on request."""
    parser = report_parser(__doc__)
    parser.add_argument("--full", action="store_true", help="show every recipe")
    parser.add_argument("--only", choices=sorted(FRAMEWORKS), help="one framework")
    given = parser.parse_args(arguments)
    names = [given.only] if given.only else list(FRAMEWORKS)
    found = {name: predicted(name) for name in names}
    table = plain_table("Published recipes", _HEAD, [_summary(*each) for each in found.items()])
    details = [_details(*each) for each in found.items()] if given.full else []
    show_report({"recipes": found}, given.json_path, *details, table, width=150)
    return 0


def predicted(framework: str) -> list[dict[str, Any]]:
    """Return what is predicted of a framework's recipes, or why one is refused."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for row in recipes(framework):
            said = {key: value for key, value in row.items() if key != "tokens"}
            try:
                found.append(said | _predicted(framework, row, Path(folder)))
            except WattreeError as error:
                found.append(said | {"refused": str(error)})
    return found


def _predicted(framework: str, row: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    recipe = recipe_job(framework, row, folder)
    result = simulate(recipe.job).result
    low, high = (recipe.tokens / bound for bound in reversed(result.interval["step_time_s"]))
    speed = recipe.tokens / result.step_time_s
    return {
        "published": row["tokens"],
        "predicted": speed,
        "interval": [low, high],
        "error": speed / row["tokens"] - 1.0,
        "inside": low <= row["tokens"] <= high,
        "fits": result.memory.fits,
        "evidence": result.evidence_class,
        "not_understood": list(recipe.not_understood),
    }


def _summary(framework: str, found: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    measured = [each for each in found if "error" in each]
    errors = [abs(each["error"]) for each in measured]
    return (
        framework,
        f"{len(measured)} of {len(found)}",
        percent(statistics.mean(errors), digits=1),
        percent(statistics.median(errors), digits=1),
        f"{sum(each['inside'] for each in measured)} of {len(measured)}",
    )


def _details(framework: str, found: Sequence[Mapping[str, Any]]) -> Table:
    return plain_table(framework, _ROW_HEAD, [_line(each) for each in found])


def _line(each: Mapping[str, Any]) -> tuple[str, ...]:
    outcome = ("published", "predicted", "interval", "error", "inside", "fits", "evidence")
    said = [value for key, value in each.items() if key not in {*outcome, "not_understood", "also"}]
    name = " ".join("–" if value is None else str(value) for value in said)
    if "refused" in each:
        return (name, "", "", "", "", "", "")
    low, high = each["interval"]
    return (
        name,
        f"{each['published']:,.0f}",
        f"{each['predicted']:,.0f}",
        f"{low:,.0f} to {high:,.0f}",
        f"{each['error']:+.1%}",
        "yes" if each["inside"] else "no",
        each["evidence"],
    )


if __name__ == "__main__":
    sys.exit(main())
