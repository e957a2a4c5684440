"""Predicted against measured on an accelerator: its parts on a processor, the whole on a device."""

from __future__ import annotations

import io
import json
import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from benchmarks import gpu_energy
from benchmarks.gpu_energy import (
    TRAININGS,
    Row,
    Side,
    device_of,
    main,
    measured,
    predicted,
    stored,
    table,
)
from benchmarks.gpu_training import GROUP, CopiedBatches, Training, environment, train
from tests.measure.fakes import counter
from wattree.capture import load_model
from wattree.errors import UnknownNameError
from wattree.measure import MeterOptions
from wattree.measure.stages.attribution import stage_energies
from wattree.measure.track import Track
from wattree.trace import STAGES, PowerSeries, Run, RunOrigin, write_run

torch = pytest.importorskip("torch")

SMALL = Training(model="resnet-18", batch=2, image_size=32)
TINY = Training(
    model="vit-b-16",
    batch=2,
    image_size=32,
    options={"width": 32, "layers": 2, "heads": 2, "image_size": 32},
)
SMALL_DECODER = Training(
    model="llama-3.2-1b",
    batch=2,
    tokens=8,
    options={"hidden": 32, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 8, "ffn": 48}
    | {"vocab": 1000},
)
WARM_UP = 2


@pytest.fixture
def options(tmp_path: Path) -> MeterOptions:
    """Return a meter of 100 W, updated every millisecond."""
    at_s = tuple(index / 1000 for index in range(1, 60_000))
    series = PowerSeries(domain="node0/gpu0", at_s=at_s, watts=(100.0,) * len(at_s))
    path = tmp_path / "recorded.json"
    write_run(Run(name="old", origin=RunOrigin.MEASURED, wall_s=60.0, power=(series,)), path)
    return MeterOptions(replay=str(path))


def trained(training: Training, options: MeterOptions) -> Run:
    """Train on the processor, long enough for the meter however fast that is."""
    return train(
        training,
        device="cpu",
        seconds=1.5,
        meters=["replay"],
        options=options,
        warm_up=WARM_UP,
        group=WARM_UP,
    )


def test_a_training_is_measured_by_stage(options: MeterOptions) -> None:
    """Its warm-up is left out; time and energy of a step add up over its stages."""
    run = trained(TINY, options)
    side = measured(run)

    assert run.iterations > 0
    assert run.work.samples == TINY.batch
    assert run.work.gradient_bytes is not None
    assert sum(side.exposed_s.values()) == pytest.approx(side.step_s, rel=1e-9)
    assert 0 < side.exposed_s["materials"] < side.step_s
    assert side.energy_j == pytest.approx(100.0 * side.step_s, rel=0.05)


def test_the_decoder_has_the_weights_of_its_entry_and_learns() -> None:
    """A model of other sizes would be compared with the prediction of another one."""
    training = next(each for each in TRAININGS if each.tokens)
    with torch.device("meta"):
        count = sum(weight.numel() for weight in training.module().parameters())
    torch.manual_seed(0)
    model = SMALL_DECODER.module()
    inputs, targets = SMALL_DECODER.host_batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    losses = []
    for _ in range(20):
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    assert count == load_model(training.model).parameters
    assert inputs.nbytes + targets.nbytes == SMALL_DECODER.batch * SMALL_DECODER.tensor_bytes
    assert losses[0] == pytest.approx(math.log(1000), abs=1.0)
    assert losses[-1] < 0.5 * losses[0]


def test_a_decoder_sees_no_later_token() -> None:
    """Else its attention is not that which is predicted."""
    model = SMALL_DECODER.module().eval()
    inputs, _ = SMALL_DECODER.host_batch()
    changed = inputs.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 1000
    with torch.no_grad():
        first, second = (model(ids).unflatten(0, inputs.shape) for ids in (inputs, changed))

    assert torch.equal(first[:, :-1], second[:, :-1])
    assert not torch.equal(first[:, -1], second[:, -1])


def test_batches_end_when_their_time_is_over() -> None:
    """Warm-up has no limit; then seconds count, and the last group is given whole."""
    times = iter(range(100))
    host = [(torch.zeros(1), torch.zeros(1)), (torch.ones(1), torch.ones(1))]
    batches = CopiedBatches(
        host, "cpu", warm_up=2, seconds=4.0, group=2, clock=lambda: float(next(times))
    )
    found = [int(inputs) for inputs, _ in batches]

    # The clock is read before each group (0, 1, …), and once more when warm-up ends, at 2.
    assert found == [0, 1] * 5
    assert next(times) == 7


