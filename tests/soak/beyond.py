"""What comes behind the readers: what one takes, the rest takes as well, or refuses in words."""

from __future__ import annotations

import contextlib
import io
import random
import shlex
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

from tests.energy.synthetic import World, isolated, study
from wattree.job import job_from_mapping

__all__ = [
    "COMMANDS",
    "calibrated",
    "command",
    "compared",
    "compile_kernels",
    "configured",
    "designed",
    "drawn_command",
    "estimated",
    "fitted",
    "forecast",
    "hourly",
    "on_node",
    "simulated",
]

_SMALL = {"layers": 2, "hidden": 256, "heads": 4, "ffn": 512, "vocab": 1000}


def _small_job(folder: Path | None = None, **changes: Any) -> Any:
    job: dict[str, Any] = {
        "model": {"transformer": _SMALL},
        "data": {"sequence_length": 256, "global_batch": 16},
        "cluster": {"node": "dgx-a100"},
        "strategy": {"dp": 4, "tp": 2, "sharding": "zero3"},
    }
    return job_from_mapping(job | changes, folder=folder)


def _shown(prediction: Any) -> None:
    """Show a result as `wattree simulate` does, as text and as JSON."""
    from rich.console import Console

    from wattree.report.json_output import json_text
    from wattree.report.result_text import show_result

    show_result(prediction.result, Console(file=io.StringIO(), width=100))
    json_text(prediction.result.as_json())


@cache
def compile_kernels() -> None:
    """Compile the executor: on a busy machine that takes longer than an input may."""
    from wattree.predict import simulate

    simulate(_small_job())


def simulated(path: Path) -> None:
    """Predict a job, as `wattree simulate` does."""
    from wattree.job import load_job
    from wattree.predict import simulate

    job = load_job(path)
    if job.model.module is None:  # else it would run Python
        _shown(simulate(job))


def estimated(path: Path) -> None:
    """Predict a job in closed form, under its strategy."""
    from wattree.job import load_job
    from wattree.predict import estimate

    job = load_job(path)
    if job.model.module is None:
        estimate(job)


def calibrated(path: Path) -> None:
    """Predict a small job under other constants."""
    from wattree.predict import simulate

    _shown(simulate(_small_job(), calibration=path))


def on_node(path: Path) -> None:
    """Predict a small job on one of a user's nodes, with as many ranks as it has devices."""
    from wattree.hardware import load_node
    from wattree.predict import simulate

    devices = load_node(path).devices
    cluster = {"node": str(path), "nodes": 2}
    batch = {"sequence_length": 256, "global_batch": 4 * devices}
    _shown(simulate(_small_job(cluster=cluster, data=batch, strategy={"dp": 2 * devices})))


def configured(path: Path) -> None:
    """Predict a job whose model a `config.json` describes."""
    from wattree.capture.huggingface import readable_model_types
    from wattree.files import read_json
    from wattree.predict import simulate

    if read_json(path).get("model_type") not in readable_model_types():
        return
    job = _small_job(model=str(path), strategy={"dp": 8})
    _shown(simulate(job))


def hourly(path: Path) -> None:
    """Predict a job whose site's carbon and prices a user's file has, hour by hour."""
    from wattree.predict import simulate

    _shown(simulate(_small_job(energy={"series": str(path)})))


def designed(path: Path) -> None:
    """Run a study of few points, and answer its questions."""
    from wattree.design import load_study, results_json, run_study
    from wattree.report.json_output import json_text

    loaded = load_study(path)
    if len(loaded.axes) > 2 or any(len(axis.values) > 4 for axis in loaded.axes):
        return
    store = path.with_name("designed.sqlite")
    store.unlink(missing_ok=True)
    json_text(results_json(run_study(loaded, store=store, on="here", fresh=True)))


# --------------------------------------------------------------------------------- energy


@cache
def _good_runs() -> tuple[Any, ...]:
    world = World(seed=1, time_noise=0.01)
    return (*isolated(world), *study(world))


def fitted(path: Path) -> None:
    """Fit the stage model to good runs and one that may be odd."""
    from wattree.energy.fit import fit_runs
    from wattree.trace import read_run

    fit_runs((*_good_runs(), read_run(path)))


def compared(path: Path) -> None:
    """Compare models of energy on a run that may be odd and some good ones."""
    from wattree.energy.compare import compare_runs
    from wattree.trace import read_run

    compare_runs((*_good_runs(), read_run(path)))


