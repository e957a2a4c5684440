"""Finished points in an SQLite file: what is in it survives whatever becomes of the process.

One row a point. A process claims rows before it evaluates them, for a time that it renews, so that
several may share a study; what a process that is gone had claimed is taken over. Each finished
point is committed alone, and through to the disk.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from wattree.design.outcome import Outcome, outcome_from_json, outcome_json
from wattree.design.owner import is_gone, own_name
from wattree.design.points import DesignPoint
from wattree.design.study import Study
from wattree.errors import OutputError

#: Says in the file's header that it is one of ours ("WTds").
_APPLICATION = 0x57546473
#: Goes with every change of the tables.
_VERSION = 1
#: How long a claim stands that is not renewed. [s]
LEASE_S = 60.0
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
    outcome TEXT
) WITHOUT ROWID;
CREATE INDEX by_ordinal ON points (ordinal);
CREATE INDEX open_points ON points (ordinal) WHERE outcome IS NULL;
"""

_DAMAGED = "is damaged ({error}); move it away, or save what is readable: sqlite3 FILE .recover"
_READ_ONLY = "cannot be written; check its permissions and its folder's, or name another (--store)"
#: How SQLite names what is wrong → what to say of it.
_WORDS = {
    "SQLITE_NOTADB": "is no database; name another file (--store)",
    "SQLITE_CORRUPT": _DAMAGED,
    "SQLITE_BUSY": f"is locked by another program for more than {_BUSY_S:g} s; end that, or wait, "
    "and run again: finished points are kept",
    "SQLITE_FULL": "the disk is full; make room and run again: finished points are kept",
    "SQLITE_READONLY": _READ_ONLY,
    "SQLITE_CANTOPEN": _READ_ONLY,
    "SQLITE_PERM": _READ_ONLY,
    "SQLITE_IOERR": "cannot be read or written ({error}); finished points are stored: check the "
    "disk, its quota, and what a file may take (ulimit -f)",
}


def default_store(study: Study) -> Path:
    """Return where the results of a study lie unless the user says otherwise: beside its file."""
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
            study: Whose results it holds.
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
        rows = [
            (point.key, first + index, json.dumps(dict(point.values), allow_nan=False))
            for index, point in enumerate(points)
        ]
        with self._errors(), self._transaction():
            self._connection.executemany(
                "INSERT OR IGNORE INTO points (key, ordinal, point) VALUES (?, ?, ?)", rows
            )

    def claim(self, most: int) -> list[DesignPoint]:
        """Return up to `most` points that no one is at, and sign them as this process's."""
        with self._errors(), self._transaction():
            rows = self._connection.execute(
                "SELECT key, point FROM points WHERE outcome IS NULL AND owner IS NULL "
                "ORDER BY ordinal LIMIT ?",
                (most,),
            ).fetchall()
            self._connection.executemany(
                "UPDATE points SET owner = ?, lease = ? WHERE key = ?",
                [(self.name, time.time() + LEASE_S, key) for key, _ in rows],
            )
        return [DesignPoint(key=key, values=json.loads(values)) for key, values in rows]

    def renew(self) -> None:
        """Extend the claims of this process, and end those of processes that are gone."""
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
            gone = [(o,) for o, lease in owners if o != self.name and (lease < now or is_gone(o))]
            self._connection.executemany(
                "UPDATE points SET owner = NULL, lease = NULL WHERE owner = ? AND outcome IS NULL",
                gone,
            )

    def finish(self, outcome: Outcome) -> None:
        """Keep what became of a point, for good."""
        text = json.dumps(outcome_json(outcome), allow_nan=False)
        with self._errors(), self._transaction():
            self._connection.execute(
                "UPDATE points SET outcome = ?, owner = NULL, lease = NULL WHERE key = ? "
                "AND outcome IS NULL",
                (text, outcome.point.key),
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
                "SELECT outcome FROM points WHERE outcome NOT NULL ORDER BY ordinal"
            ).fetchall()
        try:
            return tuple(outcome_from_json(json.loads(text)) for (text,) in rows)
        except (KeyError, TypeError, ValueError) as error:
            raise OutputError(f"{self.path}: {_DAMAGED.format(error=error)}") from error

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

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
                if fresh and not is_new:
                    self._connection.execute("DELETE FROM points")
                    self._connection.execute("DELETE FROM study")
                self._make()
            self._check_study()
        except BaseException:
            self._connection.close()
            raise

    def _check_kind(self) -> None:
        """Refuse a file that is none of ours, or damaged."""
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
        (found,) = self._connection.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise OutputError(f"{self.path}: {_DAMAGED.format(error=' '.join(str(found).split()))}")

    def _make(self) -> None:
        """Make the tables, where this is the first process, and say whose results they hold."""
        if not self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            for statement in _TABLES.strip().split(";"):
                if statement.strip():
                    self._connection.execute(statement)
            self._connection.execute(f"PRAGMA application_id = {_APPLICATION}")
            self._connection.execute(f"PRAGMA user_version = {_VERSION}")
        if not self._connection.execute("SELECT count(*) FROM study").fetchone()[0]:
            self._connection.execute(
                "INSERT INTO study VALUES (?, ?, ?)",
                (self._study.name, self._study.digest, self._study.source),
            )

    def _check_study(self) -> None:
        name, digest = self._connection.execute("SELECT name, digest FROM study").fetchone()
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
        """Tell what the file's trouble is in words."""
        try:
            yield
        except sqlite3.Error as error:
            raise OutputError(f"{self.path}: {_in_words(error)}") from error
        except OSError as error:
            raise OutputError(f"{self.path}: cannot be opened ({error.strerror})") from error


def _in_words(error: sqlite3.Error) -> str:
    name = getattr(error, "sqlite_errorname", None) or ""
    sentence = next((words for begin, words in _WORDS.items() if name.startswith(begin)), None)
    if sentence is not None:
        return sentence.format(error=error)
    return f"cannot be used ({error}); name another file (--store)"
