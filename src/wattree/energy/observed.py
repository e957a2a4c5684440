"""Observations from runs of one kind of node: checked, by activity, with work per run."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise

from wattree.energy.stages import all_reduce_sent_bytes
from wattree.errors import RunError
from wattree.trace.run import TOTAL, Activity, PowerSeries, Run, Work
from wattree.trace.run_checks import problems_of

#: A series with a pause so many times its usual period has a gap.
_GAP = 10.0
_LEAST_STEPS = 3
#: How far the stages' energies may be from what the meters read: figures are rounded.
_STAGES_OFF = 1e-2
#: Work below this is none that is done; quotients with it overflow.
_LEAST = 1e-30
#: Shorter than any meter sees. [s]
_LEAST_S = 1e-9
#: What all that is metered draws at least, and at most: that of a few power plants. [W]
_LEAST_W, _MOST_W = 1e-9, 1e10
#: What to do where runs of one machine have two names of node.
SAME_NODE = "runs of the same machine have the same name: wattree measure --node NAME"
_NUMBER = re.compile(r"\d+$")
#: Names of runs that a message lists.
_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """Runs of one kind of node.

    Attributes:
        runs: Those that can be used.
        warnings: Rejected runs with the reason, and domains that no meter read.
    """

    runs: tuple[Run, ...]
    warnings: tuple[str, ...]

    def of(self, *activities: Activity) -> tuple[Run, ...]:
        """Return the runs with one of the given activities."""
        return tuple(run for run in self.runs if run.activity in activities)


def ranks_of(run: Run) -> int:
    """Return the data-parallel workers of a run: its processes, or its devices if not stated."""
    return run.nodes * (run.ranks_per_node or max(1, run.devices_per_node))


def span_of(run: Run) -> str:
    """Return whether a run's ranks communicate `within` a node or `between` several."""
    return "between" if run.nodes > 1 else "within"


def samples_on_a_rank(run: Run) -> float:
    """Return the samples that one rank takes in a step; 0 if unknown."""
    return (run.work.samples or 0.0) / ranks_of(run)


def domain_kinds(run: Run) -> tuple[str, ...]:
    """Return the domains of the counted meters, without node and device indices."""
    return tuple(sorted({_kind(reading.domain) for reading in run.counted}))


def _kind(domain: str) -> str:
    """Return `gpu` for `node0/gpu3`."""
    return _NUMBER.sub("", domain.rpartition("/")[2])


def total(run: Run, name: str) -> float | None:
    """Return one kind of work, summed over all nodes and the whole run.

    None where it is not known; 0 where the activity has none of it, whatever the file leaves out.
    """
    if name not in _OF_ACTIVITY[run.activity]:
        return 0.0
    each = sent_bytes(run) if name == "network_bytes" else getattr(run.work, name)
    if each is None:  # an isolated run that does not speak of it has none
        return None if run.activity is Activity.TRAINING else 0.0
    return float(each) * run.iterations


#: Activity → work that it can have.
_TRAINING = frozenset(Work.__slots__)
_OF_ACTIVITY = {
    Activity.IDLE: frozenset[str](),
    Activity.LOADER: frozenset({"samples", "read_bytes", "core_s", "copied_bytes"}),
    Activity.RESIDENT: frozenset(
        {"samples", "flop", "memory_bytes", "network_bytes", "gradient_bytes"}
    ),
    Activity.COLLECTIVE: frozenset({"network_bytes", "gradient_bytes"}),
    Activity.TRAINING: _TRAINING,
}


def sent_bytes(run: Run) -> float | None:
    """Return the bytes that all ranks send in a step: as counted, or `2 (N-1) G`. [B]"""
    ranks = ranks_of(run)
    if run.work.network_bytes is not None:
        return run.work.network_bytes
    if ranks == 1:
        return 0.0
    if run.work.gradient_bytes is None:
        return None
    return ranks * all_reduce_sent_bytes(run.work.gradient_bytes, ranks)


def busy_s(run: Run, stage: str) -> float | None:
    """Return the busy time of a stage on a rank, over the whole run; None if unknown."""
    use = run.stages.get(stage)
    if use is not None:  # nothing hides computing: what it took is what it is exposed
        return use.exposed_s if stage == "computing" else use.busy_s
    if stage == "computing":
        if run.activity in {Activity.TRAINING, Activity.RESIDENT}:
            return run.wall_s if run.activity is Activity.RESIDENT else None
        return 0.0
    if stage != "communicating":
        return None
    if run.activity is Activity.COLLECTIVE:
        return run.wall_s
    alone = ranks_of(run) == 1 or run.activity is not Activity.TRAINING
    return 0.0 if alone else None


