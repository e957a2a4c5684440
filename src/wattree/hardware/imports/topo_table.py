"""Parser of the text of `nvidia-smi topo -m` into a checked table.

What the cells mean for links is the business of `topo_matrix`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

from wattree.errors import JobError
from wattree.files import read_text, refusal
from wattree.hardware.imports.rates import MOST_NVLINKS

_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# A name of an adapter has a digit; looked for ahead, since a word of any length is tried once so.
_NAME = re.compile(r"GPU\d+|NIC\d+|[a-z](?=[\w.-]*\d)[\w.-]*", re.ASCII)
_CELL = re.compile(r"X|NV\d{1,9}|PIX|PXB|PHB|NODE|SYS|SOC", re.ASCII)
_CELLS = "X, NV#, PIX, PXB, PHB, NODE, SYS"
_LEGEND = re.compile(r"\s*(NIC\d+):\s*(\S+)", re.ASCII)
#: Devices and adapters of one machine; no known one comes near.
_MOST_NAMES = 256
#: Problems that a message lists; a table of which one column is lost has one in every row.
_LISTED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TopoTable:
    """Names and cells.

    Attributes:
        names: Of devices and adapters, in order.
        cells: (row, column) → what stands there, `X` for a name with itself.
        numa: Row → NUMA node, where the table has one.
        lines: Row → its line in the file, from 1.
    """

    names: tuple[str, ...]
    cells: dict[tuple[int, int], str] = field(default_factory=dict)
    numa: dict[int, str] = field(default_factory=dict)
    lines: dict[int, int] = field(default_factory=dict)

    def cell(self, one: int, other: int) -> str | None:
        """Return the connection of two names, from either row."""
        return self.cells.get((one, other), self.cells.get((other, one)))


def read_topo_table(path: str | Path) -> TopoTable:
    """Return the table in a file, if it can be that of a machine.

    A row may be missing if its column has the same cells. Anything else has to fit: every row as
    long as the head, both cells of a pair equal, no more NVLinks than a device can have.

    Raises:
        JobError: The file cannot be read or holds no such table; all problems are listed.
    """
    lines = _ESCAPE.sub("", read_text(path)).splitlines()
    starts = [line.split()[:2] for line in lines]
    # The head names GPU0 first; so does the row of GPU0, which goes on with X.
    head = next((i for i, two in enumerate(starts) if two[:1] == ["GPU0"] and "X" not in two), None)
    if head is None:
        found = "no head that begins with GPU0" if any(starts) else "an empty file"
        raise JobError(str(path), [f"found {found}, expected `nvidia-smi topo -m`"])
    names = _head_names(lines[head])
    table = TopoTable(names=names)
    if wrong := [f"line {head + 1}: {problem}" for problem in _head_problems(names)]:
        raise JobError(str(path), wrong)  # rows can only be read by a head that is right
    problems: list[str] = []
    for number, line in enumerate(lines[head + 1 :], start=head + 2):
        problems += [f"line {number}: {problem}" for problem in _read_line(table, line, number)]
    problems = problems or [*_pair_problems(table), *_width_problems(table)]
    if problems:
        raise refusal(str(path), problems, most=_LISTED)
    return table


def _head_names(line: str) -> tuple[str, ...]:
    names: list[str] = []
    for word in line.split():
        if not _NAME.fullmatch(word):
            break  # CPU Affinity and what follows
        names.append(word)
    return tuple(names)


def _head_problems(names: Sequence[str]) -> list[str]:
    if len(names) > _MOST_NAMES:
        return [f"the head has {len(names)} names, expected at most {_MOST_NAMES}"]
    twice = sorted({name for name in names if names.count(name) > 1})
    problems = [f"the head names {name} twice, expected every name once" for name in twice]
    devices = [name for name in names if name.startswith("GPU")]
    expected = [f"GPU{index}" for index in range(len(devices))]
    if not twice and devices != expected:
        problems.append(f"the head names {', '.join(devices)}, expected GPU0, GPU1, … without gaps")
    return problems


def _read_line(table: TopoTable, line: str, number: int) -> list[str]:
    """Parse one line after the header into `table`; return its problem, if any."""
    words = line.split()
    if match := _LEGEND.match(line):
        if match[1] not in table.names:
            return [f"the legend explains {match[1]}, which is not in the head"]
    elif words and words[0] in table.names:
        return _read_row(table, words, number)
    elif _is_row(words):
        return [f"row {words[0][:20]}: is not in the head, which has {', '.join(table.names)}"]
    return []


def _is_row(words: Sequence[str]) -> bool:
    """Return whether a line looks like a row; a line of the legend has a `=` second."""
    return len(words) > 2 and all(_CELL.fullmatch(word) for word in words[1:3])


def _read_row(table: TopoTable, words: Sequence[str], line: int) -> list[str]:
    name, count = words[0], len(table.names)
    row = table.names.index(name)
    if row in table.lines:
        return [f"row {name}: stands in line {table.lines[row]} too, expected every row once"]
    table.lines[row] = line
    cells, rest = words[1 : 1 + count], words[1 + count :]
    wrong = [cell for cell in cells if not _CELL.fullmatch(cell)]
    if wrong:
        return [f"row {name}: found '{wrong[0][:20]}', expected {count} of {_CELLS}"]
    beyond = next((i for i, word in enumerate(rest) if not _CELL.fullmatch(word)), len(rest))
    if len(cells) + beyond != count:
        return [f"row {name}: found {len(cells) + beyond} cells, expected {count} of {_CELLS}"]
    if len(rest) > 1 and rest[1].split("-")[0].isdigit():
        table.numa[row] = rest[1]
    table.cells.update({(row, column): cell for column, cell in enumerate(cells)})
    return [
        f"row {name}: found {cell} under {table.names[column]}, expected {expected}"
        for column, cell in enumerate(cells)
        if (expected := _expected(table.names, row, column, cell)) is not None
    ]


def _expected(names: Sequence[str], row: int, column: int, cell: str) -> str | None:
    """Return the expected content of a cell in place of `cell`, or None if it is valid."""
    if row == column:
        return None if cell == "X" else "X, as in every row under its own name"
    if cell == "X":
        return f"one of {_CELLS.removeprefix('X, ')}; X stands under a row's own name"
    devices = names[row].startswith("GPU") and names[column].startswith("GPU")
    if cell.startswith("NV") and not devices:
        return "no NV#; NVLinks join GPUs"
    return None


def _pair_problems(table: TopoTable) -> list[str]:
    problems = []
    for one, other in combinations(range(len(table.names)), 2):
        names = table.names[one], table.names[other]
        forth, back = table.cells.get((one, other)), table.cells.get((other, one))
        if forth is None and back is None:
            problems.append(
                f"no cell joins {names[0]} and {names[1]}; expected a row for every name of the "
                "head"
            )
            break  # one row that is missing leaves out many pairs
        if forth is not None and back is not None and forth != back:
            problems.append(
                f"line {table.lines[other]}: row {names[1]}: found {back} under {names[0]}, "
                f"expected {forth} as in row {names[0]} under {names[1]}"
            )
    return problems


def _width_problems(table: TopoTable) -> list[str]:
    return [
        f"line {table.lines[row]}: row {table.names[row]}: found {cell} under "
        f"{table.names[column]}, expected NV1 to NV{MOST_NVLINKS}, the most links of any device"
        for (row, column), cell in table.cells.items()
        if cell.startswith("NV") and not 1 <= int(cell[2:]) <= MOST_NVLINKS
    ]
