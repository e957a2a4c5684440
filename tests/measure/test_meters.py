"""Each kind of meter, against a fake of what it asks."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.measure.fakes import Clock, FakeNvml, powercap_zone
from wattree.errors import MeterError, UnknownNameError
from wattree.measure import MeterOptions, Quantity, Track, find_meters
from wattree.measure.meter import METERS, Meters
from wattree.measure.meters import (
    AmdMeter,
    AppleMeter,
    CsvMeter,
    EstimateMeter,
    NvmlMeter,
    PowercapMeter,
    ProcessorTimeMeter,
    ReplayMeter,
)
from wattree.measure.meters.processor_time import ProcessorTime
from wattree.trace import PowerSeries, Run, RunOrigin, write_run


def values(meter: Any) -> dict[str, float]:
    """Return the next reading of each domain."""
    return {reading.domain: reading.value for reading in meter.read()}


def test_nvidia_devices_are_read_by_their_counter() -> None:
    """Millijoules become joules; a device is known by its UUID, not by its number."""
    meter = NvmlMeter(FakeNvml([1500, 2500]))
    energy = [domain for domain in meter.domains() if domain.quantity is Quantity.ENERGY]

    assert [(d.name, d.device, d.title, d.rated_w) for d in energy] == [
        ("gpu0", "GPU-0abc", "Card 0", 300.0),
        ("gpu1", "GPU-1abc", "Card 1", 300.001),
    ]
    assert values(meter) == {"gpu0": 1.5, "gpu1": 2.5, "accelerator0": 0.4, "accelerator1": 0.4}


def test_nvidia_devices_without_a_counter_are_integrated_and_say_so() -> None:
    """Before Volta there is a power alone."""
    meter = NvmlMeter(FakeNvml([None]))

    assert meter.domains()[0].quantity is Quantity.POWER
    assert "before Volta" in meter.domains()[0].note
    assert values(meter)["gpu0"] == 70.0


@pytest.mark.parametrize("name", ["1", "GPU-1abc", "GPU-1a", "1abc"])
def test_the_devices_that_a_job_sees_are_read(name: str) -> None:
    """Others on the machine belong to other jobs."""
    assert NvmlMeter(FakeNvml([1, 2]), devices=(name,)).domains()[0].name == "gpu1"


def test_a_number_is_not_the_beginning_of_another_devices_uuid() -> None:
    """One in sixteen UUIDs begins with the digit of another device."""
    nvml = FakeNvml([1, 2, 3])
    nvml.uuids = ["GPU-1abc", "GPU-2abc", "GPU-0abc"]

    names = [NvmlMeter(nvml, devices=(each,)).domains()[0].name for each in ("0", "1", "2")]
    assert names == ["gpu0", "gpu1", "gpu2"]
    assert NvmlMeter(nvml, devices=("1abc",)).domains()[0].name == "gpu0"


def test_a_device_without_any_meter_leaves_the_others_read() -> None:
    """A display card and an accelerator."""
    nvml = FakeNvml([1500, None])
    nvml.powerless = {1}
    meter = NvmlMeter(nvml)

    assert [each.name for each in meter.domains()] == ["gpu0", "accelerator0"]
    assert meter.missing[0].startswith("gpu1: Card 1 reports neither energy nor power (")


def test_a_replay_takes_the_place_of_what_the_machine_has(tmp_path: Path) -> None:
    """As its help says: played instead."""
    path = tmp_path / "old.json"
    series = PowerSeries(domain="node0/gpu0", at_s=(1.0, 2.0), watts=(50.0, 60.0))
    write_run(Run(name="old", origin=RunOrigin.MEASURED, wall_s=2.0, power=(series,)), path)
    found = find_meters(options=MeterOptions(replay=str(path)))

    assert [meter.kind for meter in found.meters] == ["replay", "processor time"]


def test_a_device_that_is_not_there_is_refused() -> None:
    """A typing error must not end in another device's energy."""
    with pytest.raises(MeterError, match="no NVIDIA device is called '5'; there are: 0 "):
        NvmlMeter(FakeNvml([1]), devices=("5",))


