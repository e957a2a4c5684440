"""Meters whose logger writes a CSV file: of a node, of devices, of runs."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from pathlib import Path

import pytest

from tests.measure.fakes import Clock, FakeNvml
from wattree.errors import MeterError
from wattree.measure import MeterOptions, find_meters
from wattree.measure.meter import METERS, Meters
from wattree.measure.meters.csv_file import CsvMeter
from wattree.measure.meters.nvml import NvmlMeter
from wattree.measure.track import Track


def csv_track(path: Path, rows: str, *, header: str = "time,watts", shift_s: float = 0.0) -> Track:
    """Return what the rows of a file come to; Unix time 5000 is second 100 of the clock."""
    path.write_text(f"{header}\n{rows}")
    clock, wall = Clock(100.0), Clock(5000.0)
    meter = CsvMeter(path, shift_s=shift_s, clock=clock, wall_clock=wall)
    track = Track(meter.domains()[0])
    for reading in meter.read():
        track.add(reading.at_s, reading.value, line=reading.line, now_s=110.0)
    return track


def test_the_times_of_a_node_meter_are_aligned_with_the_clock(tmp_path: Path) -> None:
    """Its file has Unix time or ISO 8601; windows have the monotonic clock."""
    rows = "5000,100\n1970-01-01T01:23:21+00:00,300\n5002,300\n"
    track = csv_track(tmp_path / "m.csv", rows)

    assert track.between(100.0, 101.0) == pytest.approx(300)
    assert csv_track(tmp_path / "m.csv", rows, shift_s=10).first_s == pytest.approx(110)


def test_a_node_meter_whose_first_line_is_no_csv_is_refused(tmp_path: Path) -> None:
    """A carriage return inside a cell: a message with what was expected."""
    with pytest.raises(MeterError, match="expected"):
        csv_track(tmp_path / "m.csv", "", header="time\rwatts,x")


def test_a_node_meter_may_count_joules(tmp_path: Path) -> None:
    """Some meters have a counter."""
    rows = "5000,10\n5001,110\n5002,260\n"
    track = csv_track(tmp_path / "m.csv", rows, header="time, joules")

    assert track.between(100.0, 102.0) == pytest.approx(250)


def test_rows_that_say_nothing_are_left_out_and_noted(tmp_path: Path) -> None:
    """Loggers write gaps as empty cells, nan, or minus one."""
    rows = "5000,100\n5001,nan\n5002,\n5003,-1\nfoo,5\n5004,100\n5005,100\n"
    track = csv_track(tmp_path / "m.csv", rows)

    assert track.between(100.0, 105.0) == pytest.approx(500)
    assert any(
        note.startswith("reported values that are negative or no numbers (4 times")
        for note in track.notes(0.0, 200.0)
    )


def test_rows_that_are_wrong_are_named_by_line(tmp_path: Path) -> None:
    """Whoever mends the file must find them; a quote left open spoils its own row alone."""
    rows = '5000,100\n5001,100\nfoo,5\nbar,5\nbaz,5\n5002,100\n5001.5,100\n5003,9e9\n"5003,1\n'
    rows += "5003,100\n"
    track = csv_track(tmp_path / "m.csv", rows)
    lines = {note.partition(" (")[0]: note.rpartition("; ")[2] for note in track.notes(0.0, 200.0)}

    assert lines["reported values that are negative or no numbers"] == "lines 4 to 6, 10)"
    assert lines["had readings out of their order, left out"] == "line 8)"
    assert lines["reported more than 100,000 W, which is left out"] == "line 9)"
    assert track.between(100.0, 103.0) == pytest.approx(300)


def test_rows_ahead_of_the_clock_are_named_by_line(tmp_path: Path) -> None:
    """The row whose time was wrong, not those after it."""
    rows = "5000,100\n5001,100\n5002,100\n5900,100\n5003,100\n5004,100\n"
    (note,) = csv_track(tmp_path / "m.csv", rows).notes(0.0, 2000.0)

    assert note.startswith("had times ahead of the clock, left out")
    assert note.endswith("; line 5)")


@pytest.mark.parametrize("unit", [" W", ""])
def test_the_devices_of_a_log_of_nvidia_smi_are_read_each(tmp_path: Path, unit: str) -> None:
    """Whatever columns it has besides, with units or without, in one file or two after another."""
    path = tmp_path / "smi.csv"
    head = "timestamp, name, index, power.draw [W], utilization.gpu [%]\n"
    row = "1970/01/01 01:23:{}.000, NVIDIA H100, {}, {}.00{}, 98 %\n"
    rows = [row.format(20 + at, gpu, 400 + 100 * gpu, unit) for at in range(3) for gpu in (0, 3)]
    path.write_text("".join([head, *rows[:2], head, *rows[2:]]))
    at_s = datetime.fromisoformat("1970-01-01 01:23:20").timestamp()
    meter = CsvMeter(path, clock=Clock(100.0), wall_clock=Clock(at_s))
    tracks = {domain.name: Track(domain) for domain in meter.domains()}
    for reading in meter.read():
        tracks[reading.domain].add(reading.at_s, reading.value)

    found = {name: track.between(100.0, 102.0) for name, track in tracks.items()}
    assert found == pytest.approx({"gpu0": 800, "gpu3": 1400})
    assert [each.name for each in CsvMeter(path, devices=("3",)).domains()] == ["gpu3"]
    with pytest.raises(MeterError, match="found the devices 0, 3, expected one of 7"):
        CsvMeter(path, devices=("7",))


@pytest.mark.parametrize("name", ["1", "GPU-1abc", "GPU-1a"])
def test_a_device_of_a_log_has_its_index_and_its_uuid(name: str, tmp_path: Path) -> None:
    """A job sees devices by either; the order of the lines numbers none."""
    path = tmp_path / "smi.csv"
    rows = [f"1970/01/01 01:23:20.000, {gpu}, GPU-{gpu}abc, 400 W\n" for gpu in (3, 1)]
    path.write_text("".join(["timestamp, index, uuid, power.draw [W]\n", *rows]))

    assert [each.name for each in CsvMeter(path).domains()] == ["gpu3", "gpu1"]
    meter = CsvMeter(path, devices=(name,))
    assert [each.name for each in meter.domains()] == ["gpu1"]
    assert [each.value for each in meter.read()] == [400.0]


def test_a_log_of_devices_stands_for_their_own_meter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same joules by two ways are not added."""
    path = tmp_path / "smi.csv"
    path.write_text("timestamp, index, power.draw [W]\n2026/11/29 13:00:00.000, 0, 402.11 W\n")
    known = {"csv": METERS["csv"], "nvml": lambda _: Meters((NvmlMeter(FakeNvml([1])),))}
    none = defaultdict(lambda: lambda _: Meters(), known)
    monkeypatch.setattr("wattree.measure.discovery.METERS", none)

    assert [each.kind for each in find_meters().meters] == ["nvml"]
    (logged,) = find_meters(options=MeterOptions(csv=str(path))).meters
    assert logged.kind == "csv"


