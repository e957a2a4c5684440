"""XML read with care: a tree of elements with their lines, and nothing that could expand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

# A bare expat parser; document types, and with them all entities, are refused below.
from xml.parsers import expat

from wattree.errors import JobError
from wattree.files import LIMIT_BYTES, read_text

_DEEPEST = 64
_MOST_ELEMENTS = 50_000


@dataclass(slots=True, kw_only=True)
class Element:
    """One element.

    Attributes:
        line: Where it begins, from 1.
        children: In order.
    """

    tag: str
    attributes: Mapping[str, str]
    line: int
    children: list[Element] = field(default_factory=list)

    def named(self, *tags: str) -> Iterator[Element]:
        """Yield the children of these names."""
        return (child for child in self.children if child.tag in tags)


def read_xml(path: str | Path) -> Element:
    """Return the root of an XML file.

    Raises:
        JobError: The file cannot be read, is no well-formed XML, is larger than 1 MiB, nested too
            deeply, or declares a document type, the only way to entities that expand.
    """
    text = read_text(path, limit_bytes=LIMIT_BYTES)
    root = Element(tag="", attributes={}, line=0)
    open_elements = [root]
    count = 0
    parser = expat.ParserCreate()

    def refusal(problem: str) -> JobError:
        return JobError(str(path), [f"line {parser.CurrentLineNumber}: {problem}"])

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        if len(open_elements) > _DEEPEST or count > _MOST_ELEMENTS:
            raise refusal(
                f"element <{tag}>: nested deeper than {_DEEPEST}, or one of more than "
                f"{_MOST_ELEMENTS} elements; expected the description of one node"
            )
        element = Element(tag=tag, attributes=attributes, line=parser.CurrentLineNumber)
        open_elements[-1].children.append(element)
        open_elements.append(element)

    def end(_: str) -> None:
        open_elements.pop()

    def doctype(*_: object) -> None:
        raise refusal("found a document type (<!DOCTYPE), which such files have not; remove it")

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.StartDoctypeDeclHandler = doctype
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        raise JobError(str(path), [_malformed(error, open_elements)]) from None
    return root.children[0]


def _malformed(error: expat.ExpatError, open_elements: list[Element]) -> str:
    why = expat.ErrorString(error.code)
    inner = open_elements[-1]
    inside = f"; <{inner.tag}> of line {inner.line} is not closed" if inner.tag else ""
    return f"line {error.lineno}: {why}{inside}; expected a complete XML file"
