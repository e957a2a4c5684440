"""Put the accuracy tables into the README and docs/accuracy.md.

`python docs/accuracy_tables.py [DIR]`: both get the errors on rows left out of the fit; with DIR, a
folder that holds `throughput_llm.csv`, `memory.csv` and `throughput_vision_dlrm.csv`,
docs/reference/accuracy.md gets the tables of all rows, language models and other networks apart.
"""

from __future__ import annotations

import sys
from pathlib import Path

import wattree
from wattree.cost import load_calibration
from wattree.validation import (
    Validation,
    hold_out_markdown,
    summary_markdown,
    worst,
    worst_markdown,
)

ROOT = Path(__file__).resolve().parents[1]
#: Marker in docs/reference/accuracy.md → files of rows.
FILES = {
    "accuracy-full": ("throughput_llm.csv", "memory.csv"),
    "accuracy-networks": ("throughput_vision_dlrm.csv",),
}
TITLES = {"step_time_s": "Step time", "peak_memory_bytes": "Peak memory per device"}


def main() -> None:
    """Fill what the calibration records; fill the rest if a folder of rows is named."""
    for page in (ROOT / "README.md", ROOT / "docs" / "accuracy.md"):
        _fill(page, "held-out", held_out())
    if len(sys.argv) > 1:
        folder = Path(sys.argv[1])
        page = ROOT / "docs" / "reference" / "accuracy.md"
        for marker, names in FILES.items():
            validation = wattree.validate([folder / name for name in names])
            _fill(page, marker, _tables(validation, worst_rows=30))


def held_out() -> str:
    """Return the errors on rows left out of the fit, as the shipped calibration records them."""
    recorded = Validation(scored=(), left_out=load_calibration().left_out)
    return hold_out_markdown(recorded.hold_outs).strip()


def _tables(validation: Validation, *, worst_rows: int) -> str:
    parts = []
    for quantity, sources in validation.summary.items():
        if quantity in TITLES:
            left_out = validation.left_out_of(quantity) or None
            parts += [f"**{TITLES[quantity]}**", summary_markdown(sources, left_out=left_out)]
    parts += ["**Largest errors**", worst_markdown(worst(validation.scored, count=worst_rows))]
    return "\n\n".join(part.strip() for part in parts)


def _fill(page: Path, marker: str, text: str) -> None:
    begin, end = f"<!-- {marker}:begin -->", f"<!-- {marker}:end -->"
    whole = page.read_text(encoding="utf-8")
    head, rest = whole.split(begin)
    _, tail = rest.split(end)
    page.write_text(f"{head}{begin}\n\n{text}\n\n{end}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
