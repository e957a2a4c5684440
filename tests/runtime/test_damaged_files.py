"""Files that processes of a run leave for each other, damaged: one error in words, or none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wattree.errors import RunError
from wattree.runtime.colocation.state import new_state, states_in
from wattree.runtime.launch.meeting import failure_of
from wattree.runtime.launch.spawn import _read_failure
from wattree.runtime.tune.trial import TRIAL, accounts, trial_from

TEXTS = {
    "deep": b"[" * 3000,
    "deep, closed": b'{"a":' * 500 + b"1" + b"}" * 500,
    "no UTF-8": b'{"\xff": 1}',
    "cut": b'{"rank": ',
    "digits": b"9" * 5000,
    "another": b'{"what": 1}',
    "no object": b"[1]",
    "empty": b"",
}


def _account(folder: Path, content: bytes) -> object:
    (folder / "account0.json").write_bytes(content)
    return accounts(folder)


def _trial(folder: Path, content: bytes) -> object:
    del folder
    return trial_from({TRIAL: content.decode("utf-8", errors="surrogateescape")})


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("read", [_account, _trial])
def test_damage_is_told_with_the_file(
    tmp_path: Path, text: str, read: Callable[[Path, bytes], Any]
) -> None:
    """None of them ends in a traceback."""
    with pytest.raises(RunError) as caught:
        read(tmp_path, TEXTS[text])

    assert caught.value.source.startswith((str(tmp_path), TRIAL))


@pytest.mark.parametrize("text", TEXTS)
def test_what_a_rank_left_half_written_is_passed_over(tmp_path: Path, text: str) -> None:
    """Its exit code says that it failed."""
    path = tmp_path / "failure3.json"
    path.write_bytes(TEXTS[text])

    assert _read_failure(path) is None


@pytest.mark.parametrize("text", TEXTS)
def test_a_job_that_cannot_be_read_is_passed_over(tmp_path: Path, text: str) -> None:
    """Another's folder, or one of a crash; a damaged line among its processes is none."""
    state = new_state(tmp_path, ["sleep"])
    state.record("rank 0", state.launcher.pid)
    with (state.folder / "processes").open("ab") as file:
        file.write(TEXTS[text] + b"\n")
    state.record("rank 1", state.launcher.pid)
    recorded = [each.what for each in state.recorded()]
    (state.folder / "job.json").write_bytes(TEXTS[text])

    assert recorded == ["rank 0", "rank 1"]
    assert states_in(tmp_path) == []


@pytest.mark.parametrize("text", TEXTS)
def test_a_failure_that_no_launcher_sends_is_one_that_says_so(text: str) -> None:
    """And no defect: what failed first ends the job in any case."""
    assert "sent an unknown message" in failure_of(TEXTS[text]).message
