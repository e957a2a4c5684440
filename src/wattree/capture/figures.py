"""Figures of the catalog's models in lists."""

from __future__ import annotations

from dataclasses import dataclass

from wattree.capture.catalog_entries import catalog_entry
from wattree.capture.counts import dense_forward_flop
from wattree.capture.load import load_model
from wattree.capture.zoo.shipped import shipped_models


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFigures:
    """Sizes of a model.

    Attributes:
        architecture: Family, such as `llama` or `resnet`.
        parameters: Tied ones once.
        layers: Blocks that count as layers when stages of a pipeline are cut.
        forward_flop: Matmuls and convolutions of one sample's forward pass, attention
            counted dense; of language models at the longest sequence, None if that is unlimited.
            [FLOP]
        inputs: What it reads: shapes of its inputs, or tokens.
        blocks: Kinds of blocks, in alphabetic order.
        vocabulary: Size of the token table; None if there is none.
        max_sequence_length: Longest sequence; None if unlimited, or if there is none.
    """

    architecture: str
    parameters: int
    layers: int
    forward_flop: float | None
    inputs: tuple[str, ...]
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


def model_figures(name: str) -> ModelFigures:
    """Return the sizes of the catalog's model called `name`.

    Raises:
        UnknownNameError: The catalog has no such model.
    """
    entry = catalog_entry(name)
    if entry.config is None:
        shipped = shipped_models()[entry.name]
        return ModelFigures(
            architecture=shipped.architecture,
            parameters=shipped.parameters,
            layers=shipped.layers,
            forward_flop=shipped.forward_flop,
            inputs=shipped.inputs,
            blocks=shipped.blocks,
        )
    graph = load_model(entry.name)
    longest = graph.max_sequence_length
    return ModelFigures(
        architecture=graph.architecture,
        parameters=graph.parameters,
        layers=graph.layers,
        forward_flop=None if longest is None else dense_forward_flop(graph, 1, longest),
        inputs=("tokens" if longest is None else f"{longest:,} tokens",),
        blocks=tuple(sorted(graph.blocks)),
        vocabulary=graph.vocabulary or None,
        max_sequence_length=longest,
    )
