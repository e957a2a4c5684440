"""The account of energy: does it add up, and what does it add to a simulation's time.

    python -m benchmarks.energy_account [--big] [--json P]

`rows()` is the section of the table of energy; `--big` also times the account on the largest job
(every rank of GPT-3 175B on its own, 12 million tasks), which takes half a minute and 4 GB. Times
are of the processor, medians of several accounts of one played step; what a simulation takes is
compiling, playing and everything else that `simulate` tells.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.executor import UNFOLDED
from benchmarks.measure import ENGINE, Figure, apart, cpu_s, job_of, resident_bytes, show_figures

__all__ = ["account_of", "account_of_big", "account_of_unfolded", "rows"]

#: Jobs whose sums are looked at: pools, a limit, a loader, a straggler, every rank on its own.
_HEAD = """
model: gpt2-medium
data: {sequence_length: 1024, global_batch: 64%s}
precision: bf16
cluster: %s
strategy: %s
"""
_POOLS = "{pools: [{node: dgx-h100}, {node: dgx-a100}], fabric: infiniband-ndr-fat-tree}"
_PIPELINE = "{preset: megatron, pp: 2, tp: 2, micro_batch: 2}"
_LOADER = ", loader: {workers: 2, decode: 40 ms, sample_bytes: 100 kB, tensor_bytes: 1 MB}"
_SUMS = {
    "pipeline": _HEAD % ("", "{node: dgx-h100, nodes: 2}", _PIPELINE),
    "pools": _HEAD % ("", _POOLS, _PIPELINE),
    "limit": _HEAD % ("", '{node: dgx-h100, nodes: 2, power_limit: "350 W"}', _PIPELINE),
    "loader": _HEAD % (_LOADER, "{node: dgx-h100, nodes: 2}", "fsdp"),
    "straggler": _HEAD % ("", '{node: dgx-h100, nodes: 2, slowdown: {"3": 1.2}}', "ddp"),
}
_REPEATS = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; write JSON on request."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--big", action="store_true", help="also the largest job")
    parser.add_argument("--json", type=Path, dest="json_path")
    options = parser.parse_args(arguments)
    figures = rows(big=options.big)
    show_figures(figures, title="Account of energy", bound="at most", json_path=options.json_path)
    return 0


def rows(*, big: bool = False) -> list[Figure]:
    """Return the lines of the table: sums, and time on jobs small and large."""
    return [
        *_sums(),
        _time_line("folded, Llama-3.1-70B TP 8 x PP 4 x DP 4", account_of(ENGINE, fold=True)),
        _time_line("every rank of the same", account_of(ENGINE, fold=False)),
        *([_time_line("every rank of GPT-3 175B", account_of_big())] if big else []),
    ]


def _sums() -> list[Figure]:
    """How far apart the sums of stages and of devices are from the total, at most."""
    import wattree

    apart_by: dict[str, float] = {}
    for text in _SUMS.values():
        for fold in (True, False):
            energy = wattree.simulate(job_of(text), fold=fold).result.energy_j
            for name, parts in (
                ("stages", energy.by_stage.values()),
                ("devices", (each.energy_j for each in energy.by_device)),
                ("classes of work", energy.by_class.values()),
                ("components", energy.by_component.values()),
                ("entries of the ledger", (entry.energy_j for entry in energy.ledger)),
            ):
                error = abs(math.fsum(parts) / energy.total - 1)
                apart_by[name] = max(apart_by.get(name, 0.0), error)
    return [
        Figure(
            measure=f"sum of {name} = total, worst of {2 * len(_SUMS)} simulations",
            wanted="1e-9",
            found=f"{error:.1e}",
            reached=error <= 1e-9,
        )
        for name, error in apart_by.items()
    ]


def _time_line(what: str, found: dict[str, float]) -> Figure:
    share = found["account_s"] / found["other_s"]
    return Figure(
        measure=f"time that the account adds, {what}, {found['tasks']:,.0f} tasks",
        wanted="10 %",
        found=f"{found['account_s']:.3g} s on {found['other_s']:.3g} s = {share:.1%}"
        + (f", {found['resident_bytes'] / 1e9:.2f} GB" if "resident_bytes" in found else ""),
        reached=share <= 0.10,
    )


def account_of_big() -> dict[str, float]:
    """Return the times of the largest job, in a process of its own."""
    return apart("account_of_unfolded", UNFOLDED, module="energy_account")


def account_of_unfolded(text: str) -> dict[str, float]:
    """Return the times of a job with every rank on its own."""
    return account_of(text, fold=False)


def account_of(text: str, *, fold: bool) -> dict[str, float]:
    """Return what simulating takes without the account, and what the account takes. [s]

    One simulation is timed as a whole and its account in it, after a first that loads the kernels;
    then the account is repeated, and the median counts.
    """
    import wattree

    module: Any = import_module("wattree.accounts.energy_use")
    job, account, spent, kept = job_of(text), module.step_energy, [0.0], []

    def timed(*given: Any, **named: Any) -> Any:
        began = time.process_time()
        found = account(*given, **named)
        spent[0] = time.process_time() - began
        kept[:] = [(given, named)]
        return found

    wattree.simulate(job_of(_SUMS["pipeline"]))
    module.step_energy = timed
    try:
        whole_s = cpu_s(lambda: wattree.simulate(job, fold=fold))
    finally:
        module.step_energy = account
    (given, named) = kept[0]
    again: Callable[[], object] = lambda: account(*given, **named)  # noqa: E731 - timed below
    found = {
        "tasks": float(given[0].graph.tasks),
        "other_s": whole_s - spent[0],
        "account_s": statistics.median([spent[0], *(cpu_s(again) for _ in range(_REPEATS - 1))]),
    }
    return found | {"resident_bytes": resident_bytes()} if not fold else found


if __name__ == "__main__":
    sys.exit(main())
