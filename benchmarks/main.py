"""The figures of the main job in one table: accuracy, speed, memory, start-up.

    python -m benchmarks.main [DIR] [--json P]

DIR holds `throughput_llm.csv` and `memory.csv` of published measurements; without it the bundled
rows are used. Times are medians on this machine. Exits with 0 even where a figure is
missed: the table says so.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from benchmarks.frame import Figure, plain_table, report_parser, show_report
from benchmarks.measure import ENGINE, LARGEST, ROOT, apart, compiled, cpu_s

if TYPE_CHECKING:
    from wattree.job import Job

EXAMPLE = ROOT / "examples" / "llama-3.1-8b-dgx-h100.yaml"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; write JSON on request."""
    parser = report_parser(__doc__)
    parser.add_argument("dir", nargs="?", type=Path, help="folder of measured rows")
    options = parser.parse_args(arguments)
    parts: list[Callable[[], list[Figure]]] = [
        start_up,
        plan_time,
        widened_plan,
        single_predictions,
        largest_job,
        engine_rate,
        screening,
        lambda: accuracy(options.dir),
    ]
    figures: list[Figure] = []
    for part in parts:
        figures += part()
    lines = [(f.measure, f.wanted, f.found, "ok" if f.reached else "MISSED") for f in figures]
    table = plain_table("Main job", ("measure", "at least", "found", ""), lines, left=4)
    show_report([asdict(f) for f in figures], options.json_path, table, width=150)
    return 0


def wall_s(command: Sequence[str], repeats: int = 5) -> float:
    """Return the median wall time of a command in a cold process. [s]"""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def start_up() -> list[Figure]:
    """Time to import the package and to print the help."""
    bare = wall_s([sys.executable, "-c", "pass"], 9)
    imported = wall_s([sys.executable, "-c", "import wattree"], 9) - bare
    helped = wall_s([sys.executable, "-m", "wattree", "--help"], 9)
    return [
        Figure.at_most("import wattree", 0.3, imported, "{:.2f} s"),
        Figure.at_most("wattree --help", 0.5, helped, "{:.2f} s"),
    ]


def plan_time() -> list[Figure]:
    """Wall time of the main command, kernels cached."""
    command = [sys.executable, "-m", "wattree", "plan", str(EXAMPLE)]
    wall_s(command, 1)
    found_s = wall_s(command, 3)
    return [Figure.at_most("plan, Llama-3.1-8B on 8 x H100, cold process", 5, found_s, "{:.2f} s")]


def widened_plan() -> list[Figure]:
    """CPU time of `plan` against one without refinement, in turns, and for 1,024 devices."""
    from wattree import job_from_mapping, plan
    from wattree.files import read_yaml
    from wattree.search.limits import Limits

    written = read_yaml(EXAMPLE)
    large = {
        "cluster": {"node": "dgx-h100", "nodes": 128},
        "data": {**written["data"], "global_batch": 1024},
    }
    job, many = (job_from_mapping(each) for each in (written, {**written, **large}))
    plan(job)
    turns = [
        [cpu_s(partial(plan, job, limits=Limits(refined=wide))) for wide in (False, True)]
        for _ in range(5)
    ]
    without_s, with_s = map(statistics.median, zip(*turns, strict=True))
    many_s = cpu_s(partial(plan, many))
    over = "plan, Llama-3.1-8B on 8 x H100, over that without refinement"
    return [
        Figure.at_most(over, 1.5, with_s / without_s, "{:.2f} x"),
        Figure.at_most("plan, Llama-3.1-8B on 1,024 x H100", 30, many_s, "{:.1f} s"),
    ]


def single_predictions() -> list[Figure]:
    """One strategy of GPT-3 175B on 512 devices, asked about in a process that knows the job."""
    import wattree

    jobs = [_gpt3(micro_batch) for micro_batch in (1, 2)]
    for job in jobs:
        wattree.estimate(job)
        wattree.simulate(job)
    estimated = [cpu_s(partial(wattree.estimate, jobs[turn % 2])) for turn in range(20)]
    simulated = [cpu_s(partial(wattree.simulate, jobs[turn % 2])) for turn in range(10)]
    estimated_ms, simulated_s = 1e3 * statistics.median(estimated), statistics.median(simulated)
    return [
        Figure.at_most("estimate, GPT-3 175B on 512 devices, warm", 10, estimated_ms, "{:.1f} ms"),
        Figure.at_most("simulate, the same job, next strategy", 0.13, simulated_s, "{:.3f} s"),
    ]


