"""Communication between launchers of one job, on one or several hosts, through one store.

Each learns what all said, and what failed first ends all. A launcher counts up a number in the
store while it lives, so that one that is killed, or whose host is, is noticed by a number that
stands still.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from wattree.errors import RunError
from wattree.json_text import parsed_json
from wattree.runtime.launch.environment import Launch
from wattree.runtime.launch.spawn import Failure
from wattree.runtime.launch.store import GONE_S, LOST, StoreInTime, has_agent, meeting_store
from wattree.trace.plain import from_plain

#: Longer messages are refused before they are parsed. [B]
_LONGEST = 1 << 22
#: What a failure says at most, in characters: an error and its traceback.
_LONGEST_TEXT = 1 << 16
#: A failure waits so long for an earlier one on another host. [s]
_SETTLE_S = 0.4
_LOOK_EVERY_S = 0.02
#: Between two numbers of a launcher. [s]
_BEAT_S = 0.5
#: Questions of all launchers in a second: each takes the first one's host some 4 us.
_LOOKS_PER_S = 5000.0
#: Exit code of launchers that cannot start a job.
MISTAKE = 2
#: What is said of values that cannot be a launcher's.
NO_LAUNCHER = "sent an unknown message; install the same Wattree on all hosts"


class LauncherMeeting:
    """The launchers of a job, as one of them sees them; it may be alone.

    Args:
        number: Of this launcher, from 0.
        world: How many there are.
        store: Of this meeting alone; None: the launcher is alone.
        keeps: Whether the store ends with this launcher.
        timeout_s: How long launchers wait for each other. [s]

    Attributes:
        names: Launcher → what messages call it, once that is known.
        verdict: What failed first anywhere; None while nothing is known to have failed.
        asked: Signals by which this launcher was asked to stop. Others are then, too: one that
            leaves is no failure, as ranks here may still be writing a checkpoint.
    """

    def __init__(
        self,
        number: int = 0,
        world: int = 1,
        store: StoreInTime | None = None,
        *,
        keeps: bool = False,
        timeout_s: float = 180.0,
    ) -> None:
        self.number, self._world, self._store = number, world, store
        self._keeps, self._timeout_s = keeps, timeout_s
        self._exchanges, self._have_met = 0, False
        self._watched: Sequence[int] = range(1, world) if number == 0 else range(1)
        self._beats: dict[int, tuple[bytes, int]] = {}
        self._look_s, self._left = max(_LOOK_EVERY_S, world / _LOOKS_PER_S), threading.Event()
        self._next_s = self._next_beats_s = 0.0
        self.names: dict[int, str] = {}
        self.verdict: Failure | None = None
        self.asked: list[int] = []
        if store is not None:
            store.add(f"beat/{number}", 1)
            threading.Thread(target=self._beat, args=(store,), daemon=True).start()

    def exchange(self, value: Any) -> list[Any]:
        """Return the values of all launchers, by number; None for what is none.

        Args:
            value: Of this one; plain values.

        Raises:
            RunError: One failed, or did not come in time.
        """
        if self._store is None:
            return [value]
        if self.verdict is not None:
            raise RunError("launchers", [self.verdict.message])
        self._exchanges += 1
        said = f"value {self._exchanges}"
        keys = [f"{said}/{number}" for number in range(self._world)]
        until_s = time.monotonic() + self._timeout_s
        found: list[bytes] = []
        with self._reached() as store:
            store.set(keys[self.number], json.dumps(value))
            store.add(said, 1)
            while self.check() is None and store.add(said, 0) < self._world:
                if time.monotonic() > until_s:
                    self._miss([store.check([key]) for key in keys])
                    break
                time.sleep(self._look_s)
            if self.verdict is None:
                found = store.multi_get(keys)
        if self.verdict is not None:
            raise RunError("launchers", [self.verdict.message])
        self._have_met = True
        return [_parsed(text) for text in found]

    def check(self) -> Failure | None:
        """Return the first failure of any host once it is known."""
        if self.verdict is None and self._store is not None and time.monotonic() >= self._next_s:
            with self._reached() as store:
                self._next_s = time.monotonic() + self._look_s / 2.0
                if store.check(["verdict"]):
                    self._end_with(store.get("verdict"))
                elif self._have_met:
                    self._look(store)
                    for number in filter(self._is_gone, self._watched):
                        has_left = store.check([f"left/{number}"])
                        if not (has_left and self.asked):
                            self.failed(self._lost(number, has_left=has_left))
                            break
        return self.verdict

    def failed(self, failure: Failure) -> Failure:
        """Send a failure of this launcher's ranks; return the first failure of all launchers."""
        failure = replace(failure, launcher=self.number)
        if self.verdict is None and self._store is not None:
            with self._reached() as store:
                store.append("failures", json.dumps(asdict(failure)) + "\n")
                time.sleep(_SETTLE_S)
                found = [failure_of(line) for line in store.get("failures").splitlines()]
                first = min(found, key=lambda each: (each.is_echo, each.at_s))
                self._end_with(store.compare_set("verdict", "", json.dumps(asdict(first))))
        return self.verdict or failure

    def done(self) -> Failure | None:
        """Wait until the ranks of all launchers are done; return the first failure, if any."""
        if self._store is not None and self.verdict is None:
            with self._reached() as store:
                store.add("done", 1)
                while store.add("done", 0) < self._world and self.check() is None:
                    if self.asked and any(map(self._is_gone, self._watched)):
                        break  # it was asked to stop, too, before its ranks were done
                    time.sleep(self._look_s)
        return self.verdict

    def close(self) -> None:
        """Leave; the launcher that keeps the store waits for those that may still read it."""
        self._leave()
        if self._store is not None and self._keeps and self._have_met:
            with contextlib.suppress(*LOST):
                while not all(map(self._has_left, self._watched)):
                    self._look(self._store)
                    time.sleep(self._look_s)
        self._store = None

    def _leave(self) -> None:
        """Say that this launcher has nothing more to read."""
        if self._store is not None and not self._left.is_set():
            self._left.set()
            with contextlib.suppress(*LOST):
                self._store.set(f"left/{self.number}", "")

    def _has_left(self, number: int) -> bool:
        assert self._store is not None
        return self._store.check([f"left/{number}"]) or self._is_gone(number)

    def _beat(self, store: StoreInTime) -> None:
        with contextlib.suppress(*LOST):  # who looks at its processes notices it, too
            while not self._left.wait(_BEAT_S):
                store.add(f"beat/{self.number}", 1)

    def _look(self, store: StoreInTime) -> None:
        """Read the numbers of the launchers that this one looks after.

        How often they stand still is counted, not how long: all may have been stopped meanwhile.
        """
        if time.monotonic() < self._next_beats_s:
            return
        self._next_beats_s = time.monotonic() + _BEAT_S
        keys = [f"beat/{number}" for number in self._watched]
        for number, beat in zip(self._watched, store.multi_get(keys), strict=True):
            before, still = self._beats.get(number, (b"", 0))
            self._beats[number] = beat, still + 1 if beat == before else 0

    def _is_gone(self, number: int) -> bool:
        """Return whether the number of a launcher has stood still for too long."""
        return self._beats.get(number, (b"", 0))[1] * _BEAT_S > GONE_S

    def _end_with(self, verdict: bytes) -> None:
        self.verdict = failure_of(verdict)
        self._leave()

    @contextlib.contextmanager
    def _reached(self) -> Iterator[StoreInTime]:
        """Yield the store; where it is lost, with its host, that is what failed."""
        assert self._store is not None
        try:
            yield self._store
        except LOST:
            self.verdict = self.verdict or self._lost(0)
            self._left.set()  # it is asked nothing more

    def _lost(self, number: int, *, has_left: bool = False) -> Failure:
        who = self.names.get(number, f"launcher {number}")
        message = (
            f"{who} left before the end of the job: it was asked to stop, or failed; see its output"
            if has_left
            else f"{who} is gone: it was killed, or its host is, and so its ranks are"
        )
        return Failure(rank=-1, code=1, message=message, at_s=time.time(), launcher=self.number)

    def _miss(self, have_come: Sequence[bool]) -> None:
        """Send which launchers are missing to those that came, for which `close` waits."""
        missing = [str(number) for number, has_come in enumerate(have_come) if not has_come]
        shown = ", ".join(missing[:8]) + (" …" if missing[8:] else "")
        message = (
            f"launcher {shown} of {self._world} did not come within {self._timeout_s:g} s; did "
            "all start, and is MASTER_ADDR reached from all hosts?"
        )
        self._watched = [number for number in self._watched if have_come[number]]
        self._have_met = True
        self.failed(Failure(rank=-1, code=MISTAKE, message=message, at_s=time.time()))


