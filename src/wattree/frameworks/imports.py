"""A framework's configuration → a job file, with what was assumed on the way."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeGuard

from wattree.dotted import dotted
from wattree.errors import JobError, UnknownNameError, WattreeError
from wattree.files import is_file, refusal
from wattree.frameworks.concrete import normal_options
from wattree.frameworks.framework import FRAMEWORKS, Framework, Imported
from wattree.frameworks.launch import notes_of, parsed
from wattree.frameworks.read import foreign_program
from wattree.frameworks.settings import OPTIONS, Given, Settings
from wattree.frameworks.shell_flags import assumed_conditions, assumed_defaults
from wattree.hardware import load_node
from wattree.job import Job, job_from_mapping
from wattree.job.problems import MOST_PROBLEMS
from wattree.job.written import job_yaml
from wattree.lowering.model import family_of, model_of
from wattree.predict.checked import checked
from wattree.strategy import AXES, StrategyOptions
from wattree.strategy.described import describe_options

#: Nodes of a configuration that names none: what most published recipes were measured on.
USUAL_NODE: Final = "dgx-h100"


#: Endings of files that hold settings and no commands.
_NO_SCRIPTS: Final = (".json", ".toml", ".yaml", ".yml")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedRecipe:
    """A job made of a framework's configuration.

    Attributes:
        source: File of the configuration.
        framework: Name of the framework.
        job: Keys of the job file.
        assumed: What was assumed, one sentence each.
        not_understood: Settings that no one knows the meaning of.
        meant: Of these, settings with a similar name that has a meaning → that name.
    """

    source: str
    framework: str
    job: Mapping[str, Any]
    assumed: tuple[str, ...]
    not_understood: tuple[str, ...]
    meant: Mapping[str, str] = field(default_factory=dict)

    @property
    def unknown(self) -> tuple[str, ...]:
        """The settings that were not understood, with what may have been meant."""
        hints = {key: f"; did you mean '{name}'?" for key, name in self.meant.items()}
        return tuple(f"{key}{hints.get(key, '')}" for key in self.not_understood)

    def as_json(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return asdict(self)

    def text(self) -> str:
        """Return the job file; comments at its head say what was assumed."""
        head = [f"Imported by `wattree import --from {self.framework}` from {self.source}."]
        head += [f"assumed: {note}" for note in self.assumed]
        head += [f"not understood: {key}" for key in self.unknown]
        return job_yaml(self.job, head="\n".join(" ".join(line.split()) for line in head))


def import_recipe(
    path: Path,
    name: str,
    *,
    node: str | None = None,
    nodes: int | None = None,
    given: Given | None = None,
) -> ImportedRecipe:
    """Return the job that a configuration describes.

    Args:
        path: File of the configuration.
        node: Node of the cluster, as `cluster.node` of a job; none: one is assumed.
        nodes: Their number; None: as many as the degrees need.
        given: Values of the user for keys that the file lacks.

    Raises:
        UnknownNameError: There is no such framework or node.
        JobError: The file is not of the framework's format, has impossible values, or its degrees
            do not fit the cluster; every problem is listed.
    """
    framework = FRAMEWORKS[name]
    settings = _settings(framework, path, node=node, nodes=nodes, given=given or Given())
    found = framework.read(settings)
    settings.refuse_sections(settings.unread((*framework.ignored, *framework.left_out)))
    if path.suffix not in _NO_SCRIPTS:
        for condition in assumed_conditions(path):
            settings.assume(f"taken as true: {condition}")
        for default in assumed_defaults(path):
            settings.assume(default)
    mapping = _job_mapping(framework, found, settings, node=node, nodes=nodes)
    count = mapping["cluster"]["nodes"]
    is_inferred = nodes is None and found.nodes != count > 1
    inferred = f"{count} nodes, as many as its degrees and batch need; --nodes sets them"
    job = _checked(mapping, settings, note=f"on {inferred}" if is_inferred else "")
    mapping["strategy"] = _strategy(job)
    unread = settings.unread((*framework.ignored, *framework.left_out))
    left_out = sorted({*settings.unread()} - {*settings.unread(framework.left_out)})
    for note in notes_of((), [key for key in left_out if settings.value(key)]):
        settings.assume(note)
    return ImportedRecipe(
        source=str(path),
        framework=framework.name,
        job=mapping,
        assumed=tuple(settings.notes),
        not_understood=tuple(unread),
        meant={key: guess for key in unread if (guess := settings.meant(key))},
    )


def _settings(
    framework: Framework, path: Path, *, node: str | None, nodes: int | None, given: Given
) -> Settings:
    """Return the settings in a file of a framework, and what the user adds to them."""
    repeated: list[str] = []
    values = parsed(path, comments=True, repeated=repeated)
    refuse_foreign(path, values, read=framework.programs)
    per_node = load_node(node or USUAL_NODE).devices
    settings = Settings(
        path,
        framework.parse(path),
        devices=None if nodes is None else nodes * per_node,
        devices_per_node=per_node,
        names_node=node is not None,
        given=replace(given, node=node or USUAL_NODE),
    )
    for key in repeated:
        settings.assume(f"{key} stands there more than once: the last value counts")
    return settings


def _job_mapping(
    framework: Framework,
    found: Imported,
    settings: Settings,
    *,
    node: str | None,
    nodes: int | None,
) -> dict[str, Any]:
    """Return the keys of the job file."""
    ranks = math.prod(int(found.strategy.get(axis, 1)) for axis in AXES)
    mapping: dict[str, Any] = {
        "model": found.model,
        "data": dict(found.data),
        **_cluster(settings, ranks, found.nodes, node=node, nodes=nodes),
        "strategy": dict(found.strategy),
        "precision": found.precision,
        "optimizer": found.optimizer,
        "software": found.software or framework.software[0],
    }
    if found.released:
        mapping["released"] = found.released
    if found.compiled is not None:
        mapping["compile"] = found.compiled
    for key in ("traits", "training"):
        if values := dict(getattr(found, key)):
            mapping[key] = values
    return mapping


def _cluster(
    settings: Settings, ranks: int, machines: int | None, *, node: str | None, nodes: int | None
) -> dict[str, Any]:
    """Return the cluster, and the job's place where it does not fill it.

    Args:
        machines: That the file has its ranks on, an even part on each; None if it names none.
    """
    per_node = settings.devices_per_node
    if nodes is not None and ranks < nodes * per_node and not ranks % nodes:
        machines, nodes = nodes, None
    if node is None:
        settings.assume(f"nodes are {USUAL_NODE}: the file names none; --cluster sets them")
    count = nodes or max(1, -(-ranks // per_node))
    mapping: dict[str, Any] = {"cluster": {"node": node or USUAL_NODE, "nodes": count}}
    stated = " in the file" if machines else ""
    # Ranks that fill no whole nodes are an even part of each, as few as may be.
    even = (m for m in range(count, 2 * count) if not ranks % m)
    machines = machines or next(even, count)
    each, rest = divmod(ranks, machines)
    if nodes is None and not rest and each < per_node:
        if machines > 1:
            settings.assume(
                f"place: {each} of {per_node} devices of each node, for {ranks} ranks on "
                f"{machines} machines{stated}; --nodes packs them"
            )
        mapping["cluster"]["nodes"] = machines
        starts = range(0, machines * per_node, per_node)
        here = [f"{at}-{at + each - 1}" if each > 1 else f"{at}" for at in starts]
        mapping["place"] = {"devices": ", ".join(here)}
    return mapping


def _checked(mapping: Mapping[str, Any], settings: Settings, *, note: str) -> Job:
    """Return the job; its problems are reported with the file that it was read from.

    Args:
        note: What to say of the cluster with them; empty for nothing.
    """
    source = str(settings.path)
    try:
        job = job_from_mapping(mapping, source, folder=Path())
        checked(job)
    except WattreeError as error:
        problems = (
            getattr(error, "problems", None)
            or getattr(error, "misfits", None)
            or [str(error).removeprefix(f"{source}: ")]
        )
        if isinstance(problems, Mapping):
            problems = [f"{key}: {why}" for key, why in sorted(problems.items())]
        unknown = error if isinstance(error, UnknownNameError) else error.__cause__
        if isinstance(unknown, UnknownNameError) and unknown.kind == "model":
            problems = [
                f"{why}; {OPTIONS['model']} takes one of the same sizes" for why in problems
            ]
        if note:
            problems = [*problems[:-1], f"{problems[-1]} ({note})"]
        raise refusal(source, problems, most=MOST_PROBLEMS) from error
    return job


def _strategy(job: Job) -> dict[str, Any]:
    """Return the strategy in the one form of all that mean the same."""
    assert isinstance(job.strategy, StrategyOptions)
    model = model_of(job)
    software = family_of(job, model).with_traits(job.traits)
    return describe_options(normal_options(job.strategy, software, model))


def _names_part(name: str, value: object) -> TypeGuard[str]:
    return name.rpartition(".")[2] in ("_component_", "_target_") and isinstance(value, str)


def refuse_foreign(path: Path, values: Mapping[str, Any], *, read: Collection[str] = ()) -> None:
    """Refuse a file of a program without a reader here; others share some of its keys.

    Args:
        path: The file.
        values: Settings in it, where it is YAML or JSON.
        read: Programs whose files are read all the same.

    Raises:
        JobError: The file is of such a program, or a program in Python.
    """
    if path.suffix == ".py" and is_file(path):
        raise JobError(
            str(path),
            [
                "found a program in Python, expected a file of settings: recipes in Python are "
                "not run; write their values as a job, or as settings of an earlier release"
            ],
        )
    settings = list(dotted(values))
    keys = {str(key).replace("-", "_") for key in (*values, *(name for name, _ in settings))}
    keys |= {f"{value.partition('.')[0]}." for name, value in settings if _names_part(name, value)}
    if why := foreign_program(keys, read):
        others = (
            each for each in FRAMEWORKS if not foreign_program(keys, FRAMEWORKS[each].programs)
        )
        if reader := next(others, ""):
            why = f"found a configuration of another program, which `--from {reader}` reads"
        raise JobError(str(path), [why])
