"""The account of energy: does it add up, and what does it add to a simulation's time.

Times are of the processor, medians of several accounts of one executed step; what a simulation
takes is compiling, playing and everything else that `simulate` tells.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from benchmarks.frame import Figure, Options, Section
from benchmarks.measure import ENGINE, cpu_s, job_of

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


def section(_: Options) -> Section:
    """Return sums of stages and devices against totals, and the time that the account adds."""
    lines = [
        *_sums(),
        _time_line("folded, Llama-3.1-70B TP 8 x PP 4 x DP 4", account_of(ENGINE, fold=True)),
        _time_line("every rank of the same", account_of(ENGINE, fold=False)),
    ]
    return Section(title="Account of energy of a simulation", figures=tuple(lines))


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
            f"sum of {name} = total, worst of {2 * len(_SUMS)} simulations",
            "1e-9",
            f"{error:.1e}",
            error <= 1e-9,
        )
        for name, error in apart_by.items()
    ]


def _time_line(what: str, found: dict[str, float]) -> Figure:
    share = found["account_s"] / found["other_s"]
    return Figure(
        f"time that the account adds, {what}, {found['tasks']:,.0f} tasks",
        "10 %",
        f"{found['account_s']:.3g} s on {found['other_s']:.3g} s = {share:.1%}",
        share <= 0.10,
    )


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
    return {
        "tasks": float(given[0].graph.tasks),
        "other_s": whole_s - spent[0],
        "account_s": statistics.median([spent[0], *(cpu_s(again) for _ in range(_REPEATS - 1))]),
    }
