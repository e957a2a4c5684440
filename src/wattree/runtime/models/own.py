"""Modules that others wrote: a Python function of the user, or a configuration of transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from wattree.capture import catalog_entry, located_source
from wattree.capture.record.source import load_source
from wattree.errors import JobError, ModelError, check_packages
from wattree.files import read_json
from wattree.job import Job, ModuleSource
from wattree.runtime.data import Wanted, WantedKind
from wattree.runtime.models.linears import Linears
from wattree.runtime.models.share import shared_module
from wattree.runtime.models.trainable import Trainable

#: Samples that the other start of a module answers at once.
_CHUNK = 64


class Adapted(nn.Module):
    """A module that is called with the tensors of a set of samples, in order.

    Args:
        names: By which the module takes them; empty where by position.
        constants: What else it takes by keyword, the same for all samples.
    """

    def __init__(
        self, module: nn.Module, names: tuple[str, ...], constants: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self.module, self.names, self.constants = module, names, dict(constants)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the loss, if the module returns one, or the main tensor of its result."""
        if self.names:
            named = dict(zip(self.names, inputs, strict=True))
            return _main(self.module(**named, **self.constants))
        return _main(self.module(*inputs, **self.constants))


def module_trainable(job: Job, source: ModuleSource, linears: Linears) -> Trainable:
    """Return this rank's part of the module that a Python function builds.

    Raises:
        ModelError: It cannot be built or called.
    """
    loaded = load_source(source)
    sequence = job.data.sequence_length if loaded.has_sequence else None

    def built() -> nn.Module:
        module = loaded.build()
        if not isinstance(module, nn.Module):
            raise ModelError(
                f"{source.name}: returned a {type(module).__name__}, expected an nn.Module"
            )
        return module

    return _trainable(
        job, linears, built, lambda count: loaded.inputs(count, sequence), source.name
    )


def config_trainable(job: Job, name: str, linears: Linears) -> Trainable:
    """Return this rank's part of the transformers model of a configuration, with random weights.

    Raises:
        MissingExtraError: The library is missing.
        ModelError: It is no model of the library.
    """
    check_packages("transformers", needed_for=f"training {name}", extra="hf")
    from wattree.capture.huggingface_modules.module import huggingface_module

    if job.model.arguments.get("predictions"):
        problem = "model.arguments: found predictions, which transformers' modules do not train"
        raise JobError(job.source, [problem])
    config = _config(job, name)
    found = huggingface_module(config, name)
    sequence = job.data.sequence_length if found.has_sequence else None
    trainable = _trainable(
        job, linears, found.build, lambda count: found.inputs(count, sequence), name
    )
    module = trainable.module
    assert isinstance(module, Adapted)
    vocabulary = config.get("vocab_size")
    if set(module.names) == {"input_ids", "labels"} and isinstance(vocabulary, int):
        # A language model, which shifts its labels itself: it can learn any tokens.
        module.names = ("input_ids", "labels")
        wanted = Wanted(
            kind=WantedKind.TEXT,
            width=vocabulary,
            sequence=job.data.sequence_length,
            batch=job.data.global_batch,
        )
        return Trainable(
            parts=(module,), wanted=wanted, group=linears.group, classes=True, place="model"
        )
    return trainable


def _config(job: Job, name: str) -> dict[str, Any]:
    place = located_source(job.model)
    if place.endswith(".json"):
        return read_json(Path(place))
    entry = catalog_entry(place)
    if entry.config is None:
        raise JobError(
            job.source,
            [
                f"model: '{name}' is a graph of the catalog, which is predicted and not built; "
                "train its Python: model: file.py:build"
            ],
        )
    return dict(entry.config)


def _trainable(
    job: Job,
    linears: Linears,
    build: Callable[[], nn.Module],
    make: Callable[[int], tuple[tuple[Any, ...], Mapping[str, Any]]],
    name: str,
) -> Trainable:
    torch.manual_seed(job.training.seed)
    positional, named = make(2)
    names = tuple(key for key, value in named.items() if _is_sampled(value, 2))
    constants = {key: value for key, value in named.items() if key not in names}
    if not all(_is_sampled(value, 2) for value in positional) or (positional and names):
        raise ModelError(
            f"{name}: train needs inputs that all are tensors of samples, by position or by "
            "keyword; give 'inputs', such as ['float32[batch, 784]']"
        )
    module = build().to(linears.device)
    if linears.group.size > 1:
        module = shared_module(module, linears, job.source)
    whole = Adapted(module, names, constants)

    def inputs(count: int) -> tuple[Tensor, ...]:
        torch.manual_seed(job.training.seed + 1)
        by_place, by_name = make(count)
        return tuple(by_place) or tuple(by_name[key] for key in names)

    def taught(samples: tuple[Tensor, ...]) -> Tensor:
        torch.manual_seed(job.training.seed + 2)
        other = Adapted(build().to(linears.device).eval(), names, constants)
        with torch.no_grad():
            parts = zip(*(each.split(_CHUNK) for each in samples), strict=True)
            answers = [other(*(each.to(linears.device) for each in part)) for part in parts]
        return torch.cat([answer.cpu() for answer in answers])

    was_training = whole.training
    with torch.no_grad():  # a look at what comes out
        try:
            answer = whole.eval()(*(each.to(linears.device) for each in inputs(2)))
        except TypeError as error:
            raise ModelError(
                f"{name}: the module raised TypeError: {error}; train calls it with the job's "
                "'inputs', where targets belong, too, if the module is its own loss"
            ) from error
    whole.train(was_training)
    makes_loss = answer.dim() == 0
    return Trainable(
        parts=(whole,),
        wanted=Wanted(
            kind=WantedKind.OWN,
            batch=job.data.global_batch,
            make=inputs,
            teach=None if makes_loss else taught,
        ),
        group=linears.group,
        outputs=0 if makes_loss else int(answer.shape[-1]),
        place="model",
    )


def _is_sampled(value: Any, count: int) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0 and value.shape[0] == count


def _main(out: Any) -> Tensor:
    """Return the loss of a result, or its main tensor."""
    if isinstance(out, Tensor):
        return out
    for key in ("loss", "logits", "last_hidden_state"):
        found = out.get(key) if isinstance(out, Mapping) else getattr(out, key, None)
        if isinstance(found, Tensor):
            return found
    values = out.values() if isinstance(out, Mapping) else out
    return next(value for value in values if isinstance(value, Tensor))
