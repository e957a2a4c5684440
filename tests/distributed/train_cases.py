"""What ranks of `train` do together; `test_train.py` looks at what comes of it.

Every function is called by all ranks, which train several jobs one after the other: processes take
longer to start than to train.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from wattree.errors import WattreeError
from wattree.job import Job, job_from_mapping
from wattree.runtime.checkpoint.folder import steps_in
from wattree.runtime.colocation.training import colocated
from wattree.runtime.launch import Launch
from wattree.runtime.recipe import Recipe, recipe_of
from wattree.runtime.train import TrainSettings
from wattree.runtime.train.rank import RankEnd, train_rank

__all__ = [
    "check_resumed",
    "damaged",
    "failing",
    "killed_while_writing",
    "out_of_memory",
    "product_flop",
    "resumed",
    "several",
    "train_jobs",
]

#: Arguments from `ranks.py`.
TOLD = json.loads(sys.argv[1]) if sys.argv[1:] and sys.argv[1][0] == "{" else {"rank": 0, "size": 1}
FFN = {"ffn": {"width": 24, "depth": 3, "activation": "tanh"}}


def _job(mapping: Mapping[str, Any]) -> Job:
    whole = {
        "model": FFN,
        "precision": "fp32",
        "optimizer": "sgd",
        "cluster": {"node": "2x-epyc-7742", "nodes": -(-TOLD["size"] // 2)},
        **mapping,
    }
    whole["data"] = {"global_batch": 8, "source": "synthetic-regression", **mapping.get("data", {})}
    whole["training"] = {"steps": 4, "learning_rate": 0.1, **mapping.get("training", {})}
    return job_from_mapping(whole, "job")


def _train(job: Job, folder: Path, name: str, **settings: Any) -> RankEnd:
    rank, world = TOLD["rank"], TOLD["size"]
    launch = Launch(
        rank=rank,
        world=world,
        local_rank=rank,
        local_world=world,
        store=str(folder / f"store-{name}"),
    )
    return train_rank(
        job, recipe_of(job), launch, TrainSettings(quiet=True, timeout_s=300.0, **settings)
    )


def several(folder: str, calls: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Call functions of this file by name, each in a folder of its own: one start for all."""
    found = {}
    for name, arguments in calls.items():
        place = Path(folder) / name
        place.mkdir(exist_ok=True)
        found[name] = globals()[name](folder=str(place), **arguments)
    return found


