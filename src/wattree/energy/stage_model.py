"""Applies the stage model: constants of a calibration to the work of a run."""

from __future__ import annotations

from collections.abc import Mapping

from wattree.energy.calibration import EnergyCalibration, ModelTraits
from wattree.energy.fit_materials import materials_amounts
from wattree.energy.observed import busy_s, ranks_of, samples_on_a_rank, span_of, total
from wattree.energy.stages import (
    AllReduce,
    Dynamic,
    StageTimes,
    all_reduce_s,
    computing_s,
    energy_by_stage_j,
    materials_s,
    stage_times,
)
from wattree.trace.run import Activity, Run


def step_times(
    values: Mapping[str, float],
    run: Run,
    *,
    algorithms: Mapping[str, AllReduce],
    traits: ModelTraits | None,
) -> StageTimes:
    """Return the times of the stages in one step of a run, from its work alone. [s]

    Args:
        run: Its work; its times are not used.
        algorithms: Of all-reduces, within and between nodes.
    """
    work, ranks, samples = run.work, ranks_of(run), samples_on_a_rank(run)
    computing = computing_s(
        flop=(work.flop or 0.0) / ranks,
        memory_bytes=(work.memory_bytes or 0.0) / ranks,
        samples=samples,
        overhead_s=values.get("time.computing.overhead_s", 0.0),
        s_per_flop=values.get("time.computing.s_per_flop", 0.0),
        half_batch=values.get("time.computing.half_batch", 0.0),
        s_per_byte=values.get("time.computing.s_per_byte", 0.0),
    )
    computing += values.get("time.computing.s_per_sample", 0.0) * samples
    overlap = values.get("time.overlap", 0.0)
    if traits is not None:
        computing *= traits.time_ratio
        overlap = overlap if traits.overlap is None else traits.overlap
    return stage_times(
        materials=_materials_s(values, run),
        computing=computing,
        communicating=_communicating_s(values, run, algorithms),
        overlap=overlap,
        prefetched=run.prefetch is not False,
    )


def _materials_s(values: Mapping[str, float], run: Run) -> float:
    amounts = materials_amounts(run)
    times = {name: amount / values[name] for name, amount in amounts.items() if values.get(name)}
    return materials_s(
        # BW_io(N) = min(BW_node, BW_fs / N): the slower of the two.
        reading=max(
            times.get("time.materials.node_bytes_per_s", 0.0),
            times.get("time.materials.cluster_bytes_per_s", 0.0),
        ),
        preparing=max(
            times.get("time.materials.cores", 0.0),
            times.get("time.materials.samples_per_s", 0.0),
        ),
        copying=times.get("time.materials.copied_bytes_per_s", 0.0),
        pipelined=run.prefetch is not False,
    )


def _communicating_s(
    values: Mapping[str, float], run: Run, algorithms: Mapping[str, AllReduce]
) -> float:
    ranks, span = ranks_of(run), span_of(run)
    rate = values.get(f"time.network.{span}.bytes_per_s")
    if ranks == 1 or not run.work.gradient_bytes or not rate:
        return 0.0
    return all_reduce_s(
        run.work.gradient_bytes,
        ranks,
        alpha_s=values.get(f"time.network.{span}.alpha_s", 0.0),
        bytes_per_s=rate,
        algorithm=algorithms.get(span, AllReduce.RING),
    )


def _dynamic(
    values: Mapping[str, float],
    run: Run,
    *,
    computing_s: float,
    communicating_s: float,
    ratio: float,
) -> Dynamic:
    """Return the energy above idle of a run's work. [J]"""

    def part(constant: str, amount: float | None) -> float:
        return values.get(f"energy.{constant}", 0.0) * (amount or 0.0)

    samples = total(run, "samples")
    prepared = samples if run.activity is not Activity.RESIDENT else 0.0
    trained = samples if run.activity is not Activity.LOADER else 0.0
    return Dynamic(
        reading=part("read_j_per_byte", total(run, "read_bytes")),
        preparing=part("core_w", total(run, "core_s")) + part("sample_j", prepared),
        copying=part("copied_j_per_byte", total(run, "copied_bytes")),
        arithmetic=ratio * (part("flop_j", total(run, "flop")) + part("trained_j", trained)),
        memory=ratio * part("memory_j_per_byte", total(run, "memory_bytes")),
        busy=ratio * part("computing_w", run.nodes * computing_s),
        sending=part("network_j_per_byte", total(run, "network_bytes")),
        polling=part("polling_w", run.nodes * communicating_s),
    )


def energy_of_run(calibration: EnergyCalibration, run: Run) -> dict[str, float]:
    """Return stage → energy of a run with known times: its length and, if present, its stages.

    The values add up to `P_static N T + Σ e V`. Without labeled stages, all static energy is
    computing's. [J]
    """
    values, traits = calibration.values(), calibration.models.get(run.model)
    exposed = {name: use.exposed_s for name, use in run.stages.items()}
    return energy_by_stage_j(
        static_w=values["energy.static_w"],
        nodes=run.nodes,
        exposed_s=exposed or {"computing": run.wall_s},
        dynamic=_dynamic(
            values,
            run,
            computing_s=busy_s(run, "computing") or 0.0,
            communicating_s=busy_s(run, "communicating") or 0.0,
            ratio=1.0 if traits is None else traits.energy_ratio,
        ),
    )


def predicted_by_stage_j(calibration: EnergyCalibration, run: Run) -> dict[str, float]:
    """Return stage → energy as `forecast` predicts it, without intervals. [J]

    What the calibration does not tell counts as nothing; `check_reported` refuses such runs.
    """
    traits = calibration.models.get(run.model)
    found = stage_account(calibration.values(), run, calibration.algorithms, traits)
    del found["step"]
    return found


def stage_account(
    constants: Mapping[str, float],
    run: Run,
    algorithms: Mapping[str, AllReduce],
    traits: ModelTraits | None,
) -> dict[str, float]:
    """Return stage → energy of a run [J], and `step`: the time of one [s]."""
    times = step_times(constants, run, algorithms=algorithms, traits=traits)
    by_stage = energy_by_stage_j(
        static_w=constants["energy.static_w"],
        nodes=run.nodes,
        exposed_s={stage: each * run.iterations for stage, each in times.exposed().items()},
        dynamic=_dynamic(
            constants,
            run,
            computing_s=times.computing * run.iterations,
            communicating_s=times.communicating * run.iterations,
            ratio=1.0 if traits is None else traits.energy_ratio,
        ),
    )
    return {**by_stage, "step": times.step_s}
