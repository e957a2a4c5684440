"""The graphs of the built-in models, recorded ahead. No torch here.

`graphs/` holds one compressed file per model, and `summary.json` with what lists show of each. A
file has a line for each form (`wattree.capture.zoo.graph.forms`); an empty one is the first.
`python -m wattree.capture.zoo` remakes them.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Mapping, Sequence
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
class ModelFigures:
    """Sizes of a model.

    Attributes:
        architecture: Family, such as `llama` or `resnet`.
        parameters: Tied ones once.
        layers: Blocks that count as layers when stages of a pipeline are cut.
        forward_flop: Matmuls and convolutions of one sample's forward pass, of attention only
            visible scores; of language models at the longest sequence, None if that is unlimited.
            [FLOP]
        inputs: What it reads: shapes of its inputs, or tokens.
        blocks: Kinds of blocks, in alphabetic order.
        vocabulary: Size of the token table; None if there is none.
        max_sequence_length: Longest sequence; None if unlimited, or if there is none.
    """

    architecture: str
    parameters: int
    layers: int
    inputs: tuple[str, ...]
    forward_flop: float | None
    blocks: tuple[str, ...]
    vocabulary: int | None = None
    max_sequence_length: int | None = None

    @property
    def first_input(self) -> str:
        """Shape of a sample's first input, and whether there are more: `3×224×224`."""
        _, bracket, dims = self.inputs[0].partition("[")
        lengths = [length for length in dims.rstrip("]").split(", ") if length != "batch"]
        shape = "×".join(lengths) or "1" if bracket else self.inputs[0]
        return f"{shape} and more" if len(self.inputs) > 1 else shape


_LISTS = ("inputs", "blocks")
_INPUT = re.compile(r"(?:(?P<count>\d+) × )?(?P<dtype>\w+)\[(?P<dims>[^]]*)\]", re.ASCII)


@cache
def shipped_models() -> Mapping[str, ModelFigures]:
    """Return the figures of the models that ship, by name."""
    path = Path(__file__).with_name(FOLDER) / "summary.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    return MappingProxyType(
        {
            name: ModelFigures(**{**figures, **{key: tuple(figures[key]) for key in _LISTS}})
            for name, figures in found.items()
        }
    )


def shipped_graph(name: str, *, normal: bool = True) -> ModelGraph:
    """Return the graph of the built-in model called `name`.

    Args:
        normal: As `load_model` has it.

    Raises:
        ModelError: It is not shipped.
    """
    if name not in shipped_models():
        raise ModelError(f"model {name}: its graph does not ship")
    from wattree.graph.serialize import graph_from_json

    path = Path(__file__).with_name(FOLDER) / f"{name}.json.gz"
    lines = gzip.decompress(path.read_bytes()).decode().split("\n")
    graph = graph_from_json((lines[0] if normal else lines[-1]) or lines[0])
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


def write_graph(forms: Sequence[ModelGraph], folder: Path) -> None:
    """Write the file of a graph's forms. The same graphs give the same bytes."""
    from wattree.graph.serialize import graph_to_json

    first, *others = (graph_to_json(replace(form, inputs=())) for form in forms)  # summary has them
    lines = [first, *("" if text == first else text for text in others)]
    text = "\n".join(lines).encode()
    (folder / f"{forms[0].name}.json.gz").write_bytes(gzip.compress(text, mtime=0))


def _summary(figures: ModelFigures) -> dict[str, object]:
    return {key: value for key, value in asdict(figures).items() if value is not None}


def write_summary(models: Mapping[str, ModelFigures], folder: Path) -> None:
    """Write the file of figures, a line for each model."""
    lines = [f"  {json.dumps(name)}: {json.dumps(_summary(each))}" for name, each in models.items()]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    (folder / "summary.json").write_text(text, encoding="utf-8")
