"""Job files: YAML → `Job`. Every fault of a file is reported at once.

Nothing is executed here. A job whose `model` names a Python function has it run where the model is
needed (`wattree.capture`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from wattree.cost.requests import AUTO_COLLECTIVES
from wattree.hardware import Cluster
from wattree.job.cluster import read_cluster
from wattree.job.cluster_schema import PlaceSpec
from wattree.job.energy import EnergyTerms, assumed_terms, energy_terms, under_terms
from wattree.job.job import AUTO, Data, Job, ModelSource, WorkloadKind
from wattree.job.loader import loader_of, warn_of_loader
from wattree.job.meshes import mesh_devices
from wattree.job.model import NameFault, model_source, needs_sequence
from wattree.job.neighbours import (
    Guest,
    guest_cluster,
    guest_place,
    neighbours_of,
    refuse_auto,
)
from wattree.job.offers import Offer, foreign_device, lacking
from wattree.job.place import JobPlace, place_of
from wattree.job.problems import Problems, seen
from wattree.job.schema import NOTE, DataSpec, JobFile, LoaderSpec
from wattree.job.software import family_of, software_of
from wattree.job.strategy import chosen_strategy
from wattree.job.training import sample_source, training_options
from wattree.job.usual import MICRO_BATCH, left_open, with_samples_at_once
from wattree.job.values import plain
from wattree.job.workload import check_lengths, check_strategy, workload_of
from wattree.kinds import read_kind, wrong_kind
from wattree.strategy import Strategy, StrategyOptions


def load_job(
    path: Path | str, *, name_fault: NameFault | None = None, reads_strategy: bool = True
) -> Job:
    """Return the job that a YAML file describes.

    Args:
        name_fault: Says what is wrong with the name of a model; None leaves it to its builder.
        reads_strategy: Otherwise it is `auto`, whatever the file says.

    Raises:
        JobError: The file is missing, too large, no YAML, or describes no possible job; all
            problems in one.
    """
    path = Path(path)
    mapping = read_kind(path, "a job")
    if not reads_strategy:
        mapping = {**mapping, "strategy": AUTO}
    return _job(mapping, str(path), path.parent, name_fault=name_fault)


def job_from_mapping(
    mapping: object,
    source: str = "job",
    *,
    folder: str | Path | None = None,
    cluster: Cluster | None = None,
) -> Job:
    """Return the job that a mapping with the keys of a job file describes.

    Args:
        mapping: Content of the YAML; scalars of NumPy, paths and tuples are read as
            numbers, texts and lists.
        source: Name for messages.
        folder: Start of its relative paths; None for the current folder.
        cluster: The hardware, instead of the section `cluster`, which is then not read.

    Raises:
        JobError: It describes no possible job; all problems in one.
    """
    return _job(plain(mapping), source, Path(folder or ""), given=cluster)


def _job(
    mapping: object,
    source: str,
    folder: Path,
    guest: Guest | None = None,
    *,
    given: Cluster | None = None,
    name_fault: NameFault | None = None,
) -> Job:
    """Return the job of a mapping, on a `given` cluster; a `guest` is a neighbour of another."""
    problems = Problems(source)
    mapping = _checked_mapping(mapping, problems)
    workload = workload_of(mapping, problems=problems)
    model = model_source(
        mapping.get("model"),
        folder=folder,
        is_guest=guest is not None,
        problems=problems,
        name_fault=name_fault,
    )
    data = _data(mapping.get("data"), model, workload, folder=folder, problems=problems)
    cluster, place = _cluster_and_place(mapping, guest, given, folder=folder, problems=problems)
    if data is not None and data.loader is not None and cluster is not None:
        warn_of_loader(data.loader, cluster, problems=problems)
    chosen = mapping.get("strategy", AUTO)
    strategy, named = _strategy(chosen, cluster, place, folder, problems)
    batch_left: tuple[str, ...] = ()
    if data is not None and isinstance(strategy, StrategyOptions):
        strategy, batch_left = _with_micro_batch(strategy, chosen, data, workload)
    software = family_of(mapping.get("software"), problems=problems)
    defaults = software_of(mapping, software, strategy, cluster, problems=problems)
    left = left_open(chosen, software)
    lacks = lacking(strategy, software, left, data, traits=defaults["traits"])
    _warn_of_software(lacks, software, cluster, problems)
    check_strategy(strategy, workload, mapping, software=software, problems=problems)
    terms = energy_terms(mapping.get("energy", {}), folder=folder, problems=problems)
    training = training_options(mapping.get("training", {}), folder=folder, problems=problems)
    problems.check()  # raises where a part is None, since its fault was noted
    assert model is not None and data is not None  # noqa: PT018 - one fault
    assert cluster is not None and strategy is not None  # noqa: PT018 - one fault
    job = Job(
        model=model,
        data=data,
        cluster=cluster,
        strategy=strategy,
        training=training,
        source=source,
        warnings=tuple(problems.warnings),
        devices=named or (None if place is None else _devices(place, strategy)),
        left_open=(*left, *batch_left),
        workload=workload,
        **defaults,
    )
    if guest is not None:
        refuse_auto(job, guest.host)
        return job
    job = _with_neighbours(job, mapping.get("neighbours"), folder=folder, problems=problems)
    # Only a cluster of the file leaves its site and prices to the catalog.
    return _under_terms(job, terms, mapping.get("cluster") if given is None else None)


def _checked_mapping(mapping: object, problems: Problems) -> Mapping[Any, Any]:
    if not isinstance(mapping, Mapping):
        known = ", ".join(JobFile.model_fields)
        problems.add("", f"{seen(mapping)}, expected a mapping with the keys {known}")
        problems.check()
    assert isinstance(mapping, Mapping)
    if other := wrong_kind(mapping, "a job"):
        problems.add("", other)
        problems.check()
    own = {key: each for key, each in mapping.items() if not str(key).startswith(NOTE)}
    problems.unknown_keys(own, JobFile.model_fields, "")
    return own


def _under_terms(job: Job, terms: EnergyTerms, section: object) -> Job:
    """Return a job at its own prices; neighbours that describe their cluster do so without them."""
    cluster, whole = under_terms(job.cluster, terms), tuple(range(job.cluster.devices))
    assumed = () if section is None else assumed_terms(section, cluster, terms)
    devices = None if job.devices == whole else job.devices
    return replace(
        job, cluster=cluster, terms=terms, assumed=(*job.assumed, *assumed), devices=devices
    )


def _cluster_and_place(
    mapping: Mapping[Any, Any],
    guest: Guest | None,
    whole: Cluster | None,
    *,
    folder: Path,
    problems: Problems,
) -> tuple[Cluster | None, JobPlace | None]:
    """Return the cluster, and the job's part of it if that is not the whole.

    Args:
        whole: Taken instead of what the mapping describes.
    """
    alike = mapping.get("collectives", AUTO_COLLECTIVES) != AUTO_COLLECTIVES
    if whole is not None:
        return whole.packed(is_packed=False) if alike else whole, None
    given = mapping.get("place")
    if guest is not None:
        cluster, own = guest_cluster(
            mapping.get("cluster"), guest, folder=folder, problems=problems
        )
        # A file with a place or neighbours describes the shared cluster, not what the job has.
        is_shared = given is not None or mapping.get("neighbours") is not None
        place = guest_place(given, guest, None if is_shared else own, problems=problems)
        return cluster, place
    found = read_cluster(mapping.get("cluster"), folder=folder, problems=problems)
    own_place = None
    shared = [key for key in ("place", "neighbours") if mapping.get(key) is not None]
    if found is not None and shared:
        found = found.packed()  # numbers of devices say which rack
    elif found is not None and alike:
        found = found.packed(is_packed=False)  # algorithms are of equal domains
    for key in shared:
        if found is not None and found.is_mixed:
            problems.add(
                key,
                "found together with cluster.pools of different nodes, expected nodes of one kind",
            )
            found = None
    if given is not None:
        section = problems.read(PlaceSpec, given, "place")
        if section is not None and found is not None:
            own_place = place_of(section, found, "place", problems=problems, least=1)
    elif found is not None and mapping.get("neighbours") is not None:
        own_place = JobPlace(devices=tuple(range(found.devices)), at_most=True)
    return found, own_place


def _with_micro_batch(
    strategy: StrategyOptions, chosen: object, data: Data, workload: WorkloadKind
) -> tuple[StrategyOptions, tuple[str, ...]]:
    """Let samples without positions pass at once, unless the file says how many.

    Also return the key where it stays open until it is known whether the model has sequences.
    """
    if isinstance(chosen, Mapping) and MICRO_BATCH in chosen:
        return strategy, ()
    if data.has_sequence and workload is not WorkloadKind.GENERATE:
        return strategy, (MICRO_BATCH,)
    return with_samples_at_once(strategy, data.global_batch, workload), ()


def _devices(place: JobPlace, strategy: Strategy | StrategyOptions | str) -> tuple[int, ...]:
    """Return the device of each rank."""
    axes = _mesh_axes(strategy)
    return place.devices if axes is None else place.taken_by(axes)


def _mesh_axes(strategy: Strategy | StrategyOptions | str) -> dict[str, int] | None:
    """Return axis → degree, outermost first; None where no strategy is chosen."""
    if isinstance(strategy, str):
        return None
    if isinstance(strategy, Strategy):
        one = len(strategy.meshes) == 1
        return dict(strategy.mesh.axes) if one else {"ranks": strategy.ranks}
    return strategy.degrees


def _strategy(
    chosen: object,
    cluster: Cluster | None,
    place: JobPlace | None,
    folder: Path,
    problems: Problems,
) -> tuple[Strategy | StrategyOptions | str | None, tuple[int, ...] | None]:
    """Return the strategy, and the devices that its meshes name, if they do."""
    own = cluster if place is None or cluster is None else place.allotment(cluster)
    strategy = chosen_strategy(chosen, cluster=own, folder=folder, problems=problems)
    _check_order(place, strategy, problems)
    return strategy, mesh_devices(chosen, cluster, place, problems=problems)


def _warn_of_software(
    lacks: Sequence[tuple[str, Offer]],
    software: object,
    cluster: Cluster | None,
    problems: Problems,
) -> None:
    for missing, offer in lacks:
        problems.warn("strategy", f"{missing} ({offer.source}); predicted all the same")
    if foreign := foreign_device(software, cluster):
        problems.warn("software", f"{foreign}; predicted all the same")


def _check_order(
    place: JobPlace | None, strategy: Strategy | StrategyOptions | str | None, problems: Problems
) -> None:
    """Note an order of axes that the strategy's mesh does not have."""
    if place is None or place.order is None or strategy is None:
        return
    axes = _mesh_axes(strategy)
    if isinstance(strategy, Strategy) and len(strategy.meshes) > 1:
        return  # noted already
    if axes is None:
        problems.add("place.order", "found with strategy auto, whose axes are open; name degrees")
    else:
        place.check_order(axes, problems=problems)


