"""Every reader of what users write, with good files to start from."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.soak.draws import formula, rows, trace
from tests.soak.mutations import Pool, document_of
from tests.soak.outcome import LIMIT_S
from wattree.errors import JobError

__all__ = ["READERS", "ROOT", "Reader", "workplace"]

ROOT = Path(__file__).resolve().parents[2]
_CATALOG = ROOT / "src" / "wattree" / "hardware" / "catalog"
_TOPOLOGIES = ROOT / "tests" / "hardware" / "topology_files"
#: Of seeds more would only be alike; every so manieth of a folder's files is taken.
_MOST_SEEDS = 40


@dataclass(frozen=True)
class Reader:
    """One reader.

    Attributes:
        name: Of it, and of the folder of its cases.
        read: Takes the path of the file.
        seeds: Returns contents that are good.
        file: Where the file lies in the workplace; others that it names lie there, too.
        is_document: Whether files are YAML or JSON, whose values can be changed one by one.
        schema: Returns the JSON schema of such a file; None where there is none.
        draw: Returns a drawn file; None where good ones are changed alone.
        varied: How often a document's values are changed so that it may well stay good.
        weight: How many inputs it gets, against others.
        limit_s: What takes longer hangs. Steps of millions of tasks are simulated, not refused. [s]
    """

    name: str
    read: Callable[[Path], object]
    seeds: Callable[[], Sequence[bytes]]
    file: str = "input.yaml"
    is_document: bool = True
    schema: Callable[[], Mapping[str, Any]] | None = None
    draw: Callable[[random.Random], bytes] | None = None
    varied: float = 0.3
    weight: float = 1.0
    limit_s: float = LIMIT_S

    @cached_property
    def contents(self) -> Sequence[bytes]:
        """The good files."""
        return self.seeds()

    @cached_property
    def pool(self) -> Pool | None:
        """Keys and values of the good files; None where they are no documents."""
        if not self.is_document:
            return None
        return Pool([document_of(content) for content in self.contents])

    @cached_property
    def json_schema(self) -> Mapping[str, Any] | None:
        """The schema of its files."""
        return self.schema() if self.schema is not None else None


def workplace(folder: Path) -> Path:
    """Return a folder with the files that job and study files name."""
    shutil.copytree(
        ROOT / "examples", folder, ignore=shutil.ignore_patterns("*.png", "__pycache__")
    )
    return folder


def _files(*patterns: str, root: Path = ROOT) -> Callable[[], Sequence[bytes]]:
    def found() -> Sequence[bytes]:
        paths = sorted(path for pattern in patterns for path in root.glob(pattern))
        step = len(paths) // _MOST_SEEDS + 1
        return [path.read_bytes() for path in paths[::step]]

    return found


# ---------------------------------------------------------------------- jobs and studies


def _job(path: Path) -> object:
    from wattree.job import load_job

    return load_job(path)


def _job_schema() -> Mapping[str, Any]:
    from wattree.job.schema import JobFile

    return JobFile.model_json_schema()


def _study_schema() -> Mapping[str, Any]:
    from wattree.design.schema import StudyFile

    return StudyFile.model_json_schema()


def _study(path: Path) -> object:
    from wattree.design import load_study

    return load_study(path)


def _simulated(path: Path) -> object:
    """Predict a job as `wattree simulate` does: what a reader takes, the rest must take as well."""
    from wattree.job import load_job
    from wattree.predict import simulate

    job = load_job(path)
    if job.model.module is not None:
        return None  # would run Python
    return simulate(job)


# ------------------------------------------------------------------------------ hardware


def _hardware(kind: str) -> Callable[[Path], object]:
    def read(path: Path) -> object:
        from wattree import hardware

        return getattr(hardware, f"load_{kind}")(path)

    return read


def _topology(path: Path) -> object:
    from wattree.hardware.imports import read_topology

    return read_topology(
        path, nvlink_bytes_per_s=25e9, pcie_bytes_per_s=16e9, socket_bytes_per_s=10e9
    )


# ------------------------------------------------------------------ constants, rows, runs


def _calibration(path: Path) -> object:
    from wattree.cost import load_calibration

    return load_calibration(path)


def _calibration_seeds() -> Sequence[bytes]:
    whole = (ROOT / "src" / "wattree" / "cost" / "calibration.yaml").read_bytes()
    lines = whole.splitlines(keepends=True)
    few = [line for line in lines if line.startswith((b"constants:", b"  device.h100"))]
    return [b"base: shipped\n" + b"".join(few[:30]), b"base: shipped\nconstants: {}\n"]


def _energy_calibration(path: Path) -> object:
    from wattree.energy.calibration_file import read_calibration

    return read_calibration(path)


def _energy_calibration_seeds() -> Sequence[bytes]:
    from tests.soak.small_files import energy_calibration_text

    return [energy_calibration_text()]


def _hourly(path: Path) -> object:
    from wattree.job.hourly import read_hourly

    return read_hourly(path)


def _hourly_seeds() -> Sequence[bytes]:
    head = b"hour,gCO2e/kWh,USD/kWh\n"
    numbers = b"".join(b"%d,%d.5,0.%d\n" % (hour, 300 + hour, hour) for hour in range(30))
    times = b"".join(b"2026-01-31T%02d:00,%d\n" % (hour, 200 + hour) for hour in range(24))
    return [head + numbers, b"hour,gCO2e/kWh\n" + times]


def _rows(path: Path) -> object:
    from wattree.validation.rows import read_rows

    return read_rows(path)


def _rows_seeds() -> Sequence[bytes]:
    import wattree.validation

    data = Path(wattree.validation.__file__).parent / "data" / "rows.csv"
    lines = data.read_bytes().splitlines(keepends=True)
    return [b"".join([lines[0], *lines[at : at + 3]]) for at in range(1, len(lines), 15)]


def _validated(path: Path) -> object:
    from tests.soak.laws import rows_validated

    return rows_validated(path)


def _run(path: Path) -> object:
    from wattree.trace import read_run

    return read_run(path)


def _meter(path: Path) -> object:
    from wattree.measure.meters.csv_file import CsvMeter

    return CsvMeter(path, clock=lambda: 0.0, wall_clock=lambda: 1.7e9).read()


def _meter_seeds() -> Sequence[bytes]:
    return [
        b"time,watts\n1700000000,350.5\n1700000001,351\n",
        b"time,joules\n2026-01-31T13:00:00+01:00,10\n2026-01-31T13:00:01+01:00,20\n",
        b'"time","host","watts"\n1700000000,"a, b",350.5\n',
    ]


def _journal(path: Path) -> object:
    from tests.soak.small_files import machine
    from wattree.measure.profile.journal import Journal

    return Journal(path, machine())


def _journal_seeds() -> Sequence[bytes]:
    from tests.soak.small_files import journal_text

    return [journal_text()]


# --------------------------------------------------------------------------------- models


def _config(path: Path) -> object:
    """Read a `config.json` without transformers, which has readers of its own."""
    from wattree.capture.huggingface import readable_model_types
    from wattree.capture.load import CONFIG_LIMIT_BYTES, load_model
    from wattree.files import read_json

    kind = read_json(path, limit_bytes=CONFIG_LIMIT_BYTES).get("model_type")
    if kind not in readable_model_types():
        return None
    return load_model(path)


def _graph(path: Path) -> object:
    from wattree.files import read_text
    from wattree.graph.serialize import graph_from_json

    return graph_from_json(read_text(path))


def _graph_seeds() -> Sequence[bytes]:
    from wattree.capture import load_model
    from wattree.graph.serialize import graph_to_json

    return [graph_to_json(load_model(ROOT / "examples" / "small-llama")).encode()]


# --------------------------------------------------------------------------------- traces


def _trace(path: Path) -> object:
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


def _trace_seeds() -> Sequence[bytes]:
    from tests.soak.small_files import traces

    return traces()


def _own_trace(path: Path) -> object:
    from wattree.interchange import replay

    return replay(path.parent)


def _own_trace_seeds() -> Sequence[bytes]:
    from tests.soak.small_files import own_trace

    return [own_trace()]


def _groups(path: Path) -> object:
    from wattree.interchange.files import read_groups

    return read_groups(path)


# -------------------------------------------------------------------- texts within files


def _text_of(path: Path) -> str:
    from wattree.files import read_text

    return read_text(path).removesuffix("\n")


def _formula(path: Path) -> object:
    from wattree.design.formula import formula_of

    numbers = {"a": 3.0, "b": 0.0, "width": 1e9}
    return formula_of(_text_of(path), frozenset(numbers)).value(numbers)


def _quantity(path: Path) -> object:
    from wattree.units import UNITS, parse_quantity

    text = _text_of(path)
    dimension, _, written = text.partition("|")
    return parse_quantity(written, dimension if dimension in UNITS else "bytes")


def _declaration(path: Path) -> object:
    from wattree.job.inputs import read_declaration

    declared = read_declaration(_text_of(path))
    return declared.shape(batch=2, sequence=16)


def _slot(path: Path) -> object:
    from wattree.strategy.schedules.slot import read_slot

    return [read_slot(word) for word in _text_of(path).split()]


def _environment(path: Path) -> object:
    from wattree.runtime.launch import launch_from

    pairs = (line.partition("=") for line in _text_of(path).splitlines())
    return launch_from({name: value for name, _, value in pairs})


def _trial(path: Path) -> object:
    from wattree.runtime.tune.trial import TRIAL, trial_from

    return trial_from({TRIAL: _text_of(path)})


def _environments() -> Sequence[bytes]:
    from tests.soak.small_files import ENVIRONMENTS

    return ENVIRONMENTS


def _shards(path: Path) -> object:
    from wattree.runtime.convert.files import _facts

    return _facts(path.parent)


def _shards_seeds() -> Sequence[bytes]:
    from tests.soak.small_files import shards_text

    return [shards_text()]


def _written(*texts: str) -> Callable[[], Sequence[bytes]]:
    return lambda: [text.encode() for text in texts]


_JOBS = ("examples/*.yaml",)
READERS: Mapping[str, Reader] = {
    reader.name: reader
    for reader in (
        Reader("job", _job, _files(*_JOBS), schema=_job_schema, weight=4),
        Reader(
            "simulated", _simulated, _files(*_JOBS), schema=_job_schema, varied=0.9, limit_s=600.0
        ),
        Reader(
            "study",
            _study,
            _files("examples/design/*.yaml"),
            file="design/input.yaml",
            schema=_study_schema,
            weight=2,
        ),
        Reader("device", _hardware("device"), _files("devices/*.yaml", root=_CATALOG)),
        Reader("node", _hardware("node"), _files("nodes/*.yaml", root=_CATALOG), weight=2),
        Reader("fabric", _hardware("fabric"), _files("fabrics/*.yaml", root=_CATALOG)),
        Reader("site", _hardware("site"), _files("sites/*.yaml", root=_CATALOG)),
        Reader(
            "topology",
            _topology,
            _files("*.xml", "*.txt", root=_TOPOLOGIES),
            is_document=False,
            weight=2,
        ),
        Reader("calibration", _calibration, _calibration_seeds),
        Reader("energy-calibration", _energy_calibration, _energy_calibration_seeds, weight=0.2),
        Reader("hourly", _hourly, _hourly_seeds, is_document=False),
        Reader("rows", _rows, _rows_seeds, is_document=False, draw=rows, weight=2),
        Reader(
            "validated",
            _validated,
            _rows_seeds,
            is_document=False,
            draw=rows,
            weight=0.3,
            limit_s=600.0,
        ),
        Reader("run", _run, _files("validation/runs/*.json"), file="input.json"),
        Reader("meter", _meter, _meter_seeds, is_document=False),
        Reader("journal", _journal, _journal_seeds, file="input.jsonl", is_document=False),
        Reader(
            "config",
            _config,
            _files("validation/models/config/*/config.json"),
            "input.json",
            weight=2,
        ),
        Reader("graph", _graph, _graph_seeds, file="input.json", weight=0.5),
        Reader(
            "trace",
            _trace,
            _trace_seeds,
            file="trace/t.0.et",
            is_document=False,
            draw=trace,
            weight=3,
        ),
        Reader(
            "own-trace",
            _own_trace,
            _own_trace_seeds,
            file="own/t.0.et",
            is_document=False,
            draw=trace,
        ),
        Reader("groups", _groups, _written('{"1": [0, 1], "2": [2, 3]}'), file="input.json"),
        Reader(
            "formula",
            _formula,
            _written("a*2 + min(b, 3)", "sqrt(width)/log2(a)**2", "-ceil(a/3) - floor(1.5e9)"),
            file="input.txt",
            is_document=False,
            draw=formula,
        ),
        Reader(
            "quantity",
            _quantity,
            _written("bytes|80 GiB", "s|1,000.5 ms", "w|4e2 W", "usd_per_j|0.1 USD/kWh"),
            file="input.txt",
            is_document=False,
        ),
        Reader(
            "declaration",
            _declaration,
            _written("float32[batch, 3, 224, 224]", "int64[2*batch, seq] < 32_000"),
            file="input.txt",
            is_document=False,
        ),
        Reader(
            "slot",
            _slot,
            _written("F0 F1 B0 I0 W0 F10@1"),
            file="input.txt",
            is_document=False,
            weight=0.5,
        ),
        Reader("environment", _environment, _environments, file="input.txt", is_document=False),
        Reader(
            "trial",
            _trial,
            _written(json.dumps({"folder": "runs", "seconds": 2.0, "least_steps": 3})),
            file="input.json",
            weight=0.5,
        ),
        Reader("shards", _shards, _shards_seeds, file="shards/shards.json"),
    )
}
