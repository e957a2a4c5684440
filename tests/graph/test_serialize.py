"""Model graphs as text: nothing is lost, and damaged text is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattree.capture import configuration_names, load_model
from wattree.errors import ModelError
from wattree.graph.serialize import graph_from_json, graph_to_json

NAMES = ("bert-base", "deepseek-v3", "gpt2", "llama-3.1-8b", "mixtral-8x7b", "t5-small")


@given(name=st.sampled_from(configuration_names()))
def test_a_graph_that_was_read_equals_the_one_that_was_written(name: str) -> None:
    """Every prediction rests on it."""
    graph = load_model(name)

    assert graph_from_json(graph_to_json(graph)) == graph


@pytest.mark.parametrize("name", NAMES)
def test_the_same_graph_gives_the_same_text(name: str) -> None:
    """Else the files that ship would differ from one run to the next."""
    text = graph_to_json(load_model(name))

    assert graph_to_json(graph_from_json(text)) == text


def test_defaults_are_left_out() -> None:
    """They are most of a graph's fields."""
    text = graph_to_json(load_model("gpt2"))

    assert '"trainable"' not in text
    assert '"coefficient":1.0' not in text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"version": 1}',
        '{"version": 1, "graph": 3}',
        '{"version": 1, "graph": {"name": "x"}}',
        '{"version": 1, "graph": {"name": "x", "nonsense": 1}}',
    ],
)
def test_text_that_holds_no_graph_is_refused(text: str) -> None:
    """A cut or foreign file must not end in a traceback."""
    with pytest.raises(ModelError, match="model graph: found text that holds none"):
        graph_from_json(text)


def test_another_version_is_refused() -> None:
    """It might be misread."""
    found = json.loads(graph_to_json(load_model("gpt2")))
    found["version"] = 99

    with pytest.raises(ModelError, match="found version 99, expected 1"):
        graph_from_json(json.dumps(found))
