"""Combine results of steps into the result of generation.

Time, energy and money are summed by count; shares are averaged over time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from wattree.job import Data
from wattree.trace import (
    DecodePoint,
    EnergyEntry,
    EnergyUse,
    GenerationUse,
    IntervalPart,
    PhaseUse,
    PoolUse,
    Result,
    TimeParts,
    WaitingUse,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedStep:
    """A step and its count in generation; a fractional or negative count corrects others."""

    times: float
    result: Result


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSteps:
    """The steps of one length of the cache.

    Attributes:
        count: For how many tokens they stand.
        steps: What one of them is made of: itself, unless a pipeline overlaps it with the next.
    """

    cache_length: float
    count: float
    steps: tuple[CountedStep, ...]

    @property
    def all_steps(self) -> tuple[CountedStep, ...]:
        """What all of them are made of."""
        return tuple(replace(each, times=each.times * self.count) for each in self.steps)

    @property
    def figures(self) -> StepFigures:
        """Those of one of them."""
        return StepFigures(
            time_s=_total(self.steps, _time_s),
            energy_j=_total(self.steps, _energy_j),
            mfu=_mean(self.steps, lambda result: result.mfu),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFigures:
    """Time, energy and model FLOP utilization of a step, however it was predicted. [s, J]"""

    time_s: float
    energy_j: float
    mfu: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeFigures:
    """A step at one length of the cache, and for how many tokens it stands."""

    cache_length: float
    count: float
    step: StepFigures


def generation_use(
    prefill: StepFigures,
    decode: Sequence[DecodeFigures],
    data: Data,
    *,
    kv_cache_bytes: float | None,
) -> GenerationUse:
    """Return the figures of generating the tokens of one batch.

    Args:
        decode: The tokens after the first; none where there is but one.
        kv_cache_bytes: Of the fullest rank. [B]
    """
    sequences, generated = data.global_batch, data.generate_length
    later_s = sum(each.count * each.step.time_s for each in decode)
    return GenerationUse(
        sequences=sequences,
        prompt_length=data.sequence_length,
        generate_length=generated,
        time_to_first_token_s=prefill.time_s,
        time_per_output_token_s=later_s / (generated - 1) if decode else None,
        output_tokens_per_s=sequences * generated / (prefill.time_s + later_s),
        kv_cache_bytes=kv_cache_bytes,
        prefill=_phase([(1.0, prefill)], sequences * data.sequence_length),
        decode=_phase([(each.count, each.step) for each in decode], sequences * (generated - 1))
        if decode
        else None,
        points=tuple(
            DecodePoint(
                cache_length=each.cache_length,
                step_time_s=each.step.time_s,
                energy_j=each.step.energy_j,
            )
            for each in decode
        ),
    )


def _phase(steps: Sequence[tuple[float, StepFigures]], tokens: int) -> PhaseUse:
    time_s = sum(times * step.time_s for times, step in steps)
    energy_j = sum(times * step.energy_j for times, step in steps)
    return PhaseUse(
        time_s=time_s,
        tokens=tokens,
        tokens_per_s=tokens / time_s,
        energy_j=energy_j,
        energy_per_token_j=energy_j / tokens,
        mfu=sum(times * step.mfu * step.time_s for times, step in steps) / time_s,
    )


def generation_result(prefill: Result, decode: Sequence[DecodeSteps], data: Data) -> Result:
    """Return the result of generating the tokens of one batch; arguments as `generation_use`."""
    first = CountedStep(times=1.0, result=prefill)
    every = [first, *(step for each in decode for step in each.all_steps)]
    own = [each.steps[0].result for each in decode]
    fullest = max([prefill, *own], key=lambda result: result.memory.peak_bytes)
    use = generation_use(
        DecodeSteps(cache_length=0.0, count=1.0, steps=(first,)).figures,
        [
            DecodeFigures(cache_length=each.cache_length, count=each.count, step=each.figures)
            for each in decode
        ],
        data,
        kv_cache_bytes=fullest.memory.by_category.get("kv_cache", 0.0),
    )
    time_s = _total(every, _time_s)
    return replace(
        prefill,
        step_time_s=time_s,
        samples_per_s=data.global_batch / time_s,
        tokens_per_s=use.output_tokens_per_s,
        tokens_per_s_per_device=use.output_tokens_per_s / prefill.ranks,
        mfu=_mean(every, lambda result: result.mfu),
        hfu=_mean(every, lambda result: result.hfu),
        model_flop_per_step=_total(every, lambda result: result.model_flop_per_step),
        memory=fullest.memory,
        time_s=_time_parts(every),
        energy_j=_energy(every),
        average_power_w=_mean(every, lambda result: result.average_power_w),
        peak_power_w=max(result.peak_power_w for result in [prefill, *own]),
        cost_usd=_known_total(every, lambda result: result.cost_usd),
        carbon_gco2e=_known_total(every, lambda result: result.carbon_gco2e),
        embodied_gco2e=_known_total(every, lambda result: result.embodied_gco2e),
        provenance=(own or [prefill])[-1].provenance,
        pools=tuple(_pool(every, pool, at) for at, pool in enumerate(fullest.pools)),
        power=None,
        generation=use,
        interval=_intervals(every, fullest, data),
        interval_parts=_interval_parts(every),
    )


def _intervals(
    steps: Sequence[CountedStep], fullest: Result, data: Data
) -> dict[str, tuple[float, float]]:
    """Return the intervals of all steps, which rest on the same constants and so err alike."""
    span_s = _ends(steps, "step_time_s")
    found = {"step_time_s": span_s, "memory.peak_bytes": fullest.interval["memory.peak_bytes"]}
    for name, made in (
        ("samples_per_s", data.global_batch),
        ("tokens_per_s", data.global_batch * data.generate_length),
    ):
        found[name] = made / span_s[1], made / span_s[0]
    for name in ("energy_j", "cost_usd", "carbon_gco2e"):
        if all(name in each.result.interval for each in steps):
            found[name] = _ends(steps, name)
    weighted = [replace(each, times=each.times * each.result.step_time_s) for each in steps]
    time_s = _total(steps, _time_s)
    low, high = _ends(weighted, "average_power_w")
    return {**found, "average_power_w": (low / time_s, high / time_s)}


def _ends(steps: Sequence[CountedStep], name: str) -> tuple[float, float]:
    """Return the sums of the ends of the steps' intervals of a figure."""
    spans = [(each.times, each.result.interval[name]) for each in steps]
    return sum(n * span[0] for n, span in spans), sum(n * span[1] for n, span in spans)


