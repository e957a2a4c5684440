"""Whatever strategy trains a model, its losses are those of one process, in float64."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.distributed.matrix_strategies import (
    DECODER,
    MIXTURE,
    PICKED,
    SHALLOW,
    SHALLOW_MIXTURE,
)
from tests.distributed.ranks import run_ranks
from wattree.cost import load_calibration
from wattree.job import job_from_mapping
from wattree.job.offers import offer_of
from wattree.predict import run_of, setting_of, simulate
from wattree.runtime.recipe import recipe_of
from wattree.search.limits import Limits
from wattree.search.space import enumerate_space
from wattree.strategy import StrategyOptions
from wattree.strategy.described import describe_options

CASES = "tests/distributed/matrix_cases.py"
#: What rounding in float64 leaves; losses are about 3.
ROUNDING = 1e-12
MICRO_BATCH = 2
#: Of what hangs: on a machine with other work, dozens of jobs of four ranks take minutes. [s]
LIMIT_S = 800.0
#: Ranks → optimizer and learning rate: Adam has more state to split and does not see a factor of
#: gradients; momentum sees it, in half the time.
OPTIMIZERS: Mapping[int, tuple[str, float]] = {2: ("adam", 0.01), 4: ("momentum", 0.1)}


def _job(model: Mapping[str, Any], strategy: Any, ranks: int = 2) -> dict[str, Any]:
    if strategy != "auto" and strategy.get("pp", 1) == 1 and model in (DECODER, MIXTURE):
        model = SHALLOW if model is DECODER else SHALLOW_MIXTURE
    is_decoder = "transformer" in model
    data: dict[str, Any] = {"global_batch": 8}
    data |= {"sequence_length": 16, "source": "digits"} if is_decoder else {}
    if "module" in model:
        data["source"] = "synthetic-regression"
    optimizer, rate = OPTIMIZERS[ranks]
    return {
        "model": model,
        "data": data,
        "optimizer": optimizer,
        "training": {"steps": 3, "learning_rate": rate},
        "strategy": strategy,
    }


def _space(ranks: int, model: Mapping[str, Any], software: str) -> list[StrategyOptions]:
    """Return every strategy that `plan` can rank for some software on so many devices."""
    cluster = {"node": "2x-epyc-7742", "nodes": ranks // 2}
    mapping = _job(model, "auto") | {"precision": "fp32", "cluster": cluster}
    job = job_from_mapping({**mapping, "software": software}, "job")
    setting = setting_of(job, load_calibration(None))
    limits = Limits(offer=offer_of(software))
    found = list(enumerate_space(setting, ranks=[ranks], limits=limits))
    for options in found:
        recipe_of(replace(job, strategy=options))  # none of them is refused
    return found


def _micro_batch(options: StrategyOptions) -> int:
    """Return a size of which a replica has several, no more than two where it is no pipeline."""
    is_alone = options.pp == options.replicas == 1
    return MICRO_BATCH * 2 if is_alone else MICRO_BATCH


def _covering(space: Sequence[StrategyOptions], choices: int) -> list[StrategyOptions]:
    """Return few strategies in which so many choices of the space meet that meet in any."""
    meetings = [_meetings(options, choices) for options in space]
    left, chosen = set().union(*meetings), []
    while left:
        best = max(range(len(space)), key=lambda index: len(meetings[index] & left))
        left -= meetings[best]
        chosen.append(space[best])
    return chosen


def _meetings(options: StrategyOptions, choices: int) -> set[Any]:
    return set(itertools.combinations(sorted(map(str, options.chosen().items())), choices))


def _jobs(ranks: int, *, soaking: bool) -> dict[str, dict[str, Any]]:
    """Return the jobs of so many ranks by name.

    Every two choices meet on two ranks; on four, where there are more, only under `make soak`.
    """
    spread = [each for each in _space(ranks, MIXTURE, "torchtitan") if each.ep == ranks]
    found = {
        f"plan {software} {number}": _job(model, describe_options(options), ranks)
        for software, model, space in (
            ("pytorch", DECODER, _space(ranks, DECODER, "pytorch")),
            ("experts", MIXTURE, spread),
        )
        # One size: others differ in how often the same is done.
        for number, options in enumerate(
            _covering(
                [each for each in space if each.pipeline.micro_batch == _micro_batch(each)],
                choices=2 if soaking or ranks == min(PICKED) else 1,
            )
        )
    }
    picked = PICKED[ranks].items()
    return found | {name: _job(model, strategy, ranks) for name, (model, strategy) in picked}


def _alone(job: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name of a job of one process with the same micro-batches, and that job."""
    micro_batch = job["strategy"].get("micro_batch", 1)
    name = f"{micro_batch} of {job['model']} with {job['optimizer']}"
    return name, {**job, "strategy": {"preset": "ddp", "dp": 2, "micro_batch": micro_batch}}


