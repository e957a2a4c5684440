"""The file of finished points: nothing in it is lost, and nothing foreign is touched."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.design.studies import small_study
from wattree.design import Outcome, run_study, study_from_mapping
from wattree.design.samplers import points_of
from wattree.design.store import Store
from wattree.errors import OutputError, WattreeError

STUDY = study_from_mapping(small_study())
POINTS = points_of(STUDY)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where the file shall lie."""
    return tmp_path / "small.results.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    """Return a file with the points of the small study."""
    with Store(path, STUDY) as opened:
        opened.add(POINTS)
        yield opened


def test_a_file_without_any_result_is_of_any_study(store: Store, path: Path) -> None:
    """One whose points are claimed, or one of which is finished, is not."""
    corrected = study_from_mapping(small_study(objectives=["energy"]))
    store.claim(1)
    with pytest.raises(OutputError, match="holds results of"):
        Store(path, corrected)
    store.release()
    with Store(path, corrected) as other:
        other.add(POINTS)
        other.finish(Outcome(point=POINTS[0], feasible=True))
    with pytest.raises(OutputError, match="holds results of"):
        Store(path, STUDY)


def test_a_model_that_cannot_be_built_leaves_no_file(path: Path) -> None:
    """Nor does a fresh start lose the results that a file has."""
    one = small_study()["workloads"][0]
    typo = one["job"] | {"model": {"transformer": {"fnn": 1}}}
    wrong = study_from_mapping(small_study(workloads=[one | {"job": typo}]))
    with pytest.raises(WattreeError, match="fnn"):
        run_study(wrong, store=path, on="here")
    assert not path.exists()
    path.write_bytes(b"results")
    with pytest.raises(WattreeError, match="fnn"):
        run_study(wrong, store=path, on="here", fresh=True)
    assert path.read_bytes() == b"results"


def test_every_point_is_claimed_once(store: Store, path: Path) -> None:
    """Two calls may share a study."""
    with Store(path, STUDY) as other:
        first, second = store.claim(3), other.claim(100)
    keys = [point.key for point in (*first, *second)]
    assert keys == [point.key for point in POINTS]


def test_what_a_dead_process_had_claimed_is_taken_over(store: Store, path: Path) -> None:
    """A process that was killed releases nothing itself."""
    program = (
        "import sys; sys.path[:] = sys.argv[2:]\n"
        "from pathlib import Path\n"
        "from tests.design.test_store import STUDY, Store\n"
        "import os\n"
        "Store(Path(sys.argv[1]), STUDY).claim(5); os._exit(9)"
    )
    here = str(Path(__file__).parents[2])
    subprocess.run([sys.executable, "-c", program, str(path), here, *sys.path], check=False)
    assert len(store.claim(100)) == len(POINTS) - 5
    store.renew()
    assert len(store.claim(100)) == 5


def test_claims_of_others_that_live_stand_until_their_lease_ends(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that cannot be asked is believed for as long as it renews."""
    with Store(path, STUDY) as other:
        other.name = "another-machine/1/1/x"
        other.claim(5)
    store.renew()
    stood = len(store.claim(100))
    monkeypatch.setattr("wattree.design.store.time.time", lambda: 1e12)
    store.renew()
    assert (stood, len(store.claim(100))) == (len(POINTS) - 5, 5)


def test_outcomes_come_back_as_they_were_in_the_order_of_the_study(store: Store) -> None:
    """Floats to the last bit."""
    outcomes = [
        Outcome(point=point, feasible=True, totals={"time_s": 0.1 + index / 3})
        for index, point in enumerate(POINTS)
    ]
    for outcome in reversed(outcomes):
        store.finish(outcome)
    assert store.outcomes() == tuple(outcomes)


def test_a_point_is_finished_once(store: Store) -> None:
    """Whoever comes second has evaluated the same."""
    first = Outcome(point=POINTS[0], feasible=True, totals={"time_s": 1.0})
    store.finish(first)
    store.finish(Outcome(point=POINTS[0], feasible=False, reason="late"))
    assert store.outcomes() == (first,)


