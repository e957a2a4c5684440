"""Phantom against tensor parallelism without training: energy of a forward pass of a sample.

`python examples/phantom_study/inference.py` counts FLOP and bytes, simulates forward passes of the
sweep of `study.yaml`, prints tables and finding, and writes them to `tables.md` (half a minute).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # the modules beside it, however this one was loaded

from simulated import Case, Simulator, cases  # noqa: E402

from wattree.files import read_yaml, write_atomic  # noqa: E402

STUDY: Mapping[str, Any] = read_yaml(HERE / "study.yaml")
BEGIN, END = (
    "<!-- tables: python examples/phantom_study/inference.py -->",
    "<!-- end of inference -->",
)


def counts(case: Case) -> dict[str, float]:
    """Return exact counts of a forward pass of a sample through one layer, over tensor parallelism.

    Of width `n` over `p` ranks with `k` ghosts a phantom layer has `n^2 / p + n k p` weights, each
    of which is multiplied and added once; tensor parallelism has `n^2`. A rank sends `k` values in
    place of `n / p`. As many weights over the same ranks are those of a dense layer of width
    `n sqrt(1 / p + k p / n)`, hence as many FLOP, and it sends its width over `p`.
    """
    return {
        "flop": case.parameters,
        "sent": case.traffic,
        "iso_sent": case.ghosts * case.ranks / case.iso_width,
    }


def table(found: Sequence[Case]) -> str:
    """Return the cases as a Markdown table."""
    lines = [
        "| batch | width x depth | p | k | FLOP | bytes sent | time | energy | J a sample | iso: "
        "width | bytes sent | time | energy |",
        "|" + "---|" * 13,
    ]
    for case in found:
        of, energy_j = counts(case), case.phantom.energy_j
        own, iso = energy_j / case.tensor.energy_j, energy_j / case.iso.energy_j
        lines.append(
            f"| {case.batch} | {case.width} x {case.depth} | {case.ranks} | {case.ghosts} | "
            f"{of['flop']:.3f} | {of['sent']:.4f} | "
            f"{case.phantom.time_s / case.tensor.time_s:.2f} | {own:.2f} | "
            f"{energy_j / case.batch:.3g} / {case.tensor.energy_j / case.batch:.3g} | "
            f"{case.iso_width} | {of['iso_sent']:.3f} | "
            f"{case.phantom.time_s / case.iso.time_s:.2f} | {iso:.2f} |"
        )
    return "\n".join(lines) + "\n"


def finding(found: Sequence[Case], claim: float) -> list[str]:
    """Return what comes out, whichever way it goes."""
    lines = []
    for words, of in (("same width and ranks", "tensor"), ("as many weights and ranks", "iso")):
        ratios = [case.phantom.energy_j / getattr(case, of).energy_j for case in found]
        half = sum(ratio <= claim for ratio in ratios)
        more = sum(ratio > 1 for ratio in ratios)
        lines.append(
            f"Forward passes, {words}: at most {claim:.0%} of the energy of tensor parallelism in "
            f"{half} of {len(ratios)} cases, more than all of it in {more}; ratios "
            f"{min(ratios):.2f} to {max(ratios):.2f}."
        )
    for batch in sorted({case.batch for case in found}):
        own = [case for case in found if case.batch == batch]
        width = [case.phantom.energy_j / case.tensor.energy_j for case in own]
        iso = [case.phantom.energy_j / case.iso.energy_j for case in own]
        lines.append(
            f"  batch {batch}: {min(width):.2f} to {max(width):.2f} at the same width, "
            f"{min(iso):.2f} to {max(iso):.2f} with as many weights"
        )
    return lines


def main() -> None:
    """Simulate forward passes, print what came of it, and write it to the page."""
    simulated = {**STUDY["simulated"], **STUDY["inference"], "workload": "forward"}
    found = list(cases(simulated, Simulator(simulated)))
    shown = [case for case in found if case.ghosts == simulated["ghosts"][0]]
    text = "```text\n" + "\n".join(finding(found, STUDY["claim"])) + "\n```\n\n" + table(shown)
    print(text)
    tables_page = HERE / "tables.md"
    before, _, rest = tables_page.read_text(encoding="utf-8").partition(BEGIN)
    write_atomic(tables_page, f"{before}{BEGIN}\n{text}{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
