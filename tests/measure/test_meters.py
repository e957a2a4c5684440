"""Each kind of meter, against a fake of what it asks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.measure.fakes import Clock, FakeNvml, powercap_zone
from wattree.errors import MeterError, UnknownNameError
from wattree.measure import MeterOptions, find_meters
from wattree.measure.meter import Quantity
from wattree.measure.meters.amd import AmdMeter
from wattree.measure.meters.apple import AppleMeter
from wattree.measure.meters.estimate import EstimateMeter
from wattree.measure.meters.nvml import NvmlMeter
from wattree.measure.meters.powercap import PowercapMeter
from wattree.measure.meters.processor_time import ProcessorTime, ProcessorTimeMeter
from wattree.measure.meters.replay import ReplayMeter
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
