"""Finished points in an SQLite file, durable against failures of the process.

One row a point. A process claims rows before it evaluates them, for a time that it renews, so that
several may share a study; what a process that is gone had claimed is taken over. Each finished
point is committed alone, and through to the disk.
"""

from __future__ import annotations

import platform
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

from wattree.design.outcome import Outcome
from wattree.design.points import DesignPoint
from wattree.design.stored_row import (
    check_row,
    outcome_text,
    point_text,
    read_outcome,
    read_point,
    row_checksum,
)
from wattree.design.study import Study
from wattree.errors import OutputError
from wattree.process import Process, is_alive, this_process
from wattree.units import whole_number

#: Says in the file's header that it is one of ours ("WTds").
_APPLICATION = 0x57546473
#: Goes with every change of the tables.
_VERSION = 2
#: How long a claim stands that is not renewed. [s]
LEASE_S = 60.0
#: A claim for longer than this is none that was ever made, however clocks of machines differ. [s]
_LONGEST_LEASE_S = 86_400.0
#: How long to wait for another process that writes. [s]
_BUSY_S = 30.0

_TABLES = """
CREATE TABLE study (name TEXT NOT NULL, digest TEXT NOT NULL, source TEXT NOT NULL);
CREATE TABLE points (
    key TEXT PRIMARY KEY,
    ordinal INTEGER NOT NULL,
    point TEXT NOT NULL,
    owner TEXT,
    lease REAL,
    outcome TEXT,
    checksum TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX by_ordinal ON points (ordinal);
CREATE INDEX open_points ON points (ordinal) WHERE outcome IS NULL;
"""

_DAMAGED = "is damaged ({error}); move it away, or save what is readable: sqlite3 FILE .recover"
_DAMAGED_ROW = (
    "the row of point {key!r} is damaged ({error}){more}; remove it, and it is evaluated again: "
    "sqlite3 FILE \"DELETE FROM points WHERE key = '...'\""
)
_READ_ONLY = "cannot be written; check its permissions and its folder's, or name another (--store)"
#: How SQLite names what is wrong → what to say of it.
_WORDS = {
    "SQLITE_NOTADB": "is no database; name another file (--store)",
    "SQLITE_CORRUPT": _DAMAGED,
    "SQLITE_BUSY": f"is locked by another program for more than {_BUSY_S:g} s; end that, or wait, "
    "and run again: finished points are stored",
    "SQLITE_FULL": "the disk is full; make room and run again: finished points are stored",
    "SQLITE_READONLY": _READ_ONLY,
    "SQLITE_CANTOPEN": _READ_ONLY,
    "SQLITE_PERM": _READ_ONLY,
    "SQLITE_IOERR": "cannot be read or written ({error}); finished points are stored: check the "
    "disk, its quota, and what a file may take (ulimit -f)",
}
#: What rows are checked by, and their checksums; conditions follow.
_ROWS = "SELECT key, ordinal, point, outcome, checksum FROM points "
_Read = TypeVar("_Read")


def default_store(study: Study) -> Path:
    """Return the default path of a study's results: in the folder of its file."""
    source = Path(study.source)
    return source.with_name(f"{source.stem}.results.sqlite")


