"""Fits of a profile: what made the times is what is found, and files say it to the predictions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.measure import profiles
from wattree.closed_form.degrees import Degrees
from wattree.closed_form.strategies import estimate
from wattree.cost import load_calibration
from wattree.cost.convolution import implicit_matmul_time_s
from wattree.cost.convolution_rates import convolution_rates
from wattree.errors import RunError
from wattree.hardware import Precision, load_device, load_node
from wattree.job import Job, job_from_mapping
from wattree.measure.profile.families import Findings, findings_of
from wattree.measure.profile.journal import Journal
from wattree.measure.profile.points import Pass, PointFamily, ProfilePoint, points_for
from wattree.measure.profile.write import files_of, write_profile
from wattree.predict import predicted, setting_of
from wattree.strategy import StrategyOptions


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    """Return what exact times say."""
    path = tmp_path_factory.mktemp("exact") / "m.jsonl"
    return findings_of(profiles.journal_of(path, rounds=1), profiles.machine(), load_calibration())


def test_exact_times_give_back_what_made_them(findings: Findings) -> None:
    """Every constant times its peak is the rate that the times were made with, to 1 %."""
    found = {name: constant.value for name, constant in findings.constants.items()}
    memory, peak = findings.memory_bytes_per_s, findings.peak_flop_per_s["fp32"]
    assert findings.bus_bytes_per_s is not None

    assert found["convolution.fp32"] * peak == pytest.approx(profiles.RATE, rel=0.01)
    assert found["product_ramp"] == pytest.approx(profiles.RAMP, rel=0.05)
    assert found["product_row_ramp"] == pytest.approx(profiles.ROWS, rel=0.05)
    assert found["product_bandwidth"] * memory == pytest.approx(profiles.PRODUCT_MEMORY, rel=0.02)
    assert found["product_aliased"] == pytest.approx(profiles.ALIASED, rel=0.01)
    assert found["library_bandwidth"] * memory == pytest.approx(profiles.STREAM, rel=0.01)
    assert found["cached_bandwidth"] * memory == pytest.approx(profiles.CACHED, rel=0.01)
    assert found["fresh_s_per_byte"] == pytest.approx(profiles.FRESH, rel=0.01)
    assert found["general.memory_efficiency"] * memory == pytest.approx(profiles.SUM_RATE, rel=0.01)
    assert found["update_bandwidth.sgd"] * memory == pytest.approx(profiles.UPDATE_RATE, rel=0.01)
    assert found["dispatch_s"] == pytest.approx(profiles.LAYER_S / 5, rel=0.01)
    assert found["family.pytorch.step_overhead_s"] == pytest.approx(profiles.STEP_S, rel=0.01)
    bus = findings.bus_bytes_per_s
    assert found["alpha_s"] == pytest.approx(profiles.ALPHA_S, rel=0.01)
    assert found["alpha_reduce_s"] == pytest.approx(profiles.ALPHA_REDUCE_S, rel=0.01)
    assert found["exchange_s"] == pytest.approx(profiles.EXCHANGE_S, rel=1e-6)
    assert found["exchange_s_per_byte"] == pytest.approx(profiles.EXCHANGE_S_PER_BYTE, rel=1e-6)
    assert found["slice_rate"] == pytest.approx(profiles.SLICE_RATE)
    assert found["bus_efficiency"] * bus == pytest.approx(profiles.GATHER, rel=0.01)
    assert found["bus_reduce_efficiency"] * bus == pytest.approx(profiles.REDUCE, rel=0.01)
    assert findings.collate_s == pytest.approx(profiles.SAMPLE_S, rel=0.01)
    assert found["memory_context_bytes"] == profiles.RESIDENT


def test_the_rate_beside_each_other_explains_the_time_at_once(findings: Findings) -> None:
    """8 ms at rate r side by side, then 2 ms alone, are 12 ms: r = 0.8."""
    assert findings.constants["general.overlap_compute_rate"].value == pytest.approx(0.8)


def test_exact_times_are_predicted_where_the_fit_never_saw_them(findings: Findings) -> None:
    """Each half of the points tells the other."""
    held_out = [fit.held_out for fit in findings.fits if fit.held_out is not None]

    assert len(held_out) >= 5
    assert max(held_out) < 0.01


def test_held_out_errors_show_the_noise(tmp_path: Path) -> None:
    """Times that are off by 10 % are predicted about as badly, and no better on unseen points."""
    journal = profiles.journal_of(tmp_path / "m.jsonl", noise=0.1, rounds=1)
    fits = findings_of(journal, profiles.machine(), load_calibration()).fits
    products = next(fit for fit in fits if fit.family == "matmuls")
    assert products.held_out is not None

    assert 0.04 < products.error < 0.12
    assert products.error < products.held_out < 0.2


def test_one_disturbed_point_does_not_bend_a_fit(tmp_path: Path) -> None:
    """A point that took ten times as long is an outlier, not a property of the machine."""
    journal = profiles.journal_of(tmp_path / "m.jsonl", rounds=1)
    first = journal.measured(PointFamily.PRODUCT)[4]
    slow = replace(first.rounds[0], busy_s=(10 * first.seconds,) * 2, wall_s=(1e9,) * 2)
    first.rounds[0] = slow
    found = findings_of(journal, profiles.machine(), load_calibration())
    share = found.constants["convolution.fp32"].value * found.peak_flop_per_s["fp32"]

    assert share == pytest.approx(profiles.RATE, rel=0.05)


def test_a_family_without_measurements_is_named(tmp_path: Path) -> None:
    """Half a journal says which half is missing."""
    journal = profiles.journal_of(tmp_path / "m.jsonl", rounds=1)
    for key in [
        key for key, each in journal.times.items() if each.point.kind is PointFamily.UPDATE
    ]:
        del journal.times[key]

    with pytest.raises(RunError, match="no measurement of kind 'update'"):
        findings_of(journal, profiles.machine(), load_calibration())


def test_written_files_price_products_as_they_were_timed(
    tmp_path: Path, findings: Findings
) -> None:
    """The way round by files, with the project's own reader and formula, changes nothing."""
    files = files_of(tmp_path / "cal.yaml")
    write_profile(files, profiles.machine(), findings)
    rates = convolution_rates(
        load_device(files.device), Precision.FP32, load_calibration(files.calibration)
    )
    for rows, inner, columns in ((64, 2048, 2048), (64, 8192, 2048), (32, 300, 70)):
        for which in Pass:
            point = ProfilePoint(
                kind=PointFamily.PRODUCT, name=which, rows=rows, inner=inner, columns=columns
            )
            m, n, k = (np.array([float(x)]) for x in point.matmul)
            found = implicit_matmul_time_s(m=m, n=n, k=k, groups=np.ones(1), rates=rates)

            assert found[0] == pytest.approx(profiles.true_s(point), rel=0.02)


