"""Streams the events of a trace file, so that files larger than memory can be read.

The file is one JSON object whose key `traceEvents` holds nearly all of it. What stands before that
key is read whole, the events by the decoder of the standard library, each by itself.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, NoReturn, Self

from wattree.errors import RunError

#: Read at once, and the most that is kept of what has no end yet: a head, or an event. [characters]
_CHUNK, _MOST_OPEN = 1 << 20, 1 << 25
_EVENTS = re.compile(r'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(r"[\s,]*")
_GZIP = b"\x1f\x8b"


class TraceFile:
    """A trace file that is read once, from start to end.

    Args:
        path: Of a `.json` or `.json.gz` file.

    Attributes:
        head: Keys before the events.

    Raises:
        RunError: It is no such file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open, self._at = "", 0
        with ExitStack() as opened:
            try:
                self._file: IO[str] = opened.enter_context(_opened(path))
                self.head = self._head()
            except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
                self._refuse(_reason(error))
            self._closing = opened.pop_all()

    def __enter__(self) -> Self:
        """Return the trace; it is closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self._closing.close()

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events in the order of the file.

        Raises:
            RunError: The file is cut or damaged.
        """
        decoder, found = json.JSONDecoder(), 0
        try:
            while (event := self._next(decoder, found)) is not None:
                found += 1
                yield event
        except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
            self._refuse(f"{_reason(error)}, after {found} events")

    def _head(self) -> dict[str, Any]:
        match = None
        while match is None:
            if not self._more():
                self._refuse("has no key 'traceEvents': it is cut, or no trace of torch.profiler")
            if not self._open.lstrip().startswith("{"):
                self._refuse("found no JSON object: its beginning is cut off, or it is no trace")
            match = _EVENTS.search(self._open)
        text, self._open = self._open[: match.start()], self._open[match.end() :]
        try:
            head = json.loads(text.rstrip().removesuffix(",") + "}")
        except (ValueError, RecursionError):
            self._refuse("its head is no JSON: is it a trace of torch.profiler?")
        assert isinstance(head, dict)
        return head

    def _next(self, decoder: json.JSONDecoder, found: int) -> dict[str, Any] | None:
        """Return the next event; None after the last."""
        while True:
            between = _BETWEEN.match(self._open, self._at)
            assert between is not None
            self._at = between.end()
            if self._open.startswith("]", self._at):
                return None
            try:
                event, self._at = decoder.raw_decode(self._open, self._at)
            except RecursionError:
                self._refuse(f"event {found + 1} is nested too deep")
            except ValueError:  # no whole event is left of what was read
                self._open, self._at = self._open[self._at :], 0
                if not self._more():
                    self._refuse(
                        f"ends after {found} events: it is cut, or was still being written; "
                        "export it again"
                    )
                continue
            if not isinstance(event, dict):
                self._refuse(f"event {found + 1} is no object")
            return event

    def _more(self) -> bool:
        """Read the next part of the file; return whether there was any."""
        if len(self._open) > _MOST_OPEN:
            self._refuse("is no trace, or a damaged one: a part without end")
        chunk = self._file.read(_CHUNK)
        self._open += chunk
        return bool(chunk)

    def _refuse(self, problem: str) -> NoReturn:
        raise RunError(str(self.path), [problem]) from None


def _opened(path: Path) -> IO[str]:
    with path.open("rb") as file:
        is_packed = file.read(2) == _GZIP
    if is_packed:
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open("rt", encoding="utf-8")


def _reason(error: Exception) -> str:
    if isinstance(error, EOFError | zlib.error | gzip.BadGzipFile):
        return "the compressed file is cut or damaged"
    if isinstance(error, UnicodeDecodeError):
        return "is binary, expected a trace of torch.profiler (JSON, or JSON packed by gzip)"
    if isinstance(error, IsADirectoryError):
        return "found a folder, expected a file"
    return f"cannot be read ({getattr(error, 'strerror', None) or error})"
