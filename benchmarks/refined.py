"""What `plan` gains by schedules, uneven stages and partial recomputation, and what it misses.

    python -m benchmarks.refined [--json P]

Each job is planned as spaces are listed (no refinement), as `plan` does it, and with every schedule
and every partial recomputation listed for every mesh.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.frame import plain_table, report_parser, show_report
from benchmarks.measure import planned_job
from wattree import plan
from wattree.search.limits import Limits
from wattree.search.plan_result import Plan
from wattree.strategy.schedules import PIPELINE_SCHEDULES

_PARTLY = ("block_2", "block_3", "block_4", "block_8")
#: Spaces small enough to list everything.
_AXES = {"cp": (1,), "ep": (1,)}
_SHARDINGS = ("none", "zero1", "zero3")
#: Model, tokens per sample (None: images), samples, node, nodes, software.
_JOBS = (
    ("gpt3-1.3b", 2048, 64, "dgx-a100", 1, "pytorch"),
    ("gpt3-1.3b", 2048, 64, "dgx-1-32gb", 2, "torchtitan"),
    ("gpt3-13b", 2048, 64, "dgx-a100", 2, "torchtitan"),
    ("gpt3-13b", 2048, 128, "dgx-1-32gb", 4, "pytorch"),
    ("llama-3.1-8b", 8192, 64, "dgx-h100", 1, "torchtitan"),
    ("llama-3.1-8b", 8192, 64, "dgx-a100", 1, "generic"),
    ("llama-3.1-8b", 8192, 32, "dgx-a100-40gb", 2, "torchtitan"),
    ("llama-3.1-70b", 4096, 64, "dgx-h100", 4, "torchtitan"),
    ("llama-3.1-70b", 8192, 128, "dgx-h100", 8, "pytorch"),
    ("qwen3-30b-a3b", 4096, 128, "dgx-h100", 2, "torchtitan"),
    ("mixtral-8x7b", 4096, 128, "dgx-h100", 4, "generic"),
    ("mixtral-8x7b", 4096, 64, "dgx-a100", 4, "megatron-core"),
    ("t5-3b", 512, 512, "dgx-a100", 1, "pytorch"),
    ("bert-large", 512, 512, "dgx-1-32gb", 1, "pytorch"),
    ("vit-h-14", None, 1024, "dgx-a100", 1, "pytorch"),
    ("vit-l-16", None, 2048, "dgx-1-32gb", 2, "generic"),
    ("gemma-2-9b", 4096, 64, "dgx-a100", 2, "torchtitan"),
    ("phi-4", 8192, 64, "dgx-h100", 2, "generic"),
    ("falcon-40b", 2048, 64, "dgx-a100", 4, "torchtitan"),
    ("qwen2.5-32b", 4096, 64, "dgx-h100", 2, "megatron-core"),
)
_HEAD = (
    *("job", "software", "listed", "plan", "gain", "all listed", "missed", "time", "best of plan"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; write JSON on request."""
    options = report_parser(__doc__).parse_args(arguments)
    found = [_compared(job) for job in _JOBS]
    table = plain_table(
        "Step times of the best strategy; time: of plan against no refinement",
        _HEAD,
        [_line(each) for each in found],
        left=2,
    )
    show_report({"jobs": found}, options.json_path, table, width=140)
    return 0


def _compared(job: tuple[str, int | None, int, str, int, str]) -> dict[str, Any]:
    *sizes, software = job
    model, _, _, node, nodes = sizes

    def planned(limits: Limits) -> tuple[Plan, float]:
        began = time.process_time()
        found = plan(planned_job(*sizes, software=software), limits=limits, top=1)
        return found, time.process_time() - began

    few: dict[str, Any] = {"axes": _AXES, "shardings": _SHARDINGS}
    planned(Limits(**few))  # kernels, catalogs
    listed, listed_s = planned(Limits(**few, refined=False))
    own, own_s = planned(Limits(**few))
    whole, _ = planned(
        Limits(
            **few,
            schedules=tuple(PIPELINE_SCHEDULES),
            recomputations=("none", "selective", "full", *_PARTLY),
            refined=False,
        )
    )
    times = [each.best.result.step_time_s for each in (listed, own, whole) if each.best is not None]
    assert own.best is not None
    low, high = own.best.result.interval["step_time_s"]
    return {
        "job": f"{model}, {nodes} x {node}",
        "software": software,
        "listed_s": times[0],
        "plan_s": times[1],
        "whole_s": times[2],
        "interval": [low, high],
        "best": own.best.label,
        "time_ratio": own_s / listed_s,
    }


def _line(each: Mapping[str, Any]) -> tuple[str, ...]:
    listed, own, whole = (each[f"{name}_s"] for name in ("listed", "plan", "whole"))
    return (
        each["job"],
        each["software"],
        f"{listed:.4g} s",
        f"{own:.4g} s",
        f"{100 * (1 - own / listed):.1f} %",
        f"{whole:.4g} s",
        f"{100 * (own / whole - 1):.1f} %",
        f"{each['time_ratio']:.1f} x",
        each["best"],
    )


if __name__ == "__main__":
    sys.exit(main())
