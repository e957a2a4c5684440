"""Builds the trained model from the model of a job; rejects unsupported models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from wattree.capture.mapping import shape_from_mapping
from wattree.errors import JobError
from wattree.job import CROSS_ENTROPY, Ffn, Job
from wattree.runtime.data import Wanted, WantedKind
from wattree.runtime.models.linears import FeatureLayout, Linears, Weights
from wattree.runtime.models.trainable import Trainable
from wattree.runtime.models.transformer import TIED, build_decoder
from wattree.runtime.parallel.cut import StageLayers, layers_of_stage
from wattree.runtime.recipe import ReplicaKind

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "tanh": Tensor.tanh,
    "sigmoid": Tensor.sigmoid,
}
#: Variance of a layer's weights times its inputs, so that activations keep theirs: half of what
#: goes into a ReLU is lost (He et al., "Delving Deep into Rectifiers", 2015).
_GAINS = {"relu": 2.0}


#: What to say of any other model.
TRAINABLE = (
    "wattree train runs model.ffn, model.transformer, a Python function such as file.py:build or "
    "package.module:build, and, with the extra 'hf', any config.json that transformers can build"
)


def build_trainable(job: Job, linears: Linears, *, stage: int = 0) -> Trainable:
    """Return this rank's part of a job's model, with the weights that its seed gives.

    Args:
        linears: Makes linear layers as its strategy has them.

    Raises:
        JobError: It is not trained here, or not by that strategy.
        MissingExtraError: It needs transformers, which is not installed.
    """
    source = job.model
    if source.lora is not None or source.freeze:
        raise JobError(
            job.source, ["model: lora and freeze are predicted and not run; leave them out"]
        )
    if source.ffn is not None:
        return _ffn(job, source.ffn, linears, stage)
    if source.transformer is not None:
        return _transformer(job, source.transformer, linears, stage)
    from wattree.runtime.models.own import config_trainable, module_trainable

    if source.module is not None:
        return module_trainable(job, source.module, linears)
    if source.name is not None:
        return config_trainable(job, source.name, linears)
    raise JobError(job.source, [f"model: {TRAINABLE}"])


def _ffn(job: Job, ffn: Ffn, linears: Linears, stage: int) -> Trainable:
    cuts = layers_of_stage(linears.recipe, ffn.depth, stage)
    inputs, outputs = layouts(linears.recipe.kind, ffn.depth)
    return Trainable(
        parts=tuple(build_ffn(ffn, linears, cuts)),
        cuts=cuts,
        wanted=Wanted(
            kind=WantedKind.VECTORS,
            width=ffn.inputs,
            outputs=ffn.outputs,
            batch=job.data.global_batch,
        ),
        group=linears.group,
        input_layout=inputs,
        output_layout=outputs,
        outputs=ffn.outputs,
        classes=ffn.loss == CROSS_ENTROPY,
        place="model.ffn",
    )


def _transformer(job: Job, block: Mapping[str, Any], linears: Linears, stage: int) -> Trainable:
    place = f"{job.source}: model.transformer"
    shape = shape_from_mapping(block, place)
    sequence = job.data.sequence_length
    cuts = layers_of_stage(linears.recipe, shape.layers, stage)
    parts = build_decoder(shape, linears, cuts, sequence=sequence, place=place)
    return Trainable(
        parts=tuple(parts),
        cuts=cuts,
        context=linears.context,
        tied=TIED if shape.tied_embedding and linears.recipe.options.pp > 1 else None,
        wanted=Wanted(
            kind=WantedKind.TOKENS,
            width=shape.vocab,
            sequence=sequence,
            batch=job.data.global_batch,
        ),
        group=linears.group,
        output_layout=FeatureLayout.VOCABULARY,
        outputs=shape.vocab,
        classes=True,
        place="model.transformer",
    )


class FeedForward(nn.Module):
    """Linear layers on vectors, `(samples, features)`.

    Args:
        layers: Each by its number in the whole stack.
        depth: Of the whole stack; there is no activation behind its last layer.
    """

    def __init__(self, layers: Mapping[int, nn.Module], activation: str, *, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(number): layer for number, layer in layers.items()})
        self.activation, self._last = _ACTIVATIONS[activation], str(depth - 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of its last layer."""
        for number, layer in self.layers.items():
            x = layer(x)
            if number != self._last:
                x = self.activation(x)
        return x


def build_ffn(ffn: Ffn, linears: Linears, cuts: Sequence[StageLayers]) -> list[FeedForward]:
    """Return a rank's parts of the stack.

    `tensor` splits every layer by its outputs and gathers its input; `megatron` splits layers by
    outputs and by inputs in turn; `phantom` makes every layer one of its own.
    """
    return [
        FeedForward(
            {number: _layer(ffn, linears, number) for number in range(cut.begin, cut.end)},
            ffn.activation,
            depth=ffn.depth,
        )
        for cut in cuts
    ]


def _layer(ffn: Ffn, linears: Linears, number: int) -> nn.Module:
    rows, columns = ffn.widths[number], ffn.widths[number + 1]
    gain = _GAINS.get(ffn.activation, 1.0) if number < ffn.depth - 1 else 1.0
    weights = Weights(name=f"layers.{number}", std=(gain / rows) ** 0.5, bias=ffn.bias)
    return _maker(linears, number)(rows, columns, weights)


def _maker(linears: Linears, number: int) -> Callable[..., nn.Module]:
    match linears.recipe.kind:
        case ReplicaKind.DDP:
            return linears.plain
        case ReplicaKind.TENSOR:
            return linears.gathered
        case ReplicaKind.MEGATRON:
            return linears.row if number % 2 else linears.column
        case ReplicaKind.PHANTOM | ReplicaKind.LOW_RANK:
            return linears.phantom


def layouts(kind: ReplicaKind, depth: int) -> tuple[FeatureLayout, FeatureLayout]:
    """Return the layouts of a stack's input and output on a rank."""
    if kind is ReplicaKind.DDP:
        return FeatureLayout.WHOLE, FeatureLayout.WHOLE
    if kind is ReplicaKind.MEGATRON:  # a column without its row leaves features where they are
        return FeatureLayout.WHOLE, FeatureLayout.FEATURES if depth % 2 else FeatureLayout.WHOLE
    return FeatureLayout.FEATURES, FeatureLayout.FEATURES
