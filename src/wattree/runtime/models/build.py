"""From the model of a job to what is trained; everything else is refused with what is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wattree.capture.mapping import shape_from_mapping
from wattree.errors import JobError
from wattree.job import CROSS_ENTROPY, Ffn, Job
from wattree.runtime.data import Wanted, WantedKind
from wattree.runtime.models.ffn import build_ffn
from wattree.runtime.models.linears import FeatureLayout, Linears
from wattree.runtime.models.trainable import Trainable
from wattree.runtime.models.transformer import build_decoder

#: What to say of any other model.
TRAINABLE = (
    "wattree train runs model.ffn, model.transformer, a Python function such as file.py:build or "
    "package.module:build, and, with the extra 'hf', any config.json that transformers can build"
)


def build_trainable(job: Job, linears: Linears) -> Trainable:
    """Return this rank's part of a job's model, with the weights that its seed gives.

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
        return _ffn(job, source.ffn, linears)
    if source.transformer is not None:
        return _transformer(job, source.transformer, linears)
    from wattree.runtime.models.own import config_trainable, module_trainable

    if source.module is not None:
        return module_trainable(job, source.module, linears)
    if source.name is not None:
        return config_trainable(job, source.name, linears)
    raise JobError(job.source, [f"model: {TRAINABLE}"])


def _ffn(job: Job, ffn: Ffn, linears: Linears) -> Trainable:
    module = build_ffn(ffn, linears)
    return Trainable(
        module=module,
        wanted=Wanted(
            kind=WantedKind.VECTORS,
            width=ffn.inputs,
            outputs=ffn.outputs,
            batch=job.data.global_batch,
        ),
        group=linears.group,
        input_layout=module.input_layout,
        output_layout=module.output_layout,
        outputs=ffn.outputs,
        classes=ffn.loss == CROSS_ENTROPY,
        place="model.ffn",
    )


def _transformer(job: Job, block: Mapping[str, Any], linears: Linears) -> Trainable:
    place = f"{job.source}: model.transformer"
    shape = shape_from_mapping(block, place)
    sequence = job.data.sequence_length
    module = build_decoder(shape, linears, sequence=sequence, place=place)
    return Trainable(
        module=module,
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
