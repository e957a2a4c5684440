"""Multi-token prediction: modules that predict the tokens after the next one, in training alone.

Each joins the state of the one before (first: of the last layer) with the embedding of the token
that is known by then, runs layers on it, and predicts with the model's table and head. Modules
share their parameters (Megatron-LM's `mtp_use_repeated_layer`).

References:
    [1] DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, arXiv:2412.19437, section 2.2.
    [2] github:NVIDIA/Megatron-LM `megatron/core/transformer/multi_token_prediction.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from wattree.capture.embedding import token_lookup
from wattree.capture.head import head_block, hidden_state
from wattree.capture.layer import layer_block
from wattree.capture.parts import HIDDEN_DIMS, elementwise, linear, norm, sequence_dim
from wattree.capture.shape import TransformerShape
from wattree.graph import Block, BlockInstance, Operand

_LOGITS = "logits.weight"


def prediction_instances(
    shape: TransformerShape, state: str
) -> Iterator[tuple[BlockInstance, Block]]:
    """Yield the block instances of all modules, in order.

    Args:
        state: What the first module reads, `instance/tensor`.
    """
    for depth in range(shape.predictions):
        root = f"prediction.{depth}"
        kinds = enumerate(shape.single_kinds(shape.prediction_pattern))
        layers = [(f"layers.{index}", layer_block(shape, kind)) for index, kind in kinds]
        for name, block in (("start", _start(shape)), *layers, ("head", _head(shape))):
            path = f"{root}.{name}"
            made = _tied(block, f"prediction.0.{name}") if depth else block
            reads = (state,) if name == "start" else ()
            yield BlockInstance(path=path, block=made.name, is_layer=False, reads=reads), made
            if block.output is not None:
                last = f"{path}/{block.output}"
        state = last


def _start(shape: TransformerShape) -> Block:
    """Return the embedding of a token, its norm and that of the state, and their projection."""
    seq, width = sequence_dim(), shape.hidden
    halves = ("token_norm", "state_norm")
    joined = [Operand(tensor=name, dims=HIDDEN_DIMS, fraction=0.5) for name in halves]
    return Block(
        name="prediction_start",
        operators=(
            token_lookup(shape, seq=seq),
            norm(halves[0], shape, reads="embedding.tokens", width=width, seq=seq),
            norm(halves[1], shape, reads="hidden", width=width, seq=seq),
            elementwise("joined", "concatenate", reads=joined, width=2 * width, seq=seq),
            linear(
                "projection", reads="joined", in_features=2 * width, out_features=width, seq=seq
            ),
        ),
        inputs=(hidden_state(shape, seq),),
        output="projection",
    )


def _head(shape: TransformerShape) -> Block:
    """Return a norm of its own, and logits by the model's head."""
    block = head_block(shape, seq=sequence_dim())
    assert block is not None
    operators = tuple(
        replace(
            operator,
            parameters=tuple(
                replace(parameter, tied_to=parameter.tied_to or f"head/{_LOGITS}")
                if parameter.name == _LOGITS
                else parameter
                for parameter in operator.parameters
            ),
        )
        for operator in block.operators
    )
    return replace(block, name="prediction_head", operators=operators)


def _tied(block: Block, path: str) -> Block:
    """Return the block with the parameters of the instance at `path`."""
    operators = tuple(
        replace(
            operator,
            parameters=tuple(
                replace(each, tied_to=each.tied_to or f"{path}/{each.name}")
                for each in operator.parameters
            ),
        )
        for operator in block.operators
    )
    return replace(block, name=f"{path.replace('.', '_')}_again", operators=operators)