def meet(
    launch: Launch, environment: Mapping[str, str], *, purpose: str, timeout_s: float
) -> LauncherMeeting:
    """Return the meeting of all launchers that an outer launcher started; one may be alone.

    Args:
        environment: Of this launcher.
        purpose: What tells this meeting from others of the same launchers at the same time.
        timeout_s: How long to wait for all. [s]

    Raises:
        RunError: Not all came.
    """
    if launch.world == 1:
        return LauncherMeeting()
    store = meeting_store(launch, environment, purpose=purpose, timeout_s=timeout_s)
    meeting = LauncherMeeting(
        launch.rank,
        launch.world,
        store,
        keeps=launch.rank == 0 and not has_agent(environment),
        timeout_s=timeout_s,
    )
    try:
        meeting.exchange(None)
    except RunError:
        meeting.close()
        raise
    return meeting


def _parsed(text: bytes) -> Any:
    """Return a message of a launcher; None for what is none."""
    try:
        return parsed_json(text, limit_bytes=_LONGEST)
    except ValueError:
        return None


def failure_of(text: bytes) -> Failure:
    """Return a failure that a launcher sent; what no launcher sends is one, too."""
    with contextlib.suppress(ValueError):
        found = from_plain(Failure, _parsed(text), [])
        if found is not None and 0 <= found.code < 1 << 31 and not math.isnan(found.at_s):
            return replace(found, message=found.message[:_LONGEST_TEXT])
    return Failure(rank=-1, code=1, message=f"launchers: one {NO_LAUNCHER}", at_s=0.0)
