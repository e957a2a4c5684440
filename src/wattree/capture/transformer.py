"""From the shape of a transformer to its graph: embedding, layers by kind, head."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

from wattree.capture.embedding import TOKEN_TABLE, embedding_block
from wattree.capture.head import head_block, hidden_state
from wattree.capture.layer import layer_block
from wattree.capture.layer_kind import LayerKind
from wattree.capture.parts import norm, sequence_dim
from wattree.capture.prediction import prediction_instances
from wattree.capture.shape import TransformerShape
from wattree.graph import Block, BlockInstance, ModelGraph


def build_transformer(shape: TransformerShape) -> ModelGraph:
    """Return the model graph of a transformer of the given shape."""
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

    add("embedding", embedding_block(shape, name="embedding", seq=sequence_dim()))
    decoder_seq = sequence_dim(shape.decoder_sequence_ratio if shape.encoder_layers else 1.0)
    if shape.encoder_layers:
        add_layers("encoder.", shape.encoder_kinds())
        if shape.final_norm:
            add("encoder.final", _encoder_norm(shape))
        add(
            "decoder.embedding",
            embedding_block(
                shape,
                name="decoder_embedding",
                seq=decoder_seq,
                tied_to=None if shape.decoder_table else TOKEN_TABLE,
                is_first=False,
            ),
        )
    add_layers("decoder." if shape.encoder_layers else "", shape.layer_kinds())
    state = f"{instances[-1].path}/{blocks[instances[-1].block].output}"
    for instance, block in prediction_instances(shape, state):
        blocks.setdefault(block.name, block)
        instances.append(instance)
    if (head := head_block(shape, seq=decoder_seq)) is not None:
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
    )


def _encoder_norm(shape: TransformerShape) -> Block:
    operator = norm("final_norm", shape, reads="hidden", width=shape.hidden)
    return Block(
        name="encoder_final",
        operators=(operator,),
        inputs=(hidden_state(shape, sequence_dim()),),
        output="final_norm",
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
