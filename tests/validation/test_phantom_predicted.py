"""What the phantom benchmark predicts with: a profiled machine behind links."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.phantom_cases import RATE_MBIT_PER_S, SIZE, step_contestants
from benchmarks.phantom_contestants import payload_bytes
from benchmarks.phantom_predicted import Links, cluster_files, predicted_s
from tests.measure import profiles
from wattree.cost import load_calibration
from wattree.measure.profile.families import findings_of
from wattree.measure.profile.write import files_of, write_profile

_RATE = RATE_MBIT_PER_S * 1e6 / 8


@pytest.fixture(scope="module")
def calibration(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the calibration of a made-up machine of four ranks."""
    folder = tmp_path_factory.mktemp("profile")
    machine = profiles.machine(ranks=SIZE, device="made-up-4x1-on-2")
    journal = profiles.journal_of(folder / "measurements.jsonl", rounds=1, of=machine)
    files = files_of(folder / "calibration.yaml")
    write_profile(files, machine, findings_of(journal, machine, load_calibration()))
    return files.calibration


def _links(
    bytes_per_s: float, *, exchange_s: float = 0.0, exchange_s_per_byte: float = 0.0
) -> Links:
    return Links(
        latency_s=1e-3,
        reduce_latency_s=2e-3,
        bytes_per_s=bytes_per_s,
        exchange_s=exchange_s,
        exchange_s_per_byte=exchange_s_per_byte,
    )


@pytest.mark.parametrize("kind", ["phantom", "shared", "rows", "megatron"])
def test_slower_links_cost_the_payload_of_the_formula(
    kind: str, calibration: Path, tmp_path: Path
) -> None:
    """What the simulator sends is what layers send; without overlap all of it shows."""
    contestant = replace(step_contestants()[f"{kind}-off"], batch=512)
    times = []
    for share in (1.0, 0.25):
        folder = tmp_path / f"{share}"
        folder.mkdir()
        links = _links(share * _RATE)
        times.append(predicted_s(contestant, *cluster_files(calibration, folder, links)))

    slower_s = payload_bytes(contestant, SIZE) * 3 / _RATE
    assert times[1] - times[0] == pytest.approx(slower_s, rel=0.02)


def test_overlap_is_predicted_to_hide_some(calibration: Path, tmp_path: Path) -> None:
    """And a block-diagonal stack needs no links."""
    links = _links(_RATE, exchange_s=1e-3, exchange_s_per_byte=2e-9)
    files = cluster_files(calibration, tmp_path, links)
    found = {
        name: predicted_s(contestant, *files)
        for name, contestant in step_contestants().items()
        if name in {"block", "phantom", "phantom-off", "rows", "rows-off"}
    }

    assert found["block"] < found["phantom"] < found["phantom-off"]
    assert found["phantom"] < found["rows"] < found["rows-off"]
