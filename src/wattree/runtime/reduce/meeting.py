"""Synchronizes the processes of a device: a page of shared memory with a word for each.

No one waits for one that is gone: each holds a lock on the page that the kernel takes from it when
it ends, however it ends; whoever waits looks at the locks of those it waits for.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import struct
import time
from collections.abc import Iterable, Sequence

from wattree.errors import CommunicationError, HardwareError
from wattree.runtime.reduce.futex import fence, sleep_while, wake_all

#: Bytes of a member: its words on one cache line, what it says of itself on the next.
_MEMBER_BYTES = 256
_NOTE_AT = 64
#: How often those who wait see whether the others are there. [s]
_LOOK_EVERY_S = 0.1
#: `struct flock` of Linux: type, whence, start, length, process.
_FLOCK = "hhqqi4x"


class Note(ctypes.Structure):
    """A member's message about its contribution.

    Attributes:
        kind: Number that stands for the type of the elements.
        number: Of the bucket in the step.
    """

    _fields_ = (
        ("elements", ctypes.c_int64),
        ("kind", ctypes.c_int64),
        ("number", ctypes.c_int64),
    )

    elements: int
    kind: int
    number: int


def shared_file(name: str) -> int:
    """Return a descriptor of an in-memory file that ends with the processes that have it.

    Raises:
        HardwareError: The system has no such files.
    """
    if not hasattr(os, "memfd_create"):
        raise HardwareError(
            "hierarchical reduction needs files in memory (memfd), which only Linux has; "
            "WATTREE_REDUCE=flat works everywhere"
        )
    return os.memfd_create(name, os.MFD_CLOEXEC)


def shared_path(process: int, descriptor: int) -> str:
    """Return under which name other processes of this user open it."""
    return f"/proc/{process}/fd/{descriptor}"


def take_place(descriptor: int, place: int) -> None:
    """Show that a member is there, for as long as this process lives and has the file open."""
    fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)


class MemberMeeting:
    """The members of a device.

    Args:
        descriptor: Of the file that all share; it stays open as long as the meeting.
        place: Of this process among the members; 0 leads.
        ranks: Of the members, in order, as messages name them.
        patience_s: Time after which one that is there, but does not come, counts as missing. [s]
    """

    def __init__(
        self, descriptor: int, place: int, ranks: Sequence[int], *, patience_s: float
    ) -> None:
        self.place, self.ranks, self._patience_s = place, tuple(ranks), patience_s
        self._descriptor, self._phase = descriptor, 0
        size = _MEMBER_BYTES * (len(ranks) + 1)
        os.posix_fallocate(descriptor, 0, size)
        # Its own copy of the descriptor is closed with the map, and with it the lock is gone: the
        # map has to live as long as this object.
        self._map = mmap.mmap(descriptor, size)
        self._words = [self._word(member) for member in range(len(ranks))]
        self._failed = self._word(len(ranks))
        self._notes = [
            Note.from_buffer(self._map, member * _MEMBER_BYTES + _NOTE_AT)
            for member in range(len(ranks))
        ]
        take_place(descriptor, place)

    def close(self) -> None:
        """Leave; processes that still wait for this one are notified."""
        with contextlib.suppress(OSError):
            os.close(self._descriptor)

    def say(self, *, elements: int, kind: int, number: int) -> None:
        """Publish this process's note; the others read it once they meet."""
        note = self._notes[self.place]
        note.elements, note.kind, note.number = elements, kind, number

    def notes(self) -> list[Note]:
        """Return the notes of all members, in their order."""
        return self._notes

    def meet(self, doing: str, *, of: Iterable[int] | None = None) -> None:
        """Wait until the members, or the named ones, have arrived as often as this process.

        Args:
            doing: In words, what they come for.
            of: Places; None is all.

        Raises:
            CommunicationError: A member has ended or does not come, or said that another is gone.
        """
        self._phase += 1
        fence()
        mine = self._words[self.place]
        mine.value = _wrapped(self._phase)
        wake_all(mine)
        for member in range(len(self._words)) if of is None else of:
            self._await(member, doing)
        fence()

    def fail(self, rank: int) -> None:
        """Notify all members that a rank, of this device or another, is why there is no result."""
        if not self._failed.value:  # the first that is named is the cause, later ones its echo
            self._failed.value = rank + 1
        fence()
        for word in self._words:
            wake_all(word)

    def _await(self, member: int, doing: str) -> None:
        word, end_s = self._words[member], None
        while True:
            value = word.value
            if _wrapped(self._phase - value) <= 0:
                return
            sleep_while(word, value, _LOOK_EVERY_S)
            if word.value != value:
                continue
            now_s = time.monotonic()
            end_s = end_s or now_s + self._patience_s
            self._check(member, doing, is_late=now_s > end_s)

    def _check(self, member: int, doing: str, *, is_late: bool) -> None:
        """Raise if there is no point in waiting for a member."""
        word = self._words[member]
        if self._failed.value and _wrapped(self._phase - word.value) > 0:
            rank = self._failed.value - 1
            raise CommunicationError(
                f"{self._at(doing)}: rank {rank} has ended or failed; see its own message"
            )
        # Gone, and not after it came: looked at in this order, or it might do both in between.
        if self._is_gone(member) and _wrapped(self._phase - word.value) > 0:
            rank = self.ranks[member]
            self.fail(rank)
            raise CommunicationError(
                f"{self._at(doing)}: rank {rank}, on the same device, has ended; "
                "see its own message"
            )
        if is_late:
            rank = self.ranks[member]
            self.fail(rank)
            raise CommunicationError(
                f"{self._at(doing)}: rank {rank}, on the same device, has not come in "
                f"{self._patience_s:g} s: it hangs, or runs another number of backward passes"
            )

    def _is_gone(self, member: int) -> bool:
        if member == self.place:
            return False
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, member, 1, 0)
        return struct.unpack(_FLOCK, fcntl.fcntl(self._descriptor, fcntl.F_GETLK, asked))[0] == (
            fcntl.F_UNLCK
        )

    def _word(self, member: int) -> ctypes.c_int32:
        return ctypes.c_int32.from_buffer(self._map, member * _MEMBER_BYTES)

    def _at(self, doing: str) -> str:
        return f"rank {self.ranks[self.place]}, {doing}"


def _wrapped(count: int) -> int:
    """Return a count as the word of 32 bits has it, with its sign."""
    return (count + 2**31) % 2**32 - 2**31