def test_a_group_is_copied_when_its_first_batch_is_asked_for() -> None:
    """So that a slow meter sees copying and computing apart."""
    copied: list[str] = []

    class Host:
        def to(self, device: str) -> str:
            copied.append(device)
            return device

    batches = CopiedBatches([(Host(), Host())], "there", warm_up=0, seconds=9, group=3, most=4)
    counts = [len(copied) for _ in batches]

    assert counts == [6, 6, 6, 12, 12, 12]


@pytest.mark.parametrize("seed", range(3))
def test_groups_are_what_a_slow_counter_tells_apart(seed: int) -> None:
    """Copying within 2 %, which is off by far more where every batch is copied by itself."""
    assert abs(error_of_copying(GROUP, seed)) < 0.02 < abs(error_of_copying(1, seed))


def error_of_copying(group: int, seed: int) -> float:
    """Return the relative error of the energy of materials.

    A minute of steps like ResNet-50's, under a counter that is updated every 100 ms, a few
    milliseconds early or late.
    """
    draw, track = np.random.default_rng(seed), Track(counter("gpu0"))
    copy_s, step_s, copy_w, step_w = 0.004, 0.041, 180.0, 380.0
    edges, joules = [0.0], [0.0]
    waits: tuple[list[float], list[float]] = ([], [])
    while edges[-1] < 60.0:
        waits[0].append(edges[-1])
        waits[1].append(edges[-1] + group * copy_s)
        for each_s, each_w in ((copy_s, copy_w), (step_s, step_w)):
            edges.append(edges[-1] + group * each_s)
            joules.append(joules[-1] + group * each_s * each_w)
    for at_s in np.arange(0.0, edges[-1], 0.1):
        seen_s = np.clip(at_s + 0.003 * draw.standard_normal(), 0.0, edges[-1])
        track.add(float(at_s), float(np.interp(seen_s, edges, joules)))
    found = stage_energies(track, {"materials": waits}, 0.1, edges[-1] - 0.2).energy_j
    assert found is not None
    inside = [(max(a, 0.1), min(b, edges[-1] - 0.2)) for a, b in zip(*waits, strict=True)]
    return found["materials"] / (copy_w * sum(max(0.0, b - a) for a, b in inside)) - 1


@pytest.mark.parametrize("training", TRAININGS, ids=lambda each: each.model)
def test_a_limit_makes_the_prediction_slower_and_its_power_lower(training: Training) -> None:
    """What the device does is predicted under the limit that it has; stages add up."""
    free = predicted(training, "h200-sxm-141gb", power_limit_w=700.0)
    above = predicted(training, "h200-sxm-141gb", power_limit_w=900.0)
    capped = predicted(training, "h200-sxm-141gb", power_limit_w=250.0)

    assert above == free
    assert capped.step_s > free.step_s
    assert capped.energy_j / capped.step_s < min(250.0, free.energy_j / free.step_s)
    for side in (free, capped):
        assert sum(side.exposed_s.values()) == pytest.approx(side.step_s, rel=1e-9)
        assert side.by_stage_j is not None
        assert sum(side.by_stage_j.values()) == pytest.approx(side.energy_j, rel=1e-9)
    copied_bytes = training.batch * training.tensor_bytes
    assert free.exposed_s["materials"] >= copied_bytes / 64e9  # the link's peak


def side_of(step_s: float, energy_j: float, *, told: bool = True) -> Side:
    """Return a step of which a quarter is materials."""
    shares = dict(zip(STAGES, (0.25, 0.75, 0.0), strict=True))
    return Side(
        step_s=step_s,
        exposed_s={stage: share * step_s for stage, share in shares.items()},
        energy_j=energy_j,
        by_stage_j={s: share * energy_j for s, share in shares.items()} if told else None,
    )


def test_the_table_shows_both_sides_and_what_the_meter_cannot_tell() -> None:
    """Errors are those of the prediction, relative to what was measured."""
    rows = [
        Row(training=TRAININGS[0], steps=9, predicted=side_of(0.1, 30), measured=side_of(0.08, 40)),
        Row(
            training=TRAININGS[1],
            steps=9,
            predicted=side_of(0.1, 30),
            measured=side_of(0.2, 30, told=False),
        ),
    ]
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(table(rows, "a device"))
    text = " ".join(console.export_text().replace("│", " ").split())

    whole = "vgg-16, 64 all 100.000 ms 80.000 ms +25.0% 30.000 J 40.000 J -25.0% 300 / 500"
    assert whole in text
    assert "materials 25.000 ms 50.000 ms -50.0% 7.500 J unknown" in text
    assert rows[0].as_json()["error"] == pytest.approx({"step_s": 0.25, "energy_j": -0.25})


