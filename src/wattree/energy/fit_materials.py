"""Rates of the input pipeline's parts from runs: which part was the bottleneck, and its rate.

`t_M = max(t_io, t_cpu, t_h2d)`: a run shows the rate of the part that bounded it, and of the
others only that they are no slower. Where no run prefetches, the parts wait for each other, and
`t_M` is their sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np

from wattree.arrays import Floats, Integers
from wattree.energy.calibration import StageConstant, Status, no_value
from wattree.energy.least_squares import dependent_columns, non_negative_fit, quantile
from wattree.energy.observed import Observations
from wattree.trace.run import Activity, Run

#: Errors below this need no further part to explain them: clocks and pace of workers.
_FLOOR = 0.01
_ROUNDS = 20
#: Exposed materials above this share of a run make it bound by its input.
_STARVED = 0.02


def materials_amounts(run: Run) -> dict[str, float]:
    """Return constant → the work of its part in a step, so that time is work over rate."""
    work, nodes = run.work, run.nodes
    return _known(
        {
            "time.materials.cores": _over(work.core_s, nodes),
            "time.materials.samples_per_s": (
                _over(work.samples, nodes) if work.core_s is None else None
            ),
            "time.materials.node_bytes_per_s": _over(work.read_bytes, nodes),
            "time.materials.cluster_bytes_per_s": work.read_bytes,
            "time.materials.copied_bytes_per_s": _over(work.copied_bytes, nodes),
        }
    )


def _over(amount: float | None, nodes: int) -> float | None:
    return None if amount is None else amount / nodes


def _known(amounts: Mapping[str, float | None]) -> dict[str, float]:
    return {name: amount for name, amount in amounts.items() if amount}


def fit_materials(seen: Observations) -> tuple[dict[str, StageConstant], list[str]]:
    """Return the constants of `t_M`, and what could not be determined.

    Runs of the loader alone; without any, training runs that waited for their data, or whose
    stages tell how long loading took. The fewest parts that explain the times (Akaike's criterion
    for few rows, with errors of 1 % for nothing) get values; of the others the runs give a bound.
    """
    rows, said = _rows(seen)
    names = [name for name in _ORDER if any(name in materials_amounts(run) for run, _ in rows)]
    constants = {name: no_value("no run shows it") for name in _ORDER}
    if not rows:
        return constants, said
    amounts = np.array(
        [[materials_amounts(run).get(name, 0.0) for name in names] for run, _ in rows]
    )
    times = np.array([time_s for _, time_s in rows])
    if all(run.prefetch is False for run, _ in rows):
        summed, warnings = _one_after_another(names, amounts, times)
        return constants | summed, [*said, *warnings]
    chosen, rates, bound = _best_parts(amounts, times)
    residuals = np.log(_modeled(amounts, chosen, rates) / times)
    warnings = list(said)
    for index, name in enumerate(names):
        shown = int((amounts[:, index] > 0).sum())
        at_least = float((amounts[:, index] / times).max())
        if index not in chosen:
            note = f"at least {at_least:.4g}: it bounded no run; taken as no bound at all"
            constants[name] = StageConstant(
                value=None, lower=at_least, status=Status.BOUND, runs=shown, note=note
            )
            continue
        mine = bound == index
        rate = rates[list(chosen).index(index)]
        lower, upper = _interval(rate, residuals[mine])
        constants[name] = StageConstant(
            value=rate,
            lower=lower,
            upper=upper,
            status=Status.WEAK if lower is None else Status.FITTED,
            runs=int(mine.sum()),
            note="one run: no interval" if lower is None else "",
        )
    warnings += _look_alikes(names, amounts, chosen)
    return constants, warnings


def _one_after_another(
    names: Sequence[str], amounts: Floats, times: Floats
) -> tuple[dict[str, StageConstant], list[str]]:
    """Return the rates of sequential parts: `t_M = t_io + t_cpu + t_h2d`."""
    dependent = dependent_columns(amounts / times[:, None], range(len(names)))
    kept = [index for index in range(len(names)) if index not in dependent]
    fit = non_negative_fit(amounts[:, kept], times, 1.0 / times)
    found, warnings = {}, []
    for index, partners in dependent.items():
        others = ", ".join(names[partner] for partner in partners)
        found[names[index]] = no_value(
            f"in one ratio to {others}", Status.INSEPARABLE, runs=len(times)
        )
        warnings.append(f"{names[index]} cannot be distinguished from {others}")
    for place, index in enumerate(kept):
        slowness, shown = float(fit.values[place]), int((amounts[:, index] > 0).sum())
        lower, upper = float(fit.lower[place]), float(fit.upper[place])
        if slowness <= 0:
            note = "the runs want no time for it; taken as no bound at all"
            found[names[index]] = no_value(note, Status.BOUND, runs=shown)
            continue
        is_bounded = lower > 0 and np.isfinite(upper)
        found[names[index]] = StageConstant(
            value=1.0 / slowness,
            lower=1.0 / upper if is_bounded else None,
            upper=1.0 / lower if is_bounded else None,
            status=Status.FITTED if is_bounded else Status.WEAK,
            runs=shown,
            note="" if is_bounded else "no interval, or one that reaches zero time",
        )
    return found, warnings


_ORDER = (
    "time.materials.cores",
    "time.materials.samples_per_s",
    "time.materials.node_bytes_per_s",
    "time.materials.cluster_bytes_per_s",
    "time.materials.copied_bytes_per_s",
)


def _rows(seen: Observations) -> tuple[list[tuple[Run, float]], list[str]]:
    """Return runs with their input pipeline's time per step, and a description of them."""
    timed, said = _timed(seen)
    if silent := [run.name for run, _ in timed if not materials_amounts(run)]:
        said.append(
            f"{', '.join(silent)}: say nothing of what the input pipeline did; left out there"
        )
    return [each for each in timed if materials_amounts(each[0])], said


