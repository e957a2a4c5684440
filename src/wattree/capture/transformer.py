"""From the shape of a transformer to its graph: embedding, layers by kind, head.

Multi-token prediction: modules that predict the tokens after the next one, in training alone.

Each joins the state of the one before (first: of the last layer) with the embedding of the token
that is known by then, runs layers on it, and predicts with the model's table and head. Modules
have a layer like the model's last [1]; those of hybrids share their parameters (Megatron-LM's
`mtp_use_repeated_layer`).

References:
    [1] DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, arXiv:2412.19437, section 2.2.
    [2] github:NVIDIA/Megatron-LM `megatron/core/transformer/multi_token_prediction.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Final

from wattree.capture.embedding import TOKEN_TABLE, embedding_block, token_lookup
from wattree.capture.head import head_block, hidden_state
from wattree.capture.layer import layer_block
from wattree.capture.layer_kind import LayerKind
from wattree.capture.parts import HIDDEN_DIMS, Builder, sequence_dim
from wattree.capture.shape import TransformerShape
from wattree.graph import Block, BlockInstance, ModelGraph, Operand, Parameter

#: Assumed of an encoder-decoder of which nothing states the lengths.
_AS_LONG: Final = (
    "the decoder's sequence is as long as the encoder's, data.sequence_length: model.arguments has "
    "no decoder_length, and model.transformer no decoder_sequence_ratio"
)


def build_transformer(shape: TransformerShape, *, is_stated: bool = True) -> ModelGraph:
    """Return the model graph of a transformer of the given shape.

    Args:
        is_stated: The length of the decoder's sequence is no assumption.
    """
    blocks: dict[str, Block] = {}
    instances: list[BlockInstance] = []

    def add(path: str, block: Block, *, is_layer: bool = False) -> None:
        blocks.setdefault(block.name, block)
        instances.append(BlockInstance(path=path, block=block.name, is_layer=is_layer))

    def add_layers(prefix: str, kinds: Iterable[LayerKind]) -> None:
        built: dict[LayerKind, Block] = {}
        for index, kind in enumerate(kinds):
            if kind not in built:
                built[kind] = layer_block(shape, kind)
            add(f"{prefix}layers.{index}", built[kind], is_layer=True)

    add("embedding", embedding_block(Builder(shape), name="embedding"))
    is_twofold = bool(shape.encoder_layers)
    decoder = Builder(shape, sequence_dim(shape.decoder_sequence_ratio if is_twofold else 1.0))
    if is_twofold:
        add_layers("encoder.", shape.encoder_kinds())
        if shape.final_norm:
            add("encoder.final", _encoder_norm(Builder(shape)))
        table = None if shape.decoder_table else TOKEN_TABLE
        add(
            "decoder.embedding",
            embedding_block(decoder, name="decoder_embedding", tied_to=table, is_first=False),
        )
    add_layers("decoder." if is_twofold else "", shape.layer_kinds())
    state = f"{instances[-1].path}/{blocks[instances[-1].block].output}"
    for instance, block in prediction_instances(shape, state):
        blocks.setdefault(block.name, block)
        instances.append(instance)
    if (head := head_block(decoder)) is not None:
        add("head", head)
        if shape.predictions:
            instances[-1] = replace(instances[-1], reads=(state,))
    return ModelGraph(
        own_family=True,
        language=True,
        known_family=True,
        stepwise_attention=shape.stepwise_attention,
        casts_softmax=shape.casts_softmax,
        caps_scores=shape.score_softcap,
        drops_scores=shape.attention_dropout > 0.0 and not shape.attention_sinks,
        name=shape.name,
        architecture=shape.architecture,
        blocks=blocks,
        instances=_with_memory(shape, blocks, instances),
        max_sequence_length=shape.max_positions or None,
        vocabulary=shape.vocab,
        sources=shape.sources,
        assumed=(_AS_LONG,) if is_twofold and not is_stated else (),
    )


def _encoder_norm(build: Builder) -> Block:
    path = "final_norm"
    return Block(
        name="encoder_final",
        operators=(build.norm(path, "hidden"),),
        inputs=(hidden_state(build),),
        output=path,
    )


def _with_memory(
    shape: TransformerShape, blocks: dict[str, Block], instances: list[BlockInstance]
) -> tuple[BlockInstance, ...]:
    """Return the instances, those with cross-attention reading the encoder's end besides."""
    last = "encoder.final" if shape.final_norm else f"encoder.layers.{shape.encoder_layers - 1}"
    by_path = {instance.path: blocks[instance.block] for instance in instances}
    found = []
    for before, instance in pairwise([instances[0], *instances]):
        if len(blocks[instance.block].inputs) > 1:
            reads = (f"{path}/{by_path[path].output}" for path in (before.path, last))
            found.append(replace(instance, reads=tuple(reads)))
        else:
            found.append(instance)
    return tuple(found)


_LOGITS = "logits.weight"


def prediction_instances(
    shape: TransformerShape, state: str
) -> Iterator[tuple[BlockInstance, Block]]:
    """Yield the block instances of all modules, in order.

    Args:
        state: What the first module reads, `instance/tensor`.
    """
    build = Builder(shape)
    for depth in range(shape.predictions):
        root = f"prediction.{depth}"
        own = shape.layer_kinds()[-1:]
        kinds = enumerate(shape.single_kinds(shape.prediction_pattern) if shape.pattern else own)
        layers = [(f"layers.{index}", layer_block(shape, kind)) for index, kind in kinds]
        for name, block in (("start", _start(build)), *layers, ("head", _head(build))):
            path = f"{root}.{name}"
            first = f"prediction.0.{name}"
            again = f"{first.replace('.', '_')}_again"
            made = _tied(block, first, again) if depth and shape.pattern else block
            reads = (state,) if name == "start" else ()
            yield BlockInstance(path=path, block=made.name, is_layer=False, reads=reads), made
            if block.output is not None:
                last = f"{path}/{block.output}"
        state = last


def _start(build: Builder) -> Block:
    """Return the embedding of a token, its norm and that of the state, and their projection."""
    width, halves = build.shape.hidden, ("token_norm", "state_norm")
    joined = [Operand(tensor=name, dims=HIDDEN_DIMS, fraction=0.5) for name in halves]
    return Block(
        name="prediction_start",
        operators=(
            token_lookup(build),
            build.norm(halves[0], "embedding.tokens"),
            build.norm(halves[1], "hidden"),
            build.elementwise("joined", "concatenate", *joined, width=2 * width),
            build.linear("projection", "joined", 2 * width, width),
        ),
        inputs=(hidden_state(build),),
        output="projection",
    )


def _head(build: Builder) -> Block:
    """Return a norm of its own, and logits by the model's head."""
    block = head_block(build)
    assert block is not None
    return _tied(block, "head", "prediction_head", only=_LOGITS)


def _tied(block: Block, path: str, name: str, *, only: str = "") -> Block:
    """Return the block with the parameters (or one) of the instance at `path`."""

    def tied(each: Parameter) -> Parameter:
        is_own = each.tied_to or only not in ("", each.name)
        return each if is_own else replace(each, tied_to=f"{path}/{each.name}")

    made = block.mapped(lambda op: replace(op, parameters=tuple(map(tied, op.parameters))))
    return replace(made, name=name)
