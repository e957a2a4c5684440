"""The graphs of the built-in models, recorded ahead. No torch here.

`graphs/` holds one compressed file per model, and `summary.json` with what lists show of each.
`python -m wattree.capture.zoo` remakes them.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType

from wattree.capture.recording import size_bytes
from wattree.errors import ModelError
from wattree.graph import Extent, ModelGraph

#: Where they lie in the package.
FOLDER = "graphs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipped:
    """Figures of a model in lists, without its graph.

    Attributes:
        architecture: Family, such as `resnet`.
        parameters: Tied ones once.
        layers: Instances that count as layers.
        inputs: As `float32[batch, 3, 224, 224]`, equal neighbours once: `26 × int64[batch, 1]`.
        forward_flop: As `ModelFigures` has it. [FLOP]
        blocks: Kinds of blocks, in alphabetic order.
    """

    architecture: str
    parameters: int
    layers: int
    inputs: tuple[str, ...]
    forward_flop: float
    blocks: tuple[str, ...]


_LISTS = ("inputs", "blocks")
_INPUT = re.compile(r"(?:(?P<count>\d+) × )?(?P<dtype>\w+)\[(?P<dims>[^]]*)\]", re.ASCII)


@cache
def shipped_models() -> Mapping[str, Shipped]:
    """Return the figures of the models that ship, by name."""
    path = Path(__file__).with_name(FOLDER) / "summary.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    return MappingProxyType(
        {
            name: Shipped(**{**figures, **{key: tuple(figures[key]) for key in _LISTS}})
            for name, figures in found.items()
        }
    )


def shipped_graph(name: str) -> ModelGraph:
    """Return the graph of the built-in model called `name`.

    Raises:
        ModelError: It is not shipped.
    """
    if name not in shipped_models():
        raise ModelError(f"model {name}: its graph does not ship")
    from wattree.graph.serialize import graph_from_json

    path = Path(__file__).with_name(FOLDER) / f"{name}.json.gz"
    graph = graph_from_json(gzip.decompress(path.read_bytes()).decode())
    return replace(graph, inputs=_input_bytes(shipped_models()[name].inputs))


def _input_bytes(inputs: Iterable[str]) -> tuple[Extent, ...]:
    """Return the size of each input that the summary lists. [B]"""
    found: list[Extent] = []
    for text in inputs:
        match = _INPUT.fullmatch(text)
        assert match is not None, text
        dims = [dim for dim in match["dims"].split(", ") if dim]
        found += [size_bytes(map(_extent, dims), match["dtype"])] * int(match["count"] or 1)
    return tuple(found)


def _extent(dim: str) -> Extent:
    """Return the length that the summary writes as `batch`, `192` or `0.5 sequence`."""
    words = dim.split(" ")
    numbers = [float(word) for word in words if word not in {"batch", "sequence"}]
    return Extent(
        coefficient=numbers[0] if numbers else 1.0,
        batch=words.count("batch"),
        seq=words.count("sequence"),
    )


def write_graph(graph: ModelGraph, folder: Path) -> None:
    """Write a graph's file. The same graph gives the same bytes."""
    from wattree.graph.serialize import graph_to_json

    text = graph_to_json(replace(graph, inputs=()))  # the summary has them
    (folder / f"{graph.name}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def write_summary(models: Mapping[str, Shipped], folder: Path) -> None:
    """Write the file of figures, a line for each model."""
    lines = [f"  {json.dumps(name)}: {json.dumps(asdict(each))}" for name, each in models.items()]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    (folder / "summary.json").write_text(text, encoding="utf-8")
