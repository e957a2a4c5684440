"""How each reader of what users write is called, and good files that are made for it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.soak import beyond
from tests.soak.mutations import text_of
from tests.soak.reader import ROOT, files
from wattree.errors import JobError

# ---------------------------------------------------------------------- jobs and studies


def job(path: Path) -> object:
    from wattree.job import load_job

    return load_job(path)


def small_study() -> Sequence[bytes]:
    from tests.design.studies import small_study

    study = small_study()
    study["axes"]["bandwidth"]["points"] = 2
    return [text_of(study)]


def job_schema() -> Mapping[str, Any]:
    from wattree.job.schema import JobFile

    return JobFile.model_json_schema()


def study_schema() -> Mapping[str, Any]:
    from wattree.design.schema import StudyFile

    return StudyFile.model_json_schema()


def study(path: Path) -> object:
    from wattree.design import load_study

    return load_study(path)


def queue_schema() -> Mapping[str, Any]:
    from wattree.schedule.queue_file import queue_schema as schema

    return schema()


def queue(path: Path) -> object:
    from wattree.schedule.queue_file import load_queue

    return load_queue(path)


# ------------------------------------------------------------------------------ hardware


def hardware(kind: str) -> Callable[[Path], object]:
    def read(path: Path) -> object:
        from wattree import hardware

        return getattr(hardware, f"load_{kind}")(path)

    return read


def topology(path: Path) -> object:
    from wattree.hardware.imports.read import read_topology

    return read_topology(
        path, nvlink_bytes_per_s=25e9, pcie_bytes_per_s=16e9, socket_bytes_per_s=10e9
    )


# ------------------------------------------------------------------ constants, rows, runs


def calibration(path: Path) -> object:
    from wattree.cost import load_calibration

    return load_calibration(path)


def calibration_seeds() -> Sequence[bytes]:
    whole = (ROOT / "src" / "wattree" / "cost" / "calibration.yaml").read_bytes()
    lines = whole.splitlines(keepends=True)
    few = [line for line in lines if line.startswith((b"constants:", b"  device.h100"))]
    return [b"base: shipped\n" + b"".join(few[:30]), b"base: shipped\nconstants: {}\n"]


def energy_calibration(path: Path) -> object:
    from wattree.energy.calibration_file import read_calibration

    return read_calibration(path)


def energy_calibration_seeds() -> Sequence[bytes]:
    from tests.soak.small_files import energy_calibration_text

    return [energy_calibration_text()]


def hourly(path: Path) -> object:
    from wattree.job.hourly import read_hourly

    return read_hourly(path)


def hourly_seeds() -> Sequence[bytes]:
    head = b"hour,gCO2e/kWh,USD/kWh\n"
    numbers = b"".join(b"%d,%d.5,0.%d\n" % (hour, 300 + hour, hour) for hour in range(30))
    times = b"".join(b"2026-01-31T%02d:00,%d\n" % (hour, 200 + hour) for hour in range(24))
    return [head + numbers, b"hour,gCO2e/kWh\n" + times]


def rows(path: Path) -> object:
    from wattree.validation.rows import read_rows

    return read_rows(path)


def rows_seeds() -> Sequence[bytes]:
    import wattree.validation

    data = Path(wattree.validation.__file__).parent / "data" / "rows.csv"
    lines = data.read_bytes().splitlines(keepends=True)
    return [b"".join([lines[0], *lines[at : at + 3]]) for at in range(1, len(lines), 15)]


def validated(path: Path) -> object:
    from tests.soak.laws import rows_validated

    return rows_validated(path)


def run(path: Path) -> object:
    from wattree.trace import read_run

    return read_run(path)


def run_seeds() -> Sequence[bytes]:
    from tests.soak.small_files import runs

    return [*files("validation/runs/*.json")(), *runs()]


def meter(path: Path) -> object:
    from wattree.measure.meters.csv_file import CsvMeter

    return CsvMeter(path, clock=lambda: 0.0, wall_clock=lambda: 1.7e9).read()


def meter_seeds() -> Sequence[bytes]:
    return [
        b"time,watts\n1700000000,350.5\n1700000001,351\n",
        b"time,joules\n2026-01-31T13:00:00+01:00,10\n2026-01-31T13:00:01+01:00,20\n",
        b'"time","host","watts"\n1700000000,"a, b",350.5\n',
    ]


def journal(path: Path) -> object:
    from tests.soak.small_files import machine
    from wattree.measure.profile.journal import Journal

    return Journal(path, machine())


def journal_seeds() -> Sequence[bytes]:
    from tests.soak.small_files import journal_text

    return [journal_text()]


# --------------------------------------------------------------------------------- models


def config(path: Path) -> object:
    """Read a `config.json` without transformers, which has readers of its own."""
    from wattree.capture.huggingface import readable_model_types
    from wattree.capture.load import load_model, read_config

    kind = read_config(path).get("model_type")
    if kind not in readable_model_types():
        return None
    return load_model(path)


def graph(path: Path) -> object:
    from wattree.files import read_text
    from wattree.graph.serialize import graph_from_json

    return graph_from_json(read_text(path))


def graph_seeds() -> Sequence[bytes]:
    from wattree.capture import load_model
    from wattree.graph.serialize import graph_to_json

    return [graph_to_json(load_model(ROOT / "examples" / "small-llama")).encode()]


# --------------------------------------------------------------------------------- traces


def trace(path: Path) -> object:
    from tests.soak.small_files import write_partner
    from wattree.hardware import Cluster, load_fabric, load_node, load_site
    from wattree.interchange import Platform, replay

    write_partner(path.parent)
    cluster = Cluster(
        node=load_node("dgx-h100"),
        nodes=1,
        fabric=load_fabric("rail-optimised-ndr"),
        site=load_site("world-average"),
    )
    # As it was recorded, where there are times; then what a cluster makes of it.
    with suppress(JobError):
        replay(path.parent)
    return replay(path.parent, platform=Platform(cluster=cluster))


def trace_seeds() -> Sequence[bytes]:
    from tests.soak.small_files import traces

    return traces()


def own_trace(path: Path) -> object:
    from wattree.interchange import replay

    return replay(path.parent)


def own_trace_seeds() -> Sequence[bytes]:
    from tests.soak.small_files import own_trace

    return [own_trace()]


def groups(path: Path) -> object:
    from wattree.interchange.files import read_groups

    return read_groups(path)


# -------------------------------------------------------------------- texts within files


def _line_of(path: Path) -> str:
    from wattree.files import read_text

    return read_text(path).removesuffix("\n")


def formula(path: Path) -> object:
    from wattree.design.formula import formula_of

    numbers = {"a": 3.0, "b": 0.0, "width": 1e9}
    return formula_of(_line_of(path), frozenset(numbers)).value(numbers)


def quantity(path: Path) -> object:
    from wattree.units import UNITS, parse_quantity

    text = _line_of(path)
    dimension, _, written = text.partition("|")
    return parse_quantity(written, dimension if dimension in UNITS else "bytes")


def declaration(path: Path) -> object:
    from wattree.job.inputs import read_declaration

    declared = read_declaration(_line_of(path))
    return declared.shape(batch=2, sequence=16)


def slot(path: Path) -> object:
    from wattree.strategy.schedules.slot import read_slot

    return [read_slot(word) for word in _line_of(path).split()]


def environment(path: Path) -> object:
    from wattree.runtime.launch import launch_from

    pairs = (line.partition("=") for line in _line_of(path).splitlines())
    return launch_from({name: value for name, _, value in pairs})


def trial(path: Path) -> object:
    from wattree.runtime.tune.trial import TRIAL, trial_from

    return trial_from({TRIAL: _line_of(path)})


def environments() -> Sequence[bytes]:
    from tests.soak.small_files import ENVIRONMENTS

    return ENVIRONMENTS


def commands() -> Sequence[bytes]:
    return ["\n".join(shlex.split(line)).encode() for line in beyond.COMMANDS]
