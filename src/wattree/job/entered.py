"""Values that Python hands to the public functions: checked as those of a file are."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from functools import cache, wraps
from pathlib import Path
from types import UnionType
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from wattree.errors import JobError
from wattree.hardware import Cluster
from wattree.job.job import AUTO, Data, Job, TrainingOptions, WorkloadKind
from wattree.job.meshes import check_ranks
from wattree.job.place import check_indices
from wattree.job.problems import Problems, seen, shown
from wattree.job.schema import DataSpec, TrainingSpec
from wattree.job.values import Rule, is_scalar, number, plain
from wattree.strategy import Strategy

P = ParamSpec("P")
R = TypeVar("R")
Part = TypeVar("Part", Data, TrainingOptions)


def entering(**rules: Rule) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that checks what a function is given.

    Jobs and flags are checked by their annotations, None passes where it is the default.

    Args:
        rules: Of other parameters, by name.
    """

    def decorated(function: Callable[P, R]) -> Callable[P, R]:
        parameters = inspect.signature(function).parameters
        by_type: dict[str, Rule] = {"Job": checked_job, "bool": _flag}
        known = {
            name: rule
            for name, each in parameters.items()
            if (rule := rules.get(name) or by_type.get(each.annotation)) is not None
        }

        def checked(name: str, value: object) -> Any:
            if name not in known or (value is None and parameters[name].default is None):
                return value
            try:
                return known[name](value)
            except ValueError as error:
                raise JobError(name, [str(error)]) from error

        @wraps(function)
        def inner(*args: P.args, **kwargs: P.kwargs) -> R:
            given = [*map(checked, parameters, args), *args[len(parameters) :]]
            named = {name: checked(name, value) for name, value in kwargs.items()}
            return function(*given, **named)

        return inner

    return decorated


#: A power, such as a cap. [W]
watts = number("a number of watts above 0")


def several(rule: Rule, expected: str) -> Rule:
    """Return a check for a sequence of values, each of which `rule` checks."""

    def check(value: object) -> tuple[Any, ...]:
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            raise ValueError(f"{seen(value)}, expected {expected}")
        return tuple(map(rule, value))

    return check


def path(value: object, expected: str = "the path of a file") -> Path:
    """Return the path that a text or path names."""
    if not isinstance(value, str | Path):
        raise ValueError(f"{seen(value)}, expected {expected}")
    return Path(value)


def _flag(value: object) -> bool:
    found = plain(value)
    if not isinstance(found, bool):
        raise ValueError(f"found {shown(value)}, expected true or false")
    return found


def checked_job(job: object, *, runs_strategy: bool = True) -> Job:
    """Return a job whose fields hold what a file could have given them.

    `dataclasses.replace` lets any value through.

    Args:
        job: What is given as one.
        runs_strategy: Its strategy has to fit its cluster; otherwise it is replaced.

    Raises:
        ValueError: It is no job.
        JobError: A field is none of its type, or has an impossible number; all problems in one.
    """
    if not isinstance(job, Job):
        raise ValueError(
            f"found {shown(job)}, expected a job, as load_job and job_from_mapping return it"
        )
    problems = Problems(job.source)
    for name, kind in _field_types().items():
        if not isinstance(value := getattr(job, name), kind):
            words = " or ".join(each.__name__ for each in kind)
            problems.add(name, f"{seen(value)}, expected {words}")
    if isinstance(job.strategy, str) and job.strategy != AUTO:
        problems.add(
            "strategy",
            f"{seen(job.strategy)}, expected '{AUTO}', Strategy or StrategyOptions; "
            "job_from_mapping reads names of presets",
        )
    problems.check()
    data, training = _exact(job.data), _exact(job.training)
    given = {
        "global_batch": data.global_batch,
        "sequence_length": data.sequence_length,
        "document_length": data.document_length,
    }
    if job.workload is WorkloadKind.GENERATE:
        given["prompt_length"] = given.pop("sequence_length")
        given["generate_length"] = data.generate_length
    problems.read(DataSpec, given, "data")
    names = ("steps", "seed", "learning_rate", "target_loss")
    problems.read(TrainingSpec, {name: getattr(training, name) for name in names}, "training")
    if runs_strategy:
        _check_devices(job, job.cluster, problems=problems)
    for other in job.neighbours:
        checked_job(other.job)
        _check_devices(other.job, job.cluster, problems=problems)
    problems.check()
    same = data is job.data and training is job.training
    return job if same else replace(job, data=data, training=training)


def _check_devices(job: Job, cluster: Cluster, *, problems: Problems) -> None:
    """Note a strategy with more or fewer ranks than a cluster, and devices that it lacks."""
    if job.devices is not None:
        check_indices(job.devices, "devices", cluster, "place", problems=problems)
    elif not isinstance(job.strategy, str):
        chosen = job.strategy
        given = chosen.meshes if isinstance(chosen, Strategy) else chosen
        check_ranks(given, cluster, problems=problems)


@cache
def _field_types() -> dict[str, tuple[type, ...]]:
    """Return field of a job → types of its values, what they contain aside."""

    def bare(hint: Any) -> tuple[type, ...]:
        if get_origin(hint) in (Union, UnionType):
            return tuple(kind for part in get_args(hint) for kind in bare(part))
        return (get_origin(hint) or hint,)

    return {name: bare(hint) for name, hint in get_type_hints(Job).items()}


def _exact(part: Part) -> Part:
    """Return a part of a job whose numbers of NumPy are Python's."""
    values = {each.name: getattr(part, each.name) for each in fields(part)}
    found = {name: plain(item) for name, item in values.items() if is_scalar(item)}
    return replace(part, **found) if found else part