def train_jobs(folder: str, jobs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Train each job; return on rank 0 what came of it."""
    found: dict[str, Any] = {}
    for name, mapping in jobs.items():
        end = _train(_job(mapping), Path(folder), name)
        if end.trained is not None:
            result, run = end.trained.result, end.trained.run
            use = result.training
            assert use is not None
            found[name] = {
                "losses": use.losses,
                "sent_bytes": use.sent_bytes,
                "sent_by": dict(use.sent_by),
                "parameters": result.parameters,
                "stages_s": sum(stage.exposed_s for stage in run.stages.values()),
                "wall_s": run.wall_s,
                "network_bytes": run.work.network_bytes,
                "trace_classes": list(end.trained.trace.graph.class_names),
                "trace_names": sorted(end.trained.trace.graph.names),
                "target_step": use.target_step,
                "steps": use.steps,
            }
    return found


def product_flop(folder: str, jobs: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return the FLOP of the matmuls that a rank computes in a step of each job."""
    import torch
    import torch.distributed as dist
    from torch.utils.flop_counter import FlopCounterMode

    from wattree.runtime.group import Group
    from wattree.runtime.models import Linears
    from wattree.runtime.models.build import build_trainable

    store = dist.FileStore(str(Path(folder) / "store"), TOLD["size"])
    dist.init_process_group("gloo", store=store, rank=TOLD["rank"], world_size=TOLD["size"])
    in_place = {torch.ops.aten.addmm_: _added_flop}  # which the counter does not know
    found = {}
    for name, mapping in jobs.items():
        job = _job(mapping)
        recipe = recipe_of(job)
        linears = Linears(recipe=recipe, group=Group.of(None), seed=0, device=torch.device("cpu"))
        trainable = build_trainable(job, linears)
        make = trainable.wanted.make
        assert make is not None
        inputs = make(recipe.options.pipeline.micro_batch)
        with FlopCounterMode(display=False, custom_mapping=in_place) as counter:
            trainable.module(*inputs).square().mean().backward()
        counts = counter.get_flop_counts()["Global"]
        products = ("aten.mm", "aten.addmm", "aten.addmm_", "aten.bmm")
        flop = sum(count for each, count in counts.items() if str(each) in products)
        found[name] = float(flop * recipe.micro_batches)
    dist.destroy_process_group()
    return found


def _added_flop(total: Any, a: Sequence[int], b: Sequence[int], **_: Any) -> int:
    """Return the FLOP of `total += a b`, of shapes."""
    del total
    return 2 * a[0] * a[1] * b[1]


def resumed(folder: str, mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Train to the end at once, and in two goes; return both curves."""
    place = Path(folder)
    whole = _train(_job(mapping), place, "whole")
    training = dict(mapping.get("training", {}))
    saved = {"checkpoint": {"dir": str(place / "saved"), "every": 4}}
    half = {**mapping, "training": {**training, "steps": 5, **saved}}
    _train(_job(half), place, "half")
    rest = _train(_job({**mapping, "training": {**training, **saved}}), place, "rest")
    if whole.trained is None or rest.trained is None:
        return {}
    first, second = whole.trained.result.training, rest.trained.result.training
    assert first is not None
    assert second is not None
    return {
        "whole": first.losses,
        "parts": second.losses,
        "first_step": second.first_step,
        "folders": sorted(path.name for path in (place / "saved").iterdir()),
    }


def damaged(folder: str, mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Train, flip a bit of the newest checkpoint's last shard, train on; return both curves."""
    place = Path(folder)
    whole = _train(_job(mapping), place, "whole")
    training = dict(mapping.get("training", {}))
    saved = {"checkpoint": {"dir": str(place / "saved"), "every": 2}}
    _train(_job({**mapping, "training": {**training, "steps": 6, **saved}}), place, "part")
    if TOLD["rank"] == 0:
        shard = max((place / "saved" / "step-6").glob("*.distcp"))
        content = bytearray(shard.read_bytes())
        content[len(content) // 2] ^= 4
        shard.write_bytes(bytes(content))
    rest = _train(_job({**mapping, "training": {**training, **saved}}), place, "rest")
    if whole.trained is None or rest.trained is None:
        return {}
    first, second = whole.trained.result.training, rest.trained.result.training
    assert first is not None
    assert second is not None
    return {
        "whole": first.losses,
        "parts": second.losses,
        "first_step": second.first_step,
        "folders": sorted(path.name for path in (place / "saved").glob("*step-*")),
    }


def check_resumed(found: Mapping[str, Any]) -> None:
    """Say where two goes differ from one: two checkpoints are kept, and nothing else is left."""
    assert found["first_step"] == 5
    assert len(found["whole"]) == 9
    assert found["parts"] == found["whole"]
    assert found["folders"] == ["step-8", "step-9"]


def failing(folder: str, jobs: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Train each job, which fails; return what was said."""
    found = {}
    for name, told in jobs.items():
        mapping = {key: value for key, value in told.items() if key != "limit_bytes"}
        job = _job(mapping)
        saved = job.training.checkpoint
        if saved is not None:
            saved = replace(saved, folder=Path(folder) / saved.folder)
            job = replace(job, training=replace(job.training, checkpoint=saved))
        try:
            with _limited(told.get("limit_bytes")):
                _train(job, Path(folder), name)
        except WattreeError as error:
            found[name] = str(error)
    return found


@contextlib.contextmanager
def _limited(more_bytes: int | None) -> Iterator[None]:
    """Let this process take so much more memory, and no more, while the block runs."""
    if more_bytes is None:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    status = Path("/proc/self/status").read_text(encoding="ascii")
    has = int(status.partition("VmSize:")[2].split()[0]) * 1024
    resource.setrlimit(resource.RLIMIT_AS, (has + more_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def out_of_memory(folder: str, cases: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Train until memory runs out in a step; return what was said, and what was saved by then."""
    found = {}
    for name, case in cases.items():
        place = Path(folder) / name
        saved = {"checkpoint": {"dir": str(place), "every": 1}, "steps": 9}
        strategy = {"preset": "phantom", "tp": TOLD["size"], "ghosts": 3}
        with _no_room(case["method"], case["error"], layer=case["layer"], calls=case["calls"]):
            try:
                _train(_job({"strategy": strategy, "training": saved}), Path(folder), name)
            except WattreeError as error:
                found[name] = {
                    "said": str(error),
                    "saved": sorted(path.name for path in place.glob("step-*")),
                    "step": max(steps_in(place), default=None),
                }
    return found


@contextlib.contextmanager
def _no_room(method: str, error: str, *, layer: str, calls: int) -> Iterator[None]:
    """Let a method of phantom layers find no memory when it is called so often for a layer."""
    import torch

    from wattree.runtime.layers.phantom import PhantomOperator

    kinds: dict[str, type[Exception]] = {
        "device": torch.OutOfMemoryError,
        "host": MemoryError,
        "allocator": RuntimeError,
    }
    whole, count = getattr(PhantomOperator, method), 0

    def scarce(self: Any, *arguments: Any) -> Any:
        nonlocal count
        count += self.place == layer
        if self.place == layer and count == calls:
            raise kinds[error]("DefaultCPUAllocator: can't allocate memory: 4096 bytes")
        return whole(self, *arguments)

    setattr(PhantomOperator, method, scarce)
    try:
        yield
    finally:
        setattr(PhantomOperator, method, whole)


def killed_while_writing(folder: str, delays_s: Sequence[float]) -> list[Any]:
    """Kill a process that writes checkpoints, after each delay; return what is then read.

    All of it happens in forks of this process, which has started no threads.
    """
    found = []
    for number, delay_s in enumerate(delays_s):
        place = Path(folder) / str(number)
        writer = _forked(lambda place=place: _write_on(place))
        until_s = time.monotonic() + 600
        while not any(place.glob("step-*/wattree.json")) and time.monotonic() < until_s:
            time.sleep(0.0005)
        time.sleep(delay_s)
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
        said = Path(folder) / f"said{number}.json"
        reader = _forked(lambda place=place, said=said: _read_back(place, said))
        os.waitpid(reader, 0)
        found.append(json.loads(said.read_text()))
    return found


def _forked(act: Callable[[], None]) -> int:
    child = os.fork()
    if child:
        return child
    try:
        import torch.distributed as dist

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        act()
        os._exit(0)
    finally:
        os._exit(1)


def _tensors(step: int) -> dict[str, Any]:
    import torch

    return {f"part0/model/{name}": torch.full((30_000,), float(step)) for name in "abcd"}


def _write_on(folder: Path) -> None:
    import torch.distributed as dist

    from wattree.runtime.checkpoint.tensors import save_checkpoint

    step = 0
    while True:
        step += 1
        save_checkpoint(folder, step, _tensors(step), {"step": step}, dist.group.WORLD)


def _read_back(folder: Path, said: Path) -> None:
    import torch
    import torch.distributed as dist

    from wattree.runtime.checkpoint.manifest import read_manifest
    from wattree.runtime.checkpoint.tensors import load_tensors, save_checkpoint

    step = max(steps_in(folder))
    assert step is not None
    into = {name: torch.zeros_like(tensor) for name, tensor in _tensors(0).items()}
    load_tensors(folder, step, into, dist.group.WORLD)
    values = sorted({float(value) for tensor in into.values() for value in tensor.tolist()})
    facts = read_manifest(folder, step).facts
    save_checkpoint(folder, step + 1, _tensors(step + 1), {}, dist.group.WORLD)
    left = sorted(path.name for path in folder.iterdir())
    said.write_text(json.dumps([step, values, facts, left]))


def colocated_paths(folder: str) -> dict[str, list[float]]:
    """Return losses where 4 ranks are 4 devices, and where they are 2 of 2 processes."""
    found = {}
    for q in (1, 2):
        for rule in ("fixed-global", "fixed-per-process"):
            of_device = {"preset": "ddp", "dp": 4 // q, "micro_batch": 4}
            cluster = {"node": "2x-epyc-7742", "nodes": 2 // q}
            mapping = {"strategy": of_device, "cluster": cluster, "data": {"global_batch": 16}}
            job = _job(mapping)
            both = colocated(job, recipe_of(job), q, rule)
            end = _train_as(*both, Path(folder), f"{q}-{rule}")
            if end.trained is not None:
                use = end.trained.result.training
                found[f"{q}, {rule}"] = [*use.losses, use.sent_bytes]
    return found


def _train_as(job: Job, recipe: Recipe, folder: Path, name: str) -> RankEnd:
    rank, world = TOLD["rank"], TOLD["size"]
    launch = Launch(
        rank=rank,
        world=world,
        local_rank=rank,
        local_world=world,
        store=str(folder / f"store-{name}"),
    )
    return train_rank(job, recipe, launch, TrainSettings(quiet=True, timeout_s=300.0))
