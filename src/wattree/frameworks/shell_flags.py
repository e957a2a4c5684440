"""Words and flags of the commands in a shell script, without running it.

Every `--flag` of the script counts, wherever it stands: in arrays, in texts, in the command. Values
of variables are filled in where the script sets them; what stands after `else` is left out.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

#: `NAME=value` at the start of a line, not an array.
_ASSIGNMENT: Final = re.compile(r"^\s*(?:export\s+|local\s+)?([A-Za-z_]\w*)=(?!\()(.*)$")
#: `$NAME`, `$1`, `${NAME}`, `${NAME:-value}`.
_VARIABLE: Final = re.compile(r"\$(?:([A-Za-z_]\w*|\d)|\{(\w+)(?::?[-=]([^{}]*))?\})")
#: `$(( 8 * 2 ))` with whole numbers.
_SUM: Final = re.compile(r"\$\(\(\s*(\d{1,9})\s*([*+/-])\s*(\d{1,9})\s*\)\)")
_ARITHMETIC: Final = re.compile(r"\$\(\([^()]*\)\)")
_FLAG: Final = re.compile(r"--[A-Za-z]")
#: Ends of a command.
_ENDS: Final = frozenset({"|", "||", "&&", ";", "&", ">", ">>", "2>&1", ")", "fi", "then", "done"})
#: How often variables stand for variables, at most.
_MOST_NESTED: Final = 8
_MOST_CHARACTERS: Final = 4096


def shell_flags(text: str) -> dict[str, Any]:
    """Return flag → value of a script or a list of flags: a text, several, or true for none.

    Dashes within names become underscores. A flag that is given again replaces the first.
    """
    lines = list(_lines(text))
    variables = _variables(lines)
    flags: dict[str, Any] = {}
    flag = ""
    for word in (word for line in lines for word in _flag_words(line, variables)):
        if _FLAG.match(word):
            name, is_given, value = word[2:].partition("=")
            flag = name.replace("-", "_")
            flags[flag] = value if is_given else True
        elif word in _ENDS or not word:
            flag = ""
        elif flag:
            _add(flags, flag, word)
    return flags


def shell_words(text: str, arguments: Sequence[str] = ()) -> Iterator[list[str]]:
    """Yield the words of each line of a script that assigns nothing.

    Args:
        text: Of the script.
        arguments: That the script is called with: `$1` and the next.
    """
    lines = list(_lines(text))
    variables = _variables(lines, arguments)
    for line in lines:
        if _ASSIGNMENT.match(line) is None:
            yield [_filled(word, variables) for word in _words(line)]


def _variables(lines: Iterable[str], arguments: Sequence[str] = ()) -> dict[str, str]:
    variables = {str(place): value for place, value in enumerate(arguments, start=1)}
    for line in lines:
        if (found := _ASSIGNMENT.match(line)) is not None and not _FLAG.search(found[2]):
            words = _words(found[2])
            variables[found[1]] = _filled(words[0] if words else "", variables)
    return variables


def _add(flags: dict[str, Any], flag: str, word: str) -> None:
    before = flags[flag]
    if isinstance(before, list):
        before.append(word)
    else:
        flags[flag] = word if before is True else [before, word]


def _lines(text: str) -> Iterator[str]:
    """Yield whole lines without comments, and without what stands after `else`."""
    depth, skipped = 0, 0
    for line in re.sub(r"\\\s*\n", " ", text).splitlines():
        start = line.strip()
        if re.match(r"if\b", start):
            depth += 1
        if re.match(r"(else|elif)\b", start) and not skipped:
            skipped = depth
        if re.match(r"fi\b", start):
            if skipped == depth:
                skipped = 0
            depth = max(0, depth - 1)
            continue
        if not skipped:
            plain = re.sub(r"(^|\s)#.*$", "", line)
            yield _ARITHMETIC.sub(lambda sum_: sum_[0].replace(" ", ""), plain)


def _words(line: str) -> list[str]:
    """Return the words of a line as a shell would split it; by blanks where quotes stay open."""
    try:
        return shlex.split(line, comments=False)
    except ValueError:
        return line.replace('"', " ").replace("'", " ").split()


def _flag_words(line: str, variables: dict[str, str]) -> Iterator[str]:
    assigned = _ASSIGNMENT.match(line)
    for word in _words(line if assigned is None else assigned[2]):
        filled = re.sub(r"^[A-Za-z_]\w*\+?=\(|^\(", "", _filled(word, variables).strip())
        pieces = _words(filled) if _FLAG.match(filled) and " " in filled else [filled]
        for piece in pieces:
            yield piece if "(" in piece else piece.rstrip(")")
            if piece.endswith(")") and "(" not in piece:
                yield ""  # the array ends, and with it what belongs to its last flag


def _filled(word: str, variables: dict[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        return variables.get(match[1] or match[2], match[3] or "") or match[0]

    for _ in range(_MOST_NESTED):
        before, word = word, _VARIABLE.sub(value, word)[:_MOST_CHARACTERS]
        word = _SUM.sub(_sum, word)
        if word == before:
            break
    return word


def _sum(match: re.Match[str]) -> str:
    one, other = int(match[1]), int(match[3])
    if match[2] == "/" and not other:
        return match[0]
    return str(
        {"*": one * other, "+": one + other, "-": one - other, "/": one // (other or 1)}[match[2]]
    )
