"""What ranks train under many strategies; `test_train_matrix.py` looks at the losses.

All strategies run in the same processes, which take longer to start than to train.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
import traceback
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from wattree.errors import WattreeError
from wattree.job import Job, job_from_mapping
from wattree.runtime.launch import Launch
from wattree.runtime.recipe import recipe_of
from wattree.runtime.train import TrainSettings
from wattree.runtime.train.rank import RankEnd, train_rank
from wattree.strategy import StrategyOptions

#: Arguments from `ranks.py`.
TOLD = json.loads(sys.argv[1]) if sys.argv[1:] and sys.argv[1][0] == "{" else {"rank": 0, "size": 1}


def job_of(mapping: Mapping[str, Any]) -> Job:
    """Return the job that a case is of."""
    nodes = {"node": "2x-epyc-7742", "nodes": -(-TOLD["size"] // 2)}
    job = job_from_mapping({"precision": "fp32", "cluster": nodes, **mapping}, "job")
    if TOLD["size"] == 1:  # no node has one device alone
        assert isinstance(job.strategy, StrategyOptions)
        job = replace(job, strategy=job.strategy.changed(dp=1))
    return job


def _train(job: Job, folder: Path, name: str) -> RankEnd:
    rank, world = TOLD["rank"], TOLD["size"]
    store = str(folder / f"store-{zlib.crc32(name.encode())}")  # names are long
    launch = Launch(rank=rank, world=world, local_rank=rank, local_world=world, store=store)
    is_own = job.model.module is not None  # whose numbers are the user's choice
    dtype = "float32" if is_own else "float64"
    settings = TrainSettings(quiet=True, timeout_s=300.0, dtype=dtype)
    return train_rank(job, recipe_of(job), launch, settings)


def resumed(folder: str, jobs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Train each job, and again from its half; return both curves, and what the folder holds."""
    found: dict[str, Any] = {}
    for name, mapping in jobs.items():
        place = Path(folder) / name
        place.mkdir(exist_ok=True)
        saved = place / "saved"
        checkpoint = {"dir": str(saved), "every": 2}
        job = job_of({**mapping, "training": {**mapping["training"], "checkpoint": checkpoint}})
        whole = _train(job, place, "whole").trained
        if TOLD["rank"] == 0:  # which the others wait for when they meet again
            shutil.rmtree(saved / "step-4")
        while (saved / "step-4").exists():
            time.sleep(0.01)
        rest = _train(job, place, "rest").trained
        if whole is None or rest is None:
            continue
        first, second = whole.result.training, rest.result.training
        assert first is not None
        assert second is not None
        folders = sorted(path.name for path in saved.iterdir())
        found[name] = [first.losses, second.losses, second.first_step, folders]
    return found


def broken(folder: str, jobs: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Train each job, which fails; return what was said."""
    found = {}
    for name, mapping in jobs.items():
        try:
            _train(job_of(mapping), Path(folder), name)
        except WattreeError as error:
            found[name] = str(error)
    return found


def losses(folder: str, jobs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Train each job in float64; return its losses and bytes on rank 0, or what went wrong."""
    found: dict[str, Any] = {}
    for name, mapping in jobs.items():
        try:
            end = _train(job_of(mapping), Path(folder), name)
        except Exception:  # noqa: BLE001 - the test shows it
            found[name] = traceback.format_exc()
            break  # the other ranks may wait for this one
        if end.trained is not None:
            use = end.trained.result.training
            assert use is not None
            found[name] = {"losses": use.losses, "sent_by": dict(use.sent_by)}
    return found