def _gpt3(micro_batch: int) -> Job:
    """Return GPT-3 175B in its usual cut."""
    from wattree.job import job_from_mapping

    return job_from_mapping(
        {
            "model": "gpt3-175b",
            "data": {"sequence_length": 2048, "global_batch": 512},
            "cluster": {"node": "dgx-h100", "nodes": 64},
            "strategy": {"tp": 8, "pp": 8, "dp": 8, "micro_batch": micro_batch},
        }
    )


def largest_job() -> list[Figure]:
    """Simulate 405B on 16,384 devices in a process of its own, for its memory."""
    runs = [apart("simulated", LARGEST) for _ in range(3)]
    elapsed = statistics.median(run["elapsed_s"] for run in runs)
    static = max(run["static_bytes"] for run in runs)
    return [
        Figure(
            "simulate Llama-3.1-405B on 16,384 H100",
            "<= 2 s, <= 1.5 GB",
            f"{elapsed:.2f} s, {static / 1e9:.2f} GB (step {runs[0]['step_time_s']:.2f} s)",
            elapsed <= 2 and static <= 1.5e9,
        )
    ]


def engine_rate() -> list[Figure]:
    """Tasks per second on a compiled graph, every rank executed."""
    from wattree.sim import execute

    graph = compiled(ENGINE)
    execute(graph)
    rates = [graph.tasks / cpu_s(lambda: execute(graph)) for _ in range(5)]
    measure = f"engine, Llama-3.1-70B TP 8 x PP 4 x DP 4 unfolded, {graph.tasks:,} tasks"
    return [Figure.at_least(measure, 5, statistics.median(rates) / 1e6, "{:.2f} M tasks/s")]


def screening() -> list[Figure]:
    """Rate of screening, and whether screening finds what simulating everything finds."""
    from benchmarks import screening as part

    return part.figures()


def accuracy(folder: Path | None) -> list[Figure]:
    """Errors against measured rows, with the record of left-out sources next to them."""
    import wattree
    from wattree.validation.priors import FITTED

    files = [] if folder is None else [folder / "throughput_llm.csv", folder / "memory.csv"]
    validation = wattree.validate(files)
    Console(width=150).print(validation.table())
    summary = validation.summary
    lines = []
    speed = summary["step_time_s"]["all"]
    out = validation.left_out_of("step_time_s").get("all", float("nan"))
    mean, median = speed.mean_abs_error or 1, speed.median_abs_error or 1
    lines.append(
        Figure(
            f"step time, {speed.count} core rows",
            "mean <= 6 %, median <= 4 %",
            f"{mean:.1%}, {median:.1%}",
            mean <= 0.06 and median <= 0.04,
        )
    )
    lines.append(
        Figure(
            "step time, source left out",
            "mean <= 10 %, <= 1.5 x in-sample",
            f"{out:.1%}, {out / mean:.2f} x",
            out <= 0.10 and out <= 1.5 * mean,
        )
    )
    lines.append(Figure.at_most("step time, constants fitted", 45, len(FITTED), "{}"))
    lines.append(Figure.at_least("step time, coverage", 0.95, speed.coverage or 0, "{:.1%}"))
    lines.append(Figure.at_least(f"order of {speed.pairs} pairs", 0.93, speed.order or 0, "{:.1%}"))
    if "peak_memory_bytes" in summary:
        memory = summary["peak_memory_bytes"]["all"]
        error = memory.mean_abs_error or 1
        lines.append(
            Figure(
                f"peak memory, {memory.count} core rows",
                "mean <= 5 %, coverage >= 95 %",
                f"{error:.1%}, {memory.coverage:.0%}",
                error <= 0.05 and (memory.coverage or 0) >= 0.95,
            )
        )
    return lines


if __name__ == "__main__":
    sys.exit(main())
