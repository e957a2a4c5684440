"""Which branches of a shell script are taken, as far as its own variables decide it.

Of branches whose condition is not known, such as one on the environment, the first counts.
"""

from __future__ import annotations

import operator
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

_KEYWORD: Final = re.compile(r"(if|elif|else|fi|case|esac)\b(.*)", re.DOTALL)
#: `name)` or `"a" | b*)` at the start of a branch of `case`.
_PATTERN: Final = re.compile(r"\(?((?!-)[^\s()|]+(?:\s*\|\s*[^\s()|]+)*)\)(.*)", re.DOTALL)
_NUMBERS: Final[Mapping[str, Callable[[int, int], bool]]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-gt": operator.gt,
    "-ge": operator.ge,
    "-lt": operator.lt,
    "-le": operator.le,
}
_NUMBER: Final = re.compile(r"-?\d+ -?\d+$", re.ASCII)
#: A flag, a variable that is set, or a here-document.
_MATTERS: Final = re.compile(
    r"(?<!\S)[\"'(]?(--[A-Za-z]|[A-Za-z_]\w*\+?=)|=\(--|(?<!<)<<-?[ \t]*['\"\\]?[A-Za-z_]"
)
#: What is read of a line that only decides: the end of a command.
_END: Final = ";"


@dataclass(slots=True)
class _Branch:
    """An `if` or `case` that is open."""

    subject: str | None
    is_taken: bool
    is_active: bool = False
    assumed: str = ""

    def enter(self, condition: str, *, holds: bool | None) -> None:
        """Enter the next branch, which is active unless its condition fails or another was taken.

        Args:
            condition: As it is written.
            holds: None if that is not known.
        """
        self.is_active = holds is not False and not self.is_taken
        self.is_taken |= self.is_active
        self.assumed = condition if self.is_active and holds is None else ""


class Branches:
    """The branches that a script is in while its commands are read in order.

    Args:
        filled: Fills values of the script's variables into a word.

    Attributes:
        assumed: Conditions that were taken as true, where variables or flags depend on them.
    """

    def __init__(self, filled: Callable[[str], str]) -> None:
        self._filled = filled
        self.assumed: list[str] = []
        self._open: list[_Branch] = []

    def run(self, command: str) -> str:
        """Return what of a command is run; nothing in branches that are not taken."""
        text = command.strip()
        if (found := _KEYWORD.fullmatch(text)) is not None:
            return self._decide(found[1], found[2].strip())
        last = self._open[-1] if self._open else None
        if last is not None and last.subject is not None and (found := _PATTERN.fullmatch(text)):
            patterns = [_plain(each) for each in found[1].split("|")]
            is_known = "$" not in last.subject
            matches = any(fnmatchcase(last.subject, p) for p in patterns) if is_known else None
            last.enter(f"{last.subject} is {found[1]}", holds=matches)
            text = command = found[2]
        if not all(branch.is_active for branch in self._open):
            return ""
        if _MATTERS.search(command):
            found_here = [each.assumed for each in self._open if each.assumed]
            self.assumed += [each for each in found_here if each not in self.assumed]
        return command

    def assume_first(self, name: str, values: Sequence[str]) -> None:
        """Note that the first of several values of a loop counts."""
        if len(values) > 1:
            self.assumed.append(f"{name} is {values[0]}, the first of {' '.join(values)}")

    def _decide(self, keyword: str, rest: str) -> str:
        last = self._open[-1] if self._open else None
        if keyword in ("if", "case"):
            is_run = all(branch.is_active for branch in self._open)
            subject, _, first = re.split(r"(\sin\b|$)", rest, maxsplit=1)
            is_case = keyword == "case"
            branch = _Branch(self._filled(_plain(subject)) if is_case else None, not is_run)
            self._open.append(branch)
            if not is_case:
                branch.enter(_condition(rest), holds=self._holds(rest))
            elif first.strip():
                return self.run(first)
        elif last is not None and keyword in ("fi", "esac"):
            self._open.pop()
        elif last is not None and last.subject is None:
            last.enter(_condition(rest), holds=keyword == "else" or self._holds(rest))
            if keyword == "else" and rest:
                return self.run(rest)
        return _END

    def _holds(self, condition: str) -> bool | None:
        """Return whether a condition holds; None if that is not known."""
        parts = re.split(r"\s*(\|\||&&)\s*", condition.removesuffix(_END).strip())
        truth = self._test(parts[0])
        for joint, part in zip(parts[1::2], parts[2::2], strict=False):
            deciding = joint == "||"  # true decides of "or", false of "and"
            other = self._test(part)
            if deciding in (truth, other):
                truth = deciding
            elif None in (truth, other):
                truth = None
        return truth

    def _test(self, text: str) -> bool | None:
        """Return whether one test holds; None if that is not known."""
        plain = text.strip().lstrip("! \t")
        inner = re.sub(r"^\[\[?\s|\s\]\]?$", "", plain)
        try:
            words = [self._filled(word) for word in shlex.split(inner)]
        except ValueError:
            return None
        while words[:1] == ["!"]:
            words.pop(0)
        truth = None
        match words:
            case _ if any("$" in word or "`" in word for word in words):
                pass
            case ["true" | "false" as word] if inner == plain:
                truth = word == "true"
            case [word] if inner != plain:
                truth = bool(word)
            case ["-z" | "-n" as mark, word]:
                truth = (mark == "-z") is (not word)
            case [one, "=" | "==" | "!=" as mark, other]:
                truth = fnmatchcase(one, other) is (mark != "!=")
            case [one, mark, other] if mark in _NUMBERS and _NUMBER.match(f"{one} {other}"):
                truth = _NUMBERS[mark](int(one), int(other))
        is_opposite = len(re.findall(r"(?<!\S)!(?!\S)", text)) % 2
        return not truth if is_opposite and truth is not None else truth


def _condition(text: str) -> str:
    return " ".join(text.removesuffix(_END).split())


def _plain(word: str) -> str:
    return word.strip().strip("\"'")