def job_on(node: Path, **changes: object) -> Job:
    """Return two data-parallel ranks of a small network on the machine."""
    return job_from_mapping(
        {
            "model": "ffn",
            "data": {"global_batch": 128},
            "precision": "fp32",
            "software": "pytorch",
            "cluster": {"node": str(node)},
            "strategy": {"preset": "ddp", "dp": 2},
            **changes,
        }
    )


def test_a_job_names_the_machine_and_its_figures_say_what_they_rest_on(
    tmp_path: Path, findings: Findings
) -> None:
    """The loop's first turn: profile, then simulate. Evidence is that of the file."""
    files = files_of(tmp_path / "cal.yaml")
    written = write_profile(files, profiles.machine(), findings)
    node = load_node(files.node)
    job = job_on(files.node, optimizer="sgd")
    assert not isinstance(job.strategy, str)
    result = predicted(setting_of(job, load_calibration(files.calibration)), job.strategy).result
    moved = 24.0 * result.parameters  # counted for an update of eager PyTorch

    assert set(written) == {files.calibration, files.device, files.node}
    assert (node.devices, node.device.name) == (2, "made-up-2x1-on-2")
    assert result.provenance["step_time_s"].evidence == "fitted"
    assert result.time_s.optimizer == pytest.approx(moved / profiles.UPDATE_RATE, rel=0.02)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adamw"])
def test_screening_agrees_with_playing_on_a_profiled_machine(
    tmp_path: Path, findings: Findings, optimizer: str
) -> None:
    """New pages, blocking calls, caches and updates are priced alike in both."""
    files = files_of(tmp_path / "cal.yaml")
    write_profile(files, profiles.machine(), findings)
    job = job_on(files.node, optimizer=optimizer)
    options = job.strategy
    assert isinstance(options, StrategyOptions)
    setting = setting_of(job, load_calibration(files.calibration))
    executed = predicted(setting, options).result
    found = estimate(setting, options, Degrees.of([options], job.data.global_batch))

    assert float(found.step_time_s[0]) == pytest.approx(executed.step_time_s, rel=0.025)


def test_links_slower_than_memory_leave_more_to_computing(
    tmp_path: Path, findings: Findings
) -> None:
    """What a byte takes of the processors is measured; a slow network asks for it less often."""
    files = files_of(tmp_path / "cal.yaml")
    write_profile(files, profiles.machine(), findings)
    node = files.node.read_text()
    slow = node.replace(node.partition("nic_bandwidth: {value: ")[2].split(",")[0], '"25 MB/s"')
    files.node.write_text(slow)
    calibration = load_calibration(files.calibration)
    cluster = {"node": str(files.node), "nodes": 2}
    one = setting_of(job_on(files.node), calibration).rates
    two = setting_of(
        job_on(files.node, cluster=cluster, strategy={"preset": "ddp", "dp": 4}), calibration
    ).rates

    assert one.overlap_compute_rate == pytest.approx(0.8)
    assert 0.99 < two.overlap_compute_rate < 1.0
    assert two.overlap_communication_rate == 1.0


def test_a_gpu_keeps_the_kernels_that_ship(tmp_path: Path) -> None:
    """On a device of the catalog only shares are fitted; the node names it."""
    own = profiles.machine(
        device="h200-sxm-141gb",
        in_catalog=True,
        kind="gpu",
        ranks=1,
        precisions=("bf16", "fp32"),
    )
    journal = Journal(tmp_path / "cal.measurements.jsonl", own)
    device = load_device("h200-sxm-141gb")
    for point in points_for(precisions=own.precisions, ranks=1, accelerator=True):
        took = profiles.true_s(point)
        if point.kind is PointFamily.PRODUCT:
            rates = convolution_rates(device, Precision(point.precision), load_calibration())
            m, n, k = (np.array([float(x)]) for x in point.matmul)
            shipped = implicit_matmul_time_s(m=m, n=n, k=k, groups=np.ones(1), rates=rates)
            took = 1.25 * float(shipped[0])
        journal.add(point, 0, profiles.PointMeasurement(wall_s=(took,), busy_s=(0.0,)))
    found = findings_of(journal, own, load_calibration())
    shipped = load_calibration().device(device, "convolution.bf16")

    assert "product_ramp" not in found.constants
    assert "family.pytorch.module_launch_s" in found.constants
    assert found.constants["convolution.bf16"].value == pytest.approx(shipped / 1.25, rel=0.15)
    files = files_of(tmp_path / "cal.yaml")
    assert files.device not in write_profile(files, own, found)
    assert load_node(files.node).device.name == "h200-sxm-141gb"