def forecast(path: Path) -> None:
    """Forecast a run from constants that may be odd."""
    from wattree.energy.calibration_file import read_calibration
    from wattree.energy.commands import predict_energy

    calibration = read_calibration(path)
    for model in calibration.models:
        predict_energy(calibration, nodes=[1, 16], model=model, iterations=10)


# ------------------------------------------------------------------------------- commands

#: Words of commands that only read, and write to standard output; `@` is a job file.
COMMANDS: Sequence[str] = (
    "simulate @ --json - --power-limit '400 W' --sharing max-min --memory fullest",
    "simulate @ --fold off --samples 1000 --shift 3h",
    "export @ --to chakra out --prefix a --plain",
    "replay out/t --cluster dgx-h100:2 --dims 2,4 --compute roofline --precision bf16",
    "catalog devices h100-sxm --json -",
    "catalog models llama-3.1-8b --sequence 128 --batch 2 --depth 3",
    "catalog sites",
    "energy predict --calibration constants.yaml --nodes 1,16 --model a --batch 4 --iterations 3",
    "energy predict --calibration constants.yaml --nodes 4 --job @ --bandwidth '10 Gbit/s'",
    "plan @ --max-devices 2 --margin '5 %' --objective time --deadline '1 h' --power-cap '1 kW'",
    "validate --rows @",
    "design @ --workers 1 --resume",
    "check @ --json -",
    "compare @ @ --json -",
    "import recipe.toml --from torchtitan --cluster dgx-h100 --nodes 1 --global-batch 64",
    "catalog software megatron-core --json -",
    "schema job",
    "schedule @ --json -",
    "calibrate @ --step-time '0.5 s' --out mine.yaml",
    "explain @ --trace trace.json",
    "init new.yaml --model gpt2 --node dgx-a100 --nodes 1 --batch 8 --software megatron-core",
    "--version",
)
_WORDS = (
    *("", "-", "--", "²", "9" * 5000, "nan", "inf", "-1", "0", "1e999", "1,,2", "a,b", "auto"),
    *(
        "--json",
        "--help",
        "-h",
        "on",
        "\0",
        "\ud7ff",
        "../..",
        "x" * 3000,
        "1:2:3",
        "1.5",
        "5 GB/s",
    ),
)
_JOB = (
    "model: {transformer: {layers: 2, hidden: 256, heads: 4, ffn: 512, vocab: 1000}}\n"
    "data: {sequence_length: 256, global_batch: 16}\n"
    "cluster: {node: dgx-a100}\nstrategy: {dp: 8}\n"
)


def drawn_command(chance: random.Random) -> bytes:
    """Return a command with a word or two changed."""
    words = shlex.split(chance.choice(COMMANDS))
    for _ in range(chance.choice((0, 1, 1, 2))):
        if len(words) < 2:
            break
        at = chance.randrange(1, len(words))
        other = shlex.split(chance.choice(COMMANDS))
        words[at : at + 1] = chance.choice(
            ([chance.choice(_WORDS)], [chance.choice(other)], [], [words[at]] * 2)
        )
    return "\n".join(words).encode("utf-8", "surrogateescape")


@cache
def _named_files() -> Mapping[str, bytes]:
    """Return the files that commands name."""
    from tests.soak.handed_over import recipe_seeds, traced_seeds

    return {
        "job.yaml": _JOB.encode(),
        "recipe.toml": recipe_seeds("torchtitan", "train.toml")()[0],
        "trace.json": traced_seeds()[0],
    }


def _raise(error: Exception) -> NoReturn:
    raise error


def command(path: Path) -> None:
    """Run a command's words, one a line, in this process: a defect is raised as it is."""
    from wattree.cli.main import run

    place = sys.modules[run.__module__]
    usual = place._other

    def other(error: Exception) -> int:
        is_usage = hasattr(error, "show")
        return usual(error) if is_usage else _raise(error)

    words = path.read_bytes().decode("utf-8", "surrogateescape").split("\n")
    if words[0] not in {*(line.split()[0] for line in COMMANDS)}:
        return
    folder = path.with_name("commands")
    folder.mkdir(exist_ok=True)
    for name, content in _named_files().items():
        (folder / name).write_bytes(content)
    said = io.StringIO()
    with (
        contextlib.chdir(folder),
        mock.patch.object(place, "_other", other),
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(said),
        contextlib.suppress(SystemExit),
    ):
        run(["job.yaml" if word == "@" else word for word in words])
