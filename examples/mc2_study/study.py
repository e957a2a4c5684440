"""The MC² study, simulated: three models on up to 128 MT and 32 FT nodes, fitted on 8 and fewer.

`python examples/mc2_study/study.py FOLDER` writes the runs to FOLDER, one folder for each platform
and regime, and prints the comparison of each; `--page` also remakes the tables in `README.md` and
`errors.png` (with matplotlib) beside this file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import wattree
from wattree.energy.compare import EnergyComparison
from wattree.energy.scores import Score
from wattree.files import read_yaml
from wattree.job import Job, job_from_mapping
from wattree.predict import Prediction, idle_run_of, loader_run_of, run_of
from wattree.trace.run import Activity, Run
from wattree.trace.run_file import write_run

HERE = Path(__file__).resolve().parent
STUDY: Mapping[str, Any] = read_yaml(HERE / "study.yaml")
BEGIN, END = "<!-- tables: python examples/mc2_study/study.py -->", "<!-- end of tables -->"
#: Devices of a node: one rank on each.
DEVICES = {"mt": 3, "ft": 1}


def job_of(
    model: str, platform: str, regime: str, *, nodes: int, samples: int, resident: bool = False
) -> Job:
    """Return the job of one run; `samples` on each processor."""
    ranks = nodes * DEVICES[platform]
    data: dict[str, Any] = {"global_batch": samples * ranks}
    data["loader"] = {"preset": "synthetic", "workers": 1} if resident else dict(STUDY["loader"])
    strategy = {"preset": "ddp", "dp": ranks, "micro_batch": samples, **STUDY["regimes"][regime]}
    return job_from_mapping(
        {
            "model": model,
            "data": data,
            "precision": STUDY["precision"],
            "optimizer": STUDY["optimizer"],
            "software": STUDY["software"],
            "cluster": {"node": STUDY["platforms"][platform]["node"], "nodes": nodes},
            "strategy": strategy,
        }
    )


def simulated(
    job: Job, name: str, *, activity: Activity = Activity.TRAINING, series: bool = False
) -> tuple[Run, Prediction]:
    """Return a run of the study's steps, with a power series where asked for."""
    prediction = wattree.simulate(job)
    steps = STUDY["steps"]
    interval_s = prediction.result.step_time_s * steps / STUDY["readings_per_run"]
    run = run_of(
        job,
        prediction,
        steps=steps,
        name=name,
        activity=activity,
        interval_s=interval_s if series else None,
    )
    return run, prediction


def runs_of(platform: str, regime: str) -> Iterator[Run]:
    """Yield the runs of one platform and regime: isolated ones, then training."""
    counts = STUDY["platforms"][platform]["nodes"]
    for model, sizes in STUDY["models"].items():
        for samples in sizes["samples_per_processor"]:
            tag = f"{model}-{samples}"
            job = job_of(model, platform, regime, nodes=2, samples=samples, resident=True)
            yield simulated(job, f"resident-{tag}", activity=Activity.RESIDENT)[0]
            for nodes in counts:
                job = job_of(model, platform, regime, nodes=nodes, samples=samples)
                run, prediction = simulated(job, f"{tag}-on-{nodes}", series=nodes == counts[-1])
                yield run
                if model == "resnet-50" and nodes <= max(2, counts[-1] // 4):
                    name = f"loader-{samples}-on-{nodes}"
                    yield loader_run_of(job, prediction, steps=STUDY["steps"], name=name)
                if model == "resnet-50" and samples == sizes["samples_per_processor"][0]:
                    yield idle_run_of(job, seconds=60.0, name=f"idle-{nodes}", nodes=nodes)


def compared(folder: Path) -> dict[str, EnergyComparison]:
    """Simulate and write all runs, and return the comparison of each platform and regime."""
    found = {}
    for platform in STUDY["platforms"]:
        for regime in STUDY["regimes"]:
            place = folder / f"{platform}-{regime}"
            place.mkdir(parents=True, exist_ok=True)
            for run in runs_of(platform, regime):
                write_run(run, place / f"{run.name}.json")
            found[f"{platform}, {regime}"] = wattree.compare_energy([place], fit_on=STUDY["fit_on"])
    return found


def tables(found: Mapping[str, EnergyComparison]) -> str:
    """Return mean absolute errors as Markdown: in all, and of our models by the number of nodes."""
    groups = {title: comparison.groups[0] for title, comparison in found.items()}
    head = ["mean absolute error of energy", *groups]
    methods = [group.methods for group in groups.values()]
    whole = [
        [row[0].title, *(_cell(each.total) for each in row)] for row in zip(*methods, strict=True)
    ]
    nodes = [
        [f"{row[0].title}, {count} nodes", *(_cell(each.by_nodes.get(count)) for each in row)]
        for row in zip(*methods, strict=True)
        if row[0].method.startswith("stages")
        for count in max((each.by_nodes for each in row), key=len)
    ]
    return (
        _markdown(head, whole)
        + "\n"
        + _markdown(["the same by the number of nodes", *groups], nodes)
    )


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def _cell(score: Score | None) -> str:
    if score is None:
        return "–"
    text = f"{100 * score.mean_abs_error:.1f} %"
    if score.lower is None or score.upper is None:
        return text
    return f"{text} ({100 * score.lower:.1f}–{100 * score.upper:.1f})"


def draw(found: Mapping[str, EnergyComparison]) -> None:
    """Draw mean absolute errors over the number of nodes, if matplotlib is installed."""
    try:
        from matplotlib import pyplot as plt
    except ImportError:
        print("matplotlib is not installed: no picture")
        return
    figure, panels = plt.subplots(2, 2, figsize=(11, 7.5), sharey=True, layout="constrained")
    for panel, (title, comparison) in zip(panels.flat, found.items(), strict=True):
        for method in comparison.groups[0].methods:
            if len(method.by_nodes) < 2:  # series are of one size
                continue
            nodes = [int(name) for name in method.by_nodes]
            errors = [100 * each.mean_abs_error for each in method.by_nodes.values()]
            ours = method.method.startswith("stages")
            panel.plot(
                nodes, errors, marker="o", lw=2.5 if ours else 1.2, ls="-" if ours else "--",
                label=method.title,
            )  # fmt: skip
        panel.set(title=f"{title} (simulated)", xscale="log", yscale="log")
        panel.set_xticks(nodes, [str(each) for each in nodes], minor=False)
        panel.minorticks_off()
        panel.set_yticks([0.1, 0.3, 1, 3, 10, 30], ["0.1", "0.3", "1", "3", "10", "30"])
        panel.grid(alpha=0.3)
    figure.supxlabel("nodes (fitted on 2 to 8)")
    figure.supylabel("mean absolute error of energy (%)")
    handles, labels = panels.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize=8)
    figure.savefig(HERE / "errors.png", dpi=110)
    plt.close(figure)


def main(words: Sequence[str]) -> None:
    """Run the study; write its tables and picture where asked to."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("folder", type=Path, help="where the runs are written")
    parser.add_argument("--page", action="store_true", help="remake README.md and errors.png")
    options = parser.parse_args(words)
    from rich.console import Console

    from wattree.report.energy_models_text import show_comparison

    found = compared(options.folder)
    for title, comparison in found.items():
        print(f"\n== {title} (simulated) ==")
        show_comparison(comparison, Console(width=120, highlight=False))
    if not options.page:
        return
    page = HERE / "README.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{BEGIN}\n{tables(found)}{END}{after}", encoding="utf-8")
    draw(found)


if __name__ == "__main__":
    main(sys.argv[1:])
