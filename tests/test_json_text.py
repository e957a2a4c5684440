"""Text that is no JSON: one kind of error, whatever is wrong with it."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattree.errors import JsonTextError
from wattree.json_text import LIMIT_DEPTH, parsed_json, parsed_object

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 3000, "nested deeper than 64 levels"),
        ("[" * 900 + "]" * 900, "nested deeper than 64 levels"),
        ("[" * 3000 + "]" * 3000, "nested deeper than 64 levels"),
        ('{"a":' * 100 + "1" + "}" * 100, "nested deeper than 64 levels"),
        (b'{"a": "\xff"}', "found byte 0xff at 7, not UTF-8 text"),
        ("{", "line 1, column 2: Expecting property name"),
        ('{"a": 1, "a": 2}', "found the key 'a' twice"),
        ("9" * 5000, "found a number of thousands of digits; expected valid JSON"),
        ('"' + "x" * 100 + '"', "found 102 B, expected at most 100 B"),
        (None, "found a NoneType, expected a text"),
    ],
)
def test_text_that_is_no_json_is_refused_in_a_line(text: str, message: str) -> None:
    """Readers catch one error; none of these ends in another."""
    with pytest.raises(JsonTextError, match=message) as caught:
        parsed_json(text, limit_bytes=100 if "x" in str(text) else 100_000)

    assert "\n" not in str(caught.value)


def test_the_deepest_text_that_is_read_has_as_many_levels_as_the_limit() -> None:
    """The limit is the one that the message states."""
    assert parsed_json("[" * LIMIT_DEPTH + "]" * LIMIT_DEPTH)
    with pytest.raises(JsonTextError):
        parsed_json("[" * (LIMIT_DEPTH + 1) + "]" * (LIMIT_DEPTH + 1))


def test_an_object_is_asked_for() -> None:
    """Callers look for keys."""
    with pytest.raises(JsonTextError, match="found a list, expected an object"):
        parsed_object("[]")


@given(value=values)
def test_what_python_writes_is_read(value: object) -> None:
    """Nothing of ours is refused."""
    assert parsed_json(json.dumps(value).encode()) == value


@given(content=st.binary())
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    """Damage has no shape."""
    with contextlib.suppress(JsonTextError):
        parsed_json(content)


COMMENTED = """{ // of the engine
  "stage": 3, # partitioned
  "path": "https://a/b#c, ]", /* two
  lines */
  "sizes": [1, 2,], "quote": "\\\\", }
"""


def test_comments_and_last_commas_are_read_where_they_are_allowed() -> None:
    """What looks like them inside of strings is text."""
    assert parsed_json(COMMENTED, comments=True) == {
        "stage": 3,
        "path": "https://a/b#c, ]",
        "sizes": [1, 2],
        "quote": "\\",
    }


@pytest.mark.parametrize("text", ["[,]", "{,}", "[1,,]", "[1, ,]", '{"a":,}', "[ // one\n ,]"])
def test_a_comma_needs_an_item_before_it(text: str) -> None:
    """Hjson allows one after the last item, and nothing else."""
    with pytest.raises(JsonTextError, match="expected valid JSON"):
        parsed_json(text, comments=True)


def test_they_leave_positions_as_they_are() -> None:
    """A message names the line and column of the file."""
    text = COMMENTED.replace('"quote":', '"quote"')
    place = r"line 5, column 29: Expecting ':' delimiter"

    with pytest.raises(JsonTextError, match=place):
        parsed_json(text, comments=True)


@given(values)
def test_plain_json_is_the_same_with_and_without(value: object) -> None:
    """No string of a text is cut."""
    text = json.dumps(value)

    assert parsed_json(text, comments=True, limit_bytes=1 << 20) == parsed_json(text)
