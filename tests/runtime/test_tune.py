"""How many processes a device is given: the search over made-up machines, trials of a script."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from tests.distributed.warm import warm_python
from wattree.errors import RunError
from wattree.report.train_text import show_choice
from wattree.runtime.launch.options import LaunchOptions
from wattree.runtime.launch.script import reserved_port
from wattree.runtime.tune import Choice, RampLimits, TrialRow, TrialSetting, ramp
from wattree.runtime.tune.measured import TrialOptions, Trials
from wattree.runtime.tune.trial import TRIAL, Trial, trial_from

ROOMY = RampLimits(free_bytes=1e15, clients=16, cores=8)
ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).parent / "scripts" / "waits.py"


class Machine:
    """Rates by number of processes, with a factor for other settings.

    Args:
        rates: From one process on; the last holds for all beyond.
        workers: Loader workers of the job.
        compiled: What compiling gains.
        memory: Of a process. [B]
    """

    def __init__(
        self, *rates: float, workers: int = 0, compiled: float = 1.0, memory: float = 1e9
    ) -> None:
        self._rates, self._workers, self._compiled = rates, workers, compiled
        self._memory = memory
        self.asked: list[TrialSetting] = []

    def __call__(self, setting: TrialSetting) -> TrialRow:
        """Return the row of a setting."""
        self.asked.append(setting)
        rate = self._rates[min(setting.processes, len(self._rates)) - 1]
        rate *= self._compiled if setting.compiles else 1.0
        workers = self._workers if setting.loader_workers is None else setting.loader_workers
        if self._workers:
            rate *= workers / self._workers
        return TrialRow(
            setting=setting,
            step_s=32 * setting.batch_factor / rate,
            rate=rate,
            samples=32.0 * setting.batch_factor,
            memory_bytes=self._memory,
            workers=workers,
        )


def test_the_fastest_number_is_chosen() -> None:
    """Up to where more no longer helps, and not a trial further than two."""
    machine = Machine(100, 150, 170, 160, 150, 140)
    found = ramp(machine, ROOMY)
    assert found.chosen == TrialSetting(processes=3)
    assert found.gain == pytest.approx(1.7)
    assert max(setting.processes for setting in machine.asked) == 6
    assert machine.asked[0] == TrialSetting()


def test_one_process_is_kept_where_it_is_best() -> None:
    """Slower, as fast, and faster by less than short trials tell."""
    for second in (60.0, 100.0, 102.0):
        found = ramp(Machine(100, second), ROOMY)
        assert found.chosen == TrialSetting()
        assert found.gain == 1.0
        assert found.why


def test_a_lucky_trial_is_not_believed() -> None:
    """What only the first trial says does not stand when measured again in turns."""
    lucky = {1: [100.0], 2: [130.0, 99.0, 101.0]}

    def measure(setting: TrialSetting) -> TrialRow:
        rates = lucky.get(setting.processes, [50.0])
        rate = rates.pop(0) if len(rates) > 1 else rates[0]
        return TrialRow(setting=setting, step_s=1.0, rate=rate, samples=rate, memory_bytes=1.0)

    found = ramp(measure, replace(ROOMY, switches=False))
    assert found.chosen == TrialSetting()
    assert "again in turns" in " ".join(found.why)


@settings(max_examples=60, deadline=None)
@given(
    rates=st.lists(st.floats(1, 1e4), min_size=1, max_size=16),
    buffer=st.integers(1, 20),
    clients=st.integers(1, 20),
)
def test_trials_stay_within_memory_and_clients(
    rates: list[float], buffer: int, clients: int
) -> None:
    """No trial has more processes than there is room for; the choice is no slower than one."""
    machine = Machine(*rates, memory=0.9e9)
    found = ramp(machine, RampLimits(free_bytes=buffer * 1e9 + 1, clients=clients))
    assert max(setting.processes for setting in machine.asked) <= max(1, min(buffer, clients))
    rate = next(row.rate for row in found.rows if row.setting == found.chosen)
    assert rate >= found.rows[0].rate
    assert found.gain >= 1.0


def test_processes_are_told_from_threads_that_wait_for_each_other() -> None:
    """Two processes four times as fast as one with two threads, no faster than one with one."""

    def measure(setting: TrialSetting) -> TrialRow:
        rate = {1: 100.0 if setting.threads is None else 400.0, 2: 405.0}[setting.processes]
        return TrialRow(
            setting=setting, step_s=32 / rate, rate=rate, samples=32.0, memory_bytes=1e9
        )

    limits = RampLimits(free_bytes=1e15, clients=2, switches=False, sets_threads=True)
    found = ramp(measure, limits)
    assert found.chosen == TrialSetting(threads=1)
    assert found.gain == pytest.approx(4.0)
    assert "q = 2 against q = 1, 1 thread, measured again in turns: 1.01 x" in found.why[-2]


def test_one_process_with_more_loader_workers_is_chosen_where_it_is_best() -> None:
    """The launcher sets them without a change to the script; a larger batch is only reported."""
    found = ramp(Machine(100, 150, 170, 160, 150, workers=1), replace(ROOMY, cores=2))
    assert max(found.rows, key=lambda row: row.rate).setting == TrialSetting(processes=3)
    assert found.chosen == TrialSetting(loader_workers=2)
    assert found.gain == pytest.approx(2.0)
    assert "q = 1, 2 loader workers against q = 1, measured again in turns" in " ".join(found.why)


def test_figures_are_whole_on_a_narrow_console() -> None:
    """A log has 80 columns: none of the table is cut."""
    found = ramp(Machine(100, 150, 120, 110, workers=1), ROOMY)
    console = Console(file=StringIO(), width=60)
    show_choice(found, console)
    assert isinstance(console.file, StringIO)
    notes = console.file.getvalue()
    assert "energy/sample" in notes
    assert "953.67 MiB" in notes
    assert "…" not in notes


def test_loader_workers_and_threads_are_tried_for_the_best_number() -> None:
    """Twice and half the workers; MPS's shares with room for overlap, then equal ones."""
    machine = Machine(100, 190, 150, 120, workers=2)
    found = ramp(machine, RampLimits(free_bytes=1e15, cores=4, shares_threads=True))
    assert found.chosen == TrialSetting(processes=2, loader_workers=4)
    assert replace(found.chosen, thread_percentage=50.0) in machine.asked
    assert TrialSetting(loader_workers=4) in [row.setting for row in found.competitors]


