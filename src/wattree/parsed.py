"""Parsed texts of the package's own large files, kept beside its compiled code as that is.

Reading the constants of the cost models as YAML takes 0.1 s, which every command would pay. What is
kept is keyed by the text itself: it can be deleted at any time, and never says anything else.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

from wattree.errors import OutputError

__all__ = ["kept_parsed"]

#: Shorter texts are parsed sooner than another file is worth. [B]
_LARGE = 8192
#: Goes with every change of how texts are parsed.
_FORM = "1"


def kept_parsed(
    path: Path,
    text: str,
    parse: Callable[[], object],
    write: Callable[[Path, str], None],
) -> object:
    """Return what a text holds: kept from an earlier process, or parsed, and then kept.

    Args:
        path: File of the text; what it holds is kept in `__pycache__` beside it.
        text: What decides whether what was kept is of it.
        parse: Makes texts, numbers, truth values, nulls, lists and mappings of it.
        write: Writes a file whole or not at all.
    """
    if len(text) < _LARGE:
        return parse()
    place = path.parent / "__pycache__" / f"{path.name}.json"
    key = hashlib.sha256(f"{_FORM}\n{text}".encode()).hexdigest()
    with contextlib.suppress(OSError, ValueError, RecursionError):
        kept = json.loads(place.read_text(encoding="utf-8"))
        if isinstance(kept, dict) and kept.get("of") == key and "holds" in kept:
            return kept["holds"]
    holds = parse()
    # As with compiled code: where it cannot be written, or is not to be, it is made again.
    with contextlib.suppress(OSError, OutputError, ValueError, TypeError, RecursionError):
        line = json.dumps({"of": key, "holds": holds}, allow_nan=False)
        # Keys that are no texts would become such.
        if not sys.dont_write_bytecode and json.loads(line)["holds"] == holds:
            place.parent.mkdir(exist_ok=True)
            write(place, line)
    return holds