def _with_neighbours(job: Job, value: object, *, folder: Path, problems: Problems) -> Job:
    """Return the job with its neighbours, if it has any."""
    if value is None:
        return job
    neighbours = neighbours_of(value, job, folder=folder, problems=problems, read=_job)
    problems.check()
    return replace(job, neighbours=neighbours, warnings=tuple(problems.warnings))


def _data(
    value: object,
    model: ModelSource | None,
    workload: WorkloadKind,
    *,
    folder: Path,
    problems: Problems,
) -> Data | None:
    given, plain = None, value
    if isinstance(value, Mapping):
        given = value.get("loader")
        plain = {key: item for key, item in value.items() if key != "loader"}
    spec = problems.read(DataSpec, plain, "data")
    named = {"preset": given} if isinstance(given, str) else given
    how = None if given is None else problems.read(LoaderSpec, named, "data.loader")
    if spec is None:
        return None
    check_lengths(spec, workload, problems=problems)
    generates = workload is WorkloadKind.GENERATE
    length = spec.prompt_length if generates else spec.sequence_length
    loader = None
    if how is not None:
        loader = loader_of(how, sequence_length=length, problems=problems)
    if length is None and not generates and model is not None and needs_sequence(model):
        expected = DataSpec.model_fields["sequence_length"].description
        problems.add("data.sequence_length", f"is missing, expected {expected}")
    if spec.document_length is not None and spec.document_length > (length or 0):
        problems.add(
            "data.document_length",
            f"found {spec.document_length}, expected at most data.sequence_length",
        )
    return Data(
        document_length=spec.document_length,
        sequence_length=length or 1,
        global_batch=spec.global_batch,
        has_sequence=length is not None,
        loader=loader,
        source=sample_source(spec, folder=folder, problems=problems),
        generate_length=(spec.generate_length or 0) if generates else 0,
    )
