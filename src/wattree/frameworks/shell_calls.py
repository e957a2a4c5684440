"""Calls in a shell script, with what they call in their place: scripts next to it, and functions.

Arguments of a call stand where the called script or function has `$1`, `"$@"` or `$#`; loops over
arguments (`while [ $# -gt 0 ]`, `getopts`) are run. Nothing is executed.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from wattree.files import is_file, read_text
from wattree.frameworks.named_files import file_next_to

#: A word with what is quoted in it, and what ends a command.
_WORD: Final = re.compile(r"""(?:\$\([^()]*\)|[^\s;|&<>"']|"[^"]*"|'[^']*')+""")
_END: Final = re.compile(r"[;|&<>]|\d>|#")
#: Commands of a line, which `;` and `&&` part.
_PART: Final = re.compile(r"""(?:(?<!\S)\#.*|"[^"]*"|'[^']*'|[^;&"']|(?<!&)&(?!&))+""")
#: What may stand before a call: values of variables, then what starts a script.
_ASSIGNED: Final = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_STARTING: Final = frozenset({"bash", "exec", "nohup", "sbatch", "sh", "srun", "time"})
#: A command within a word of another, as of `bash -c "…"`, and what only prints such words. A word
#: alone is a file of most commands, such as `chmod`.
_QUOTED: Final = re.compile(r"""(?:(-c|command)[ =]+)?(["'])(.*?)\2""", re.DOTALL)
_PRINTING: Final = frozenset({"echo", "printf", "export", "local"})
_SOURCING: Final = frozenset({"source", "."})
_SCRIPTS: Final = (".sh", ".slurm", ".sbatch")
#: The folder of a script, by a variable or by a command, before the name of another.
_FOLDER: Final = re.compile(r"^(?:\$\{?\w+\}?|\$\(.*\)|\.)/")
#: A script that starts a training, which a called one has to; sourced ones may set variables alone.
_LAUNCH: Final = re.compile(
    r"\b(?:torchrun|torch\.distributed|deepspeed|accelerate|pretrain_\w+|[mM]ax[tT]ext[./]\S*train)"
)
#: `$1`, `${12}`, `${1:-${SIZE}}`, `${1#*=}`, `"$@"`, `${@:2}`, `$#`.
_GIVEN: Final = re.compile(
    r"\"\$[@*]\"|\$(?:(?P<place>[1-9])|\{(?P<inside>[1-9]\d?)"
    r"(?::?-(?P<usual>(?:[^{}]|\{[^{}]*\})*)|(?P<value>\#\*=))?\}"
    r"|[@*]|\{@\}|\{@:(?P<since>[1-9])\}|(?P<count>\#))"
)
_SHIFT: Final = re.compile(r"(?:^|(?<=[;&|\s]))shift(?:[ \t]+(\d{1,2}))?(?=\s*(?:$|[;&|#]))")
_FUNCTION: Final = re.compile(r"\s*(?:function[ \t]+([\w-]+)[ \t]*(?:\(\))?|([\w-]+)[ \t]*\(\))")
_LOOP: Final = re.compile(r"[ \t]*while[ \t]+(.*?)[ \t]*;?[ \t]*(?:\bdo\b(.*))?$", re.DOTALL)
_OPTIONS: Final = re.compile(r"getopts[ \t]+[\"']?([\w:]+)[\"']?[ \t]+(\w+)")
_CASE: Final = re.compile(
    r"\bcase[ \t]+\"?\$\{?1\}?\"?[ \t]+in\b(?P<branches>.*?)\besac\b(?P<after>.*)", re.DOTALL
)
_DOCUMENT: Final = re.compile(r"(?<!<)<<-?[ \t]*['\"\\]?([A-Za-z_]\w*)")
_FLAG: Final = re.compile(r"(?:^|\s)--[A-Za-z]")
#: How deep scripts call scripts, at most.
_MOST_NESTED: Final = 4


@dataclass(slots=True)
class _Script:
    """A script that is being read.

    Attributes:
        path: Names scripts that it calls are relative to its folder.
        depth: How many scripts and functions called it.
        functions: Name → lines of those that take arguments.
        called: Name → the first call of functions and scripts with flags.
        notes: What was taken of several calls, one sentence each.
    """

    path: Path
    depth: int = 0
    functions: dict[str, list[str]] = field(default_factory=dict)
    called: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def with_calls(path: Path) -> tuple[str, list[str]]:
    """Return a script with all that it calls in place of the calls, and what was taken of several.

    Its own arguments are unknown: they stay as they are, and loops over them are left out.
    """
    script = _Script(path)
    lines = list(_run(read_text(path).splitlines(), None, script))
    if not any(map(_LAUNCH.search, lines)):  # called in a way that is not read, such as `if run; …`
        lines = [*itertools.chain(*script.functions.values()), *lines]
    return "\n".join(lines), script.notes


def _run(lines: Sequence[str], given: Sequence[str] | None, script: _Script) -> Iterator[str]:
    """Yield the lines of a script, or function, that is called with arguments.

    Args:
        given: The arguments; None where they are not known.
    """
    arguments = None if given is None else list(given)
    rest = _Lines(lines)
    while (line := rest.next()) is not None:
        if line.lstrip().startswith("#"):
            yield line
        elif (begun := _DOCUMENT.search(line)) is not None:
            yield _with_arguments(line, arguments)
            yield from (_with_arguments(each, arguments) for each in rest.until(begun[1]))
        elif (found := _FUNCTION.match(line)) is not None:
            name, body = found[1] or found[2], [line[found.end() :], *rest.block(line)]
            if not any(map(_GIVEN.search, body)):
                yield line
                yield from _run(body[1:], arguments, script)
            else:
                script.functions[name] = _without_braces(body)
        elif (loop := _LOOP.match(line)) is not None and _is_over_arguments(loop[1]):
            inside = [loop[2] or "", *rest.loop(line)]
            yield from _run_loop(loop[1], inside, arguments, script)
        elif arguments is not None and _SHIFT.search(line):
            yield from _run_shifting(line, arguments, script)
        else:
            yield from _run_line(_with_arguments(line, arguments), script)


def _is_over_arguments(condition: str) -> bool:
    return bool(_OPTIONS.match(condition) or "$#" in condition or re.search(r"\$\{?1\b", condition))


def _run_line(line: str, script: _Script) -> Iterator[str]:
    """Yield a line, or its commands with what they call."""
    parts = [(part, *_call(part, script)) for part in _PART.findall(line)]
    if script.depth >= _MOST_NESTED or all(body is None for _, _, body, _ in parts):
        yield line
        return
    inner = replace(script, depth=script.depth + 1)
    for part, assigned, body, arguments in parts:
        yield from (part,) if body is None else assigned
        known = [_plain(word) for word in arguments if not _is_open(word)]
        yield from _run(body or (), known, inner)


def _call(command: str, script: _Script) -> tuple[Sequence[str], list[str] | None, Sequence[str]]:
    """Return what a command assigns before it calls, and what and with which arguments."""
    command = command.replace("\\\n", " ")
    end = _END.search(command)
    words = _WORD.findall(command[: end.start()] if end else command)
    at = next((n for n, word in enumerate(words) if not _ASSIGNED.fullmatch(word)), len(words))
    assigned, rest = words[:at], words[at:]
    body, arguments = _called(rest, script)
    if body is None and rest and rest[0] not in _PRINTING:
        quoted = (text for c, _, text in _QUOTED.findall(command) if c or len(text.split()) > 1)
        calls = (_call(part, script)[1:] for text in quoted for part in _PART.findall(text))
        body, arguments = next((call for call in calls if call[0] is not None), (None, ()))
    return (*assigned, *(["srun"] if "srun" in rest else [])), body, arguments


def _called(words: Sequence[str], script: _Script) -> tuple[list[str] | None, Sequence[str]]:
    """Return the lines of what a command calls, None for nothing that is known, and arguments."""
    if not words:
        return None, ()
    if (name := words[0]) in script.functions:
        return _once(name, words, script.functions[name], script), words[1:]
    sources = words[0] in _SOURCING
    at = 1 if sources else 0
    while not sources and at < len(words) and (words[at] in _STARTING or words[at][0] == "-"):
        at += 1
    name = _FOLDER.sub("", words[at].replace('"', "").replace("'", "")) if at < len(words) else ""
    if "$" in name or not (sources or name.endswith(_SCRIPTS)):
        return None, ()  # before files are looked for: it is any program
    file = file_next_to(script.path, name)
    if not is_file(file) or file.resolve() == script.path.resolve():
        return None, ()
    text, given = read_text(file), words[at + 1 :]
    if sources:
        return text.splitlines(), given
    is_launch = _LAUNCH.search(text) is not None
    return _once(name, words, text.splitlines(), script) if is_launch else None, given


def _once(name: str, words: Sequence[str], body: list[str], script: _Script) -> list[str]:
    """Return the lines of what is called; none of what starts a training twice."""
    call = " ".join(words)
    if (first := script.called.get(name)) is not None:
        script.notes += [] if call == first else [f"{first} is called, not {call}"]
        return []
    if any(_FLAG.search(line) or _LAUNCH.search(line) for line in body):
        script.called[name] = call
    return body


def _run_shifting(line: str, arguments: list[str], script: _Script) -> Iterator[str]:
    """Yield the commands of a line that shifts arguments, which it removes from the list."""
    begin = 0
    for found in _SHIFT.finditer(line):
        yield from _run_line(_with_arguments(line[begin : found.start()], arguments), script)
        del arguments[: int(found[1] or 1)]
        begin = found.end()
    last = line[begin:].lstrip("; \t")
    if last:
        yield from _run_line(_with_arguments(last, arguments), script)


def _run_loop(
    condition: str, inside: Sequence[str], arguments: list[str] | None, script: _Script
) -> Iterator[str]:
    """Yield what a loop over arguments runs for each of them."""
    options = _OPTIONS.match(condition)
    if options is not None:
        if arguments is None:
            script.notes.append("the script is called without options")
        for letter, value in _options(options[1], arguments or ()):
            yield from (f"{options[2]}={letter}", f"OPTARG={value}")
            yield from _run(inside, None, script)
        return
    whole = _CASE.search("\n".join(inside))
    if whole is None or arguments is None:
        script.notes.append("the script is called without arguments")
        return
    branches = [_branch(part) for part in whole["branches"].split(";;") if ")" in part]
    while arguments:
        before, first = len(arguments), arguments[0]
        bodies = (body for names, body in branches if any(fnmatchcase(first, n) for n in names))
        for line in f"{next(bodies, '')}\n{whole['after']}".splitlines():
            yield from _run_shifting(line, arguments, script)
        if len(arguments) >= before:
            return


def _branch(text: str) -> tuple[list[str], str]:
    """Return the patterns of a branch of `case`, and its commands."""
    names, _, body = text.partition(")")
    return [_plain(name.strip(" \t\n(")) for name in names.split("|")], body


def _options(letters: str, arguments: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the options among arguments, as `getopts` finds them, with their values."""
    rest = iter(arguments)
    for word in rest:
        if not re.match(r"-\w", word):
            return
        takes = f"{word[1]}:" in letters
        yield word[1], (word[2:] or next(rest, "")) if takes else ""


def _with_arguments(line: str, arguments: Sequence[str] | None) -> str:
    """Return a line with arguments in place of `$1` and the like; as it is if none are known."""
    if arguments is None:
        return line

    def value(found: re.Match[str]) -> str:
        place = int(found["place"] or found["inside"] or 0)
        if place:
            own = arguments[place - 1] if place <= len(arguments) else ""
            own = own.partition("=")[2] if found["value"] else own
            return own or found["usual"] or ""
        if found["count"]:
            return str(len(arguments))
        return " ".join(arguments[int(found["since"] or 1) - 1 :])

    return _GIVEN.sub(value, line)


def _is_open(word: str) -> bool:
    """Whether a word stands for arguments that are not known."""
    return _plain(word) in {"$@", "$*", "${@}"}


def _plain(word: str) -> str:
    return word.replace('"', "").replace("'", "") if not re.search(r"\s", word) else word


def _without_braces(body: Sequence[str]) -> list[str]:
    """Return the commands of a function."""
    text = "\n".join(body).strip().removeprefix("{").rstrip().removesuffix("}")
    return text.splitlines()


class _Lines:
    """Lines of a script, of which those that go on in the next are one."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines, self._at = lines, 0

    def next(self) -> str | None:
        """Return the next line; None after the last."""
        if self._at >= len(self._lines):
            return None
        first = self._at
        while self._at < len(self._lines) - 1 and self._lines[self._at].endswith("\\"):
            self._at += 1
        self._at += 1
        return "\n".join(self._lines[first : self._at])

    def until(self, end: str) -> Iterator[str]:
        """Yield the lines of a here-document, with the last; none if it does not end."""
        ends = (n for n in range(self._at, len(self._lines)) if self._lines[n].strip() == end)
        last = next(ends, self._at - 1)
        yield from self._lines[self._at : last + 1]
        self._at = last + 1

    def block(self, head: str) -> Iterator[str]:
        """Yield the lines of a function after its head, to the brace that closes it."""
        indent = len(head) - len(head.lstrip())
        if re.search(r"\}\s*$", head):
            return
        while (line := self.next()) is not None:
            yield line
            if line.lstrip().startswith("}") and len(line) - len(line.lstrip()) <= indent:
                return

    def loop(self, head: str) -> Iterator[str]:
        """Yield the lines of a loop after its head, without what ends it."""
        is_open = not re.search(r"\bdone\b", head)
        depth = 1
        while is_open and (line := self.next()) is not None:
            depth += len(re.findall(r"^\s*(?:for|while|until)\b", line))
            depth -= len(re.findall(r"^\s*done\b|;\s*done\b", line))
            if depth <= 0:
                return
            yield re.sub(r"^\s*do\b", "", line)
