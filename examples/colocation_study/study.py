"""When several processes on a device help: batch x loader workers x processes.

    python examples/colocation_study/study.py [--stored]

Measures `train.py` on this processor (five minutes), simulates convolutional networks on an
A100, writes the tables of README.md, `measured.png` and `simulated.png`, and says when it helps.
`--stored` takes measurements from measured.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import wattree
from wattree.files import read_yaml
from wattree.job import job_from_mapping
from wattree.runtime.launch.options import LaunchOptions
from wattree.runtime.tune import TrialSetting
from wattree.runtime.tune.measured import TrialOptions, Trials

HERE = Path(__file__).resolve().parent
STUDY: Mapping[str, Any] = read_yaml(HERE / "study.yaml")
BEGIN, END = "<!-- tables: python examples/colocation_study/study.py -->", "<!-- end of tables -->"
RULES = ("fixed-global", "fixed-per-process")
#: Gains above which several processes are said to help, below its inverse to cost.
HELPS = 1.03


def main() -> None:
    """Measure or read, simulate, write tables and pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--stored", action="store_true", help="measure nothing")
    given = parser.parse_args()
    stored = HERE / "measured.json"
    if not given.stored:
        stored.write_text(json.dumps(measured(), indent=1) + "\n", encoding="utf-8")
    found = json.loads(stored.read_text(encoding="utf-8"))
    rows = list(simulated())
    readme = HERE / "README.md"
    head, _, rest = readme.read_text(encoding="utf-8").partition(BEGIN)
    tail = rest.partition(END)[2]
    text = tables(found, rows)
    readme.write_text(f"{head}{BEGIN}\n{text}\n{END}{tail}", encoding="utf-8")
    print(text)
    try:
        import pictures
    except ModuleNotFoundError as error:
        print(f"no pictures: {error.name} is not installed", file=sys.stderr)
        return
    pictures.draw_measured(found, HERE / "measured.png")
    pictures.draw_simulated(rows, HERE / "simulated.png")


def measured() -> dict[str, Any]:
    """Return what trials of the script measured, each setting against one process in turns."""
    told = STUDY["measured"]
    rows = []
    grid = itertools.product(told["batch"], told["workers"], RULES)
    for batch, workers, rule in grid:
        words = ("--batch", batch, "--workers", workers)
        words += ("--latency", told["latency"], "--decodings", told["decodings"])
        command = [sys.executable, str(HERE / "train.py"), *map(str, words)]
        launch = LaunchOptions(device="cpu", batch_rule=rule, loader_workers=workers or None)
        trials = Trials(
            lambda _, command=command: command,
            TrialOptions(launch=launch, seconds=float(told["seconds"])),
            environment=os.environ,
            say=lambda line: print(line, file=sys.stderr),
        )
        turns: dict[TrialSetting, list[Any]] = {
            TrialSetting(): [],
            TrialSetting(threads=1): [],  # two processes have a thread each
            **{TrialSetting(processes=count): [] for count in told["processes"] if count > 1},
        }
        for _ in range(told["turns"]):
            for setting, found in turns.items():
                found.append(trials(setting))
        faults = [row.fault for each in turns.values() for row in each if row.fault]
        if faults:
            raise SystemExit(f"batch {batch}, {workers} workers, {rule}: {faults[0]}")
        singles = zip(turns[TrialSetting()], turns[TrialSetting(threads=1)], strict=True)
        best = [max(pair, key=lambda row: row.rate) for pair in singles]
        for setting, each in turns.items():
            ratios = [row.rate / one.rate for row, one in zip(each, best, strict=True)]
            rows.append(
                {
                    "batch": batch,
                    "workers": workers,
                    "rule": rule,
                    "processes": setting.processes,
                    "setting": setting.words(),
                    "rate": statistics.median(row.rate for row in each),
                    "gain": statistics.median(ratios),
                    "data_share": statistics.median(row.data_share for row in each),
                    "energy_j": each[0].energy_j,
                    "memory_bytes": max(row.memory_bytes for row in each),
                }
            )
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {"cores": os.cpu_count(), "load_at_end": load, "rows": rows}