def _timed(seen: Observations) -> tuple[list[tuple[Run, float]], list[str]]:
    loaders = [(run, run.wall_s / run.iterations) for run in seen.of(Activity.LOADER)]
    if loaders:
        return loaders, []
    found = []
    for run in seen.of(Activity.TRAINING):
        use = run.stages.get("materials")
        if use is None:
            continue
        if run.prefetch is False:  # the step waits for all of it, and it for the step
            found.append((run, max(use.busy_s, use.exposed_s) / run.iterations))
        elif use.exposed_s > _STARVED * run.wall_s:  # it sets the pace
            found.append((run, run.wall_s / run.iterations))
        elif use.busy_s > 0:
            found.append((run, use.busy_s / run.iterations))
    note = "no run of the loader alone: rates of the input pipeline are those of training runs"
    return [each for each in found if each[1] > 0], [note] if found else []


def _best_parts(amounts: Floats, times: Floats) -> tuple[tuple[int, ...], list[float], Integers]:
    """Return the parts that explain the times, their rates, and the bottleneck of each row."""
    rows, parts = amounts.shape
    best = None
    for count in range(1, parts + 1):
        for chosen in combinations(range(parts), count):
            if not (amounts[:, chosen] > 0).any(axis=1).all():
                continue  # a run with none of these parts would take no time
            rates, bound = _rates(amounts, times, chosen)
            if rates is None:
                continue
            errors = np.log(_modeled(amounts, chosen, rates) / times)
            score = rows * np.log(float(np.mean(errors**2)) + _FLOOR**2) + 2.0 * count
            score += 2.0 * count * (count + 1) / max(rows - count - 1, 0.5)
            if best is None or score < best[0] - 1e-9:
                best = (score, chosen, rates, bound)
    assert best is not None  # every row has some part, or it would not be one
    return best[1], best[2], best[3]


def _rates(
    amounts: Floats, times: Floats, chosen: Sequence[int]
) -> tuple[list[float] | None, Integers]:
    """Return each part's rate and the bottleneck of each row, by iteration; None if unstable."""
    picked = amounts[:, chosen]
    rates = (picked / times[:, None]).max(axis=0)  # no part was slower in any run than this
    bound = (picked / rates).argmax(axis=1)
    for _ in range(_ROUNDS):
        for part in range(len(chosen)):
            mine = bound == part
            if not mine.any():
                return None, bound
            rates[part] = np.exp(np.log(picked[mine, part] / times[mine]).mean())
        again = (picked / rates).argmax(axis=1)
        if (again == bound).all():
            break
        bound = again
    return rates.tolist(), np.array(chosen, dtype=np.int64)[bound]


def _modeled(amounts: Floats, chosen: Sequence[int], rates: Sequence[float]) -> Floats:
    return np.asarray((amounts[:, chosen] / np.array(rates)).max(axis=1))


def _interval(rate: float, residuals: Floats) -> tuple[float | None, float | None]:
    count = len(residuals)
    if count < 2:
        return None, None
    error = quantile(count - 1) * float(np.std(residuals, ddof=1)) / np.sqrt(count)
    return rate * float(np.exp(-error)), rate * float(np.exp(error))


def _look_alikes(names: Sequence[str], amounts: Floats, chosen: Sequence[int]) -> list[str]:
    """Return a sentence for each part that is proportional to a chosen one in every run."""
    found = []
    for index in chosen:
        for other, name in enumerate(names):
            if other in chosen or not (amounts[:, [index, other]] > 0).all():
                continue
            ratio = amounts[:, other] / amounts[:, index]
            if np.ptp(ratio) <= _FLOOR * ratio.mean():
                found.append(
                    f"{names[index]} cannot be distinguished from {name}: in one ratio in every "
                    "run; "
                    "a loader run with the files cached would separate them"
                )
    return found
