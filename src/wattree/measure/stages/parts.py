"""Join the runs of single ranks to one run.

Each rank writes its part next to the file of the whole; rank 0 waits for the others and joins
them. No collective is needed, so that nothing hangs where a rank has crashed, and what did come
is kept.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from wattree.errors import JobError, RunError
from wattree.files import read_json, write_atomic
from wattree.measure.window import READ_ELSEWHERE, origin_of, sum_if_all
from wattree.trace import (
    STAGES,
    MeterReading,
    PowerSeries,
    Run,
    StageUse,
    Work,
    read_run,
    write_run,
)

_LOOK_EVERY_S = 0.05


@dataclass(frozen=True, slots=True)
class Part:
    """What one rank measured.

    Attributes:
        rank: Its number.
        host: Its node, the same for all ranks there.
        run: Its time, work and stages; the domains that it read, as if it were alone.
        splits: Domain → energy by stage [J], or None where its meter could not tell.
    """

    rank: int
    host: str
    run: Run
    splits: Mapping[str, Mapping[str, float] | None]


def folder_of(out: Path) -> Path:
    """Return the folder of the parts of a run."""
    return out.with_name(f"{out.name}.parts")


def leave(part: Part, folder: Path) -> None:
    """Write a part to the folder that rank 0 reads.

    Raises:
        OutputError: It cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_run(part.run, folder / f"rank{part.rank}.run.json")
    facts = {"rank": part.rank, "host": part.host, "splits": part.splits}
    # Last, so that a part that has this file is complete.
    write_atomic(folder / f"rank{part.rank}.json", json.dumps(facts))


def collect(
    folder: Path,
    world: int,
    *,
    wait_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[Part, ...]:
    """Return the parts of all ranks but 0 that arrive within a timeout; remove the folder.

    Args:
        wait_s: How long to wait. [s]
        clock: The monotonic clock.
    """
    until_s = clock() + wait_s
    names = [folder / f"rank{rank}.json" for rank in range(1, world)]
    while not all(name.exists() for name in names) and clock() < until_s:
        sleep(_LOOK_EVERY_S)
    parts = [part for name in names if (part := _read(name)) is not None]
    shutil.rmtree(folder, ignore_errors=True)
    return tuple(parts)


def _read(path: Path) -> Part | None:
    try:
        facts = read_json(path)
        run = read_run(path.with_name(f"{path.stem}.run.json"))
    except (JobError, RunError):  # it did not come, or came from another program
        return None
    return Part(int(facts["rank"]), str(facts["host"]), run, facts["splits"])


def joined(parts: Sequence[Part], world: int) -> Run:
    """Return the run of all ranks: times are averages, energies and work are sums.

    Args:
        parts: In any order; those of rank 0 say what the run is called.
        world: Number of ranks there should be.
    """
    parts = sorted(parts, key=lambda part: part.rank)
    hosts = {host: number for number, host in enumerate(dict.fromkeys(p.host for p in parts))}
    renamed = [_on_node(part, f"node{hosts[part.host]}") for part in parts]
    runs = [part.run for part in renamed]
    meters = tuple(reading for one in runs for reading in one.meters)
    wall_s = _mean([one.wall_s for one in runs])
    run = replace(
        runs[0],
        origin=origin_of(meters),
        nodes=len(hosts),
        devices_per_node=-(-sum(one.devices_per_node for one in runs) // len(hosts)),
        ranks_per_node=-(-len(parts) // len(hosts)),
        wall_s=wall_s,
        work=_work([one.work for one in runs]),
        meters=meters,
        missing=_missing(runs),
        power=tuple(_until(series, wall_s) for one in runs for series in one.power),
        utilization=_shares([one.utilization for one in runs]),
        rated_w=sum_if_all([one.rated_w for one in runs if one.meters]),
        exit_code=next((one.exit_code for one in runs if one.exit_code != 0), 0),
        notes=tuple(dict.fromkeys(line for one in runs for line in one.notes)),
    )
    lost = sorted(set(range(world)) - {part.rank for part in parts})
    if lost:
        names = ", ".join(map(str, lost))
        # Meters read the work of lost ranks too, which no one counted: no fit may use it.
        run = replace(
            run,
            exit_code=run.exit_code or None,
            notes=(*run.notes, f"nothing came from ranks {names}; not counted"),
        )
    return replace(run, stages=_stages(run, renamed))


def _until(series: PowerSeries, end_s: float) -> PowerSeries:
    """Return a series up to a time: a rank that starts early or ends late measures longer."""
    kept = bisect_left(series.at_s, end_s)
    if kept == len(series.at_s):
        return series
    return replace(series, at_s=(*series.at_s[:kept], end_s), watts=series.watts[: kept + 1])


def _on_node(part: Part, node: str) -> Part:
    def name(domain: str) -> str:
        return f"{node}/{domain.partition('/')[2]}"

    def named_reading(reading: MeterReading) -> MeterReading:
        return replace(reading, domain=name(reading.domain))

    def named_series(series: PowerSeries) -> PowerSeries:
        return replace(series, domain=name(series.domain))

    run = replace(
        part.run,
        meters=tuple(map(named_reading, part.run.meters)),
        power=tuple(map(named_series, part.run.power)),
        missing=tuple(map(name, part.run.missing)),
        notes=tuple(line.replace("node0/", f"{node}/") for line in part.run.notes),
    )
    splits = {name(domain): split for domain, split in part.splits.items()}
    return replace(part, run=run, splits=splits)


def _missing(runs: Sequence[Run]) -> tuple[str, ...]:
    """Return the missing readings of all runs, without those that another rank reported."""
    read = {reading.domain for run in runs for reading in run.meters}
    lines = dict.fromkeys(line for run in runs for line in run.missing)
    left = {line for line in lines if line.endswith(READ_ELSEWHERE)}
    reported = read | {line.partition(":")[0] for line in lines if line not in left}
    return tuple(
        line for line in lines if line not in left or line.partition(":")[0] not in reported
    )


def _stages(run: Run, parts: Sequence[Part]) -> dict[str, StageUse]:
    splits = {domain: split for part in parts for domain, split in part.splits.items()}
    counted = [splits.get(reading.domain) for reading in run.counted]
    reported = [split for split in counted if split is not None]
    is_reported = bool(reported) and len(reported) == len(counted)
    return {
        stage: StageUse(
            busy_s=_mean([part.run.stages[stage].busy_s for part in parts]),
            exposed_s=_mean([part.run.stages[stage].exposed_s for part in parts]),
            energy_j=math.fsum(split[stage] for split in reported) if is_reported else None,
        )
        for stage in STAGES
    }


def _work(works: Sequence[Work]) -> Work:
    names = [field.name for field in fields(Work)]
    sums = {name: sum_if_all([getattr(work, name) for work in works]) for name in names}
    return replace(Work(**sums), gradient_bytes=works[0].gradient_bytes)


def _shares(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for shares in found for name in shares)
    return {name: _mean([shares[name] for shares in found if name in shares]) for name in names}


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