def test_a_device_is_what_its_driver_calls_it() -> None:
    """Nothing similar takes the place of a device that the catalog does not have."""
    assert device_of("NVIDIA H200") == "h200-sxm-141gb"
    assert device_of("NVIDIA H100 80GB HBM3") == "h100-sxm-80gb"
    with pytest.raises(UnknownNameError, match="unknown device 'NVIDIA Z900'"):
        device_of("NVIDIA Z900")


class Nvml:
    """The part of `pynvml` that names a device's surroundings."""

    def nvmlInit(self) -> None:  # noqa: N802 - as the library has it
        """Do nothing."""

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        """Return what stands for a device."""
        return uuid

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
        """Return the driver's version; older libraries return bytes."""
        return b"570.1"

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: str) -> int:  # noqa: N802
        """Return the limit. [mW]"""
        assert handle == "GPU-abc"
        return 500_000


def test_a_result_names_device_driver_and_software(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it is never taken for one of other hardware."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="abc"))
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 90100)
    monkeypatch.setattr(torch.version, "cuda", "12.8")

    assert environment(0, Nvml()) == {
        "device": "NVIDIA H200",
        "power_limit_w": 500.0,
        "driver": "570.1",
        "cuda": "12.8",
        "cudnn": 90100,
        "torch": str(torch.__version__),
    }


def test_the_result_is_written_with_what_was_trained(
    tmp_path: Path,
    options: MeterOptions,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The whole line, with a processor in place of the device."""
    around = {"device": "NVIDIA H200", "power_limit_w": 700.0, "driver": "1", "torch": "2"}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setitem(sys.modules, "pynvml", ModuleType("pynvml"))
    monkeypatch.setattr(gpu_energy, "environment", lambda *_: around)
    monkeypatch.setattr(gpu_energy, "TRAININGS", (SMALL,))
    asked: list[Any] = []

    def on_processor(training: Training, **words: Any) -> Run:
        asked.append(words)
        return trained(training, options)

    monkeypatch.setattr(gpu_energy, "train", on_processor)
    out = tmp_path / "folder" / "result.json"
    assert main(["--seconds", "7", "--out", str(out)]) == 0
    result = json.loads(out.read_text())
    (row,) = result["rows"]

    assert asked == [{"device": "cuda:0", "seconds": 7.0, "meters": ("nvml",)}]
    assert {**result, **around} == result
    assert (result["known_as"], result["origin"]) == ("h200-sxm-141gb", "measured")
    assert row["training"]["model"] == "resnet-18"
    assert row["steps"] > 0
    assert row["measured"]["energy_j"] > 0
    assert "NVIDIA H200, driver 1, torch 2" in capsys.readouterr().out

    around["device"] = "NVIDIA Z900"
    assert main(["--out", str(tmp_path / "other.json")]) == 2
    said = capsys.readouterr().err
    assert "unknown device 'NVIDIA Z900'" in said
    assert "--known-as NAME" in said
    assert not (tmp_path / "other.json").exists()
    assert len(asked) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a device")
def test_without_a_device_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And it is said."""
    monkeypatch.setattr(gpu_energy, "RESULTS", tmp_path)
    assert main([]) == 0
    assert "sees no NVIDIA device: nothing is trained or written" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_result_is_printed_beside_what_is_predicted_now(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Measured figures are those of the file; copies out of pageable memory are near theirs."""
    path = gpu_energy.RESULTS / "gpu_energy_h200-sxm-141gb.json"
    found, rows = stored(path)
    code = main(["--from", str(path)])

    assert code == 0
    assert [row.as_json()["measured"] for row in rows] == [row["measured"] for row in found["rows"]]
    copied = [row for row in rows if row.training.tokens is None]
    sides = [[side.exposed_s["materials"] for side in (r.predicted, r.measured)] for r in copied]
    assert all(abs(ours / theirs - 1) < 0.2 for ours, theirs in sides)
    assert "NVIDIA H200, driver 580.159.04" in capsys.readouterr().out


@pytest.mark.gpu
def test_an_accelerator_is_predicted_and_measured(tmp_path: Path) -> None:
    """Some seconds of each model: the counter moves, and no figure is out of all bounds."""
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    out = tmp_path / "result.json"
    assert main(["--seconds", "10", "--out", str(out)]) == 0
    result = json.loads(out.read_text())

    assert [row["training"]["model"] for row in result["rows"]] == [t.model for t in TRAININGS]
    for row in result["rows"]:
        found = row["measured"]
        assert row["steps"] > 10
        assert sum(found["exposed_s"].values()) == pytest.approx(found["step_s"], rel=1e-6)
        assert 0 < found["energy_j"] / found["step_s"] < 1.2 * result["power_limit_w"]
        assert abs(row["error"]["step_s"]) < 1.0
        assert abs(row["error"]["energy_j"]) < 1.0