def gaps_of(run: Run) -> list[str]:
    """Return a line for each power series of a run with a gap in its readings."""
    measured = [(index, gap_in(series)) for index, series in enumerate(run.power)]
    return [f"power[{index}].{line}" for index, line in measured if line]


def gap_in(series: PowerSeries) -> str:
    """Return where a series has a gap of ten times its usual period or longer; else nothing."""
    steps = [after - before for before, after in pairwise(series.at_s)]
    if len(steps) < _LEAST_STEPS:
        return ""
    usual = sorted(steps)[len(steps) // 2]
    place, longest = max(enumerate(steps), key=lambda item: item[1])
    if longest <= _GAP * usual:
        return ""
    return (
        f"at_s[{place + 1}]: found a gap of {longest:.3g} s in {series.domain}, expected a reading "
        f"every {usual:.3g} s or so"
    )


def checked(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Return the runs; reject impossible runs and runs with too little data.

    Raises:
        RunError: Values that no run can have, gaps in a power series, or no energy at all; all
            faults of all runs, each with its run and key.
    """
    runs = tuple(runs)
    faults = []
    for run in runs:
        lines = problems_of(run)
        if run.exit_code == 0:  # others are left out, whatever they lack
            lines += _lacks(run, is_sound=not lines)
        faults += [f"{run.name}: {line}" for line in lines]
    if faults:
        raise RunError("runs", faults)
    return runs


def _lacks(run: Run, *, is_sound: bool) -> list[str]:
    """Return a line for each required item that a run lacks."""
    if not run.meters:
        return ["meters: found none, expected the energy of at least one domain"]
    if not is_sound:
        return []
    if lines := [*_empty(run), *gaps_of(run)]:
        return lines
    if run.activity is not Activity.IDLE and run.iterations == 0:
        return [f"iterations: found 0, expected those of a run of '{run.activity}'"]
    return []


def _empty(run: Run) -> Iterator[str]:
    """Yield a line for each value that is valid in a file but makes the run unusable."""
    for field in fields(run.work):
        if 0 < (value := getattr(run.work, field.name) or 0.0) < _LEAST:
            yield f"work.{field.name}: found {value}, expected 0, or at least {_LEAST:.0e}"
    if run.wall_s < _LEAST_S:
        yield f"wall_s: found {run.wall_s}, expected at least {_LEAST_S:.0e} s"
    elif not run.wall_s * _LEAST_W < run.energy_j < run.wall_s * _MOST_W:
        yield (
            f"meters: found {run.energy_j:.6g} J in {run.wall_s:.6g} s, expected more than "
            f"{_LEAST_W:.0e} W and less than {_MOST_W:.0e} W; a meter is stuck, missing or broken"
        )
    if run.rated_w == 0:
        yield "rated_w: found 0, expected the rated power of what was read, or null if unknown"
    if run.activity is Activity.TRAINING and run.work.samples == 0:
        yield "work.samples: found 0 in a training run, expected more, or null if unknown"
    known = [*(reading.domain for reading in run.meters), TOTAL]
    for index, series in enumerate(run.power):
        if run.meters and series.domain not in known:
            yield (
                f"power[{index}].domain: found '{series.domain}', which no meter of the run has; "
                f"expected one of {', '.join(known)}"
            )
    measured = stage_energies_j(run)
    off = math.fsum(measured.values()) - run.energy_j
    if measured and run.energy_j > 0 and abs(off) > _STAGES_OFF * run.energy_j:
        yield (
            f"stages: found {math.fsum(measured.values()):.6g} J in all, expected what the meters "
            f"read, {run.energy_j:.6g} J: every joule belongs to one stage"
        )


def stage_energies_j(run: Run) -> dict[str, float]:
    """Return stage → energy if the run states that of every stage; else nothing. [J]"""
    measured = {name: use.energy_j for name, use in run.stages.items()}
    return (
        {} if None in measured.values() else {name: each or 0.0 for name, each in measured.items()}
    )


def _without_copies(runs: Sequence[Run]) -> tuple[tuple[Run, ...], list[str]]:
    """Return the runs without duplicates (equal in all but text), and which those are.

    A copy is no second measurement: counted, it would narrow the intervals.
    """
    kept: dict[str, Run] = {}
    copies: list[str] = []
    for run in runs:
        figures = repr(replace(run, name="", command=(), notes=()))
        if figures in kept:
            copies.append(f"{run.name} of {kept[figures].name}")
        else:
            kept[figures] = run
    if not copies:
        return tuple(runs), []
    shown = ", ".join(copies[:3]) + (", …" if len(copies) > 3 else "")
    return tuple(kept.values()), [
        f"{len(copies)} of {len(runs)} runs are copies, the same in every figure, and left out "
        f"({shown}): they would make intervals look narrower than they are"
    ]


def observations(runs: Sequence[Run], *, node: str | None = None) -> Observations:
    """Return the usable observations of runs, all of one kind of node, origin and set of meters.

    Args:
        runs: In any order.
        node: Kind of node to use where there are several.

    Raises:
        RunError: Runs that cannot be used, or that may not be mixed.
    """
    runs = checked(runs)
    if node is not None:
        chosen = tuple(run for run in runs if run.node == node)
        if not chosen:
            known = ", ".join(sorted({run.node or "''" for run in runs}))
            raise RunError("runs", [f"node: found none of '{node}', expected one of {known}"])
        runs = chosen
    failed = [run for run in runs if run.exit_code != 0]
    warnings = [
        f"{run.name} is left out: it "
        + (
            "was interrupted, or lost ranks"
            if run.exit_code is None
            else f"ended with code {run.exit_code}"
        )
        for run in failed
    ]
    used, copies = _without_copies([run for run in runs if run.exit_code == 0])
    warnings += copies
    _refuse_mixtures(used)
    used, assumed = _one_loader(used)
    warnings += assumed
    missing = sorted({_kind(domain.partition(":")[0]) for r in used for domain in r.missing})
    if missing:
        warnings.append(f"no meter read {', '.join(missing)}: outside of every figure")
    estimates = sorted({r.meter for run in used for r in run.meters if r.is_estimate})
    if estimates:
        warnings.append(f"readings of {', '.join(estimates)} are estimates, no measurements")
    return Observations(runs=used, warnings=tuple(warnings))


def _refuse_mixtures(runs: Sequence[Run]) -> None:
    problems = []
    aspects: tuple[tuple[str, Callable[[Run], str], str], ...] = (
        (
            "node",
            lambda run: run.node or "unnamed",
            f"fit one kind at a time (node, --node); {SAME_NODE}",
        ),
        ("origin", lambda run: str(run.origin), "fit them apart"),
        ("devices_per_node", lambda run: str(run.devices_per_node), "fit them apart"),
        ("meters", lambda run: "+".join(domain_kinds(run)), "their energies hold different parts"),
    )
    for key, value_of, advice in aspects:
        kinds: dict[str, str] = {}
        for run in runs:
            kinds.setdefault(value_of(run), run.name)
        if len(kinds) > 1:
            shown = ", ".join(f"{kind} ({name})" for kind, name in sorted(kinds.items()))
            problems.append(f"{key}: found {shown}, expected one; {advice}")
    if problems:
        raise RunError("runs", problems)


def _one_loader(runs: Sequence[Run]) -> tuple[tuple[Run, ...], list[str]]:
    """Return runs that either all prefetch or all do not, and which they were assumed to.

    Rates of worker processes and of a loader within the loop are different constants, and so is
    how they add to a step: one calibration holds one kind.

    Raises:
        RunError: Some runs say that they prefetch, others that they do not.
    """
    loading = [run for run in runs if run.activity in {Activity.LOADER, Activity.TRAINING}]
    ahead = [run.name for run in loading if run.prefetch]
    within = [run.name for run in loading if run.prefetch is False]
    if ahead and within:
        raise RunError(
            "runs",
            [
                f"prefetch: found false ({_first(within)}) and true ({_first(ahead)}), expected "
                "one: loaders within the process and worker processes have different rates; "
                "fit them separately"
            ],
        )
    silent = {id(run): run.name for run in loading if run.prefetch is None}
    if not within or not silent:
        return tuple(runs), []
    taken = tuple(replace(run, prefetch=False) if id(run) in silent else run for run in runs)
    return taken, [
        f"{_first(list(silent.values()))}: prefetch is not stated, and taken as false as in the "
        "other runs"
    ]


def _first(names: Sequence[str]) -> str:
    """Return the first names of a list, as text."""
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
