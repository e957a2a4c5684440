"""The graphs of the built-in models, recorded ahead. No torch here.

`graphs/` holds one compressed file per model, and `summary.json` with what lists show of each.
`python -m wattree.capture.zoo` remakes them.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType

from wattree.errors import ModelError
from wattree.graph import ModelGraph

__all__ = ["FOLDER", "Shipped", "shipped_graph", "shipped_models", "write_graph", "write_summary"]

#: Where they lie in the package.
FOLDER = "graphs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipped:
    """What lists show of a model without loading its graph.

    Attributes:
        architecture: Family, such as `resnet`.
        parameters: Tied ones once.
        layers: Instances that count as layers.
        inputs: As `float32[batch, 3, 224, 224]`, equal neighbours once: `26 × int64[batch, 1]`.
        forward_flop: Matrix products and convolutions of one sample's forward pass. [FLOP]
        blocks: Kinds of blocks, in alphabetic order.
    """

    architecture: str
    parameters: int
    layers: int
    inputs: tuple[str, ...]
    forward_flop: float
    blocks: tuple[str, ...]


_LISTS = ("inputs", "blocks")


@cache
def shipped_models() -> Mapping[str, Shipped]:
    """Return the figures of the models that ship, by name."""
    path = files("wattree.capture.zoo") / FOLDER / "summary.json"
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

    path = files("wattree.capture.zoo") / FOLDER / f"{name}.json.gz"
    return graph_from_json(gzip.decompress(path.read_bytes()).decode())


def write_graph(graph: ModelGraph, folder: Path) -> None:
    """Write a graph's file. The same graph gives the same bytes."""
    from wattree.graph.serialize import graph_to_json

    text = graph_to_json(graph)
    (folder / f"{graph.name}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def write_summary(models: Mapping[str, Shipped], folder: Path) -> None:
    """Write the file of figures, a line for each model."""
    lines = [f"  {json.dumps(name)}: {json.dumps(asdict(each))}" for name, each in models.items()]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    (folder / "summary.json").write_text(text, encoding="utf-8")