def test_a_run_of_codecarbon_has_its_energy(tmp_path: Path) -> None:
    """Its file has a line for each run, written at its end."""
    head = "timestamp,project_name,duration,emissions,energy_consumed"
    rows = "1970-01-01T01:23:40+00:00,a,20,0.1,0.001\n1970-01-01T01:25:00+00:00,a,40,0.1,0.002\n"
    track = csv_track(tmp_path / "emissions.csv", rows, header=head)

    assert track.between(100.0, 110.0) == pytest.approx(1800)
    assert track.between(120.0, 200.0) == pytest.approx(7200)


def test_lines_of_one_run_of_codecarbon_are_its_energy_so_far(tmp_path: Path) -> None:
    """`flush` writes totals; runs at the same time may each have counted all devices."""
    head = "timestamp,run_id,duration,energy_consumed"
    row = "1970-01-01T01:{}+00:00,{},{},{}\n"
    rows = row.format("24:20", "a", 60, 0.006) + row.format("25:20", "a", 120, 0.012)
    track = csv_track(tmp_path / "emissions.csv", rows, header=head)

    assert track.between(100.0, 220.0) == pytest.approx(43_200)
    assert track.between(100.0, 130.0) == pytest.approx(10_800)
    with pytest.raises(MeterError, match="runs a and b overlap"):
        csv_track(
            tmp_path / "emissions.csv", rows + row.format("25:21", "b", 120, 0.012), header=head
        )


def test_a_growing_file_is_read_on_and_half_a_line_waits(tmp_path: Path) -> None:
    """The logger writes while the command runs."""
    path = tmp_path / "m.csv"
    path.write_text("time,watts\n5000,100\n50")
    meter = CsvMeter(path, clock=Clock(100.0), wall_clock=Clock(5000.0))
    first = [reading.value for reading in meter.read()]
    with path.open("a") as file:
        file.write("01,250\n")

    assert first == [100.0]
    assert [(reading.at_s, reading.value) for reading in meter.read()] == [(101.0, 250.0)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "found the first line '', expected a first line 'time,watts' or 'time,joules'"),
        ("time,volts\n1,2\n", "found the first line 'time,volts', expected a first line"),
        (None, "It must exist before the command starts"),
    ],
)
def test_a_file_that_is_no_meters_is_refused(
    tmp_path: Path, content: str | None, message: str
) -> None:
    """At the start: not after an hour of training."""
    path = tmp_path / "m.csv"
    if content is not None:
        path.write_text(content)
    with pytest.raises(MeterError, match=message):
        CsvMeter(path)