def test_a_lost_nvidia_device_is_an_error_with_its_reason() -> None:
    """The window keeps what was read and says why it ends."""
    nvml = FakeNvml([1])
    meter = NvmlMeter(nvml)
    nvml.lost = True

    with pytest.raises(MeterError, match="gpu0: GPU is lost"):
        meter.read()


class AmdGpu(SimpleNamespace):
    """A device as zeus has it."""

    def supports_get_total_energy_consumption(self) -> bool:
        """Return whether its counter is to be believed."""
        return bool(self.counts)

    def get_total_energy_consumption(self) -> int:
        """Return the counter. [mJ]"""
        return 4200

    def get_average_power_usage(self) -> int:
        """Return the power. [mW]"""
        return 99_000

    def get_name(self) -> str:
        """Return what people call it."""
        return "Instinct"


def test_amd_devices_are_read_by_counter_or_power() -> None:
    """Some counters are wrong, which the library finds out."""
    gpus = [AmdGpu(gpu_index=0, counts=True), AmdGpu(gpu_index=1, counts=False)]
    meter = AmdMeter(gpus, failure=OSError)

    assert [domain.quantity for domain in meter.domains()] == [Quantity.ENERGY, Quantity.POWER]
    assert values(meter) == {"gpu0": 4.2, "gpu1": 99.0}


def test_apple_parts_without_a_counter_are_missing() -> None:
    """They are named, and no zeros."""
    found = SimpleNamespace(cpu_total_mj=1000, gpu_mj=500, ane_mj=None, dram_mj=250)
    meter = AppleMeter(SimpleNamespace(get_total_energy_consumption=lambda: found))

    assert values(meter) == {"cpu0": 1.0, "gpu0": 0.5, "dram0": 0.25}
    assert meter.missing == ("ane0: this chip has no counter of it",)


def test_the_kernels_counters_of_packages_and_memory(tmp_path: Path) -> None:
    """Cores lie within their package, `psys` contains it: neither is read in addition."""
    for number in (0, 1):
        zone = powercap_zone(
            tmp_path / f"intel-rapl:{number}", f"package-{number}", energy_uj=2_000_000 + number
        )
        powercap_zone(zone / f"intel-rapl:{number}:0", "core", energy_uj=9)
    powercap_zone(tmp_path / "intel-rapl:0/intel-rapl:0:1", "dram", energy_uj=500_000)
    powercap_zone(tmp_path / "intel-rapl:2", "psys", energy_uj=9)
    meter = PowercapMeter(tmp_path)

    assert values(meter) == pytest.approx({"cpu0": 2.0, "dram0": 0.5, "cpu1": 2.000001})
    assert [domain.wraps_j for domain in meter.domains()] == [1e-3] * 3
    assert meter.missing == ("dram1: this processor has no counter of its memory",)


