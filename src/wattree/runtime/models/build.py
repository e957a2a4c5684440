"""Builds the trained model from the model of a job; rejects unsupported models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wattree.capture.mapping import shape_from_mapping
from wattree.errors import JobError
from wattree.job import CROSS_ENTROPY, Ffn, Job
from wattree.runtime.data import Wanted, WantedKind
from wattree.runtime.models.ffn import build_ffn, layouts
from wattree.runtime.models.linears import FeatureLayout, Linears
from wattree.runtime.models.trainable import Trainable
from wattree.runtime.models.transformer import TIED, build_decoder
from wattree.runtime.parallel.cut import layers_of_stage

#: What to say of any other model.
TRAINABLE = (
    "wattree train runs model.ffn, model.transformer, a Python function such as file.py:build or "
    "package.module:build, and, with the extra 'hf', any config.json that transformers can build"
)


def build_trainable(job: Job, linears: Linears, *, stage: int = 0) -> Trainable:
    """Return this rank's part of a job's model, with the weights that its seed gives.

    Args:
        job: Whose model.
        linears: Makes linear layers as its strategy has them.
        stage: Number of this rank's pipeline stage.

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
        tied=TIED if shape.tied_embedding and linears.recipe.pp > 1 else None,
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