def test_what_one_process_can_do_otherwise_is_said() -> None:
    """A compiled model that is faster than the choice is reported, not chosen."""
    found = ramp(Machine(100, 120, 90, compiled=1.5), ROOMY)
    assert found.chosen == TrialSetting(processes=2)
    assert "torch.compile is 1.25 x" in " ".join(found.why)


def test_numbers_that_do_not_go_are_passed_over() -> None:
    """A batch that does not divide is a row with its reason, and the ramp goes on."""
    machine = Machine(100, 150, 160, 200, 100)

    def measure(setting: TrialSetting) -> TrialRow:
        row = machine(setting)
        return replace(row, fault="32 does not divide", rate=0.0) if setting.processes == 3 else row

    found = ramp(measure, ROOMY)
    assert found.chosen == TrialSetting(processes=4)
    written = StringIO()
    show_choice(found, Console(width=110, file=written))
    text = written.getvalue()
    assert "q = 3: cannot: 32 does not divide" in text
    assert "no meter" in text
    assert "chosen: q = 4" in text


def test_a_first_trial_that_fails_ends_the_search() -> None:
    """There is nothing to compare with."""
    broken = TrialRow(setting=TrialSetting(), fault="no step")
    found: Choice = ramp(lambda _: broken, ROOMY)
    assert found.rows == (broken,)
    assert found.why == ("no step",)


def test_a_trial_is_told_by_a_variable(tmp_path: Path) -> None:
    """What is written is read; anything else is refused."""
    trial = Trial(folder=tmp_path, seconds=0.5, batch_factor=2, compiles=True)
    assert trial_from({TRIAL: trial.as_text()}) == trial
    assert trial_from({}) is None
    with pytest.raises(RunError, match="WATTREE_TRIAL"):
        trial_from({TRIAL: "yes"})


