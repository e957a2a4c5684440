"""The measured part: small stacks that are trained here, all runs of as many ranks in one go.

`python trained.py RUNS FOUND` is one rank of them; `measured` starts such ranks.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from wattree.errors import RunError
from wattree.job import Job, job_from_mapping

__all__ = ["contestants", "iso_width", "measured", "runs_of", "steps_to"]

#: Losses are averaged over so many steps, as `training.target_loss` is.
OVER = 10


def runs_of(trained: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every run: source, width, depth, seed, preset, ranks, ghosts, steps."""
    common = {"steps": trained["steps"], "timed": False, **trained["base"]}
    for seed in trained["seeds"]:
        for changed in trained["dense"]:
            yield {**common, "preset": "ddp", "ranks": 1, "ghosts": 0, "seed": seed, **changed}
        for changed in trained["phantom"]:
            yield {**common, "preset": "phantom", "seed": seed, **changed}
    yield from contestants({**trained["timed"], "seed": trained["seeds"][0], "timed": True})


def contestants(timed: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield runs of tensor parallelism at two widths, of a phantom stack, and of one of blocks."""
    width, ranks, ghosts = timed["width"], timed["ranks"], timed["ghosts"]
    for preset in ("tensor", "megatron"):
        for wide in (width, iso_width(width, ranks, ghosts)):
            yield {**timed, "preset": preset, "ghosts": 0, "width": wide}
    for many in (ghosts, 0):
        yield {**timed, "preset": "phantom", "ghosts": many}


def iso_width(width: int, ranks: int, ghosts: int) -> int:
    """Return the width of a dense stack with the weights of a phantom one, over the same ranks."""
    share = 1 / ranks + ghosts * ranks / width
    return max(ranks, round(width * math.sqrt(share) / ranks) * ranks)


def job_of(run: Mapping[str, Any], trained: Mapping[str, Any]) -> Job:
    """Return the job of a run."""
    ffn: dict[str, Any] = {"width": run["width"], "depth": run["depth"]}
    if run["source"] == "digits":
        ffn |= {"inputs": 64, "outputs": 10, "loss": "cross_entropy"}
    else:
        ffn |= {"inputs": 64, "outputs": 64}
    strategy: dict[str, Any] = {"preset": run["preset"]}
    strategy |= {"dp": 1} if run["ranks"] == 1 else {"tp": run["ranks"], "dp": 1}
    if run["preset"] == "phantom":
        strategy["ghosts"] = run["ghosts"]
    if "workload" in run:  # nothing is updated, so there is no state to shard
        strategy["sharding"] = "none"
    return job_from_mapping(
        {
            "workload": run.get("workload", "train"),
            "model": {"ffn": ffn},
            "data": {"global_batch": trained["batch"], "source": run["source"]},
            "precision": "fp32",
            **({} if "workload" in run else {"optimizer": trained["optimizer"]}),
            # One processor a node. It matters to predictions only, and none is made of these runs.
            "cluster": {"node": "ft-2000-plus-node", "nodes": run["ranks"]},
            "strategy": strategy,
            "training": {
                "steps": run["steps"],
                "seed": run["seed"],
                "learning_rate": trained["learning_rate"],
            },
        }
    )


def measured(
    trained: Mapping[str, Any], runs: Sequence[Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """Train all runs and return what came of them.

    Args:
        trained: Settings that all share.
        runs: What to run instead of all that is trained.

    Raises:
        RunError: A rank failed.
    """
    from wattree.runtime.launch import run_ranks

    runs = list(runs_of(trained)) if runs is None else runs
    found: list[dict[str, Any]] = []
    load = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory(prefix="phantom-study-") as folder:
        for ranks in sorted({run["ranks"] for run in runs}):
            mine = [run for run in runs if run["ranks"] == ranks]
            print(f"training {len(mine)} runs on {ranks} rank(s)", file=sys.stderr, flush=True)
            told, made = Path(folder) / f"{ranks}.json", Path(folder) / f"{ranks}-found.json"
            told.write_text(json.dumps({"trained": trained, "runs": mine}), encoding="utf-8")
            command = [sys.executable, str(Path(__file__).resolve()), str(told), str(made)]
            # One thread each: small products gain nothing by more, and lose where cores are shared.
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            ended = run_ranks(command, ranks, environment=environment)
            if ended.interrupted:
                raise KeyboardInterrupt
            if ended.code:
                why = ended.failure.message if ended.failure else f"exit code {ended.code}"
                raise RunError("phantom study", [why])
            found += json.loads(made.read_text(encoding="utf-8"))
            load.append(os.getloadavg()[0])
    return {"cores": os.cpu_count(), "load": [round(each, 1) for each in load], "runs": found}


def steps_to(losses: Sequence[float], target: float) -> int | None:
    """Return after how many steps the mean of the last ten losses was at the target."""
    for end in range(OVER, len(losses) + 1):
        if math.fsum(losses[end - OVER : end]) / OVER <= target:
            return end
    return None


def _rank(told: Path, made: Path) -> None:
    """Train every run as one rank; rank 0 writes what came of them."""
    from wattree.runtime.launch import INTERRUPTED, launch_from, watch_parent
    from wattree.runtime.recipe import recipe_of
    from wattree.runtime.train import TrainSettings
    from wattree.runtime.train.rank import train_rank

    watch_parent()
    launch = launch_from(os.environ)
    assert launch is not None
    given = json.loads(told.read_text(encoding="utf-8"))
    trained, rows = given["trained"], []
    for number, run in enumerate(given["runs"]):
        job = job_of(run, trained)
        # Each run meets anew: a store is of one group of processes.
        own = replace(launch, store=f"{launch.store}-{number}")
        end = train_rank(job, recipe_of(job), own, TrainSettings(device="cpu", quiet=True))
        if end.interrupted:
            sys.exit(INTERRUPTED)
        if end.trained is not None:
            rows.append({**run, **_row(end.trained.result, trained["targets"][run["source"]])})
    if launch.rank == 0:
        made.write_text(json.dumps(rows), encoding="utf-8")


def _row(result: Any, targets: Sequence[float]) -> dict[str, Any]:
    """Return what is kept of a run."""
    use = result.training
    losses, energy_j = use.losses, result.energy_j.total
    blocks = range(0, len(losses), OVER)
    return {
        "parameters": result.parameters,
        "losses": [round(statistics.fmean(losses[at : at + OVER]), 5) for at in blocks],
        "steps_to": [steps_to(losses, target) for target in targets],
        "step_s": result.step_time_s,
        "energy_j": energy_j if math.isfinite(energy_j) else None,
        "energy_from": result.provenance["energy_j"].note if math.isfinite(energy_j) else "",
        "sent_bytes": use.sent_bytes,
        "collectives": use.collectives,
        "exposed_communication_s": use.stages["communicating"].exposed_s,
    }


if __name__ == "__main__":
    try:
        _rank(Path(sys.argv[1]), Path(sys.argv[2]))
    except KeyboardInterrupt:  # ahead of the first step; from then on training ends by itself
        sys.exit(130)
