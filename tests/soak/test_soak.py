"""A part of the soak, in every run: the same attacks, smaller, and the attackers themselves."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.each import each
from tests.soak.__main__ import main
from tests.soak.attacks import ATTACKS
from tests.soak.fuzz import CASES, Found, content_of, crashed, fuzz, replayed, write_failure
from tests.soak.kills import VICTIMS
from tests.soak.laws import broken_laws
from tests.soak.outcome import LIMIT_S, Failure, outcome_of
from tests.soak.readers import READERS, Reader, workplace
from tests.soak.shrink import shrunk
from tests.soak.state import Failed, State
from wattree.frameworks import FRAMEWORKS

#: Seed of which one launch meets eight strangers of seven kinds, one that lies of its failure.
MOST_STRANGERS = 64


@each("case", sorted(CASES.glob("*/*.case")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_once_failed_is_read_or_refused(case: Path) -> None:
    """Every input that ended in a traceback, made small; a value or an error of ours is right."""
    assert replayed(case) is None


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=pytest.mark.soak) for first in range(250, 3000, 250))]
)
def test_drawn_inputs_are_read_or_refused(first: int) -> None:
    """Never a traceback, never a hang. `make soak` draws more, and others."""
    found = [f"{f.reader} {f.number}: {f.failure}" for f in fuzz(1, 250, first=first)]

    assert found == []


def test_recipes_of_every_framework_are_drawn() -> None:
    """One that is added would not be attacked."""
    assert [name for name in FRAMEWORKS if not any(r.startswith(name) for r in READERS)] == []


@each("reader", READERS.values(), ids=lambda reader: reader.name)
def test_files_that_inputs_start_from_are_good(reader: Reader, tmp_path: Path) -> None:
    """Changes of what is refused anyway would all be refused for the same reason.

    What comes behind a reader refuses some: a strategy left open, a device without 16 bits.
    """
    if reader.limit_s > LIMIT_S:
        return  # a step is simulated for each
    folder = workplace(tmp_path / reader.name)
    path = folder / reader.file
    path.parent.mkdir(exist_ok=True)
    refused, is_behind = [], reader.read.__module__ == "tests.soak.beyond"
    contents = reader.contents[-4:] if is_behind else reader.contents
    for content in contents:
        path.write_bytes(content)
        if not outcome_of(reader.read, path).accepted:
            refused.append(content[:200])

    assert len(refused) <= (len(contents) // 2 if is_behind else 0), refused


@pytest.mark.parametrize("first", [0, pytest.param(15, marks=pytest.mark.soak)])
def test_drawn_jobs_keep_the_laws(first: int) -> None:
    """Fifteen of the jobs that `make soak` draws."""
    broken = [each for number in range(first, first + 15) for each in broken_laws(1, number)]

    assert broken == []


@pytest.mark.parametrize(
    "name", ["launch", pytest.param("design", marks=pytest.mark.soak), "serve"]
)
def test_a_kill_leaves_nothing_and_loses_nothing(name: str, tmp_path: Path) -> None:
    """Training is killed in `tests/distributed`, studies in `tests/design`, all by `make soak`."""
    assert VICTIMS[name](random.Random(3), tmp_path) == []


@pytest.mark.parametrize(("name", "few"), [("strangers", (MOST_STRANGERS,)), ("store", (0, 1, 2))])
def test_strangers_and_damaged_files_do_no_harm(
    name: str, few: Sequence[int], tmp_path: Path, *, soaking: bool
) -> None:
    """Damaged checkpoints are those of `tests/distributed`, and of `make soak`."""
    broken = []
    for number in {*few, *range(5 if soaking else 0)}:
        folder = tmp_path / str(number)
        folder.mkdir()
        broken += ATTACKS[name](random.Random(number), folder)

    assert broken == []


# ------------------------------------------------------------------------- the attackers


def _fragile(path: Path) -> object:
    """Fail as a reader with a slip in it would."""
    return {}["slip"] if b"nodes" in path.read_bytes() else None


def test_a_slip_in_a_reader_is_found_and_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else all of the above would pass whatever the readers do."""
    good = READERS["job"]
    fragile = Reader("job", _fragile, good.seeds, schema=good.schema)
    monkeypatch.setitem(READERS, "job", fragile)  # type: ignore[arg-type]

    (found,) = fuzz(1, 50, names=["job"])

    assert found.failure.kind == "KeyError"
    assert found.content == b"nodes"


def test_the_same_seed_gives_the_same_inputs() -> None:
    """A failure is repeated by its number."""
    contents = [content_of(reader, 5, 7) for reader in READERS.values() for _ in range(2)]

    assert contents[::2] == contents[1::2]


def test_lines_then_bytes_are_left_out() -> None:
    """What is left fails alike, and nothing can be left out of it."""
    content = b"\n".join(b"line %d" % number for number in range(100)) + b"\nwrong: [needle]\n"

    assert shrunk(content, lambda text: b"needle" in text, limit_s=600.0) == b"needle"


def test_keys_of_a_document_are_left_out() -> None:
    """Text of JSON cannot lose a line and stay JSON."""
    content = json.dumps({"a": {"b": [1, {"c": 2}]}, "d": 3}).encode()

    def fails(text: bytes) -> bool:
        try:
            return "c" in json.loads(text)["a"]["b"][-1]
        except (ValueError, KeyError, TypeError, IndexError):
            return False

    assert json.loads(shrunk(content, fails, limit_s=600.0)) == {"a": {"b": [{"c": 2}]}}


def test_an_input_that_ends_the_process_is_known_afterwards(tmp_path: Path) -> None:
    """A crash in C leaves no exception; the next call finds which input was being read."""
    mark = tmp_path / "trying"
    mark.write_text("site 12")

    found = crashed(mark, 3)

    assert found is not None
    assert (found.reader, found.number, found.failure.kind) == ("site", 12, "Crash")
    assert found.content == content_of(READERS["site"], 3, 12)
    assert crashed(mark, 3) is None


def test_a_later_call_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Counts are kept by seed; what is done is not done again."""
    words = ["--seed", "9", "--jobs", "0", "--kills", "0", "--attacks", "0", "--out", str(tmp_path)]

    first = main([*words, "--inputs", "10"])
    before = State.read(tmp_path / "state-9.json", 9)
    again = main([*words, "--inputs", "14"])
    after = State.read(tmp_path / "state-9.json", 9)

    assert (first, again) == (0, 0)
    assert (before.done["inputs"], after.done["inputs"]) == (10, 14)
    assert 0 < before.accepted <= after.accepted
    assert "inputs            14" in capsys.readouterr().out


def test_alike_failures_count_once() -> None:
    """A slip that a thousand inputs meet is one line of the table."""
    state = State(1)
    failed = Failed("inputs", "KeyError", "job: load.py:read", "a.case")

    assert state.note(failed)
    assert not state.note(Failed("inputs", "KeyError", "job: load.py:read", "b.case"))
    assert "inputs: KeyError: 1" in state.table()


def test_a_failure_is_written_with_how_it_came_about(tmp_path: Path) -> None:
    """The file can be copied among the cases as it is."""
    found = Found("site", 7, Failure("KeyError", "load.py:load_site", "'pue'"), b"pue: []")

    path = write_failure(found, 2, tmp_path)

    assert path.parent.name == "site"
    assert path.read_bytes() == found.content
    assert json.loads(path.with_suffix(".json").read_text())["number"] == found.number
