"""Commands that end, fail, are interrupted or do not obey; programs are ended by their number."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from wattree.cli.main import run
from wattree.errors import RunError
from wattree.measure import MeterOptions, measure_command
from wattree.measure.command import CommandEnd, run_command
from wattree.measure.meters.processor_time import ProcessorTime
from wattree.trace import Run, RunOrigin, read_run

SOURCE = Path(__file__).resolve().parents[2] / "src"
PYTHON = sys.executable
LIMIT_S = 600


def measured(recorded: Path, out: Path, *words: str) -> int:
    """Run the command line with a replayed meter; return its exit code."""
    options = ["--meter", "replay", "--replay", str(recorded), "--interval", "20 ms"]
    return run(["measure", *options, "--out", str(out), *words])


def test_the_exit_code_is_passed_on() -> None:
    """A script that calls `wattree measure` sees what the command said."""
    assert run_command([PYTHON, "-c", "raise SystemExit(7)"]) == CommandEnd(7)


def test_a_command_ended_by_a_signal_of_its_own_has_the_shells_code() -> None:
    """128 + n, as in every shell."""
    program = "import os; os.kill(os.getpid(), 9)"

    assert run_command([PYTHON, "-c", program]) == CommandEnd(137)


def test_a_command_that_is_not_there_is_refused() -> None:
    """It is a mistake of the user, and nothing was measured."""
    with pytest.raises(RunError, match=r"no-such-program: cannot be started \(No such file"):
        run_command(["no-such-program"])


def test_what_a_command_used_is_reported(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As text, and as a file of a run."""
    out = tmp_path / "run.json"
    code = measured(recorded, out, "--", PYTHON, "-c", "import time; time.sleep(0.3)")
    found = read_run(out)

    assert code == 0
    assert found.meters[0].energy_j == pytest.approx(100 * found.wall_s, rel=0.02)
    assert found.origin is RunOrigin.ESTIMATED  # it was replayed, not read
    assert found.command[0] == PYTHON
    assert "node0/gpu0" in capsys.readouterr().out


def test_options_of_the_command_are_its_own(recorded: Path, tmp_path: Path) -> None:
    """Also without `--`, and also where Wattree has one of that name."""
    program = "import sys, time; time.sleep(0.3); sys.exit(sys.argv[1:] != ['--json', 'x'])"

    assert measured(recorded, tmp_path / "r.json", PYTHON, "-c", program, "--json", "x") == 0


def test_a_command_that_fails_has_its_energy_written(recorded: Path, tmp_path: Path) -> None:
    """Hours of a run that crashed were paid for, too."""
    out = tmp_path / "run.json"
    code = measured(
        recorded, out, PYTHON, "-c", "import time; time.sleep(0.3); raise SystemExit(3)"
    )

    assert code == 3
    assert read_run(out).exit_code == 3
    assert read_run(out).energy_j > 20


