"""From the model of a job to what is trained; everything else is refused with what is."""

from __future__ import annotations

from wattree.errors import JobError
from wattree.job import CROSS_ENTROPY, Ffn, Job
from wattree.runtime.data import Wanted, WantedKind
from wattree.runtime.models.ffn import build_ffn
from wattree.runtime.models.linears import Linears
from wattree.runtime.models.trainable import Trainable

__all__ = ["TRAINABLE", "build_trainable"]

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