class Store:
    """The file of one study, opened.

    Attributes:
        path: The file.
        name: What claims of this process are signed with.
    """

    def __init__(self, path: Path, study: Study, *, fresh: bool = False) -> None:
        """Open the file, or make it.

        Args:
            path: The file.
            fresh: Forget what it holds, if it is of a study.

        Raises:
            OutputError: It cannot be used: it is foreign, damaged, locked, of another study, or
                cannot be written.
        """
        self.path, self.name, self._study = path, own_name(), study
        with self._errors():
            self._open(fresh=fresh)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, points: Sequence[DesignPoint], *, first: int = 0) -> None:
        """Enter points that are not known yet; `first` is the place of the first in the study."""
        rows = [(point.key, first + index, point_text(point)) for index, point in enumerate(points)]
        with self._errors(), self._transaction():
            self._connection.executemany(
                "INSERT OR IGNORE INTO points (key, ordinal, point, checksum) VALUES (?, ?, ?, ?)",
                [(*row, row_checksum(*row, None)) for row in rows],
            )

    def claim(self, most: int) -> list[DesignPoint]:
        """Claim up to `most` unclaimed points for this process, and return them."""
        with self._errors(), self._transaction():
            rows = self._connection.execute(
                _ROWS + "WHERE outcome IS NULL AND owner IS NULL ORDER BY ordinal LIMIT ?",
                (most,),
            ).fetchall()
            found = self._read(rows, lambda row: read_point(row[0], row[2]))
            self._connection.executemany(
                "UPDATE points SET owner = ?, lease = ? WHERE key = ?",
                [(self.name, time.time() + LEASE_S, point.key) for point in found],
            )
        return found

    def renew(self) -> None:
        """Extend the claims of this process, and end claims of processes that have ended."""
        now = time.time()
        with self._errors(), self._transaction():
            self._connection.execute(
                "UPDATE points SET lease = ? WHERE owner = ? AND outcome IS NULL",
                (now + LEASE_S, self.name),
            )
            owners = self._connection.execute(
                "SELECT owner, max(lease) FROM points WHERE outcome IS NULL AND owner NOT NULL "
                "GROUP BY owner"
            ).fetchall()
            gone = [(o,) for o, lease in owners if o != self.name and _is_void(o, lease, now)]
            self._connection.executemany(
                "UPDATE points SET owner = NULL, lease = NULL WHERE owner = ? AND outcome IS NULL",
                gone,
            )

    def finish(self, outcome: Outcome) -> None:
        """Store the outcome of a point permanently."""
        text, key = outcome_text(outcome), outcome.point.key
        with self._errors(), self._transaction():
            rows = self._connection.execute(
                _ROWS + "WHERE key = ? AND outcome IS NULL", (key,)
            ).fetchall()
            for _, ordinal, point, *_ in self._read(rows, lambda row: row):
                self._connection.execute(
                    "UPDATE points SET outcome = ?, checksum = ?, owner = NULL, lease = NULL "
                    "WHERE key = ?",
                    (text, row_checksum(key, ordinal, point, text), key),
                )

    def release(self) -> None:
        """End the claims of this process."""
        with self._errors(), self._transaction():
            self._connection.execute(
                "UPDATE points SET owner = NULL, lease = NULL WHERE owner = ?", (self.name,)
            )

    def count(self) -> tuple[int, int, int]:
        """Return how many points are finished, claimed by others, and there at all."""
        with self._errors():
            done, others, total = self._connection.execute(
                "SELECT count(outcome), count(CASE WHEN outcome IS NULL AND owner != ? THEN 1 END),"
                " count(*) FROM points",
                (self.name,),
            ).fetchone()
        return int(done), int(others), int(total)

    def outcomes(self) -> tuple[Outcome, ...]:
        """Return what became of all finished points, in the order of the study."""
        with self._errors():
            rows = self._connection.execute(
                _ROWS + "WHERE outcome NOT NULL ORDER BY ordinal"
            ).fetchall()
        return tuple(self._read(rows, lambda row: read_outcome(row[3])))

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _read(
        self, rows: Iterable[tuple[Any, ...]], reader: Callable[[tuple[Any, ...]], _Read]
    ) -> list[_Read]:
        """Return what rows hold.

        Raises:
            OutputError: Some are damaged; states their number and the point of the first.
        """
        found, damaged = [], []
        for row in rows:
            try:
                check_row(*row)
                found.append(reader(row))
            except ValueError as error:
                damaged.append((row[0], str(error)))
        if damaged:
            key, fault = damaged[0]
            more = f", and {len(damaged) - 1} more" if len(damaged) > 1 else ""
            text = _DAMAGED_ROW.format(key=key, error=fault, more=more)
            raise OutputError(f"{self.path}: {text}")
        return found

    def _open(self, *, fresh: bool) -> None:
        is_new = not self.path.exists() or self.path.stat().st_size == 0
        self._connection = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None)
        try:
            if not is_new:
                self._check_kind()
            # A reader never waits for a writer, and a kill at any instant leaves whole commits.
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
            with self._transaction():
                self._make(renew=fresh or self._is_void())
            self._check_study()
            rows = self._connection.execute(_ROWS + "ORDER BY ordinal")
            self._read(rows, lambda _: None)
        except BaseException:
            self._connection.close()
            raise

    def _check_kind(self) -> None:
        """Raise an error for a file that is damaged or not a store of results."""
        (application,) = self._connection.execute("PRAGMA application_id").fetchone()
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        tables = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if application != _APPLICATION and (tables or application):
            raise OutputError(
                f"{self.path}: is a database of another program; name another file (--store)"
            )
        if application == _APPLICATION and version != _VERSION:
            raise OutputError(
                f"{self.path}: has form {version} of results, expected {_VERSION}; it was written "
                "by another version of Wattree: name another file (--store)"
            )
        (found,) = self._connection.execute("PRAGMA integrity_check(1)").fetchone()
        if found != "ok":
            raise OutputError(f"{self.path}: {_DAMAGED.format(error=' '.join(str(found).split()))}")

    def _make(self, *, renew: bool) -> None:
        """Make the tables, where this is the first process, and say whose results they hold.

        Args:
            renew: Forget what they hold.
        """
        is_new = not self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if is_new:
            for statement in _TABLES.strip().split(";"):
                if statement.strip():
                    self._connection.execute(statement)
            self._connection.execute(f"PRAGMA application_id = {_APPLICATION}")
            self._connection.execute(f"PRAGMA user_version = {_VERSION}")
        elif renew:
            self._connection.execute("DELETE FROM points")
            self._connection.execute("DELETE FROM study")
        if is_new or renew:
            self._connection.execute(
                "INSERT INTO study VALUES (?, ?, ?)",
                (self._study.name, self._study.digest, self._study.source),
            )

    def _is_void(self) -> bool:
        """Whether the file is of another study, of which no point was finished or is evaluated."""
        if not self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            return False
        rows = self._connection.execute("SELECT digest FROM study").fetchall()
        now = time.time()
        return (
            len(rows) == 1
            and rows[0][0] != self._study.digest
            and not self._connection.execute("SELECT count(outcome) FROM points").fetchone()[0]
            and all(
                _is_void(owner, lease, now)
                for owner, lease in self._connection.execute(
                    "SELECT owner, lease FROM points WHERE owner NOT NULL"
                )
            )
        )

    def _check_study(self) -> None:
        rows = self._connection.execute("SELECT name, digest FROM study").fetchall()
        if len(rows) != 1:
            points = self._connection.execute("SELECT count(*) FROM points").fetchone()[0]
            raise OutputError(
                f"{self.path}: has {len(rows)} rows that say of which study it holds results, "
                f"expected 1; its {points} points may be of another study: name another file "
                "(--store), or forget them (--fresh)"
            )
        name, digest = rows[0]
        if digest != self._study.digest:
            raise OutputError(
                f"{self.path}: holds results of {name} as it was before it was changed, or of "
                "another study; keep them and name another file (--store), or forget them (--fresh)"
            )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Return a sentence on the problem of the file."""
        try:
            yield
        except sqlite3.Error as error:
            raise OutputError(f"{self.path}: {_in_words(error)}") from error
        except OSError as error:
            raise OutputError(f"{self.path}: cannot be opened ({error.strerror})") from error


def _is_void(owner: object, lease: object, now: float) -> bool:
    """Return whether a claim has lapsed, or is none that any process made."""
    if not isinstance(owner, str) or not isinstance(lease, float):
        return True
    return not now <= lease <= now + _LONGEST_LEASE_S or is_gone(owner)


def _in_words(error: sqlite3.Error) -> str:
    name = getattr(error, "sqlite_errorname", None) or ""
    sentence = next((words for begin, words in _WORDS.items() if name.startswith(begin)), None)
    if sentence is not None:
        return sentence.format(error=error)
    return f"cannot be used ({error}); name another file (--store)"


def own_name() -> str:
    """Return a unique name of this process: machine, number, start, and a random part."""
    process = this_process()
    return f"{platform.node()}/{process.pid}/{process.start}/{uuid.uuid4().hex[:8]}"


def is_gone(name: str) -> bool:
    """Return whether a process of this machine has ended; False for other machines."""
    parts = name.split("/")
    number = whole_number(parts[1]) if len(parts) == 4 and parts[0] == platform.node() else None
    return number is not None and not is_alive(Process(number, parts[2]))
