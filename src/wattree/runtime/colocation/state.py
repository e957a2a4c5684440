"""State of a launcher on a node: one folder per job, so that later launchers can clean up.

The folder of a user stands where the system keeps what ends with the session (`XDG_RUNTIME_DIR`),
else in the temporary folder. That of a job holds `job.json`, the processes that were started, and
the pipes and logs of its MPS daemon.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from wattree.files import write_atomic
from wattree.json_text import parsed_json
from wattree.private import private_folder
from wattree.process import Process, numbering, process_of, this_process

_JOB, _PROCESSES, _LOCK = "job.json", "processes", "lock"
_TOKEN_BYTES = 6
_TOKEN = re.compile(rf"[0-9a-f]{{{2 * _TOKEN_BYTES}}}")


@dataclass(frozen=True, slots=True)
class Recorded:
    """A process that a job started."""

    what: str
    process: Process


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """State of a launcher.

    Attributes:
        folder: Of the job; private to the user and local to the node.
        token: Unlike that of any other job; processes have it in their environment.
        begun_s: When, on the wall clock. [s]
        place: Boot of the machine and name space of process numbers that all this is about.
    """

    folder: Path
    token: str
    launcher: Process
    command: tuple[str, ...]
    begun_s: float
    place: str

    def text(self) -> str:
        """Return the state without the folder as text, which `of` parses."""
        record = {
            "token": self.token,
            "launcher": {"pid": self.launcher.pid, "start": self.launcher.start},
            "command": list(self.command),
            "begun_s": self.begun_s,
            "place": self.place,
        }
        return json.dumps(record)

    @classmethod
    def of(cls, folder: Path, text: str) -> JobState:
        """Return the state of a job parsed from the result of `text`.

        Raises:
            KeyError, TypeError, ValueError: It is none.
        """
        record = parsed_json(text)
        return cls(
            folder=folder,
            token=str(record["token"]),
            launcher=Process(int(record["launcher"]["pid"]), str(record["launcher"]["start"])),
            command=tuple(map(str, record["command"])),
            begun_s=float(record["begun_s"]),
            place=str(record["place"]),
        )

    def record(self, what: str, pid: int) -> None:
        """Record a started process; ended ones are ignored."""
        process = process_of(pid)
        if process is None:
            return
        line = json.dumps({"what": what, "pid": process.pid, "start": process.start})
        with (self.folder / _PROCESSES).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")

    def recorded(self) -> list[Recorded]:
        """Return the recorded processes; a line truncated by a crash is ignored."""
        found = []
        try:
            lines = (self.folder / _PROCESSES).read_bytes().splitlines()
        except OSError:
            return []
        for line in lines:
            try:
                record = parsed_json(line)
                found.append(
                    Recorded(str(record["what"]), Process(int(record["pid"]), str(record["start"])))
                )
            except (ValueError, KeyError, TypeError):
                continue
        return found

    def remove(self) -> None:
        """Remove the folder and all in it."""
        shutil.rmtree(self.folder, ignore_errors=True)


def state_root(environment: Mapping[str, str]) -> Path:
    """Return the folder of this user on this node; create it if missing.

    Raises:
        OutputError: There is no folder that is this user's alone.
    """
    base = environment.get("XDG_RUNTIME_DIR", "")
    if not base or not os.access(base, os.W_OK):
        base = tempfile.gettempdir()  # sockets in it have short names only
    home = environment.get("HOME") or "/nonexistent"
    return private_folder("wattree-launch", (Path(base), Path(home, ".cache", "wattree")))


def new_state(root: Path, command: Sequence[str]) -> JobState:
    """Return the state of a job that this process starts, with a new folder."""
    token = secrets.token_hex(_TOKEN_BYTES)
    state = JobState(
        folder=root / token,
        token=token,
        launcher=this_process(),
        command=tuple(command),
        begun_s=time.time(),
        place=numbering(),
    )
    with locked(root):  # a folder without its file is one whose launcher was killed right here
        state.folder.mkdir(mode=0o700)
        write_atomic(state.folder / _JOB, state.text())
    return state


def states_in(root: Path) -> list[JobState]:
    """Return the jobs of this boot and PID namespace that left a folder, running or not."""
    found = (_read(folder) for folder in sorted(root.iterdir()) if folder.is_dir())
    return [state for state in found if state is not None and state.place == numbering()]


def remove_unfinished(root: Path) -> None:
    """Remove folders of jobs without a description; the caller holds `locked`."""
    for folder in root.iterdir():
        if _TOKEN.fullmatch(folder.name) and folder.is_dir() and not (folder / _JOB).exists():
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Lock the folder while the block runs: only one process cleans up at a time."""
    import fcntl

    with (root / _LOCK).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _read(folder: Path) -> JobState | None:
    try:
        return JobState.of(folder, (folder / _JOB).read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError):
        return None  # about to be written or removed, or not ours