def _trained(ranks: int, jobs: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    given = {"folder": str(folder), "jobs": dict(jobs)}
    results: list[dict[str, Any]] = run_ranks(
        ranks, f"{CASES}:losses", given, start=False, limit_s=LIMIT_S
    )
    wrong = "\n".join(
        f"rank {rank}, {name}:\n{found}"
        for rank, each in enumerate(results)
        for name, found in each.items()
        if isinstance(found, str)
    )
    assert not wrong, wrong
    return results[0]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, *, soaking: bool) -> dict[str, Any]:
    """What one process makes of every model and micro-batch."""
    every = (_jobs(ranks, soaking=soaking) for ranks in PICKED)
    jobs = dict(_alone(job) for jobs in every for job in jobs.values())
    return _trained(1, jobs, tmp_path_factory.mktemp("alone"))


@pytest.mark.parametrize("ranks", [2, 4])
def test_losses_are_those_of_one_process(
    alone: Mapping[str, Any], tmp_path: Path, ranks: int, *, soaking: bool
) -> None:
    """Every two choices that `plan` combines, and schedules and presets that it does not."""
    jobs = _jobs(ranks, soaking=soaking)
    found = _trained(ranks, jobs, tmp_path)
    far = {
        f"{name} {jobs[name]['strategy']}": (losses, expected)
        for name, losses, expected in _pairs(found, jobs, alone)
        if losses != pytest.approx(expected, rel=2e-6 if name.startswith("own") else ROUNDING)
    }

    assert set(found) == set(jobs)
    assert far == {}


@pytest.mark.parametrize("software", ["generic", "torchtitan", "megatron-core", "maxtext"])
def test_what_is_planned_is_run(software: str) -> None:
    """Of dense models and of mixtures of experts: no strategy of the space is refused."""
    for model in (DECODER, MIXTURE):
        assert _space(4, model, software)


def _pairs(
    found: Mapping[str, Any], jobs: Mapping[str, Any], alone: Mapping[str, Any]
) -> Iterable[tuple[str, list[float], list[float]]]:
    for name, each in found.items():
        yield name, each["losses"], alone[_alone(jobs[name])[0]]["losses"]


#: Whose state is spread over ranks in ways of their own.
RESUMED = {
    "zero1": {"preset": "zero1", "dp": 4, "micro_batch": 1},
    "fsdp": {"preset": "fsdp", "dp": 2, "tp": 2, "sequence_parallel": True, "micro_batch": 2},
    "hsdp": {"preset": "hsdp", "dp": 2, "fsdp": 2, "micro_batch": 2},
    "stages": {"pp": 2, "dp": 2, "micro_batch": 2, "virtual_stages": 2},
    "split": {
        "preset": "fsdp",
        "pp": 2,
        "cp": 2,
        "micro_batch": 4,
        "schedule": "zb-v",
        "context": "ring",
    },
}


