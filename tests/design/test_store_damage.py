"""Damage to the file of a study: found before it becomes a result, or harmless."""

from __future__ import annotations

import os
import platform
import random
import sqlite3
from pathlib import Path

import pytest

from tests.design.studies import small_study
from tests.flips import flip_a_bit
from wattree.design import Outcome, study_from_mapping
from wattree.design.points import DesignPoint
from wattree.design.samplers import points_of
from wattree.design.store import Store
from wattree.errors import OutputError

STUDY = study_from_mapping(small_study())
POINTS = points_of(STUDY)


def _outcome(point: DesignPoint) -> Outcome:
    return Outcome(point=point, feasible=True, totals={"time_s": 0.1 + POINTS.index(point) / 3})


def _written(path: Path) -> dict[str, bytes]:
    """Leave a file in which half of the points are finished.

    Return what a kill would have left: the file, and the log of what is not in it yet.
    """
    with Store(path, STUDY) as opened:
        opened.name = f"{platform.node()}/{os.getpid()}/1/killed"  # an earlier one of this number
        opened.add(POINTS)
        opened._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        for point in opened.claim(len(POINTS) // 2):
            opened.finish(_outcome(point))
        return {end: Path(f"{path}{end}").read_bytes() for end in ("", "-wal")}


def _finished(path: Path) -> tuple[Outcome, ...]:
    """Finish the study as `design` does; return what it has for all points."""
    with Store(path, STUDY) as opened:
        opened.add(POINTS)
        opened.renew()
        for point in opened.claim(len(POINTS)):
            opened.finish(_outcome(point))
        return opened.outcomes()


def _changed(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as other:
        other.execute(statement)
    other.close()


WRONG = {
    "cut": "UPDATE points SET {} = '{{\"workloads\": '",
    "deep": "UPDATE points SET {} = '" + "[" * 3000 + "'",
    "other numbers": "UPDATE points SET {} = replace({}, '1', '2')",
    "no text": "UPDATE points SET {} = x'ff00'",
    "a number": "UPDATE points SET {} = 7",
}


@pytest.mark.parametrize("column", ["outcome", "point"])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_damaged_row_is_refused_with_its_key(tmp_path: Path, column: str, wrong: str) -> None:
    """With what to do, and never as a result: half of the points were finished."""
    path = tmp_path / "small.sqlite"
    _written(path)
    where = " WHERE outcome NOT NULL AND ordinal = 1"
    _changed(path, WRONG[wrong].format(column, column) + where)
    with pytest.raises(OutputError) as caught:
        _finished(path)
    told = str(caught.value)

    assert told.startswith(f"{path}: the row of point '{POINTS[1].key}' is damaged")
    assert "remove it, and it is evaluated again: sqlite3 FILE" in told


def test_a_row_that_was_removed_is_evaluated_again(tmp_path: Path) -> None:
    """What the message says to do is enough."""
    path = tmp_path / "small.sqlite"
    _written(path)
    _changed(path, f"DELETE FROM points WHERE key = '{POINTS[1].key}'")

    assert _finished(path) == tuple(map(_outcome, POINTS))


@pytest.mark.parametrize(
    ("statement", "rows"),
    [("DELETE FROM study", 0), ("INSERT INTO study SELECT name, 'x', source FROM study", 2)],
)
def test_points_of_no_known_study_are_refused(tmp_path: Path, statement: str, rows: int) -> None:
    """They were taken for those of the study that asked."""
    path = tmp_path / "small.sqlite"
    _written(path)
    _changed(path, statement)
    with pytest.raises(OutputError) as caught:
        Store(path, STUDY)
    with Store(path, STUDY, fresh=True) as opened:
        left = opened.count()

    assert str(caught.value) == (
        f"{path}: has {rows} rows that say of which study it holds results, expected 1; its "
        f"{len(POINTS)} points may be of another study: name another file (--store), or forget "
        "them (--fresh)"
    )
    assert left == (0, 0, 0)


@pytest.mark.parametrize("lease", ["1e300", "NULL", "'soon'", "x'00'"])
def test_a_claim_that_no_process_made_does_not_hold_a_point(tmp_path: Path, lease: str) -> None:
    """The study would wait for it forever."""
    path = tmp_path / "small.sqlite"
    _written(path)
    _changed(path, f"UPDATE points SET owner = 'else/1/1/x', lease = {lease} WHERE outcome IS NULL")

    assert _finished(path) == tuple(map(_outcome, POINTS))


@pytest.mark.parametrize("end", ["", "-wal"])
def test_a_flipped_bit_is_found_or_harmless(tmp_path: Path, end: str, *, soaking: bool) -> None:
    """In any page: refused in words, or the results are those of an undamaged file."""
    whole, path = tmp_path / "whole.sqlite", tmp_path / "small.sqlite"
    killed, silent = _written(whole), []
    closed = {"": whole.read_bytes()}
    for seed in range(500 if soaking else 40):
        for old in tmp_path.glob("small.sqlite*"):
            old.unlink()
        for name, content in (killed if end else closed).items():
            Path(f"{path}{name}").write_bytes(content)
        what = flip_a_bit(Path(f"{path}{end}"), random.Random(seed))
        try:
            found = _finished(path)
        except OutputError:
            continue
        if found != tuple(map(_outcome, POINTS)):
            silent.append(f"seed {seed}: {what}")

    assert silent == []
