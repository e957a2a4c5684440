"""Damaged and twisted copies of good files: bytes, lines, values, and bombs that are known."""

from __future__ import annotations

import contextlib
import copy
import json
import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

__all__ = ["JUNK", "Pool", "document_of", "mutated", "text_of", "varied"]

#: Values that no field is meant to hold, or only just.
JUNK: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 3, 7, 2**31, 2**53 + 1, 2**63 - 1, 2**64, 10**40, -0.0, 0.5,
    1e-320, 1e308, float("nan"), float("inf"), "", " ", "nan", "inf", "1e999", "-1 GB", "0 s",
    "1e400 W", "5 GB/s", "3 parsecs", "1,5 GB", "1_0", "0x10", "٣", "½", "\0", "\ud7ff",
    "\u202eabc", "é" * 300, "x" * 5000, "/", "..", "a/b.yaml", "file.py:f", "auto", "none", "*",
    "[", "{}", "%s", [], {}, [[]], [None],
    {"": None}, {"a": {"b": {}}}, {"value": 1}, [1, 2, 3], ["a", "a"],
)  # fmt: skip
#: Pieces of text that mean something to one of the parsers.
TOKENS = (
    *b'{ } [ ] : , & * ! | > \' " % @ ` # - ? << &a *a !!python/object --- ... <!-- ]]> \
<!DOCTYPE &amp; &x; =" /> 0 -1 1e999 .nan .inf NaN Infinity 0x1F 99999999999999999999 1e-400 \
null true ~ \\u0000 \\ud800 @1 F0 B0 ** // >> lambda __import__ GB/s'.split(),
    *(b"\n", b"\r\n", b"\r", b"\t", b"\0", b"\xff", b"\xef\xbb\xbf", b"\x1b[0m", b"\x85", b"\x1c"),
)

Mutation = Callable[[random.Random, bytes], bytes]


def _span(random: random.Random, size: int, most: int = 64) -> tuple[int, int]:
    begin = random.randint(0, size)
    return begin, min(size, begin + random.randint(0, most))


def _flipped(random: random.Random, text: bytes) -> bytes:
    found = bytearray(text)
    for _ in range(random.choice((1, 1, 2, 8)) if found else 0):
        found[random.randrange(len(found))] ^= 1 << random.randrange(8)
    return bytes(found)


def _cut(random: random.Random, text: bytes) -> bytes:
    return text[: random.randint(0, len(text))]


def _without(random: random.Random, text: bytes) -> bytes:
    begin, end = _span(random, len(text))
    return text[:begin] + text[end:]


def _repeated(random: random.Random, text: bytes) -> bytes:
    begin, end = _span(random, len(text))
    return text[:end] + text[begin:end] * random.choice((1, 2, 50)) + text[end:]


def _with_token(random: random.Random, text: bytes) -> bytes:
    begin, end = _span(random, len(text), most=4)
    return text[:begin] + random.choice(TOKENS) + text[end:]


def _lines(random: random.Random, text: bytes) -> bytes:
    """Return the text with lines doubled, swapped, left out or indented otherwise."""
    lines = text.split(b"\n")
    one, other = random.randrange(len(lines)), random.randrange(len(lines))
    match random.randrange(4):
        case 0:
            lines.insert(other, lines[one])
        case 1:
            lines[one], lines[other] = lines[other], lines[one]
        case 2:
            del lines[one]
        case _:
            lines[one] = b" " * random.randint(0, 6) + lines[one].lstrip()
    return b"\n".join(lines)


def _number(random: random.Random, text: bytes) -> bytes:
    """Return the text with a run of digits replaced by another number."""
    digits = b"0123456789"  # other digits are parts of characters of several bytes
    places = [place for place, byte in enumerate(text) if byte in digits]
    if not places:
        return text
    begin = end = random.choice(places)
    while end < len(text) and text[end] in digits:
        end += 1
    other = random.choice(
        (
            "0",
            "-1",
            "1e309",
            "9" * 400,
            "9" * 5000,
            "²",
            "٣",
            ".nan",
            "1e-300",
            "2",
            "0.1",
            "1e12",
            "",
        )
    )
    return text[:begin] + other.encode() + text[end:]


