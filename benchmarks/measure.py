"""What the benchmarks measure with: jobs, processes of their own, processor time, memory."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wattree.graph import ExecutionGraph
    from wattree.job import Job

ROOT = Path(__file__).resolve().parents[1]
LARGEST = """
model: llama-3.1-405b
data: {sequence_length: 8192, global_batch: 2048}
precision: bf16
optimizer: adamw
cluster: {node: dgx-h100, nodes: 2048}
strategy: {preset: megatron, tp: 8, pp: 16, dp: 128, micro_batch: 1, virtual_stages: 8,
           schedule: interleaved}
"""
ENGINE = """
model: llama-3.1-70b
data: {sequence_length: 8192, global_batch: 52}
precision: bf16
optimizer: adamw
cluster: {node: dgx-h100, nodes: 16}
strategy: {preset: megatron, tp: 8, pp: 4, dp: 4, micro_batch: 1}
"""


def job_of(text: str) -> Job:
    """Return the job that a file with `text` describes."""
    from wattree.job.load import load_job

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.yaml"
        path.write_text(text)
        return load_job(path)


def planned_job(
    model: str,
    tokens: int | None,
    samples: int,
    node: str,
    nodes: int,
    *,
    software: str = "auto",
) -> Job:
    """Return a job in bf16 whose strategy is open.

    Args:
        tokens: Of a sample; None where samples have none.
        samples: Of a step.
    """
    from wattree.job import job_from_mapping

    data = {"global_batch": samples} | ({} if tokens is None else {"sequence_length": tokens})
    return job_from_mapping(
        {
            "model": model,
            "data": data,
            "precision": "bf16",
            "cluster": {"node": node, "nodes": nodes},
            "software": software,
        }
    )


def apart(what: str, job: str, *, module: str = "measure") -> dict[str, float]:
    """Return what a function of a file of benchmarks finds in a process of its own."""
    code = (
        f"import json, sys; sys.path.insert(0, '.'); from benchmarks.{module} import {what}; "
        f"print(json.dumps({what}(sys.stdin.read())))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=job,
        check=True,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def simulated(text: str) -> dict[str, float]:
    """Return time and memory of simulating a job in a fresh process, kernels cached."""
    import wattree

    job = job_of(text)
    began = time.perf_counter()
    prediction = wattree.simulate(job)
    return {
        "elapsed_s": time.perf_counter() - began,
        "static_bytes": static_bytes(),
        "step_time_s": prediction.result.step_time_s,
    }


def compiled(text: str) -> ExecutionGraph:
    """Return a job's graph with every rank on its own."""
    from wattree.cost import load_calibration
    from wattree.predict import setting_of
    from wattree.predict.execute import compilation_of
    from wattree.strategy.presets import strategy_of

    job = job_of(text)
    setting = setting_of(job, load_calibration())
    strategy = strategy_of(job.strategy, model=setting.model, global_batch=job.data.global_batch)
    return compilation_of(setting, strategy, fold=False).graph


def cpu_s(work: Callable[[], object]) -> float:
    """Return the processor time of `work`. [s]"""
    began = time.process_time()
    work()
    return time.process_time() - began


def static_bytes() -> float:
    """Return the most memory that this process ever held.

    Linux counts what the parent held when it started this process toward `ru_maxrss`, so ask for
    the high-water mark of the process's own address space where the system tells it.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return float(line.split()[1]) * 1024.0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