def test_a_file_of_another_study_is_left_alone(store: Store, path: Path) -> None:
    """It may hold hours of work."""
    store.finish(Outcome(point=POINTS[0], feasible=True))
    changed = study_from_mapping(small_study(cluster={"node": "dgx-h100"}))
    with pytest.raises(OutputError, match=r"another study.*--store.*--fresh"):
        Store(path, changed)
    assert len(store.outcomes()) == 1


def test_fresh_forgets_what_was_there(store: Store, path: Path) -> None:
    """Only where it is asked for."""
    store.finish(Outcome(point=POINTS[0], feasible=True))
    changed = study_from_mapping(small_study(cluster={"node": "dgx-h100"}))
    with Store(path, changed, fresh=True) as opened:
        assert opened.count() == (0, 0, 0)


def test_a_database_of_another_program_is_left_alone(path: Path) -> None:
    """Someone named the wrong file."""
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE notes (text)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(OutputError, match="database of another program"):
        Store(path, STUDY, fresh=True)
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_left_alone(path: Path) -> None:
    """Someone named the wrong file."""
    path.write_text("a letter\n" * 1000)
    with pytest.raises(OutputError, match="is no database"):
        Store(path, STUDY)
    assert path.read_text().startswith("a letter")


def test_a_later_form_is_refused(store: Store, path: Path) -> None:
    """It cannot be read, and must not be written."""
    store.close()
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA user_version = 99")
    other.close()
    with pytest.raises(OutputError, match="has form 99"):
        Store(path, STUDY)


def test_a_damaged_file_is_told_as_such(store: Store, path: Path) -> None:
    """With what may save what is in it."""
    for point in POINTS:
        store.finish(Outcome(point=point, feasible=True, reason="x" * 3000))
    store._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    store.close()
    raw = bytearray(path.read_bytes())
    raw[4096:] = b"\xa5" * (len(raw) - 4096)
    path.write_bytes(raw)
    with pytest.raises(OutputError, match=r"damaged.*\.recover"):
        Store(path, STUDY)


def test_a_locked_file_is_told_as_such(store: Store, path: Path) -> None:
    """After a while: other calls write for some milliseconds only."""
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        store._connection.execute("PRAGMA busy_timeout = 10")
        with pytest.raises(OutputError, match="locked by another program"):
            store.claim(1)
        other.execute("ROLLBACK")
    other.close()
    assert len(store.claim(1)) == 1


def test_a_full_disk_loses_nothing_that_was_finished(store: Store) -> None:
    """The limit of pages stands for the disk's: SQLite refuses to grow in the same way."""
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count = {pages + 3}")
    told = []
    for point in POINTS:
        try:
            store.finish(Outcome(point=point, feasible=True, reason="x" * 3000))
        except OutputError as error:
            told.append(str(error))
    assert 0 < len(store.outcomes()) == len(POINTS) - len(told)
    assert all("disk is full" in line and "finished points are stored" in line for line in told)
    assert told


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """Before anything is evaluated."""
    missing = tmp_path / "none" / "small.sqlite"
    with pytest.raises(OutputError, match="cannot be written"):
        Store(missing, STUDY)


def test_a_file_that_cannot_be_written_is_told(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write any file, so SQLite is asked for a reader instead."""
    store.close()
    path.chmod(stat.S_IRUSR)
    opened = sqlite3.connect

    def reader(where: Path, **rest: object) -> sqlite3.Connection:
        return opened(f"file:{where}?mode=ro", uri=True, **rest)  # type: ignore[call-overload]

    monkeypatch.setattr("wattree.design.store.sqlite3.connect", reader)
    with pytest.raises(OutputError, match="cannot be written; check its permissions"):
        Store(path, STUDY).add(POINTS)
