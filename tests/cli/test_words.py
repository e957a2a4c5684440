"""What the command line says of itself and of mistakes: whole lines, our words, completion."""

from __future__ import annotations

from pathlib import Path

import pytest

from wattree.cli.main import run

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
