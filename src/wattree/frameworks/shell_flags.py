"""Words and flags of the commands in a shell script, without running it.

Every `--flag` of the script counts, wherever it stands: in arrays, in texts, in the command. Values
of variables are filled in where the script sets them; branches that are not taken are left out.
"""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from itertools import dropwhile
from pathlib import Path
from typing import Any, Final

from wattree.files import read_yaml
from wattree.frameworks.settings import is_declared
from wattree.frameworks.shell_branches import Branches
from wattree.frameworks.shell_calls import with_calls

#: Patterns of flags of launchers, which no step depends on.
LAUNCHER_FLAGS: Final[tuple[str, ...]] = tuple(
    flag
    for flags in read_yaml(Path(__file__).with_name("launchers.yaml")).values()
    for flag in flags
)
#: `NAME=value` at the start of a line, not an array.
_ASSIGNMENT: Final = re.compile(r"^\s*(?:export\s+|local\s+)?([A-Za-z_]\w*)=(?!\()(.*)$")
#: `$NAME`, `$1`, `${NAME}`, `${NAME:-value}`.
_VARIABLE: Final = re.compile(r"\$(?:([A-Za-z_]\w*|\d)|\{(\w+)(?::?[-=]([^{}]*))?\})")
#: `${NAME:=value}`, which sets it too.
_SETTING: Final = re.compile(r"\$\{(\w+):?=([^{}]*)\}")
#: All of an array, `${NAME[@]}`: its flags are read where it is written.
_ARRAY: Final = re.compile(r"\$\{\w+\[[@*]\]\}")
#: `$(( 8 * (N + 1) ))`.
_ARITHMETIC: Final = re.compile(r"\$\(\(((?:[^()]|\([^()]*\))*)\)\)")
#: `$(expr 8 / $N)`, the same.
_EXPR: Final = re.compile(r"(?:\$\(|`)expr[ \t]+([^()`\n]+)[)`]")
_OPERATIONS: Final[dict[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}
#: Results beyond this are no sizes.
_MOST: Final = 10**15
#: A part of a command with what is quoted in it, and what ends the command.
_COMMAND: Final = re.compile(r"""(?:[^;&"'\\]|\\.?|"(?:[^"\\]|\\.)*"|'[^']*'|&(?!&))+""")
#: What may stand before a command.
_GIVEN: Final = re.compile(r"export|local|[A-Za-z_]\w*=.*", re.DOTALL)
_FLAG: Final = re.compile(r"--[A-Za-z]")
#: What begins a text for a program, such as lines of Python, and what ends it.
_DOCUMENT: Final = re.compile(r"(?<!<)<<-?\s*['\"]?([A-Za-z_]\w*)")
#: Text with flags in it, more than a flag alone; blanks in the JSON of one are its own.
_FLAGS: Final = re.compile(r"^--[A-Za-z](?![^\s=]*=[\[{]).*\s|\s--[A-Za-z]", re.DOTALL)
#: JSON in such a text, whose quotes the shell leaves as they are.
_JSON: Final = re.compile(r"(?<![\"'])\{[^\s'{}]+\}")
#: The beginning of a condition that goes on in the next line.
_CONDITION: Final = re.compile(r"(?m)^[ \t]*(?:el)?if\b(?:.*(?:&&|\|\|)[ \t]*\n)+")
#: What a script asks Slurm for, and the variables that are set to it
#: (slurm.schedmd.com/sbatch.html).
_ASKED: Final = re.compile(r"(?m)^#SBATCH[ \t]+--?([\w-]+)[ \t=]+(?:gpu:)?(?:[A-Za-z]\w*:)?(\d+)\b")
_SLURM: Final = {
    **dict.fromkeys(("nodes", "N"), ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")),
    **dict.fromkeys(("ntasks", "n"), ("SLURM_NTASKS", "SLURM_NPROCS")),
    "gpus-per-node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
    "gres": ("SLURM_GPUS_ON_NODE",),
    "ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
}
#: The command by which Slurm starts ranks, and launchers that it may start in their place.
_SRUN: Final = re.compile(r"(?<![\w/-])srun\b")
_LAUNCHER: Final = re.compile(r"\b(?:torchrun|torch\.distributed|accelerate[ \t]+launch)\b")
#: What says how many ranks a launcher starts.
_COUNTED: Final = frozenset(
    {
        *("nproc_per_node", "nnodes", "gpus_per_node", "num_gpus", "num_nodes"),
        *("num_processes", "num_machines"),
    }
)
#: A loop over values.
_FOR: Final = re.compile(r"^\s*for\s+([A-Za-z_]\w*)\s+in\s+([^;]*)")
#: What only a shell makes values of.
_OPEN: Final = re.compile(r"[`*({]")
#: Ends of a command, and what begins the next one.
_ENDS: Final = frozenset(
    {
        *("|", "||", "&&", ";", "&", ">", ">>", "2>&1", ")", "}", "fi", "then", "done"),
        *("eval", "exec", "torchrun", "srun", "python", "python3", "bash"),
    }
)
#: How often variables stand for variables, at most.
_MOST_NESTED: Final = 8
_MOST_CHARACTERS: Final = 4096


def shell_flags(text: str) -> dict[str, Any]:
    """Return flag → value of a script or a list of flags: a text, several, or true for none.

    Dashes within names become underscores. A flag that is given again replaces the first.
    """
    lines, variables, _ = _read(text)
    flags: dict[str, Any] = {}
    flag = ""
    for word in (word for line in lines for word in _flag_words(line, variables)):
        if _FLAG.match(word):
            name, is_given, value = word[2:].partition("=")
            flag = name.replace("-", "_")
            flags[flag] = value if is_given else True
        elif word in _ENDS or not word or _ARRAY.fullmatch(word):
            flag = ""
        elif flag and flags[flag] is not True and word.endswith(".py"):
            flag = ""  # the program that a launcher starts
        elif flag and (flags[flag] is True or not word.startswith("$")):  # further flags, perhaps
            _add(flags, flag, word)
    return flags


def with_slurm(flags: dict[str, Any], text: str) -> dict[str, Any]:
    """Return the flags of a script with the ranks that it asks Slurm for, if `srun` starts them.

    One for each device of a node, or for each task where devices are not asked for.
    """
    plain = without_comments(text)
    if not flags or _COUNTED & flags.keys() or not _SRUN.search(plain) or _LAUNCHER.search(plain):
        return flags
    asked = _asked_of_slurm(text)
    each = asked.get("SLURM_GPUS_ON_NODE") or asked.get("SLURM_NTASKS_PER_NODE")
    if each is None or "SLURM_NNODES" not in asked:
        return flags
    return flags | {"nproc_per_node": each, "nnodes": asked["SLURM_NNODES"]}


def _asked_of_slurm(text: str) -> dict[str, str]:
    """Return the variables that Slurm sets to what a script asks it for."""
    asked = _ASKED.findall(text)
    return {name: count for option, count in asked for name in _SLURM.get(option, ())}


def shell_words(text: str) -> Iterator[list[str]]:
    """Yield the words of each command of a script, without variables that it is given."""
    lines, variables, _ = _read(text)
    for line in lines:
        words = dropwhile(_GIVEN.fullmatch, line_words(line))
        filled = (_filled(word, variables) for word in words if word != ";")
        if found := [word for word in filled if word]:
            yield found


def commands_of(text: str) -> tuple[list[str], Callable[[str], str]]:
    """Return the commands of a script that are run, and what fills its variables into a text."""
    lines, variables, _ = _read(text)
    return lines, lambda part: _filled(part, variables)


def assumed_conditions(path: Path) -> list[str]:
    """Return the conditions of a script that count as true, since nothing in it decides them."""
    text, notes = with_calls(path)
    return [*_read(text)[2], *notes]


def assumed_defaults(path: Path) -> list[str]:
    """Return numbers that count unless the environment has others, such as 4 of `${NNODES:-4}`.

    Those of variables that the script sets otherwise, or uses for launchers alone, are left out.
    """
    lines, variables, _ = _read(with_calls(path)[0])
    found = {
        each[2]: each[3]
        for line in lines
        for each in _VARIABLE.finditer(line)
        if (each[3] or "").isdecimal() and not each[2].isdecimal()
    }
    return [
        f"{name} is {value} where the environment does not set it"
        for name, value in found.items()
        if variables.get(name, value) == value and _is_size(name, lines)
    ]


def _is_size(name: str, lines: Sequence[str]) -> bool:
    """Return whether a variable is not set without the environment, and used for more than start.

    Its own assignment is no use of it.
    """
    own = rf"^\s*(?:export\s+|local\s+)?{name}="
    others = [line for line in lines if not re.match(own, line)]
    if any(f"{{{name}:" not in line for line in lines if line not in others):
        return False
    uses = re.findall(rf"(?:--([\w-]+)[ =]\"?)?\$\{{?{name}\b", "\n".join(others))
    return any(not is_declared(flag.replace("-", "_"), LAUNCHER_FLAGS) for flag in uses)


def script_text(path: Path) -> str:
    """Return a script with those that it reads or calls, where they are next to it."""
    return with_calls(path)[0]


def without_comments(text: str) -> str:
    """Return a script without its comments."""
    return re.sub(r"(?m)(^|\s)#.*$", "", text)


def _read(text: str) -> tuple[list[str], dict[str, str], list[str]]:
    """Return the commands of a script that are run, values of variables, assumed conditions."""
    variables = _asked_of_slurm(text)
    branches = Branches(lambda word: _filled(word, variables))
    commands = []
    # A comment ends with its line, whatever stands at the end of it.
    lines = re.sub(r"(?m)^[ \t]*#.*\n", "", _without_documents(text))
    whole = re.sub(r"\\\s*(?:\n|\Z)", " ", lines)
    whole = _CONDITION.sub(lambda part: part[0].replace("\n", " "), whole)
    whole = _EXPR.sub(lambda part: "$((" + part[1].replace("\\", "") + "))", whole)
    for command in (each for line in whole.splitlines() for each in _commands(line)):
        run = _ARITHMETIC.sub(lambda sum_: sum_[0].replace(" ", ""), branches.run(command))
        commands += [run] if run else []
        if (loop := _FOR.match(run)) is not None and not _OPEN.search(loop[2]):
            values = line_words(_filled(loop[2], variables)) or [""]
            variables[loop[1]] = values[0]
            if _is_used(loop[1], whole):
                branches.assume_first(loop[1], values)
        for name, value in _SETTING.findall(run):
            variables.setdefault(name, _filled(value, variables))
        if (found := _ASSIGNMENT.match(run)) is not None:
            # Flags in a text count where it is written, not where the variable stands.
            words = [] if _FLAG.search(found[2]) else line_words(found[2])
            variables[found[1]] = _filled(words[0] if words else "", variables)
    return commands, variables, branches.assumed


def _is_used(name: str, text: str) -> bool:
    """Return whether flags, or other variables, depend on a variable."""
    used = (line for line in text.splitlines() if re.search(rf"\$\{{?{name}\b", line))
    return any(_FLAG.search(line) or _ASSIGNMENT.match(line) for line in used)


def _without_documents(text: str) -> str:
    """Return a script without texts for programs in which there are no flags."""
    found: list[str] = []
    since: list[str] = []
    end = None
    for line in text.splitlines():
        since.append(line)
        if end is None and (begun := _DOCUMENT.search(line)) is not None:
            found += since
            since, end = [], begun[1]
        elif line.strip() == end:
            found += since if any(map(_FLAG.search, since)) else []
            since, end = [], None
    return "\n".join([*found, *since])


def _add(flags: dict[str, Any], flag: str, word: str) -> None:
    before = flags[flag]
    if isinstance(before, list):
        before.append(word)
    else:
        flags[flag] = word if before is True else [before, word]


def _commands(line: str) -> Iterator[str]:
    """Yield the commands on a line, without comments and the words that lead to them."""
    plain = without_comments(line)
    is_open = any(plain.count(mark) % 2 for mark in "\"'")  # a text over several lines
    condition = re.match(r"\s*(?:el)?if\b.*?(?=;\s*then\b|$)", plain)
    if condition is not None:
        yield condition[0]
        plain = plain[condition.end() :].lstrip("; ")
    *first, last = [plain] if is_open else _COMMAND.findall(plain) or [""]
    for part in (*(f"{each} ;" for each in first), last):
        yield re.sub(r"^\s*(then|do)\s", "", part)


def line_words(line: str) -> list[str]:
    """Return the words of a line as a shell would split it; by blanks where quotes stay open."""
    try:
        return shlex.split(line, comments=False)
    except ValueError:
        return line.replace('"', " ").replace("'", " ").split()


def _quoted(found: re.Match[str]) -> str:
    return found[0].replace('"', r"\"")


def _flag_words(line: str, variables: dict[str, str]) -> Iterator[str]:
    assigned = _ASSIGNMENT.match(line)
    if assigned is not None:
        yield ""
    for word in line_words(line if assigned is None else assigned[2]):
        filled = re.sub(r"^[A-Za-z_]\w*\+?=\(|^\(", "", _filled(word, variables).strip())
        pieces = line_words(_JSON.sub(_quoted, filled)) if _FLAGS.search(filled) else [filled]
        for piece in pieces:
            yield piece if "(" in piece else piece.rstrip(")")
            if piece.endswith(")") and "(" not in piece:
                yield ""  # the array ends, and with it what belongs to its last flag
    if assigned is not None:
        yield ""


def _filled(word: str, variables: dict[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        known = variables.get(match[1] or match[2], match[3])
        return match[0] if known is None else known or match[3] or ""

    def result(match: re.Match[str]) -> str:
        named = re.sub(r"[A-Za-z_]\w*", lambda name: variables.get(name[0], name[0]), match[1])
        found = _arithmetic(named)
        return match[0] if found is None else str(found)

    for _ in range(_MOST_NESTED):
        before, word = word, _VARIABLE.sub(value, word)[:_MOST_CHARACTERS]
        word = _ARITHMETIC.sub(result, word)
        if word == before:
            break
    return word


def _arithmetic(text: str) -> int | None:
    """Return what whole numbers with + - * / % and parentheses come to; None for anything else."""

    def of(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
            found = _OPERATIONS[type(node.op)](of(node.left), of(node.right))
            if abs(found) <= _MOST:
                return found
        raise ValueError

    try:
        return of(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None
