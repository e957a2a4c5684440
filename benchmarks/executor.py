"""The executor's figures of speed and scale in one table.

    python -m benchmarks.executor [--json P]

Times are medians on the machine at hand; every job of the scale part runs in a process of its
own, so that its memory is its own. Exits with 0 even where a figure is missed: the table says so.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.measure import ENGINE, LARGEST, Figure, apart, compiled, cpu_s, show_figures

#: Replicas of Llama-3.1-405B at TP 8 x PP 16, one sample of each for every micro-batch.
REPLICAS = {1_024: 8, 16_384: 128, 131_072: 1_024}
#: Every rank on its own: GPT-3 175B in its usual cut, some 12 million tasks.
UNFOLDED = """
model: gpt3-175b
data: {sequence_length: 2048, global_batch: 512}
precision: bf16
optimizer: adamw
cluster: {node: dgx-h100, nodes: 128}
strategy: {preset: megatron, tp: 8, pp: 8, dp: 16, micro_batch: 1, schedule: 1f1b}
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; write JSON on request."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, dest="json_path")
    options = parser.parse_args(arguments)
    parts: list[Callable[[], list[Figure]]] = [engine, scale, unfolded]
    figures = [figure for part in parts for figure in part()]
    show_figures(
        figures, title="Executor: speed and scale", bound="at least", json_path=options.json_path
    )
    return 0


def engine() -> list[Figure]:
    """Tasks per second of the main job's benchmark, and what compiling them takes."""
    from wattree.sim import play

    graph, compile_s = compiled(ENGINE, repeats=5)
    play(graph)
    run_s = statistics.median(cpu_s(lambda: play(graph)) for _ in range(9))
    rate, ratio = graph.tasks / run_s, compile_s / run_s
    return [
        Figure(
            measure=f"engine, Llama-3.1-70B TP 8 x PP 4 x DP 4 unfolded, {graph.tasks:,} tasks",
            wanted=">= 8 M tasks/s",
            found=f"{rate / 1e6:.2f} M tasks/s",
            reached=rate >= 8e6,
        ),
        Figure(
            measure="compile over run of the same",
            wanted="<= 1.5",
            found=f"{compile_s:.2f} s / {run_s:.2f} s = {ratio:.2f}",
            reached=ratio <= 1.5,
        ),
    ]


def scale() -> list[Figure]:
    """A full step of Llama-3.1-405B while data parallelism grows with the devices."""
    figures, times = [], []
    for devices, replicas in REPLICAS.items():
        runs = [apart("simulated", largest_on(devices, replicas)) for _ in range(3)]
        elapsed_s = statistics.median(run["elapsed_s"] for run in runs)
        resident = max(run["resident_bytes"] for run in runs)
        times.append(elapsed_s)
        limited = devices == 16_384
        figures.append(
            Figure(
                measure=f"simulate Llama-3.1-405B on {devices:,} H100, DP {replicas:,}",
                wanted="<= 1 s, <= 1 GB" if limited else "",
                found=f"{elapsed_s:.2f} s, {resident / 1e9:.2f} GB "
                f"(step {runs[0]['step_time_s']:.2f} s)",
                reached=not limited or (elapsed_s <= 1 and resident <= 1e9),
            )
        )
    spread = max(times) / min(times)
    figures.append(
        Figure(
            measure="longest over shortest of these",
            wanted="<= 2",
            found=f"{spread:.2f}",
            reached=spread <= 2,
        )
    )
    return figures


def largest_on(devices: int, replicas: int) -> str:
    """Return the main job's largest job on other numbers of devices and replicas.

    The global batch follows, so that every replica has the same number of micro-batches.
    """
    job = LARGEST
    for old, new in (
        ("global_batch: 2048", f"global_batch: {16 * replicas}"),
        ("nodes: 2048", f"nodes: {devices // 8}"),
        ("dp: 128", f"dp: {replicas}"),
    ):
        assert old in job, f"benchmarks.measure.LARGEST no longer holds '{old}'"
        job = job.replace(old, new)
    return job


def unfolded() -> list[Figure]:
    """Every rank of a large job on its own, memory accounting on."""
    run = apart("played", UNFOLDED)
    command = apart("simulated_unfolded", UNFOLDED)
    whole_s = run["compile_s"] + run["run_s"]
    return [
        Figure(
            measure=f"--fold off, GPT-3 175B TP 8 x PP 8 x DP 16, {run['tasks']:,.0f} tasks: "
            "compile and play",
            wanted="<= 30 s, <= 6 GB",
            found=f"{run['compile_s']:.1f} s + {run['run_s']:.1f} s, "
            f"{run['resident_bytes'] / 1e9:.2f} GB (step {run['step_time_s']:.2f} s)",
            reached=whole_s <= 30 and run["resident_bytes"] <= 6e9,
        ),
        Figure(
            measure="the same with energy, breakdown and everything else that simulate tells",
            wanted="<= 30 s, <= 6 GB",
            found=f"{command['elapsed_s']:.1f} s, {command['resident_bytes'] / 1e9:.2f} GB",
            reached=command["elapsed_s"] <= 30 and command["resident_bytes"] <= 6e9,
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())