def test_trials_cannot_change_what_mpi_starts() -> None:
    """With `--reduce mpi` mpirun starts every process itself."""
    environment = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "here"}
    environment |= {"MASTER_PORT": "1", "LOCAL_WORLD_SIZE": "2"}
    with pytest.raises(RunError, match="--reduce mpi under 2 ranks of torchrun"):
        Trials(
            lambda _: ["true"],
            TrialOptions(launch=LaunchOptions(device="cpu", reduce="mpi")),
            environment=environment,
            say=print,
        )


def _has_host_names() -> bool:
    """Return whether a process may have a host name of its own here."""
    tried = shutil.which("unshare") and subprocess.run(["unshare", "--uts", "true"], check=False)
    return bool(tried) and tried.returncode == 0


#: Hosts that differ in name alone: to Open MPI, and to launchers, they are two.
_HOSTS = (
    "--host",
    "h1:1,h2:1",
    "--mca",
    "plm_rsh_agent",
    str(SCRIPT.with_name("emulated_host.sh")),
)


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs Open MPI")
@pytest.mark.parametrize("hosts", [(), _HOSTS], ids=["one host", "two hosts"])
@pytest.mark.parametrize("words", [[], ["--one-fails"]], ids=["all well", "one fails"])
def test_launchers_of_mpirun_try_together(
    tmp_path: Path, hosts: tuple[str, ...], words: list[str]
) -> None:
    """All draw up the same rows, of the processes of all; what one cannot do none can."""
    pytest.importorskip("torch")
    if hosts and not _has_host_names():
        pytest.skip("needs unshare --uts")
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", *hosts, warm_python()]
    with reserved_port() as port:
        met = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)} if hosts else {}
        done = subprocess.run(
            [*command, str(SCRIPT.with_name("tries.py")), str(tmp_path / "ended"), *words],
            env=os.environ
            | {"PYTHONPATH": str(ROOT / "src"), "XDG_RUNTIME_DIR": str(tmp_path)}
            | {"XDG_CONFIG_HOME": str(tmp_path)}
            | met,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
    assert done.returncode == 0, done.stderr
    first, second = map(json.loads, done.stdout.splitlines())
    assert first == second
    limits, (one, two) = first
    assert limits["clients"] >= 1
    if words:
        assert "no disk" in one["fault"]
        return
    assert not one["fault"] + two["fault"]
    # Each launcher has a share of the processor, with a batch of eight samples.
    assert (one["samples"], two["samples"]) == (16.0, 16.0)
    assert two["step_s"] > 4 * 5e-3


def _trials(*words: str) -> Trials:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return Trials(
        lambda _: [warm_python(), str(SCRIPT), *words],
        TrialOptions(launch=LaunchOptions(device="cpu"), seconds=0.3, limit_s=600.0),
        environment=environment,
        say=[].append,
    )


def test_trials_of_an_unmodified_script(tmp_path: Path) -> None:
    """A script that waits 5 ms for each sample; which of them is faster, a busy machine decides."""
    pytest.importorskip("torch")
    ended = tmp_path / "ended"
    trials = _trials(str(ended))
    one, two = trials(TrialSetting()), trials(TrialSetting(processes=2))
    larger = trials(TrialSetting(batch_factor=2))
    assert not one.fault + two.fault + larger.fault
    assert (one.samples, two.samples, larger.samples) == (8.0, 8.0, 16.0)
    assert one.step_s > 8 * 5e-3
    assert one.data_share > 0.2  # nearly all of it where nothing else runs
    assert two.step_s > 4 * 5e-3
    assert one.memory_bytes > 1e7
    assert not ended.exists()  # what follows the training loop is not run
    assert (tmp_path / "ended.finally").exists()  # the stack is unwound


def test_a_script_without_ddp_is_refused() -> None:
    """Its processes would know nothing of each other."""
    pytest.importorskip("torch")
    row = _trials("-", "plain")(TrialSetting())
    assert "wraps no model in DistributedDataParallel" in row.fault