def _long(random: random.Random, text: bytes) -> bytes:
    """Return the text with something said thousands of times: patterns may try it in every way."""
    at = random.randint(0, len(text))
    near = text[max(at - random.choice((1, 1, 2, 4)), 0) : at]
    what = random.choice(
        (near, near, b"9", b"a", b" ", b"a-", b"1,", b"_", b"*a", b"[1", b'"', b".")
    )
    end = random.choice((b"", b"", b"\n", b"!", b" x", b"\xc3\xa9"))
    return text[:at] + what * random.choice((5_000, 100_000)) + end + text[at:]


def _recoded(random: random.Random, text: bytes) -> bytes:
    whole = text.decode("utf-8", errors="replace")
    name = random.choice(("utf-16", "utf-32", "latin-1", "utf-8-sig", "cp037", "utf-7"))
    return whole.encode(name, errors="replace")


def _bomb(random: random.Random, text: bytes) -> bytes:
    """Return the text with, behind or before it, what expands or nests without end."""
    levels = "abcdefghijkl"[: random.randint(2, 12)]
    aliases = ["x0: &x0 [lol, lol, lol]"]
    aliases += [f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9)}]" for n in range(1, len(levels))]
    entities = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 9}">' for n in range(1, 9))
    deep = random.choice((30, 200, 3000))
    bomb = random.choice(
        (
            "\n".join(aliases),
            "cycle: &c {again: *c}",
            "list: &l [*l]",
            f'<!DOCTYPE x [<!ENTITY e0 "lol">{entities}]><x>&e8;</x>',
            "deep: " + "[" * deep + "]" * deep,
            "deep: " + "{a: " * deep + "1" + "}" * deep,
            '{"a":' * deep + "1" + "}" * deep,
            "\n".join(" " * n + "a:" for n in range(min(deep, 300))),
            "<<: {model: gpt2}",
            "? [1, 2]\n: 3",
        )
    ).encode()
    return random.choice((text + b"\n" + bomb, bomb + b"\n" + text, bomb))


_OF_BYTES: tuple[Mutation, ...] = (
    _flipped, _cut, _without, _repeated, _with_token, _with_token, _lines, _lines, _number,
    _number, _recoded, _bomb, _long,
)  # fmt: skip


# -------------------------------------------------------------------------------- documents


@cache  # each is changed many times, and reading one takes longer than its reader does
def document_of(text: bytes) -> Any:
    """Return what a good YAML or JSON file holds, to be copied; None where it is neither."""
    with contextlib.suppress(ValueError):  # which takes a hundredth of the time
        return json.loads(text)
    try:
        return YAML(typ="safe", pure=True).load(text)
    except (YAMLError, ValueError):
        return None


def text_of(document: Any) -> bytes:
    """Return a document as JSON, which YAML reads as well; what is not finite in YAML's words."""
    text = json.dumps(document, indent=1, ensure_ascii=True, default=str)
    for ours, theirs in (("NaN", ".nan"), ("Infinity", ".inf")):
        text = text.replace(f": {ours}", f": {theirs}").replace(f": -{ours}", f": -{theirs}")
    return text.encode()


class Pool:
    """Keys and values of many good files: what stands somewhere may be tried anywhere."""

    def __init__(self, documents: Sequence[Any]) -> None:
        self.by_key: dict[Any, list[Any]] = {}
        self._sections: dict[Any, list[tuple[str, Any]]] = {}
        self.values: list[Any] = []
        for document in documents:
            for place in _places(document):
                value = _at(document, place)
                self.values.append(value)
                if isinstance(place[-1], str):
                    self.by_key.setdefault(place[-1], []).append(value)
                    self._sections.setdefault(place[-2:-1], []).append((place[-1], value))
        self.keys = sorted(self.by_key) or ["a"]

    def value(self, random: random.Random, key: Any = None) -> Any:
        """Return some value: one that the key has elsewhere, any other, or junk."""
        like = self.by_key.get(key, [])
        chosen = random.random()
        if like and chosen < 0.4:
            return random.choice(like)
        if self.values and chosen < 0.6:
            return random.choice(self.values)
        return random.choice(JUNK)

    def entry(self, random: random.Random, place: Sequence[Any]) -> tuple[str, Any] | None:
        """Return a key and its value as some good file has them next to the last key of a place."""
        entries = self._sections.get(tuple(place[-2:-1]))
        return random.choice(entries) if entries else None