def test_counters_that_root_alone_may_read_are_missing_with_the_way_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Since Linux 5.10; tests may run as root, so the refusal is executed."""
    zone = powercap_zone(tmp_path / "intel-rapl:0", "package-0")
    read_text = Path.read_text

    def refusing(path: Path, **options: Any) -> str:
        if path.name == "energy_uj":
            raise PermissionError
        return read_text(path, **options)

    monkeypatch.setattr(Path, "read_text", refusing)
    meter = PowercapMeter(tmp_path)

    assert meter.domains() == ()
    assert meter.missing[0] == (
        f"cpu0: {zone}/energy_uj may be read by root alone (since Linux 5.10); run as root, or "
        f"once: sudo chmod a+r {zone}/energy_uj"
    )


def test_a_kernel_without_counters_is_said(tmp_path: Path) -> None:
    """Virtual machines and containers."""
    assert PowercapMeter(tmp_path / "none").missing[0].startswith("cpu0: the kernel shows no")


def csv_track(path: Path, rows: str, *, header: str = "time,watts", shift_s: float = 0.0) -> Track:
    """Return what the rows of a file come to; Unix time 5000 is second 100 of the clock."""
    path.write_text(f"{header}\n{rows}")
    clock, wall = Clock(100.0), Clock(5000.0)
    meter = CsvMeter(path, shift_s=shift_s, clock=clock, wall_clock=wall)
    track = Track(meter.domains()[0])
    for reading in meter.read():
        track.add(reading.at_s, reading.value, line=reading.line)
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


def test_rows_ahead_of_those_after_them_are_named_by_line(tmp_path: Path) -> None:
    """The row whose time was wrong, not the one that showed it."""
    rows = "5000,100\n5001,100\n5002,100\n5900,100\n5003,100\n5004,100\n"
    (note,) = csv_track(tmp_path / "m.csv", rows).notes(0.0, 2000.0)

    assert note.startswith("had times ahead of those after them, left out")
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


def test_a_run_is_replayed_as_its_time_comes() -> None:
    """And marked: its joules are not this machine's."""
    series = PowerSeries(domain="node0/gpu0", at_s=(1.0, 2.0, 3.0), watts=(50.0, 60.0, 70.0))
    clock = Clock(10.0)
    run = Run(name="old", origin=RunOrigin.MEASURED, wall_s=3.0, power=(series,))
    meter = ReplayMeter(run, clock=clock)
    meter.read()
    clock.now_s = 12.5

    assert [(r.at_s, r.value) for r in meter.read()] == [(11.0, 50.0), (12.0, 60.0)]
    assert meter.domains()[0].is_estimate


def test_a_run_without_power_cannot_be_replayed() -> None:
    """Energies have no course."""
    with pytest.raises(MeterError, match="the run 'x' has no power series to replay"):
        ReplayMeter(Run(name="x", origin=RunOrigin.MEASURED, wall_s=3.0))


def stat(path: Path, *, busy: int, idle: int) -> Path:
    """Write a file as the kernel has it; processor 1 is always busy."""
    path.write_text(f"cpu  9 9 9 9\ncpu0 {busy} 0 0 {idle} 0 0 0 0 0 0\ncpu1 {busy * 9} 0 0 0\n")
    return path


def test_processor_time_is_that_of_the_processors_in_use(tmp_path: Path) -> None:
    """A job bound to some processors is not charged for the others."""
    path = stat(tmp_path / "stat", busy=100, idle=100)
    meter = ProcessorTimeMeter(ProcessorTime(path, processors=[0]))
    meter.read()
    stat(path, busy=130, idle=170)

    assert values(meter) == {"cpu": 0.3}


def test_the_estimate_goes_from_idle_to_full_and_is_marked(tmp_path: Path) -> None:
    """Constants are medians of published servers: 1.2273 and 6.7449 W per core."""
    path = stat(tmp_path / "stat", busy=100, idle=100)
    meter = EstimateMeter(ProcessorTime(path, processors=[0]), cores=10)
    at_rest = values(meter)["host"]
    stat(path, busy=200, idle=100)

    assert at_rest == pytest.approx(12.273)
    assert values(meter)["host"] == pytest.approx(67.449)
    assert meter.domains()[0].is_estimate
    assert "609 published servers" in meter.domains()[0].note


def test_the_estimate_takes_the_rated_power_where_it_is_known(tmp_path: Path) -> None:
    """Servers of one rating differ less than servers of one core count."""
    path = stat(tmp_path / "stat", busy=100, idle=100)
    meter = EstimateMeter(ProcessorTime(path, processors=[0]), cores=10, tdp_w=200.0)

    assert values(meter)["host"] == pytest.approx(41.28)
    assert meter.domains()[0].rated_w == 200.0


def test_an_unknown_meter_is_refused_with_those_there_are() -> None:
    """And the nearest one."""
    with pytest.raises(UnknownNameError, match="unknown meter 'nvlm'; did you mean 'nvml'"):
        find_meters(["nvlm"])


def test_a_meter_that_was_asked_for_and_is_not_there_is_refused() -> None:
    """An estimate does not silently take its place."""
    with pytest.raises(MeterError, match=r"--meter apple: this machine has no such device"):
        find_meters(["apple"])
