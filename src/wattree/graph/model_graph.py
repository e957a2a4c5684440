"""A model as data: operators of one forward pass, in blocks that repeat. No torch here.

A model is a sequence of *block instances*; instances of one *block* have the same operators
and tensors, so everything derived from a block is derived once however often it repeats.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from wattree.errors import ModelError
from wattree.graph.operators import Extent, Operator

_CALLED_AGAIN: Final = re.compile(r"@\d+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """An activation that enters or leaves a block.

    Attributes:
        name: Name inside the block.
        extents: Length of each dim. A hidden state is `(batch, seq, hidden)`.
    """

    name: str
    extents: tuple[Extent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Operators that belong together and repeat as a whole: an embedding, a layer, a head.

    Attributes:
        name: Kind of block, unique in the model: `embedding`, `layer`, `moe_layer`, `head`.
        operators: In an order in which they can run.
        inputs: Tensors of earlier instances, which `BlockInstance.reads` names. Empty for a block
            that reads the data.
        output: Name of the tensor that the next block reads; None for the last block.
        carried: Further tensors that it writes and later blocks read.
        given: Tensors without a gradient. What its operators do not make themselves was there
            before: samples of the batch, masks, tables of positions; no block keeps those.
    """

    name: str
    operators: tuple[Operator, ...]
    inputs: tuple[Tensor, ...] = ()
    output: str | None = None
    given: tuple[str, ...] = ()
    carried: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        known = {tensor.name for tensor in self.inputs} | set(self.given)
        for operator in self.operators:
            for operand in operator.inputs:
                if operand.tensor not in known and operator.kind != "embedding":
                    raise ModelError(
                        f"block {self.name}: {operator.path} reads '{operand.tensor}', "
                        "which nothing before it writes"
                    )
            known.update(operand.tensor for operand in operator.outputs)
        for output in self.outputs:
            if output not in known:
                raise ModelError(f"block {self.name}: its output '{output}' is never written")

    def mapped(self, change: Callable[[Operator], Operator]) -> Block:
        """Return the block with each operator changed."""
        return replace(self, operators=tuple(map(change, self.operators)))

    @property
    def outputs(self) -> tuple[str, ...]:
        """All tensors that it makes for later blocks, `output` first."""
        return (*(() if self.output is None else (self.output,)), *self.carried)

    @property
    def parameter_elements(self) -> int:
        """Parameters of one instance, tied ones left out."""
        return sum(
            parameter.elements
            for operator in self.operators
            for parameter in operator.parameters
            if parameter.tied_to is None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockInstance:
    """One occurrence of a block.

    Attributes:
        path: Place in the module tree: `embedding`, `layers.3`, `head`; `layers.3@2` of its second
            call.
        block: Name of the block.
        is_layer: Counts as a layer when stages of a pipeline are cut.
        reads: `<path>/<tensor>` for each input of its block: the instance before it that makes the
            tensor, and its name there. Empty where the only input is the output of the instance
            before.
    """

    path: str
    block: str
    is_layer: bool
    reads: tuple[str, ...] = ()

    @property
    def module_path(self) -> str:
        """The path without the `@2` of a module that is called again."""
        return _CALLED_AGAIN.sub("", self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelGraph:
    """Operators of one forward pass with batch and sequence left symbolic.

    Attributes:
        name: Catalog name or path it came from.
        architecture: Family, such as `llama`.
        blocks: By name.
        instances: In forward order.
        max_sequence_length: Longest sequence the model admits; None if unlimited.
        vocabulary: Size of the token table, 0 if there is none.
        sources: Where the figures come from.
        checkpointed: Patterns of operators whose activations the model itself recomputes.
        warnings: What could not be determined of it for certain, one line each; commands print
            them.
        assumed: What was chosen where nothing says it, one line each; results list them.
        inputs: Bytes of each tensor that a captured module is given; empty where that is not known.
            [B]
        own_family: Its operators are those of Wattree's own transformers, several kernels each and
            called the same in every model; otherwise they are what a module dispatched.
        language: It is a language model, read or captured: what is known of their training holds.
        known_family: Its layers are those of a family of the catalog's language models, read or
            captured.
        needed_tokens: Share of the tokens that an expert is needed for, where its module runs on
            all of them and weighs most by zero.
        stepwise_attention: In the transformers library it does not run on PyTorch's SDPA.
        casts_softmax: Where it runs step by step there, softmax of 16-bit scores is in fp32.
        drops_scores: Some scores of attention are dropped.
        caps_scores: They pass through a tanh.
    """

    name: str
    architecture: str
    blocks: Mapping[str, Block]
    instances: tuple[BlockInstance, ...]
    max_sequence_length: int | None = None
    vocabulary: int = 0
    sources: tuple[str, ...] = ()
    checkpointed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    inputs: tuple[Extent, ...] = ()
    own_family: bool = False
    language: bool = False
    known_family: bool = False
    needed_tokens: float = 1.0
    stepwise_attention: bool = False
    casts_softmax: bool = True
    drops_scores: bool = False
    caps_scores: bool = False

    def __post_init__(self) -> None:
        for instance in self.instances:
            if instance.block not in self.blocks:
                raise ModelError(
                    f"{self.name}: {instance.path} is of unknown block {instance.block}"
                )

    def mapped(self, change: Callable[[Operator], Operator]) -> ModelGraph:
        """Return the graph with each operator changed."""
        return replace(self, blocks={name: b.mapped(change) for name, b in self.blocks.items()})

    @property
    def operators(self) -> Iterator[Operator]:
        """The operators of every block, however often it repeats."""
        return (operator for block in self.blocks.values() for operator in block.operators)

    @property
    def parameters(self) -> int:
        """Number of parameters, tied ones once."""
        counts = Counter(instance.block for instance in self.instances)
        return sum(self.blocks[name].parameter_elements * count for name, count in counts.items())

    @property
    def trainable_parameters(self) -> int:
        """Number of parameters that are updated, tied ones once."""
        counts = Counter(instance.block for instance in self.instances)
        return sum(
            count
            * sum(
                parameter.elements
                for operator in self.blocks[name].operators
                for parameter in operator.parameters
                if parameter.trainable and parameter.tied_to is None
            )
            for name, count in counts.items()
        )

    def sample_bytes(self, sequence: float) -> float:
        """Return what one sample's inputs take, those that do not grow with the batch left out. [B]

        Args:
            sequence: Tokens per sample.
        """
        return sum(
            size.value(micro_batch=1.0, sequence=sequence) for size in self.inputs if size.batch
        )

    @property
    def layers(self) -> int:
        """Number of instances that count as layers."""
        return sum(instance.is_layer for instance in self.instances)