def _places(value: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values below the top."""
    items = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        items = list(enumerate(value))[:50]
    found = []
    for key, item in items:
        found += [(*before, key), *_places(item, (*before, key))]
    return found


def _at(value: Any, place: Sequence[Any]) -> Any:
    for part in place:
        value = value[part]
    return value


def _changed(random: random.Random, document: Any, pool: Pool) -> Any:
    """Return the document with one value, key or order changed."""
    found = copy.deepcopy(document)
    places = _places(found)
    if not places:
        return pool.value(random)
    place = random.choice(places)
    holder, key = _at(found, place[:-1]), place[-1]
    match random.randrange(8):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[random.choice(pool.keys)] = pool.value(random)
        case 2 if isinstance(holder, dict):
            new = random.choice(pool.keys)
            holder[new] = pool.value(random, new)
        case 3:  # another place of the same document
            other = random.choice(places)
            holder[key] = copy.deepcopy(_at(document, other))
        case 4 if isinstance(holder[key], int | float):
            holder[key] *= random.choice((-1, 0, 2, 0.5, 1000, 1e9, 1e-9))
        case 5 if isinstance(holder, list):
            holder.extend([copy.deepcopy(holder[key])] * random.choice((1, 3, 100)))
        case 6 if isinstance(holder[key], str):  # numbers within texts, as in block_2
            holder[key] = _number(random, holder[key].encode()).decode()
        case 6:
            holder[key] = random.choice(([holder[key]], {"value": holder[key]}, str(holder[key])))
        case _:
            holder[key] = pool.value(random, key)
    return found


def varied(random: random.Random, seed: bytes, pool: Pool) -> bytes:
    """Return a copy of a good document that may well be good: each value has a fitting kind."""
    document = copy.deepcopy(document_of(seed))
    for _ in range(random.choice((1, 2, 3, 6))):
        places = _places(document)
        if not places:
            break
        place = random.choice(places)
        holder, key = _at(document, place[:-1]), place[-1]
        value, chosen = holder[key], random.random()
        if isinstance(value, int | float) and not isinstance(value, bool) and chosen < 0.6:
            holder[key] = type(value)(value * random.choice((0, 0.5, 2, 2, 3, 4, 16, 1000)))
        elif isinstance(holder, dict) and (entry := pool.entry(random, place)) is not None:
            if chosen < 0.3:
                del holder[key]
            else:
                holder[entry[0]] = copy.deepcopy(entry[1])
        elif isinstance(holder, list):
            holder.insert(random.randint(0, len(holder)), copy.deepcopy(value))
    return text_of(document)


def mutated(
    random: random.Random, seed: bytes, others: Sequence[bytes], pool: Pool | None
) -> bytes:
    """Return a changed copy of a good file.

    Args:
        random: Where chances come from.
        seed: The good file.
        others: More good files, to splice with.
        pool: Keys and values to try in a document; None where files are none.
    """
    document = document_of(seed) if pool is not None and random.random() < 0.7 else None
    if document is not None and pool is not None:
        for _ in range(random.choice((1, 1, 2, 4))):
            document = _changed(random, document, pool)
        seed = text_of(document)
        if random.random() < 0.9:
            return seed
    if others and random.random() < 0.05:
        other = random.choice(others)
        seed = seed[: random.randint(0, len(seed))] + other[random.randint(0, len(other)) :]
    for _ in range(random.choice((1, 1, 2, 3))):
        seed = random.choice(_OF_BYTES)(random, seed)
    return seed
