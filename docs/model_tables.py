"""Put the table of built-in models into docs/reference/models.md; `--check` only compares it."""

from __future__ import annotations

import sys
from pathlib import Path

from wattree.capture import catalog_entry, model_figures
from wattree.capture.catalog_entries import built_in_models
from wattree.report.words import count, quantity

PAGE = Path(__file__).parent / "reference" / "models.md"
BEGIN, END = "<!-- built-in models:begin -->", "<!-- built-in models:end -->"


def table() -> str:
    """Return a row for each built-in model, in Markdown."""
    rows = [
        "| model | field | parameters | forward, one sample | first input | also called |",
        "|---|---|---:|---:|---|---|",
    ]
    for name in built_in_models():
        entry, figures = catalog_entry(name), model_figures(name)
        others = ", ".join(f"`{alias}`" for alias in entry.aliases)
        flop = quantity(figures.forward_flop, "FLOP")
        cells = (
            f"`{name}`", entry.field, count(figures.parameters), flop, figures.first_input, others
        )  # fmt: skip
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def filled(page: str) -> str:
    """Return the text of the page with the table as it is now."""
    head, rest = page.split(BEGIN)
    _, tail = rest.split(END)
    return f"{head}{BEGIN}\n\n{table()}\n\n{END}{tail}"


def main() -> int:
    """Write the page, or compare it."""
    page = PAGE.read_text(encoding="utf-8")
    if "--check" in sys.argv:
        return int(filled(page) != page)
    PAGE.write_text(filled(page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
