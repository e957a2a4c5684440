"""What the command line says of itself and of mistakes: whole lines, our words, completion."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from wattree.cli.main import app, run

ROOT = Path(__file__).resolve().parents[2]
STUDY = str(ROOT / "examples" / "design" / "own-prices.yaml")
JOB = str(ROOT / "examples" / "llama-3.1-8b-dgx-h100.yaml")


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the width that most terminals have."""
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("words", [["--help"], ["energy", "--help"]])
def test_the_list_of_commands_has_whole_lines(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A line that is cut does not say what a command is for."""
    run(words)
    commands = capsys.readouterr().out.partition("Commands:")[2].splitlines()

    assert [line for line in commands if line.endswith("...")] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan", JOB, "--top", "0"], "'--top': expected 1 or more"),
        (["plan", JOB, "--top", "x"], "'--top': expected a whole number"),
        (["plan", JOB, "--objective", "speed"], "'speed' is not one of 'time', 'energy'"),
        (["plan", JOB, "--out", "-"], "--out: found '-', expected a file; --json prints results"),
        (["simulate", JOB, "--trace", "-"], "--trace: found '-', expected a file; --json prints"),
        (["serve", "--port", "70000"], "'--port': expected 65535 or less"),
        (["simulate", JOB, "--report", "a.pdf"], "--report: found 'a.pdf', expected a name that"),
        (["design", STUDY, "--report", "a.pdf"], "--report: found 'a.pdf', expected a name that"),
    ],
)
def test_options_are_refused_in_our_words(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The library that checks them has words that users need not know."""
    assert run(words) == 2
    told = capsys.readouterr().err

    assert message in told
    assert "Input should" not in told
    assert "Value error" not in told


def _options_of(command: Any, *words: str) -> Iterator[tuple[list[str], Any]]:
    for name, each in getattr(command, "commands", {}).items():
        yield from _options_of(each, *words, name)
    if words and not hasattr(command, "commands"):
        yield from ((list(words), each) for each in command.params if hasattr(each, "is_flag"))


def test_an_option_that_has_one_value_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    """All but the last were dropped in silence."""
    passed = []
    for words, option in _options_of(typer.main.get_command(app())):
        name = max(option.opts, key=len)
        is_switch = option.is_flag and not option.secondary_opts
        if option.multiple or option.nargs != 1 or is_switch:
            continue
        twice = [name] * 2 if option.is_flag else [name, "x"] * 2
        code = run([*words, *twice])
        if code != 2 or f"{name}: found 2 times, expected once" not in capsys.readouterr().err:
            passed.append((*words, name))

    assert passed == []


def test_the_shell_completes_commands_and_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the script asks that --show-completion prints."""
    monkeypatch.setenv("_WATTREE_COMPLETE", "complete_bash")
    found = []
    for line, word in (("wattree sim", "1"), ("wattree simulate --power", "2")):
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", word)
        with pytest.raises(SystemExit):
            run([])
        found.append(capsys.readouterr().out.split())

    assert found == [["simulate"], ["--power-limit"]]