def test_a_command_too_short_for_the_sensor_is_refused_with_what_is_needed(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No figure is better than a wrong one; the message states how to get one."""
    slow = json.loads(recorded.read_text())
    at_s = [index / 2 for index in range(1, 20)]
    slow["power"] = [{"domain": "node0/gpu0", "at_s": at_s, "watts": [100.0] * len(at_s)}]
    recorded.write_text(json.dumps(slow))
    code = measured(recorded, tmp_path / "r.json", PYTHON, "-c", "import time; time.sleep(0.7)")
    captured = capsys.readouterr()

    assert code == 2
    assert "--repeat" in captured.err
    assert "too short: it was updated every" in captured.out


def test_repeated_commands_are_one_window(recorded: Path, tmp_path: Path) -> None:
    """Until the first that fails."""
    out = tmp_path / "run.json"
    code = measured(recorded, out, "--repeat", "3", PYTHON, "-c", "import time; time.sleep(0.1)")

    assert code == 0
    assert "the command ran 3 times" in read_run(out).notes
    assert read_run(out).wall_s > 0.3


@pytest.mark.parametrize("share", [0.03, 0.97])
def test_an_idle_run_needs_no_command(
    share: float, recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step of the fitting protocol; other programs are noted."""
    monkeypatch.setattr(ProcessorTime, "share", lambda _: share)
    out = tmp_path / "idle.json"
    code = measured(recorded, out, "--activity", "idle", "--seconds", "0.3")

    assert code == 0
    assert (read_run(out).activity, read_run(out).iterations) == ("idle", 0)
    noted = any("was not idle (busy: cpu 97%)" in note for note in read_run(out).notes)
    assert noted is (share > 0.1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "wattree measure: found no command, expected: wattree measure -- CMD…, or --activity"),
        (["--activity", "idle", "ls"], "--activity idle: found a command, expected none"),
        (["--activity", "idle"], "--seconds: is missing, expected a length above 0"),
        (["--seconds", "5", "ls"], "--seconds: has a meaning for --activity idle alone"),
        (["--repeat", "0", "ls"], "'--repeat': expected 1 or more"),
        (["--interval", "soon", "ls"], "--interval: "),
        (["--csv-shift", "nan", "ls"], "--csv-shift: found nan, expected a number of seconds"),
        (["--csv-shift", "3", "ls"], "--csv-shift: found 3.0 without --csv"),
        (["--repeat-for", "nan", "ls"], "--repeat-for: found nan, expected a number of seconds"),
        (["--interval", "5", "ls"], "--interval: found '5' without a unit, expected one of s, ms"),
        (["--interval", "1 h", "ls"], "--interval: found '1 h', expected at most 60 s"),
        (["--tdp", "200", "ls"], "--tdp: found '200' without a unit, expected one of W, kW"),
        (["--activity", "loader", "ls"], "--iterations: is missing, expected how many steps"),
        (["--samples", "4", "ls"], "--iterations: is missing; --samples are of one step"),
        (["--iterations", "2", "--flop", "-4", "ls"], "--flop: found -4.0, expected 0 or more"),
        (["--ranks", "0", "ls"], "'--ranks': expected 1 or more"),
        (["--meter", "csv", "ls"], "--meter csv: needs a file: --csv FILE"),
        (["--csv", "gone.csv", "ls"], "gone.csv: cannot be read (No such file or directory)"),
        (["--out", "no/such/folder", "ls"], "its folder does not exist"),
        (["--", "no-such-program"], "no-such-program: cannot be started"),
    ],
)
def test_wrong_usage_is_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With exit code 2, before anything runs."""
    code = run(["measure", *words])

    assert code == 2
    assert message in capsys.readouterr().err


def test_json_on_standard_output_is_alone_there(
    recorded: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The command's own output goes next to it."""
    program = "import time; print('step 1'); time.sleep(0.3)"
    options = ["--meter", "replay", "--replay", str(recorded), "--interval", "20 ms"]
    code = run(["measure", *options, "--json", "-", PYTHON, "-c", program])
    out, err = capfd.readouterr()

    assert code == 0
    assert json.loads(out)["average_power_w"] == pytest.approx(100, rel=0.02)
    assert "step 1" in err


def started(program: str, recorded: Path, out: Path) -> Iterator[subprocess.Popen[str]]:
    """Yield `wattree measure` around a program, once the program runs; end it at last."""
    options = ["--meter", "replay", "--replay", str(recorded), "--interval", "20 ms"]
    process = subprocess.Popen(
        [PYTHON, "-m", "wattree", "measure", *options, "--out", str(out), PYTHON, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONPATH": str(SOURCE), "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline().startswith("ready")
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=LIMIT_S)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "terminate"]
)
def test_an_interrupted_command_has_its_energy_written(
    recorded: Path, tmp_path: Path, number: int, code: int
) -> None:
    """Ctrl-C, or a batch system whose time is up: what was used was used."""
    out = tmp_path / "run.json"
    program = "import time; print('ready'); time.sleep(600)"
    for process in started(program, recorded, out):
        time.sleep(0.4)  # a window that is long enough
        process.send_signal(number)
        assert process.wait(timeout=LIMIT_S) == code

    assert read_run(out).exit_code is None
    assert read_run(out).energy_j > 20
    assert "interrupted: the energy up to then" in read_run(out).notes


