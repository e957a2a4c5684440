"""Drawn files of kinds that have a grammar but no JSON schema: traces, tables of rows, formulas."""

from __future__ import annotations

import csv
import io
import random
from functools import cache
from pathlib import Path
from typing import Any

from wattree.interchange.files import encoded_length
from wattree.interchange.schema import NodeType, add_attribute, messages

__all__ = ["formula", "row_lines", "rows", "trace"]

_WHOLE = (0, 1, 2, 3, -1, 7, 64, 1 << 20, 2**31, 2**62, -(2**63))
_TEXTS = ("0", "1", "2", "", "x", "[0, 1]", "-5", "1e9", "9" * 30, "ALL_REDUCE", "true")
#: Attributes that mean something, and what they may hold.
_ATTRIBUTES = (
    *("num_ops", "tensor_size", "comm_size", "comm_type", "comm_src", "comm_dst", "comm_tag"),
    *("comm_priority", "is_cpu_op", "pg_name", "involved_dim", "runtime", "wattree_flop"),
    *("wattree_step", "wattree_streams", "other"),
)


def trace(chance: random.Random) -> bytes:
    """Return the file of a rank with some nodes, most of them with sensible parts."""
    content = _message(messages().metadata(version="0.0.4"))
    count = chance.randint(1, 6)
    for number in range(1, count + 1):
        content += _message(_node(chance, number, count))
    return content if chance.random() < 0.95 else content[: -chance.randint(1, 9)]


def _message(message: Any) -> bytes:
    raw = message.SerializeToString()
    return bytes(encoded_length(len(raw)) + raw)


def _node(chance: random.Random, number: int, count: int) -> Any:
    usual = (NodeType.COMM_COLL_NODE, NodeType.COMP_NODE, NodeType.MEM_LOAD_NODE)
    kind = chance.choice(usual if chance.random() < 0.8 else tuple(NodeType))
    name = chance.choice((f"n{number}", "", "## process_group:init ##", "\u202e", "n" * 500))
    made = messages().node(
        id=number if chance.random() < 0.95 else chance.choice((0, 1, 2**63)),
        name=name,
        type=int(kind),
        duration_micros=chance.choice((0, 1, 5, 5, 9, 100, 2**40, 2**64 - 1)),
    )
    for deps in (made.data_deps, made.ctrl_deps):
        for _ in range(chance.choice((0, 0, 1, 2)) if number > 1 else 0):
            deps.append(chance.randint(1, number - 1 if chance.random() < 0.9 else count + 1))
    for attribute in chance.sample(_ATTRIBUTES, chance.choice((0, 0, 1, 2, 5))):
        field, value = _value(chance)
        add_attribute(made, attribute, field, value)
    if "COMM" in kind.name and chance.random() < 0.8:
        add_attribute(made, "comm_size", "int64_val", chance.choice((0, 1000, 1 << 20)))
        add_attribute(made, "comm_type", "int64_val", chance.randint(0, 10))
    return made


def _value(chance: random.Random) -> tuple[str, Any]:
    """Return a field of an attribute and what it holds."""
    return chance.choice(
        (
            ("int64_val", chance.choice(_WHOLE)),
            ("int32_val", chance.choice((0, 1, -1, 2**31 - 1))),
            ("uint64_val", 2**64 - 1),
            ("double_val", chance.choice((0.5, 1.0, float("nan"), float("inf"), 1e308))),
            ("string_val", chance.choice(_TEXTS)),
            ("bytes_val", b"\xff\x00"),
            ("bool_val", chance.random() < 0.5),
            ("bool_list", [chance.random() < 0.5 for _ in range(chance.randint(0, 3))]),
            ("int64_list", [chance.choice(_WHOLE) for _ in range(chance.randint(0, 3))]),
        )
    )


# ----------------------------------------------------------------------------------- rows


@cache
def row_lines() -> list[list[str]]:
    """Return the cells of the rows that ship, the header first."""
    import wattree.validation

    path = Path(wattree.validation.__file__).parent / "data" / "rows.csv"
    return list(csv.reader(path.read_text(encoding="utf-8").splitlines()))


def rows(chance: random.Random) -> bytes:
    """Return one to three rows in which some cells are another row's, scaled, or empty."""
    header, *known = row_lines()
    found = [header]
    for number in range(chance.choice((1, 1, 1, 3))):
        row = list(chance.choice(known))
        for _ in range(chance.choice((0, 1, 2, 5))):
            column = chance.randrange(len(row))
            row[column] = _cell(chance, row[column], chance.choice(known)[column])
        row[header.index("row_id")] = f"row-{number}"
        found.append(row)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(found)
    return text.getvalue().encode()


def _cell(chance: random.Random, value: str, other: str) -> str:
    try:
        scaled = f"{float(value) * chance.choice((0, 0.5, 2, 3, 1000, 1e9)):g}"
    except ValueError:
        scaled = other
    return chance.choice((other, other, scaled, "", "1", "0", "x", "1e300", "8", "2"))


# ------------------------------------------------------------------------------- formulas


def formula(chance: random.Random) -> bytes:
    """Return arithmetic of names, numbers and functions, sometimes with what is none."""
    return _term(chance, chance.randint(0, 5)).encode()


def _term(chance: random.Random, depth: int) -> str:
    if depth == 0:
        leaves = ("a", "b", "width", "0", "1", "2.5", "1e308", "64", "-3", "1_000", "0x1f", "1j")
        return chance.choice((*leaves, "True", "'a'", "a.b", "c", "9" * 400, "1e999"))
    one, other = _term(chance, depth - 1), _term(chance, chance.randrange(depth))
    forms = (
        *(f"({one} {sign} {other})" for sign in ("+", "-", "*", "/", "**")),
        f"-{one}", f"sqrt({one})", f"log2({one})", f"ceil({one})", f"floor({one})",
        f"min({one}, {other})", f"max({one})", "min()", f"sqrt({one}, {other})", f"{one} % {other}",
        f"max(*{one})", f"a if {one} else {other}", f"[{one}][0]", f"{one} < {other}",
    )  # fmt: skip
    return chance.choice((*forms[:12], *forms[:12], *forms))
