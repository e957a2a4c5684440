"""A fully specified job: software defaults are resolved, settings without effect are removed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from wattree.capture import TransformerShape, catalog_entry, config_shape
from wattree.capture.catalog_entries import is_model_name
from wattree.capture.configuration import is_read
from wattree.capture.load import located_source, read_config
from wattree.capture.mapping import shape_from_mapping
from wattree.cost import AUTO_SOFTWARE, Software, at_precision, load_calibration, software_family
from wattree.cost.families import ENGINES
from wattree.errors import JobError
from wattree.files import is_folder
from wattree.frameworks.framework import ConcreteJob
from wattree.graph import ModelGraph
from wattree.job import AUTO, Job
from wattree.job.usual import USUAL_STRATEGIES, usual_traits
from wattree.job.workload import refuse_workload
from wattree.lowering.idle import has_experts
from wattree.lowering.usual_model import splits_latent, usual_block
from wattree.predict import setting_of
from wattree.predict.checked import checked
from wattree.strategy import StrategyOptions, chunk_layers
from wattree.strategy.options import KNOBS
from wattree.strategy.presets import schedule_of_chunks
from wattree.strategy.schedules import PIPELINE_SCHEDULES

#: The software family of DeepSpeed by itself.
_DEEPSPEED: Final = "deepspeed"


def concrete_job(job: Job, *, calibration: str | Path | None = None) -> ConcreteJob:
    """Return a job as writers take it.

    Args:
        job: Its strategy is given by options, not `auto` and not as a tree.
        calibration: Constants of predictions that decide what the job leaves open.

    Raises:
        JobError: Its strategy is to be planned, or is a tree.
        WattreeError: Model, strategy, batch and cluster do not fit.
    """
    refuse_workload(job, "export")
    if not isinstance(job.strategy, StrategyOptions):
        raise JobError(job.source, [_no_options(job)])
    checked(job)
    setting = setting_of(job, load_calibration(calibration))
    whole, model = setting.job, setting.model
    assert isinstance(whole.strategy, StrategyOptions)
    options = normal_options(whole.strategy, setting.software, model)
    name, shape, config = _model(whole)
    return ConcreteJob(
        job=replace(whole, traits=job.traits, left_open=()),
        options=options,
        model=model,
        model_name=name,
        shape=shape,
        software=setting.software,
        config=config,
        compiled=setting.software.compiled,
    )


def run_by(concrete: ConcreteJob, families: tuple[str, ...]) -> ConcreteJob:
    """Return a job as a framework runs it: what the job does not state, its own software does.

    Args:
        families: That the framework stands for; jobs of any other run as the first.
    """
    job, software = concrete.job, concrete.software
    is_open = job.software == AUTO_SOFTWARE and software.name != families[0]
    if is_open or software.name not in families:
        experts, latent = has_experts(concrete.model), splits_latent(job.strategy, concrete.model)
        found = usual_traits(job, families[0], has_experts=experts, splits_latent=latent)
        usual = {trait: value for trait, (value, _) in found.items()}
        software = software_family(families[0]).with_traits({**usual, **job.traits})
        software = at_precision(software, job.precision)
    assert isinstance(job.strategy, StrategyOptions)
    return replace(
        concrete,
        software=software,
        options=normal_options(job.strategy, software, concrete.model),
        compiled=software.compiled,
    )


def _no_options(job: Job) -> str:
    if job.strategy == AUTO:
        return (
            f"strategy: found '{AUTO}', expected a strategy to export; `wattree plan --out "
            "best.yaml` writes a job that has one"
        )
    return (
        "strategy: found a tree, expected degrees and options (dp, tp, sharding, …): frameworks "
        "have settings for those only"
    )


def normal_options(
    options: StrategyOptions, software: Software, model: ModelGraph
) -> StrategyOptions:
    """Return the canonical form of all strategies that are equivalent for a framework.

    What has no effect has its default, replicas that share all their shards are on `dp`, and what
    the software does anyway is not chosen.

    Args:
        options: Any strategy.
        software: Whose defaults hold where nothing is chosen.
    """
    if not has_experts(model):
        whole = options.dp * options.ep
        options = options.changed(dp=whole, ep=1, expert_over_tensor=True)
    changes: dict[str, Any] = {}
    if options.memory.sharding != "hybrid":
        changes = {"dp": options.dp * options.fsdp, "fsdp": 1}
    elif options.dp * options.ep * options.cp == 1 and options.fsdp > 1:
        changes = {"dp": options.fsdp, "fsdp": 1, "sharding": "zero3"}
    options = options.changed(**changes)
    present = options.present()
    changes = {
        key: knob.default
        for key, knob in KNOBS.items()
        if knob.needs and not present.get(knob.needs, True)
    }
    changes |= _stage_of_offload(options, software)
    for key, knob in KNOBS.items():
        chosen = options.value(key)
        if knob.default is None and chosen is not None and chosen == getattr(software, key, None):
            changes[key] = None
    once = options.pp > 1 and software.pipelines_reduce_once
    if options.traffic.reduce_every_micro_batch is (options.memory.shards_gradients and not once):
        changes["reduce_every_micro_batch"] = None
    if options.traffic.overlap_tensor is False and (
        not options.parallelism.sequence_parallel  # all-reduces are not overlapped in any case
        or _never_overlaps(options.changed(overlap_tensor=None), software, model)
    ):
        changes["overlap_tensor"] = None
    if not present["shards"]:
        changes["reshard_after_forward"] = True
    if options.memory.recompute == "block_1":
        changes["recompute"] = "full"
    return options.changed(**{**changes, **_pipeline(options, model.layers)})


def _never_overlaps(options: StrategyOptions, software: Software, model: ModelGraph) -> bool:
    """Return whether software overlaps no tensor-parallel traffic of latent attention."""
    usual = USUAL_STRATEGIES.get(software.name)
    return usual is not None and bool(usual.no_latent_overlap) and splits_latent(options, model)


def _stage_of_offload(options: StrategyOptions, software: Software) -> dict[str, Any]:
    """Return the sharding of one replica that offloads, which DeepSpeed does in a stage of ZeRO."""
    offload, sharding = options.traffic.offload, options.memory.sharding
    is_alone = offload.optimizer is not None and not options.present()["holders"]
    if not is_alone or (software.name != _DEEPSPEED and software.name not in ENGINES):
        return {}
    if sharding == "none" and (software.name == _DEEPSPEED or offload.parameters is None):
        sharding = "zero2" if offload.parameters is None else "zero3"
    return {"sharding": sharding}


def _pipeline(options: StrategyOptions, layers: int) -> dict[str, Any]:
    usual = StrategyOptions().pipeline
    if options.pp == 1:
        return {
            "schedule": usual.schedule,
            "virtual_stages": usual.virtual_stages,
            "stage_layers": None,
            "overlap_pipeline": None,
        }
    pipeline = options.pipeline
    schedule = schedule_of_chunks(pipeline.schedule, pipeline.virtual_stages)
    known = PIPELINE_SCHEDULES.get(schedule)
    chunks = (known.chunks if known else None) or pipeline.virtual_stages
    if schedule == "interleaved" and chunks == 1:
        schedule = usual.schedule
    is_even = pipeline.stage_layers == chunk_layers(layers, options.pp * chunks)
    return {
        "schedule": schedule,
        "virtual_stages": chunks,
        "stage_layers": None if is_even else pipeline.stage_layers,
    }


def _model(job: Job) -> tuple[str, TransformerShape | None, dict[str, Any]]:
    """Return the catalog's name of a job's model, its shape and its configuration, if any."""
    source = job.model
    if source.transformer is not None:
        block, _ = usual_block(job)
        return "", shape_from_mapping(block, f"{job.source}: model.transformer"), {}
    if source.name is None:
        return "", None, {}
    if is_model_name(source.name):
        entry = catalog_entry(source.name)
        config = dict(entry.config or {})
        return entry.name, _shape(config, entry.name), config
    path = Path(located_source(source))
    path = path / "config.json" if is_folder(path) else path
    config = read_config(path)
    return "", _shape(config, str(path)), config


def _shape(config: dict[str, Any], where: str) -> TransformerShape | None:
    return config_shape(config, where) if is_read(config) else None