def simulated() -> Iterator[dict[str, Any]]:
    """Yield predictions for one A100, with their gain over one process."""
    told = STUDY["simulated"]
    grid = (
        (name, batch, workers, rule)
        for name, own in told["models"].items()
        for batch, workers, rule in itertools.product(told["batch"], own["workers"], RULES)
    )
    for name, batch, workers, rule in grid:
        own = told["models"][name]
        alone = None
        for count in told["processes"]:
            share = batch // count if rule == "fixed-global" else batch
            if rule == "fixed-global" and batch % count:
                continue
            strategy: dict[str, Any] = {"preset": "ddp", "dp": 8, "micro_batch": share}
            if count > 1:
                strategy |= {"processes_per_device": count, "batch_rule": rule}
            job = job_from_mapping(
                {
                    "model": own["model"],
                    **told["job"],
                    "data": {
                        "global_batch": batch * 8,
                        "loader": {**own["loader"], "workers": workers},
                    },
                    "strategy": strategy,
                }
            )
            result = wattree.simulate(job).result
            rate, energy = result.samples_per_s / 8, result.energy_j.total
            samples = result.samples_per_s * result.step_time_s
            alone = rate if alone is None else alone
            yield {
                "model": name,
                "batch": batch,
                "workers": workers,
                "rule": rule,
                "processes": count,
                "rate": rate,
                "gain": rate / alone,
                "energy_j": energy / samples,
                "fits": result.memory.fits,
            }


def tables(found: Mapping[str, Any], rows: list[dict[str, Any]]) -> str:
    """Return the tables and what they come to."""
    lines = [
        f"### Measured: train.py on {found['cores']} processor cores",
        "",
        "| batch | loader workers | rule | setting | samples/s | to best q = 1 | for data |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['batch']} | {row['workers']} | {row['rule']} | {row['setting']} | "
        f"{row['rate']:,.0f} | {row['gain']:.2f} | {row['data_share']:.0%} |"
        for row in found["rows"]
    ]
    load = "unknown" if found["load_at_end"] is None else f"{found['load_at_end']:.0f}"
    lines += ["", f"Load of the machine at the end {load}; no meter can be read: no energies.", ""]
    lines += [verdict("measured", found["rows"]), ""]
    lines += [
        "### Simulated: one of eight A100 (not measured)",
        "",
        "| model | batch | loader workers | rule | q = 1, samples/s | "
        + " | ".join(f"q = {q}" for q in STUDY["simulated"]["processes"][1:])
        + " | energy a sample, best q to q = 1 |",
        "|---|---|---|---|---|" + "---|" * len(STUDY["simulated"]["processes"]),
    ]
    for case, group in itertools.groupby(
        rows, key=lambda row: (row["model"], row["batch"], row["workers"], row["rule"])
    ):
        by = {row["processes"]: row for row in group}
        best = max((row for row in by.values() if row["fits"]), key=lambda row: row["rate"])
        cells = [
            f"{by[q]['gain']:.2f}{'' if by[q]['fits'] else ' (no room)'}" if q in by else "–"
            for q in STUDY["simulated"]["processes"][1:]
        ]
        ratio = best["energy_j"] / by[1]["energy_j"]
        lines.append(
            f"| {case[0]} | {case[1]} | {case[2]} | {case[3]} | {by[1]['rate']:,.0f} | "
            f"{' | '.join(cells)} | {ratio:.2f} (q = {best['processes']}) |"
        )
    return "\n".join([*lines, "", verdict("simulated", rows)])


def verdict(what: str, rows: list[dict[str, Any]]) -> str:
    """Return when several processes help, by rule."""
    parts = []
    for rule in RULES:
        several = [row for row in rows if row["rule"] == rule and row["processes"] > 1]
        gains = [row["gain"] for row in several if row["gain"]]
        up, down = (sum(g > HELPS for g in gains), sum(g < 1 / HELPS for g in gains))
        parts.append(
            f"{rule}: {up} of {len(gains)} settings with several processes gain, {down} lose "
            f"({min(gains):.2f} to {max(gains):.2f} of q = 1)"
        )
    return f"{what.capitalize()}, " + "; ".join(parts) + "."


if __name__ == "__main__":
    main()
