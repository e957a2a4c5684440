"""Loading data: laws of any numbers, several jobs on a storage, plans and reports."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from tests.predict.loader_queue import Queue, steady_period_s
from tests.predict.loading_jobs import BATCH, DENSE, SLOW, drawn, job
from wattree.cost import load_calibration
from wattree.cost.loading import Loader, part_times_s
from wattree.errors import StrategyError
from wattree.hardware import load_node
from wattree.job import job_from_mapping, load_job
from wattree.predict import setting_of, simulate
from wattree.report import show_result
from wattree.search import plan

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "input-bound.yaml"


# ---------------------------------------------------------------- properties

QUANTITIES = st.floats(1e-4, 1e-1)


@settings(max_examples=25, deadline=None)
@given(
    workers=st.integers(1, 64),
    decode_s=QUANTITIES,
    sample_bytes=st.floats(1e3, 1e8),
    storage=st.floats(1e8, 1e11),
    cores=st.integers(1, 128),
    ranks=st.integers(1, 8),
    tp=st.sampled_from([1, 2, 4]),
)
def test_more_of_anything_is_never_slower(
    *,
    workers: int,
    decode_s: float,
    sample_bytes: float,
    storage: float,
    cores: int,
    ranks: int,
    tp: int,
) -> None:
    """More workers, cores or bandwidth can only help; more work or ranks can only hurt."""
    node = load_node("dgx-h100")

    def period_s(samples: float = 16.0, **changes: Any) -> float:
        given = {
            "workers": workers,
            "decode_s": decode_s,
            "sample_bytes": sample_bytes,
            "tensor_bytes": sample_bytes,
            "storage_bytes_per_s": storage,
            "cores": cores,
        }
        on_node = float(changes.pop("on_node", ranks))
        parts = part_times_s(
            Loader(**(given | changes)),
            node,
            np.array([samples]),
            on_node=np.array([on_node]),
            everywhere=np.array([on_node]),
            serves=np.array([float(tp)]),
        )
        return max(float(part[0]) for part in parts.values())

    here_s = period_s()
    assert period_s(workers=2 * workers) <= here_s
    assert period_s(cores=2 * cores) <= here_s
    assert period_s(storage_bytes_per_s=2 * storage) <= here_s
    assert period_s(device_decode_s=0.0) <= here_s
    assert period_s(decode_s=2 * decode_s) >= here_s
    assert period_s(on_node=2 * ranks) >= here_s
    assert period_s(samples=32.0) == pytest.approx(2 * here_s)


def played_over_predicted(queue: Queue) -> float:
    """Return how long a step of the queue takes, over what the slowest part of it does."""
    loader = Loader(
        workers=queue.workers,
        decode_s=queue.core_s,
        sample_bytes=queue.read_s * 1e9,
        storage_bytes_per_s=1e9,
        cores=queue.cores,
        prefetch=queue.prefetch,
    )
    parts = part_times_s(
        loader,
        load_node("dgx-h100"),
        np.array([float(queue.samples * queue.micro_batches)]),
        on_node=np.array([float(queue.ranks)]),
        everywhere=np.array([float(queue.ranks)]),
        serves=np.ones(1),
    )
    period_s = max(queue.own_s, *(float(part[0]) for part in parts.values()))
    return steady_period_s(queue, steps=60) / period_s


def test_a_queue_of_workers_reaches_the_period() -> None:
    """Played sample by sample over many steps, a loader is as fast as its slowest part.

    Parts lose a little by waiting for each other, most where two are nearly as slow.
    """
    ratios = np.array([played_over_predicted(drawn(number)) for number in range(30)])

    assert ratios.min() >= 0.95  # what is made ahead is counted with the steps before
    assert np.median(ratios) == pytest.approx(1, abs=0.02)
    assert np.quantile(ratios, 0.9) <= 1.15
    assert ratios.max() <= 1.25


# ---------------------------------------------------------------- several jobs, plans, reports


def test_neighbours_share_a_storage(tmp_path: Path) -> None:
    """Two jobs that read from one storage each get half of it."""
    loader = "{workers: 8, sample_bytes: 10 MB, storage: {bandwidth: 2 GB/s, per: cluster}}"
    text = (
        f"model: {{transformer: {DENSE}}}\n"
        f"data: {{sequence_length: 1024, global_batch: 32, loader: {loader}}}\n"
        "cluster: {node: dgx-h100, nodes: 2}\nstrategy: {preset: ddp, dp: 8}\n"
    )
    (tmp_path / "other.yaml").write_text(text + "place: {nodes: 1}\n")
    mine = tmp_path / "mine.yaml"
    mine.write_text(text + "place: {nodes: 0}\nneighbours: [{job: other.yaml, nodes: 1}]\n")
    effect = simulate(load_job(mine)).result.neighbours

    assert effect is not None
    own_s = 32 * 10e6 / 2e9
    assert effect.alone_s == pytest.approx(own_s, abs=0.06)
    assert effect.mean_s == pytest.approx(2 * own_s, rel=0.25)
    assert {links.kind for links in effect.links if links.delay_s > 0.05} == {"storage"}


def test_neighbours_that_differ_on_their_storage_are_refused(tmp_path: Path) -> None:
    """One storage has one bandwidth."""
    for name, rate in (("mine", "1 GB/s"), ("other", "2 GB/s")):
        loader = f"{{workers: 8, storage: {{bandwidth: {rate}, per: cluster}}}}"
        text = (
            f"model: {{transformer: {DENSE}}}\n"
            f"data: {{sequence_length: 1024, global_batch: 32, loader: {loader}}}\n"
            "cluster: {node: dgx-h100, nodes: 2}\nstrategy: {preset: ddp, dp: 8}\n"
        )
        beside = "neighbours: [{job: other.yaml, nodes: 1}]\n" if name == "mine" else ""
        (tmp_path / f"{name}.yaml").write_text(text + "place: {nodes: 0}\n" + beside)
    with pytest.raises(StrategyError) as caught:
        simulate(load_job(tmp_path / "mine.yaml"))

    assert "data.loader.storage: found jobs that say different things of the storage" in str(
        caught.value
    )


def test_a_plan_says_that_its_winner_waits_for_data() -> None:
    """No strategy helps then; the message names what would."""
    asked = replace(job(SLOW["workers"]), strategy="auto")
    found = plan(asked, top=1, max_devices=1)

    told = [line for line in found.explanation if line.startswith("It is input-bound: ")]
    assert len(told) == 1
    assert "worker processes give 49.99 samples/s" in told[0]
    assert " workers per device, not 2" in told[0]


@pytest.mark.parametrize("columns", [80])
def test_an_input_bound_job_reads_as_reviewed(golden: Any, columns: int) -> None:
    """The example is what people start from."""
    found = simulate(load_job(EXAMPLE)).result
    console = Console(file=io.StringIO(), width=columns, highlight=False, legacy_windows=False)
    show_result(found, console)
    assert isinstance(console.file, io.StringIO)
    assert found.materials is not None
    text = console.file.getvalue()
    loading = text[text.index("Where the step goes") : text.index("Memory of the fullest")]
    figures = json.dumps(asdict(found.materials), indent=2)
    lines = "".join(f"{line.rstrip()}\n" for line in loading.splitlines())

    golden.check("input_bound.txt", f"{lines}\n{figures}\n")


@pytest.mark.parametrize(
    ("model", "sizes", "expected"),
    [
        ("resnet50", {}, (4 * 3 * 224**2, 4 * 3 * 224**2)),
        ("resnet50", {"tensor_bytes": "1 MB"}, (1e6, 1e6)),
        ("resnet50", {"sample_bytes": "110 kB"}, (4 * 3 * 224**2, 110e3)),
        ("dlrm", {}, (4 * 13 + 8 * 26 + 4, 4 * 13 + 8 * 26 + 4)),  # dense, ids, a label
        ("bert-base", {}, (8 * 128, 8 * 128)),
    ],
)
def test_what_is_copied_of_a_sample_is_what_the_model_is_given(
    model: str, sizes: dict[str, str], expected: tuple[float, float]
) -> None:
    """Unless the job says otherwise; images are no single token."""
    data: dict[str, Any] = {"global_batch": BATCH, "loader": {"workers": 4, **sizes}}
    if model == "bert-base":
        data["sequence_length"] = 128
    asked = job_from_mapping(
        {"model": model, "data": data, "cluster": {"node": "dgx-h100"}, "strategy": "ddp"}
    )
    loader = setting_of(asked, load_calibration(None)).job.data.loader

    assert loader is not None
    assert (loader.tensor_bytes, loader.sample_bytes) == expected
