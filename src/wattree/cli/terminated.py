"""SIGTERM handled like Ctrl-C, for commands that must clean up."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def interrupted_by_term() -> Iterator[None]:
    """Raise `KeyboardInterrupt` on SIGTERM while the block runs: else Python ends at once."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may handle signals
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