def _interval_parts(steps: Sequence[CountedStep]) -> dict[str, IntervalPart]:
    """Return what the interval of the time rests on: shares of the time of all steps."""
    parts = {name: part for each in steps for name, part in each.result.interval_parts.items()}
    time_s, shares = _total(steps, _time_s), dict.fromkeys(parts, 0.0)
    for each in steps:
        for name, part in each.result.interval_parts.items():
            shares[name] += each.times * each.result.step_time_s * part.share / time_s
    return {name: replace(part, share=shares[name]) for name, part in parts.items()}


def _pool(steps: Sequence[CountedStep], pool: PoolUse, at: int) -> PoolUse:
    return replace(
        pool,
        energy_j=_total(steps, lambda result: result.pools[at].energy_j),
        computing=_mean(steps, lambda result: result.pools[at].computing),
        cost_usd=_known_total(steps, lambda result: result.pools[at].cost_usd),
    )


def _time_s(result: Result) -> float:
    return result.step_time_s


def _energy_j(result: Result) -> float:
    return result.energy_j.total


def _total(steps: Iterable[CountedStep], value: Callable[[Result], float]) -> float:
    return sum(each.times * value(each.result) for each in steps)


def _mean(steps: Sequence[CountedStep], value: Callable[[Result], float]) -> float:
    """Return a figure averaged over the time of the steps."""
    weighted = _total(steps, lambda result: value(result) * result.step_time_s)
    return weighted / _total(steps, _time_s)


def _known_total(
    steps: Sequence[CountedStep], value: Callable[[Result], float | None]
) -> float | None:
    """Return the sum of a figure; None where it is not known."""
    if any(value(each.result) is None for each in steps):
        return None
    return _total(steps, lambda result: value(result) or 0.0)


def _time_parts(steps: Sequence[CountedStep]) -> TimeParts:
    return TimeParts(**_by_name(steps, lambda result: asdict(result.time_s)))


def _by_name(
    steps: Iterable[CountedStep], mapping: Callable[[Result], Mapping[str, float]]
) -> dict[str, float]:
    found: dict[str, float] = {}
    for each in steps:
        for name, value in mapping(each.result).items():
            found[name] = found.get(name, 0.0) + each.times * value
    return found


def _energy(steps: Sequence[CountedStep]) -> EnergyUse:
    uses = [each.result.energy_j for each in steps]
    ledger: dict[tuple[str, str, str], float] = {}
    devices: dict[str, float] = {}
    for each in steps:
        for entry in each.result.energy_j.ledger:
            key = entry.stage, entry.operator_class, entry.component
            ledger[key] = ledger.get(key, 0.0) + each.times * entry.energy_j
        for device in each.result.energy_j.by_device:
            devices[device.name] = devices.get(device.name, 0.0) + each.times * device.energy_j
    return replace(
        uses[0],
        total=_total(steps, _energy_j),
        static=_total(steps, lambda result: result.energy_j.static),
        dynamic=_total(steps, lambda result: result.energy_j.dynamic),
        by_stage=_by_name(steps, lambda result: result.energy_j.by_stage),
        by_class=_by_name(steps, lambda result: result.energy_j.by_class),
        by_component=_by_name(steps, lambda result: result.energy_j.by_component),
        by_device=tuple(
            replace(device, energy_j=devices[device.name]) for device in uses[0].by_device
        ),
        ledger=tuple(
            EnergyEntry(stage=stage, operator_class=work, component=component, energy_j=energy_j)
            for (stage, work, component), energy_j in ledger.items()
        ),
        waiting=_waiting(steps),
    )


def _waiting(steps: Sequence[CountedStep]) -> dict[str, WaitingUse]:
    reasons = dict.fromkeys(name for each in steps for name in each.result.energy_j.waiting)
    return {name: _waiting_for(steps, name) for name in reasons}


def _waiting_for(steps: Sequence[CountedStep], name: str) -> WaitingUse:
    nothing = WaitingUse(time_s=0.0, energy_j=0.0, cost_usd=0.0, carbon_gco2e=0.0)

    def use(result: Result) -> WaitingUse:
        return result.energy_j.waiting.get(name, nothing)

    return WaitingUse(
        time_s=_total(steps, lambda result: use(result).time_s),
        energy_j=_total(steps, lambda result: use(result).energy_j),
        cost_usd=_known_total(steps, lambda result: use(result).cost_usd),
        carbon_gco2e=_known_total(steps, lambda result: use(result).carbon_gco2e),
    )
