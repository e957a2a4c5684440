"""Parsing of JSON from untrusted or possibly damaged sources: files, database rows, messages.

The one place where such text is parsed. Whatever is wrong with it is one kind of `ValueError`,
which says what was found; who reads it adds where, and what to do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NoReturn

from wattree.errors import JsonTextError

#: Deepest nesting: nothing that is read here comes near, and every later pass may recurse.
LIMIT_DEPTH = 64
#: Longest text unless the caller says otherwise. [B]
_LIMIT_BYTES = 1 << 24
#: Strings, which stay, and what Hjson allows besides JSON: comments, and a comma before an end.
_STRING = r'"(?:[^"\\\n]|\\.)*"'
_COMMENTS = re.compile(_STRING + r"|(//[^\n]*|#[^\n]*|/\*.*?\*/)", re.DOTALL)
#: A comma without an item before it stays, for the parser to refuse.
_LAST_COMMAS = re.compile(_STRING + r"|[\[{:,]\s*,|(,)(?=\s*[}\]])")


def parsed_json(
    text: str | bytes,
    *,
    limit_bytes: int = _LIMIT_BYTES,
    constant: Callable[[str], Any] = float,
    comments: bool = False,
) -> Any:
    """Return what a JSON text holds. Keys that occur twice are refused.

    Args:
        text: Of a file, a row or a message; bytes are UTF-8, with or without a mark.
        limit_bytes: Longer texts are refused before they are parsed. [B]
        constant: What becomes of `NaN`, `Infinity` and `-Infinity`, which JSON does not have.
        comments: Comments (`//`, `/* */`, `#`) and a comma after the last item are allowed.

    Raises:
        JsonTextError: It is no text, no JSON, too long, or nested too deeply.
    """
    if not isinstance(text, str | bytes):
        _refuse(f"found a {type(text).__name__}, expected a text")
    if len(text) > limit_bytes:
        _refuse(f"found {len(text)} B, expected at most {limit_bytes} B")
    try:
        plain = text if isinstance(text, str) else text.decode("utf-8-sig")
        plain = _without_comments(plain) if comments else plain
        found = json.loads(plain, object_pairs_hook=_unique, parse_constant=constant)
    except UnicodeDecodeError as error:
        _refuse(f"found byte 0x{error.object[error.start]:02x} at {error.start}, not UTF-8 text")
    except json.JSONDecodeError as error:
        _refuse(f"line {error.lineno}, column {error.colno}: {error.msg}; expected valid JSON")
    except RecursionError:
        _refuse_depth()
    except JsonTextError:
        raise
    except ValueError:  # Python's own limit
        _refuse("found a number of thousands of digits; expected valid JSON")
    _check_depth(found)
    return found


def parsed_object(text: str | bytes, *, limit_bytes: int = _LIMIT_BYTES) -> dict[str, Any]:
    """Return the object that a JSON text holds, as `parsed_json` does.

    Raises:
        JsonTextError: Likewise, and where it holds anything else.
    """
    found = parsed_json(text, limit_bytes=limit_bytes)
    if not isinstance(found, dict):
        _refuse(f"found a {type(found).__name__}, expected an object")
    return found


def _without_comments(text: str) -> str:
    """Return a text with blanks for comments and last commas, so that positions stay."""
    for pattern in (_COMMENTS, _LAST_COMMAS):
        text = pattern.sub(_blank, text)
    return text


def _blank(found: re.Match[str]) -> str:
    return found[0] if found[1] is None else re.sub(r"[^\n]", " ", found[0])


def _check_depth(found: object) -> None:
    """Refuse deep nesting. Level by level: depth is whose text it is."""
    level = [found]
    for _ in range(LIMIT_DEPTH):
        level = [
            item
            for value in level
            if isinstance(value, dict | list)
            for item in (value.values() if isinstance(value, dict) else value)
            if isinstance(item, dict | list)
        ]
        if not level:
            return
    _refuse_depth()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            _refuse(f"found the key '{key}' twice; expected valid JSON")
        found[key] = value
    return found


def _refuse_depth() -> NoReturn:
    _refuse(f"nested deeper than {LIMIT_DEPTH} levels; expected flatter JSON")


def _refuse(problem: str) -> NoReturn:
    raise JsonTextError(problem) from None