def test_what_an_interrupted_command_leaves_behind_is_ended(recorded: Path, tmp_path: Path) -> None:
    """Workers that ignore the interrupt would go on drawing power."""
    out = tmp_path / "run.json"
    program = (
        "import subprocess, sys, time\n"
        "worker = 'import os, signal, time; signal.signal(2, signal.SIG_IGN); '\n"
        "worker += 'print(\"ready\", os.getpid()); time.sleep(600)'\n"
        "left = subprocess.Popen([sys.executable, '-c', worker])\n"
        "time.sleep(600)"
    )
    left = 0
    options = ["--meter", "replay", "--replay", str(recorded), "--interval", "20 ms"]
    process = subprocess.Popen(
        [PYTHON, "-m", "wattree", "measure", *options, "--out", str(out), PYTHON, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(SOURCE), "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    left = int(process.stdout.readline().split()[1])
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=LIMIT_S)

    until_s = time.monotonic() + LIMIT_S
    while _runs(left) and time.monotonic() < until_s:  # its files are closed before it is gone
        time.sleep(0.01)
    assert process.returncode == 130
    assert not _runs(left)


def _runs(number: int) -> bool:
    """Return whether a process still runs; one that only waits to be collected does not."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_what_the_command_did_is_in_its_run(recorded: Path, tmp_path: Path) -> None:
    """Steps of all repeats, ranks and the work of a step: fits use no run without them."""
    out = tmp_path / "loader.json"
    words = ["--activity", "loader", "--iterations", "10", "--samples", "32", "--ranks", "2"]
    words += ["--core-seconds", "0.01", "--read-bytes", "4e6", "--repeat", "2"]
    words += ["--repeat-for", "0.3"]
    code = measured(recorded, out, *words, "--", PYTHON, "-c", "import time; time.sleep(0.1)")
    found = read_run(out)

    assert code == 0
    assert found.wall_s >= 0.3
    assert found.iterations >= 20
    assert found.iterations % 10 == 0
    assert found.ranks_per_node == 2
    assert (found.work.samples, found.work.core_s, found.work.read_bytes) == (32, 0.01, 4e6)


def test_nothing_read_is_no_energy_of_zero(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the advice for a command that is over at once is enough for it."""
    code = run(["measure", "--json", str(tmp_path / "m.json"), "--", "true"])
    told = json.loads((tmp_path / "m.json").read_text())
    error = capsys.readouterr().err

    assert code == 2
    assert told["origin"] == "unread"
    assert (told["energy_j"], told["average_power_w"], told["meters"]) == (None, None, [])
    advice = re.search(r"--repeat-for (\S+) is long enough", error)
    assert advice is not None, error
    assert float(advice[1]) >= 1.5  # more where a busy machine reads seldom


def test_a_measurement_that_is_killed_leaves_what_it_had(recorded: Path, tmp_path: Path) -> None:
    """No signal handler runs then; the run was written while the command ran."""
    found: list[Run] = []
    over = tmp_path / "over"
    program = f"import os, time\nwhile not os.path.exists({str(over)!r}): time.sleep(0.01)"

    def save(run: Run) -> None:
        found.append(run)
        if len(found) == 2:
            over.touch()

    done = measure_command(
        [PYTHON, "-c", program],
        meters=["replay"],
        options=MeterOptions(replay=str(recorded)),
        interval_s=0.02,
        save=save,
        save_every_s=0.1,
    )

    assert len(found) >= 2
    assert found[-1].exit_code is None
    assert found[-1].notes[-1].startswith("the command had not ended")
    # Not less at the end: on a machine busy enough, the recording may have ended before.
    assert 0 < found[0].energy_j < found[-1].energy_j <= done.run.energy_j
    assert done.run.exit_code == 0


@pytest.mark.slow
def test_a_measurement_that_is_killed_leaves_its_file(recorded: Path, tmp_path: Path) -> None:
    """By a signal that nothing can handle."""
    out = tmp_path / "r.json"
    program = (
        "import sys; from pathlib import Path; from wattree.measure import MeterOptions, "
        "measure_command; from wattree.trace import write_run\n"
        "measure_command([sys.executable, '-c', 'import time; time.sleep(600)'], meters=['replay'],"
        " options=MeterOptions(replay=sys.argv[1]), interval_s=0.02, save_every_s=0.2,"
        " save=lambda run: write_run(run, sys.argv[2]))"
    )
    process = subprocess.Popen(
        [PYTHON, "-c", program, str(recorded), str(out)],
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        process_group=0,
    )
    until_s = time.monotonic() + LIMIT_S
    while not out.exists() and time.monotonic() < until_s:
        time.sleep(0.05)
    children = _children_of(process.pid)
    process.kill()
    process.wait()
    for child in children:
        os.kill(child, signal.SIGKILL)

    assert read_run(out).exit_code is None
    assert children


def _children_of(number: int) -> list[int]:
    """Return the processes that a process started."""
    found: list[int] = []
    for task in Path(f"/proc/{number}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # of a thread that has ended since
            found += map(int, task.read_text().split())
    return found
