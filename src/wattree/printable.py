"""Text of files made safe for terminals: control characters are escaped.

References:
    [1] ECMA-48, "Control Functions for Coded Character Sets", 1991.
    [2] N. Boucher, R. Anderson, "Trojan Source: Invisible Vulnerabilities", USENIX Security 2023:
        marks of direction show a line in another order than it has.
"""

from __future__ import annotations

import re

#: Controls but tab and line feed, separators of lines, marks of direction, lone surrogates.
_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def printable(text: str) -> str:
    r"""Return text with every terminal control character written as `\x1b` or `\u202e`."""
    return _STEERING.sub(_written, text)


def _written(found: re.Match[str]) -> str:
    number = ord(found.group())
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"
