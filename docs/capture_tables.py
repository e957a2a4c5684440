"""Put the table of what capturing supports and refuses into docs/capture.md.

`python docs/capture_tables.py`, from the checkout; with `--check` it only says whether the page is
out of date. The lines are the cases of tests/capture/record/cases.py, which are all tried there.
"""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "capture.md"
BEGIN, END = "<!-- cases:begin -->", "<!-- cases:end -->"


def main() -> int:
    """Fill the page, or compare it."""
    whole = PAGE.read_text(encoding="utf-8")
    head, rest = whole.split(BEGIN)
    _, tail = rest.split(END)
    made = f"{head}{BEGIN}\n\n{table()}\n\n{END}{tail}"
    if "--check" in sys.argv:
        return int(made != whole)
    PAGE.write_text(made, encoding="utf-8")
    return 0


def table() -> str:
    """Return the cases as Markdown, a table per group."""
    sys.path.insert(0, str(ROOT))
    from tests.capture.record.cases import CASES

    parts = []
    for group, cases in groupby(CASES, lambda case: case.group):
        lines = [f"**{group}**", "", "| what | | |", "|---|---|---|"]
        lines += [f"| {case.what} | {_outcome(case)} | {case.advice} |" for case in cases]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _outcome(case: object) -> str:
    if getattr(case, "refusal", ""):
        return "refused"
    return "on real values" if getattr(case, "values", False) else "yes"


if __name__ == "__main__":
    raise SystemExit(main())
