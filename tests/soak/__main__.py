"""`python -m tests.soak`: attack the program for a time; docs/how-it-is-tested.md says how.

Each part does a slice in turn until all have done what was asked, or the time is over. The same
seed and counts do the same again; a call with the seed of an earlier one goes on where that ended.
"""

from __future__ import annotations

import argparse
import faulthandler
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.soak.attacks import attack
from tests.soak.fuzz import CASES, crashed, fuzz, write_failure
from tests.soak.kills import kill
from tests.soak.laws import broken_laws
from tests.soak.readers import READERS, ROOT
from tests.soak.state import PARTS, Failed, State

#: Items of each part between two looks at the clock of the others.
_SLICE = {"inputs": 300, "jobs": 5, "kills": 1, "attacks": 5}
#: A process that takes longer for one input, made small or not, is ended: what holds on within C
#: sees no signal. [s]
_MOST_S = 3600.0
#: Memory that the process may map: a bomb that goes off is then an error, not the machine's end.
_MOST_BYTES = 24 << 30


class Soak:
    """One call.

    Args:
        state: What has been done before.
        place: Folder of the state and of what failed.
        until_s: When to stop, of the monotonic clock. [s]
    """

    def __init__(self, state: State, place: Path, until_s: float) -> None:
        self.state, self._place, self._until_s = state, place, until_s
        self._file = place / f"state-{state.seed}.json"

    def run(self, wanted: dict[str, int]) -> None:
        """Do all parts in turn until each has done what is wanted, or the time is over."""
        while self._has_time():
            left = [part for part in PARTS if self.state.done[part] < wanted[part]]
            if not left:
                break
            for part in left:
                begin_s = time.monotonic()
                count = min(_SLICE[part], wanted[part] - self.state.done[part])
                for failed in getattr(self, f"_{part}")(count):
                    if self.state.note(failed):
                        print(f"{failed.part}: {failed.kind}: {failed.what}", flush=True)
                self.state.seconds[part] += time.monotonic() - begin_s
                self.state.write(self._file)
        self.state.write(self._file)

    def _has_time(self) -> bool:
        return time.monotonic() < self._until_s

    def _inputs(self, count: int) -> Iterator[Failed]:
        seed = self.state.seed
        mark = self._place / f"trying-{seed}"
        if (found := crashed(mark, seed)) is not None:  # the call before ended while it was read
            path = write_failure(found, seed, self._place / "failures")
            yield Failed("inputs", found.failure.kind, found.reader, f"{path}")
            self.state.done["inputs"] = max(self.state.done["inputs"], found.number + 1)

        def report(number: int, *, accepted: bool) -> bool:
            self.state.done["inputs"] = number
            self.state.accepted += accepted
            faulthandler.dump_traceback_later(_MOST_S, exit=True, file=sys.__stderr__)
            return self._has_time()

        first = self.state.done["inputs"]
        try:
            for found in fuzz(seed, count, first=first, report=report, mark=mark):
                path = write_failure(found, seed, self._place / "failures")
                failure = found.failure
                what = f"{found.reader}: {failure.place}: {failure.message}"
                yield Failed("inputs", failure.kind, what, f"{path}; keep it in {CASES.name}/")
        finally:
            faulthandler.cancel_dump_traceback_later()
            mark.unlink(missing_ok=True)

    def _jobs(self, count: int) -> Iterator[Failed]:
        def one(number: int) -> list[tuple[str, str]]:
            return broken_laws(self.state.seed, number)

        return self._each("jobs", count, one)

    def _kills(self, count: int) -> Iterator[Failed]:
        return self._each("kills", count, lambda number: kill(self.state.seed, number))

    def _attacks(self, count: int) -> Iterator[Failed]:
        return self._each("attacks", count, lambda number: attack(self.state.seed, number))

    def _each(
        self, part: str, count: int, one: Callable[[int], list[tuple[str, str]]]
    ) -> Iterator[Failed]:
        for _ in range(count):
            number = self.state.done[part]
            for kind, what in one(number):
                yield Failed(part, kind, what, f"seed {self.state.seed}, number {number}")
            self.state.done[part] += 1
            if not self._has_time():
                return


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after so long")
    parser.add_argument("--inputs", type=int, default=30_000, help=f"for {len(READERS)} readers")
    parser.add_argument("--jobs", type=int, default=300, help="drawn, each under all laws")
    parser.add_argument("--kills", type=int, default=20, help="of train, launch, design and serve")
    parser.add_argument("--attacks", type=int, default=100, help="peers and damaged files")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "soak", metavar="DIR")
    parser.add_argument("--fresh", action="store_true", help="forget what the seed has done")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the soak; return 1 if anything failed."""
    given = _parser().parse_args(arguments)
    file = given.out / f"state-{given.seed}.json"
    state = State(given.seed) if given.fresh else State.read(file, given.seed)
    given.out.mkdir(parents=True, exist_ok=True)
    soak = Soak(state, given.out, time.monotonic() + 60 * given.minutes)
    try:
        soak.run({part: getattr(given, part) for part in PARTS})
    except KeyboardInterrupt:
        print("interrupted; the same call goes on", flush=True)
    print(state.table())
    return 1 if state.failures else 0


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    sys.exit(main())
