"""What becomes of one input: a value, an error of ours, or a failure with its place."""

from __future__ import annotations

import contextlib
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from wattree.errors import WattreeError

__all__ = ["LIMIT_S", "Failure", "Outcome", "outcome_of"]

#: A reader that computes for longer hangs. [s]
LIMIT_S = 60.0
#: How often as long it may wait: other programs may have the processors.
_WAITING = 10
_PACKAGE = f"{Path('src') / 'wattree'}/"


class _TooLong(BaseException):  # nothing that catches `Exception` may swallow it
    """An input took longer than the limit."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure.

    Attributes:
        kind: Class of the exception, or `Hang`.
        place: File and function of the package where it was raised; the same for what is alike.
        message: First line of what it said.
    """

    kind: str
    place: str
    message: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an input: it was read, refused, or it failed."""

    accepted: bool
    failure: Failure | None = None


@contextlib.contextmanager
def _limited(limit_s: float) -> Iterator[None]:
    def stop(_number: int, _frame: FrameType | None) -> None:
        raise _TooLong

    computing, waiting = (
        (number, signal.signal(number, stop)) for number in (signal.SIGPROF, signal.SIGALRM)
    )
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    others = signal.setitimer(signal.ITIMER_REAL, _WAITING * limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, before in (computing, waiting):
            signal.signal(number, before)
        signal.setitimer(signal.ITIMER_REAL, *others)


def outcome_of(read: Callable[[Path], object], path: Path, *, limit_s: float = LIMIT_S) -> Outcome:
    """Return what a reader does with a file: anything but a value or an error of ours failed."""
    try:
        # Warnings are for people; as errors they would be failures that no user meets.
        with warnings.catch_warnings(), _limited(limit_s):
            warnings.simplefilter("ignore")
            read(path)
    except WattreeError as error:
        is_empty = not str(error).strip()
        return _failed("EmptyMessage", error, "") if is_empty else Outcome(accepted=False)
    except _TooLong as error:
        return _failed("Hang", error, f"more than {limit_s:g} s")
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a failure
        return _failed(type(error).__name__, error, next(iter(str(error).splitlines()), ""))
    return Outcome(accepted=True)


def _failed(kind: str, error: BaseException, message: str) -> Outcome:
    return Outcome(accepted=False, failure=Failure(kind, _place(error), ascii(message)[1:-1][:200]))


def _place(error: BaseException) -> str:
    """Return the innermost function of the package that the error passed through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if _PACKAGE in frame.filename]
    if not ours:
        return "outside the package"
    if isinstance(error, RecursionError):
        return f"{ours[0].filename.partition(_PACKAGE)[2]}:{ours[0].name}"
    return f"{ours[-1].filename.partition(_PACKAGE)[2]}:{ours[-1].name}"
