"""Names of files never steer the terminal that shows them."""

from __future__ import annotations

import io
import json
import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattree.cli.main import run
from wattree.cli.output import tell, terminal
from wattree.errors import JobError
from wattree.printable import printable

SOURCE = Path(__file__).parents[1] / "src" / "wattree"
#: What rich itself writes to a terminal with colors.
_COLORS = re.compile(r"\x1b\[[0-9;]*m")
#: Clears the screen, sets the title, writes a link, steps back, shows text in another order.
NASTY = "\x1b[2J\x1b]0;mine\x07\x1b]8;;http://x\x1b\\\x9b1A\r\x08\x7f\u202eabc\u2066\u2028"
TEXTS = st.text() | st.text(alphabet=st.sampled_from(NASTY + "ab ")) | st.just(NASTY)


def steering(text: str) -> set[str]:
    """Return the characters that steer a terminal; a line feed and a tab do not."""
    found = {each for each in text if unicodedata.category(each) in {"Cc", "Cs", "Zl", "Zp"}}
    bidirectional = {each for each in text if unicodedata.bidirectional(each)[:2] in _MARKS}
    return (found | bidirectional) - set("\n\t")


_MARKS = {"LR", "RL", "PD", "FS"}  # LRE LRO LRI, RLE RLO RLI, PDF PDI, FSI


@given(TEXTS)
def test_what_steers_is_written_out_and_the_rest_stays(text: str) -> None:
    """Once: what is printable already does not change."""
    shown = printable(text)

    assert steering(shown) == set()
    assert printable(shown) == shown
    assert shown == text or steering(text) or set(text) & set("\u061c\u200e\u200f\ufeff")


@given(TEXTS)
def test_an_error_prints_without_controls(name: str) -> None:
    """Whoever prints it, wherever the name came from."""
    error = JobError(name, [f"model: found {name}"])

    assert steering(str(error)) == set()


@given(TEXTS)
def test_a_table_shows_names_without_controls(name: str) -> None:
    """In color too: the colors of the table itself are all that pass."""
    from rich.table import Table
    from rich.text import Text

    console = terminal()
    console.file, console._color_system = io.StringIO(), None
    table = Table(title=Text(name), box=None)
    table.add_column(Text(name, style="bold red"))
    table.add_row(Text(name, style="green"))
    with console.capture() as captured:
        console.print(table)
        console.print(name, markup=False, style="bold")

    assert steering(_COLORS.sub("", captured.get())) == set()


def test_lines_on_standard_error_are_printable(capsys: pytest.CaptureFixture[str]) -> None:
    """Warnings and notes, as errors."""
    tell(f"wattree: {NASTY}")

    assert steering(capsys.readouterr().err) == set()


def _job(**changes: object) -> str:
    job = {
        "model": "gpt2",
        "data": {"sequence_length": 256, "global_batch": 16},
        "cluster": {"node": "dgx-a100"},
        "strategy": {"dp": 8},
        **changes,
    }
    return json.dumps(job)


@pytest.mark.parametrize(
    "content",
    [
        _job(model=NASTY),
        _job(cluster={"node": NASTY}),
        _job(strategy={NASTY: 8}),
        _job(**{NASTY: 1}),
        _job(model={"transformer": {"name": NASTY}}),
    ],
)
@pytest.mark.parametrize("words", [("simulate",), ("plan",), ("validate",)])
def test_files_of_hostile_names_print_nothing_that_steers(
    tmp_path: Path, words: tuple[str, ...], content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """On both streams of whole commands."""
    path = tmp_path / f"job{NASTY.replace('/', '')}.yaml"
    path.write_text(content, encoding="utf-8")
    code = run([*words, str(path)])
    found = capsys.readouterr()

    # `plan` reads no strategy.
    assert code == (0 if words == ("plan",) and content == _job(strategy={NASTY: 8}) else 2)
    assert steering(found.out + found.err) == set()


@pytest.mark.parametrize(
    ("pattern", "where", "allowed"),
    [
        (r"typer\.echo\(|(?<![\w.])print\(", "cli", ["cli/main.py", "cli/output.py"]),
        (r"\bConsole\(", "", ["report/notebook.py"]),
    ],
)
def test_commands_print_in_one_place(pattern: str, where: str, allowed: list[str]) -> None:
    """What does not go through it would not be made printable. `main` prints the version.

    The notebook's console prints nothing: it records, and what it recorded is made printable.
    """
    found = [
        str(path.relative_to(SOURCE))
        for path in sorted((SOURCE / where).rglob("*.py"))
        if re.search(pattern, path.read_text(encoding="utf-8"))
    ]

    assert found == allowed