def test_sharded_runs_go_on_to_the_bit(tmp_path: Path) -> None:
    """Parameters and optimizer state of every rank come back, whoever holds them."""
    jobs = {name: _job(DECODER, strategy) for name, strategy in RESUMED.items()}
    few = {"ffn": {"width": 3, "depth": 2}}  # fewer rows than ranks: some hold nothing of them
    jobs["few"] = _job(few, {"preset": "fsdp", "dp": 4})
    for job in jobs.values():
        job["training"] = {"steps": 4, "learning_rate": 0.01}
    given = {"folder": str(tmp_path), "jobs": jobs}
    found = run_ranks(4, f"{CASES}:resumed", given, start=False, limit_s=LIMIT_S)[0]

    assert set(found) == set(jobs)
    for whole, parts, first_step, folders in found.values():
        assert parts == whole
        assert (first_step, folders) == (2, ["step-2", "step-4"])


def test_a_loss_that_is_no_number_is_told_of_shards_and_stages(tmp_path: Path) -> None:
    """On all ranks, by rank and layer; in the loss itself where its squares alone overflow."""
    strategies = {
        "shards": {"preset": "fsdp", "dp": 2, "micro_batch": 2},
        "stages": {"pp": 2, "micro_batch": 2},
    }
    jobs = {
        name: _job({"ffn": {"width": 20, "depth": 3, "activation": "gelu"}}, strategy)
        | {"optimizer": "sgd", "training": {"steps": 40, "learning_rate": 1e3}}
        for name, strategy in strategies.items()
    }
    given = {"folder": str(tmp_path), "jobs": jobs}
    for said in run_ranks(2, f"{CASES}:broken", given, start=False):
        assert set(said) == set(jobs)
        for text in said.values():
            assert re.search(
                r"^rank \d: the loss of step \d+ is (nan|inf), (layer '|in the loss)", text
            )


#: Whose bytes are those of the prediction, where every dim divides.
COUNTED = {
    "zero1": {"preset": "zero1", "dp": 4},
    "zero2": {"preset": "zero2", "dp": 4},
    "fsdp": {"preset": "fsdp", "dp": 4},
    "hsdp": {"preset": "hsdp", "dp": 2, "fsdp": 2, "micro_batch": 2},
    "stages": {"preset": "ddp", "dp": 2, "pp": 2, "micro_batch": 2},
    "folded": {"preset": "zero1", "dp": 2, "pp": 2, "schedule": "zb-v", "micro_batch": 2},
}


def test_what_libraries_send_is_what_is_predicted(tmp_path: Path) -> None:
    """To the byte: parameters, gradients, and what goes between stages and to experts."""
    jobs = {}
    for name, strategy in COUNTED.items():
        model = DECODER if strategy.get("pp", 1) > 1 else SHALLOW
        jobs[name] = _job({"transformer": {**model["transformer"], "vocab": 28}}, strategy)
    # Each token visits each expert: as many go to each rank, whatever the router has learned.
    visited = {"transformer": {**MIXTURE["transformer"], "vocab": 28, "top_k": 4}}
    jobs["experts"] = _job(visited, {"preset": "ddp", "ep": 4, "micro_batch": 2})
    for job in jobs.values():
        job["training"]["steps"] = 2  # the first opens connections, and is not counted
    found = _trained(4, jobs, tmp_path)

    # Two layers tell three ranks how many tokens come for an expert: whole numbers of 8 bytes.
    found["experts"]["sent_by"]["experts"] -= 2 * 3 * 8
    sent = {name: sum(each["sent_by"].values()) / 2 for name, each in found.items()}  # of float64
    cluster = {"node": "2x-epyc-7742", "nodes": 2}
    expected = {}
    for name, mapping in jobs.items():
        job = job_from_mapping({**mapping, "precision": "fp32", "cluster": cluster}, "job")
        run = run_of(job, simulate(job), steps=1, name="predicted")
        assert run.work.network_bytes is not None
        expected[name] = run.work.network_bytes / 4
    assert sent == expected
