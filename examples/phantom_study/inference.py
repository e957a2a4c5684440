"""Phantom against tensor parallelism without training: energy of a forward pass of a sample.

`python examples/phantom_study/inference.py` counts FLOP and bytes, simulates forward passes of the
sweep of `study.yaml`, prints tables and finding, and writes them to `tables.md` (half a minute).
`--measure` runs forward passes on this machine first, and keeps them in `forward.json`.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # the modules beside it, however this one was loaded

from simulated import Case, Simulator, cases  # noqa: E402
from trained import contestants, measured  # noqa: E402

from wattree.files import read_yaml, write_atomic  # noqa: E402

STUDY: Mapping[str, Any] = read_yaml(HERE / "study.yaml")
KEPT = HERE / "forward.json"
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


def measured_runs() -> list[dict[str, Any]]:
    """Return the forward passes to run: all contestants with one seed, then with the next."""
    common = {**STUDY["inference"]["measured"], "workload": "forward"}
    seeds = STUDY["trained"]["seeds"]
    return [run for seed in seeds for run in contestants({**common, "seed": seed})]


def measured_table(found: Mapping[str, Any]) -> str:
    """Return what was measured, medians over seeds, over tensor parallelism of the same width."""
    batch, runs = STUDY["trained"]["batch"], found["runs"]
    shapes = dict.fromkeys((run["preset"], run["width"], run["ghosts"]) for run in runs)
    medians = {}
    for shape in shapes:
        own = [r for r in runs if (r["preset"], r["width"], r["ghosts"]) == shape]
        energies = [r["energy_j"] for r in own if r["energy_j"] is not None]
        medians[shape] = (
            own[0],
            statistics.median(r["step_s"] for r in own),
            statistics.median(energies) if energies else None,
        )
    base, step_s, _ = medians["tensor", max(run["width"] for run in runs), 0]
    lines = [
        "| strategy | width | weights | bytes sent | to tensor | pass | to tensor | J a sample, "
        "estimated |",
        "|" + "---|" * 8,
    ]
    for (preset, width, ghosts), (run, own_s, energy_j) in medians.items():
        name = f"{preset}, k {ghosts}" if preset == "phantom" else preset
        joules = "–" if energy_j is None else f"{energy_j / batch:.4f}"
        lines.append(
            f"| {name} | {width} | {run['parameters']:,} | {run['sent_bytes']:,.0f} | "
            f"{run['sent_bytes'] / base['sent_bytes']:.3f} | {own_s * 1e3:.1f} ms | "
            f"{own_s / step_s:.2f} | {joules} |"
        )
    load = ", ".join(f"{each:g}" for each in found["load"])
    return (
        f"Measured: batch {batch} over two processes on {found['cores']} shared cores, load {load}."
        "\n\n" + "\n".join(lines) + "\n"
    )


def main(words: Sequence[str]) -> None:
    """Simulate forward passes, print what came of it, and write it to the page."""
    if "--measure" in words:
        made = measured(STUDY["trained"], measured_runs())
        write_atomic(KEPT, json.dumps(made, indent=1) + "\n")
    simulated = {**STUDY["simulated"], **STUDY["inference"], "workload": "forward"}
    found = list(cases(simulated, Simulator(simulated)))
    shown = [case for case in found if case.ghosts == simulated["ghosts"][0]]
    text = "```text\n" + "\n".join(finding(found, STUDY["claim"])) + "\n```\n\n" + table(shown)
    text += "\n" + measured_table(json.loads(KEPT.read_text(encoding="utf-8")))
    print(text)
    tables_page = HERE / "tables.md"
    before, _, rest = tables_page.read_text(encoding="utf-8").partition(BEGIN)
    write_atomic(tables_page, f"{before}{BEGIN}\n{text}{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main(sys.argv[1:])
