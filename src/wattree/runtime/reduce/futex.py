"""Waiting for a word in shared memory, without spinning.

On Linux by futexes, which wake a sleeper within microseconds and let the others have the
processor; on machines whose system-call number is not known here by looking again and again.

References:
    [1] Linux manual pages, `futex(2)`; numbers of system calls: `syscall(2)`, and
        `include/uapi/asm-generic/unistd.h` of Linux for those that share one table.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import threading
import time

#: Of `futex`, by machine [1].
_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221}
_NUMBER = _NUMBERS.get(platform.machine()) if platform.system() == "Linux" else None
_WAIT, _WAKE = 0, 1  # of processes that share memory: without FUTEX_PRIVATE_FLAG
_EVERYBODY = 2**31 - 1
#: How often a word is looked at where there are no futexes. [s]
_LOOK_EVERY_S = 1e-4

_libc = ctypes.CDLL(None, use_errno=True)
_turn = threading.Lock()


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def sleep_while(word: ctypes.c_int32, value: int, limit_s: float) -> None:
    """Sleep while a word has a value, no longer than `limit_s`; it may wake earlier for nothing."""
    if _NUMBER is None:
        if word.value == value:
            time.sleep(min(_LOOK_EVERY_S, limit_s))
        return
    limit = _TimeSpec(int(limit_s), int(limit_s % 1 * 1e9))
    _call(word, _WAIT, value, ctypes.byref(limit))


def wake_all(word: ctypes.c_int32) -> None:
    """Wake all that sleep on a word."""
    if _NUMBER is not None:
        _call(word, _WAKE, _EVERYBODY, None)


def fence() -> None:
    """Order earlier writes before later writes, as seen by all processes (a memory fence).

    A lock that is taken and given back orders memory; two of them, so that nothing from before the
    first and nothing from after the second can change places in between.
    """
    with _turn:
        pass
    with _turn:
        pass


def _call(word: ctypes.c_int32, operation: int, value: int, limit: object) -> None:
    found = _libc.syscall(
        ctypes.c_long(_NUMBER or 0),
        ctypes.byref(word),
        ctypes.c_int(operation),
        ctypes.c_int(value),
        limit,
        None,
        ctypes.c_int(0),
    )
    number = ctypes.get_errno()
    if found < 0 and number not in {errno.EAGAIN, errno.ETIMEDOUT, errno.EINTR}:
        raise OSError(number, "futex")
