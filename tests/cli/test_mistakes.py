"""Mistakes of users, interrupts and defects of ours: one message, and the exit code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pydantic_core import SchemaError

from tests.cli.fakes import JOB, Fake, prediction, raising
from tests.samples import sample_plan
from wattree.cli.main import main, run
from wattree.errors import StrategyError


def test_a_users_mistake_is_one_message(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    """No traceback, nothing on standard output."""
    misfits = {"strategy.tp": "30 heads do not divide over 8"}
    fake(simulate=raising(StrategyError(misfits, source=JOB)))
    code = run(["simulate", JOB])
    printed = capsys.readouterr()

    assert (code, printed.out) == (2, "")
    assert printed.err == f"wattree: {JOB}: strategy.tp: 30 heads do not divide over 8\n"


def test_our_defect_is_exit_code_1_and_says_so(
    fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    """A user must not look for a fault of theirs; we need the traceback."""
    fake(simulate=raising(KeyError("lost")))
    code = run(["simulate", JOB])
    printed = capsys.readouterr().err

    assert code == 1
    assert "Traceback" in printed
    assert "this is a defect of Wattree, not of your input: KeyError" in printed


def test_an_interrupt_is_exit_code_130(fake: Fake) -> None:
    """The convention of shells: 128 + SIGINT; also where a library makes another error of it."""
    behind = RuntimeError("lost")
    behind.__context__ = KeyboardInterrupt()
    in_words = SchemaError('Error building "function-after" validator:\n  KeyboardInterrupt: ')
    for error in (KeyboardInterrupt(), behind, in_words):
        fake(simulate=raising(error))

        assert run(["simulate", JOB]) == 130


def test_an_interrupt_before_the_command_begins_is_one_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands are prepared before they run; Ctrl-C in that instant is no traceback either."""
    place = sys.modules[main.__module__]  # `wattree.cli.main` is the function, too
    monkeypatch.setattr(place, "cached_dataclass_code", raising(KeyboardInterrupt()))
    with pytest.raises(SystemExit) as ended:
        main(["simulate", JOB])

    assert (ended.value.code, capsys.readouterr().err) == (130, "wattree: interrupted\n")


@pytest.mark.parametrize(
    "words",
    [
        ["simulate"],
        ["simulate", JOB, "--fold", "maybe"],
        ["simulate", JOB, "--nonsense"],
        ["nonsense"],
        ["plan", JOB, "--top", "0"],
        ["plan", JOB, "--top", "x"],
    ],
)
def test_wrong_usage_is_exit_code_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """As every command line does."""
    code = run(words)
    printed = capsys.readouterr()

    assert (code, printed.out) == (2, "")
    assert "Error" in printed.err


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (
            ["--power-cap", "400 GB"],
            (
                "wattree: --power-cap: unknown unit 'GB' in '400 GB'; expected one of W, kW, MW, "
                "GW, TW, PW, EW, mW\n"
            ),
        ),
        (
            ["--deadline", "soon"],
            "wattree: --deadline: found 'soon', expected a number and a unit, such as '1 s'\n",
        ),
        (
            ["--carbon-limit", "10 t"],
            "wattree: --carbon-limit: unknown unit 't' in '10 t'; did you mean 'tCO2e'? expected "
            "one of gCO2e, kgCO2e, tCO2e\n",
        ),
        (
            ["--energy-limit", "-20 MWh"],
            "wattree: --energy-limit: found '-20 MWh', expected a finite quantity above zero\n",
        ),
        (
            ["--power-cap", "0 W"],
            "wattree: --power-cap: found '0 W', expected a finite quantity above zero\n",
        ),
        (
            ["--deadline", "30"],
            "wattree: --deadline: found '30' without a unit, expected one of s, ms, us, µs, ns, "
            "min, h, d, y, such as '30 s'\n",
        ),
        (
            ["--pareto", "time"],
            (
                "wattree: --pareto: found 'time', expected two different ones of time, energy, "
                "cost, carbon: 'time,energy'\n"
            ),
        ),
    ],
)
def test_a_quantity_that_cannot_be_read_names_its_option(
    fake: Fake, option: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three options take quantities; the message says which one."""
    fake(plan=lambda *_, **__: sample_plan())
    code = run(["plan", JOB, *option])

    assert (code, capsys.readouterr().err) == (2, message)


@pytest.mark.parametrize(
    "words",
    [
        ["launch", "-q", "2", "--with-mps", "--without-mps", "--", "true"],
        ["train", "--without-mps", "--with-mps", "examples/phantom-laptop.yaml"],
    ],
)
def test_options_that_contradict_each_other_are_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """In either order; the last one does not win in silence."""
    code = run(words)
    said = "--with-mps: found --without-mps as well, expected one of them"
    assert (code, said in capsys.readouterr().err) == (2, True)


def test_a_result_that_cannot_be_written_is_the_users_mistake(
    fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing half-written, one message."""
    fake(simulate=lambda *_, **__: prediction())
    code = run(["simulate", JOB, "--json", f"{tmp_path}/missing/r.json"])

    assert (code, list(tmp_path.iterdir())) == (2, [])
    assert "cannot be written" in capsys.readouterr().err


def test_a_missing_job_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The commonest mistake of all, through the real loader."""
    path = tmp_path / "job.yaml"
    code = run(["simulate", str(path)])

    assert (code, capsys.readouterr().err) == (
        2,
        f"wattree: {path}: there is no such file; check the path\n",
    )
