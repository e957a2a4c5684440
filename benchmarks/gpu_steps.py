"""Plain steps of the transformers library on this machine's accelerator, with the prediction.

    python -m benchmarks.gpu_steps [--seconds S] [--only WORDS] [--out FILE]

Training, forward passes and generation of `gpu_steps.yaml`, each on one device: time of a step,
peak of allocated memory, time and number of kernels, energy. What is written has the form that
`benchmarks.reports` predicts and compares; without a device nothing is written.
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from benchmarks.gpu_training import environment, sees_no_device
from wattree.errors import UnknownNameError
from wattree.files import read_yaml, write_atomic
from wattree.hardware import canonical_name

CASES = Path(__file__).with_suffix(".yaml")
RESULTS = Path(__file__).parents[1] / "validation"
#: Device → a node of the catalog that has it.
NODES = {"h100-sxm-80gb": "dgx-h100", "h200-sxm-141gb": "dgx-h200"}
_WARM_UP, _LEAST = 3, 3
_DEVICE = "cuda:0"


def measured(
    step: Callable[[], Any], seconds: float, energy_j: Callable[[], float]
) -> dict[str, Any]:
    """Return what a step takes, after some that are not counted.

    Args:
        seconds: How long it is repeated at least. [s]
        energy_j: Reads the device's counter. [J]
    """
    import torch

    for _ in range(_WARM_UP):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    times: list[float] = []
    begin, before_j = time.perf_counter(), energy_j()
    while len(times) < _LEAST or time.perf_counter() < begin + seconds:
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    used_j = energy_j() - before_j
    return {
        "step_time": f"{statistics.median(times) * 1e3:.3f} ms",
        "allocated": f"{torch.cuda.max_memory_allocated() / 2**30:.3f} GiB",
        "reserved": f"{torch.cuda.max_memory_reserved() / 2**30:.3f} GiB",
        "energy": f"{used_j / len(times):.3f} J",
        "steps": len(times),
        **_kernels(step),
    }


def _kernels(step: Callable[[], Any]) -> dict[str, Any]:
    """Return how long the device was busy in one more step, and how many kernels it ran."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        step()
        torch.cuda.synchronize()
    events = profiler.key_averages()
    busy_us = sum(event.self_device_time_total for event in events)
    # Calls of the host that launch them are events too, which take no time of the device.
    launched = sum(event.count for event in events if event.self_device_time_total > 0)
    return {"busy": f"{busy_us / 1e3:.3f} ms", "kernels": launched}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every case and write what was found; say so where there is no accelerator."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--only", help="cases whose name contains this")
    parser.add_argument("--node", help="of the catalog, around this device")
    parser.add_argument("--out", type=Path, help="file to write, instead of one in validation/")
    given = parser.parse_args(arguments)
    if sees_no_device("measured or written"):
        return 0
    import pynvml

    around = environment(0, pynvml)
    try:
        device = canonical_name("device", around["device"])
        node = given.node or NODES[device]
    except (UnknownNameError, KeyError) as error:
        print(f"benchmarks.gpu_steps: {error}: --node NAME names a node with it", file=sys.stderr)
        return 2
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    cases = read_yaml(CASES)
    found = []
    for case in cases["reports"]:
        if given.only is None or given.only in case["name"]:
            job = {**case["job"], "cluster": {"node": node}}
            row = _row(job, cases["modules"], given, handle)
            print(f"{case['name']}: {row}", flush=True)
            found.append({"name": case["name"], **row, "job": job})
    import transformers

    around["transformers"] = transformers.__version__
    _write({"device": around, "reports": found}, given.out or RESULTS / f"steps_{device}.yaml")
    return 0


def _row(
    job: Mapping[str, Any], modules: Mapping[str, Any], given: argparse.Namespace, handle: Any
) -> dict[str, Any]:
    """Measure one case; what ends it is its row."""
    import pynvml
    import torch

    from benchmarks.gpu_steps_run import step_of

    def energy_j() -> float:
        return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3

    name = job["model"]["name"] if isinstance(job["model"], Mapping) else job["model"]
    torch.manual_seed(0)
    try:
        step = step_of(job, modules[name], _DEVICE)
        row = measured(step, given.seconds, energy_j)
    except torch.OutOfMemoryError:
        row = {"out_of_memory": True}
    except Exception as error:  # noqa: BLE001 - the other cases are measured all the same
        row = {"failed": f"{type(error).__name__}: {error}"[:300]}
    step = None
    gc.collect()
    torch.compiler.reset()
    torch.cuda.empty_cache()
    return row


def _write(found: Mapping[str, Any], out: Path) -> None:
    text = io.StringIO()
    text.write(
        "# As `python -m benchmarks.gpu_steps` measured it; `benchmarks.reports` predicts it.\n"
    )
    YAML().dump(json.loads(json.dumps(found)), text)  # nothing shared, which would be an anchor
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(out, text.getvalue())
    print(f"written to {out}")


if __name__ == "__main__":
    raise SystemExit(main())
