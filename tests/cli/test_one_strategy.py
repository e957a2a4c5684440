"""All commands take one strategy from a job that leaves options to its software."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from unittest.mock import Mock

import wattree
from tests.each import each
from wattree.cli.train import _job as trained_job
from wattree.cli.train_request import TrainRequest
from wattree.design import run_study
from wattree.design.load import study_from_mapping
from wattree.frameworks.concrete import concrete_job
from wattree.interchange import export_chakra
from wattree.job import Job, Neighbour
from wattree.job.written import mapping_of
from wattree.learn.predicted_step import predicted_step
from wattree.predict import check_strategy, estimate, simulate
from wattree.predict.checked import checked
from wattree.schedule.queue_file import queue_from_mapping
from wattree.schedule.ways import predicted_ways
from wattree.search.compared import run_of_job
from wattree.strategy import StrategyOptions, options_in_words
from wattree.strategy.described import describe_options

SOURCES: Final = Path(wattree.__file__).parent
#: Leaves sharding, sequence parallelism, recomputation, offloading and virtual stages open.
STRATEGY: Final = {"tp": 2, "pp": 2, "dp": 2, "micro_batch": 1}


def job_file(path: Path, strategy: Mapping[str, object]) -> Path:
    """Write a job of a named software."""
    path.write_text(
        f"""model: llama-3.2-1b
data: {{sequence_length: 1024, global_batch: 8}}
cluster: {{node: dgx-h100}}
software: megatron-core
strategy: {dict(strategy)}
"""
    )
    return path


def designed(path: Path) -> object:
    """Return what a study of the job finds."""
    job = mapping_of(path)
    workload = {"name": "one", "target": {"steps": 1}, "strategy": job.pop("strategy")}
    study = study_from_mapping(
        {
            "name": "one",
            "cluster": job.pop("cluster"),
            "workloads": [{**workload, "job": job}],
            "axes": {"site": {"path": "cluster.site", "values": ["sweden"]}},
            "objectives": ["time"],
        },
        folder=path.parent,
    )
    (outcome,) = run_study(study, store=path.with_suffix(".sqlite"), on="here").outcomes
    (found,) = outcome.workloads
    return found.strategy, found.step_time_s


def scheduled(path: Path) -> object:
    """Return how a queue would run the job."""
    job = mapping_of(path)
    queue = {"cluster": job.pop("cluster"), "jobs": [{"name": "a", "job": job, "steps": 1}]}
    (((way,),), _) = predicted_ways(queue_from_mapping(queue, folder=path.parent))
    return way.strategy, way.step_time_s


def exported(path: Path) -> object:
    """Return the size of the job's traces."""
    done = export_chakra(job_of(path), path.with_suffix(".traces"))
    return done.nodes, done.size_bytes


def beside(path: Path) -> object:
    """Return the job's step where another runs on its fabric."""
    job = job_of(path)
    host = replace(job, neighbours=(Neighbour(job=job),))
    effect = simulate(host).result.neighbours
    return None if effect is None else (effect.mean_s, [each.alone_s for each in effect.jobs])


def job_of(path: Path) -> Job:
    """Return the job of a file."""
    return wattree.load_job(path)


def trained(path: Path) -> object:
    """Return the strategy that `train` runs."""
    request = TrainRequest(context=Mock(), job=path)
    return trained_job(request, warn=False).strategy


#: Command → what it finds of a job; figures or words that another strategy would change.
COMMANDS: Final[Mapping[str, Callable[[Path], Any]]] = {
    "simulate": lambda path: simulate(job_of(path)).result.step_time_s,
    "estimate": lambda path: estimate(job_of(path)).step_time_s,
    "check": lambda path: checked(job_of(path)).facts["strategy"],
    "compare": lambda path: run_of_job(path, "A").facts["strategy"],
    "export --to chakra": exported,
    "export": lambda path: concrete_job(job_of(path)).options,
    "explain": lambda path: predicted_step(job_of(path)).step_s,
    "schedule": scheduled,
    "design": designed,
    "neighbours": beside,
    "serve": lambda path: check_strategy(job_of(path)),
    "train": trained,
}


@each("command", COMMANDS)
def test_commands_take_the_strategy_that_simulate_names(command: str, tmp_path: Path) -> None:
    """Each does with the job what it does with the strategy of `simulate` written into it."""
    folder = tmp_path / command.replace(" ", "-")
    (folder / "open").mkdir(parents=True)
    (folder / "whole").mkdir()
    path = job_file(folder / "open" / "job.yaml", STRATEGY)
    chosen = simulate(job_of(path)).strategy
    assert isinstance(chosen, StrategyOptions)
    assert "interleaved" in options_in_words(chosen)
    whole = job_file(folder / "whole" / "job.yaml", describe_options(chosen))

    assert COMMANDS[command](path) == COMMANDS[command](whole)


def test_there_is_one_way_from_a_job_to_its_step() -> None:
    """`stated_setting` still leaves open what memory and time decide."""
    callers = {
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.alias) and node.name == "stated_setting"
    }

    assert callers == {"predict/generation.py", "predict/left_open.py"}
