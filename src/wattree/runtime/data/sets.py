"""Sample sets by the name in a job: synthetic, bundled, or a user's function."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wattree.errors import JobError

#: Classes of the synthetic classification, and of the digits.
CLASSES = 10
#: Rank of the map that synthetic regression is to be learned.
_RANK = 32
#: Samples of a synthetic set: so many batches, and at least so many.
_BATCHES, _LEAST = 16, 256
#: Gray values of the digits, 0 to 16.
_GRAYS = 17


class WantedKind(StrEnum):
    """Kinds of samples that a model takes."""

    VECTORS = "vectors"
    TOKENS = "tokens"
    TEXT = "text"  # tokens, and the same as labels: the model shifts them itself
    OWN = "own"  # what the user's module declares


#: In messages.
_TAKEN = {
    WantedKind.VECTORS: "vectors",
    WantedKind.TOKENS: "tokens and classes",
    WantedKind.TEXT: "tokens, and the same as labels",
    WantedKind.OWN: "what your module declares (digits fit the built-in models alone)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The samples that a model takes.

    Attributes:
        width: Features of a vector; ids below which tokens lie.
        outputs: Features or classes of what comes out.
        sequence: Tokens of a sample.
        batch: Samples of a step.
        make: Of a user's module: `samples → inputs`, its positional arguments.
        teach: Of a user's module: `inputs → outputs` of another start of it, to be learned.
    """

    kind: WantedKind
    width: int = 0
    outputs: int = 0
    sequence: int = 0
    batch: int
    make: Callable[[int], tuple[Tensor, ...]] | None = None
    teach: Callable[[tuple[Tensor, ...]], Tensor] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSet:
    """Samples in memory.

    Attributes:
        name: As the job calls it.
        inputs: What the model takes, each `(samples, …)`.
        targets: `(samples, …)`: floats to be matched, whole numbers as classes; None where the
            model makes its loss of the inputs alone.
    """

    name: str
    inputs: tuple[Tensor, ...]
    targets: Tensor | None

    @property
    def samples(self) -> int:
        """Number of samples."""
        return int(self.inputs[0].shape[0])

    def of_type(self, dtype: torch.dtype) -> SampleSet:
        """Return the same set with numbers of another dtype."""
        return SampleSet(
            name=self.name,
            inputs=tuple(_typed(each, dtype) for each in self.inputs),
            targets=None if self.targets is None else _typed(self.targets, dtype),
        )

    @property
    def is_classification(self) -> bool:
        """Whether targets are classes."""
        return self.targets is not None and not self.targets.is_floating_point()


def _typed(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype) if x.is_floating_point() else x


def sample_set(source: str, wanted: Wanted, *, seed: int, samples: int | None = None) -> SampleSet:
    """Return the set named `source`, the same on every rank.

    Args:
        source: `synthetic-regression`, `synthetic-classification` or `digits`.
        samples: Of a synthetic set; None: 16 batches, and at least 256.

    Raises:
        JobError: The model cannot be trained on that.
    """
    count = samples or max(_BATCHES * wanted.batch, _LEAST)
    generator = torch.Generator().manual_seed(seed)
    makers: Mapping[tuple[str, WantedKind], Callable[..., SampleSet]] = {
        ("synthetic-regression", WantedKind.VECTORS): _regression,
        ("synthetic-classification", WantedKind.VECTORS): _classification,
        ("synthetic-classification", WantedKind.TOKENS): _tokens,
        ("synthetic-classification", WantedKind.TEXT): _text,
        ("digits", WantedKind.TEXT): _text,
        ("synthetic-regression", WantedKind.OWN): _taught,
        ("synthetic-classification", WantedKind.OWN): _taught,
        ("digits", WantedKind.VECTORS): _digit_vectors,
        ("digits", WantedKind.TOKENS): _digit_tokens,
    }
    make = makers.get((source, wanted.kind))
    if make is None:
        fitting = sorted({name for name, kind in makers if kind is wanted.kind})
        raise JobError(
            "data.source",
            [
                f"found '{source}', expected {' or '.join(fitting)} or file.py:dataset: "
                f"the model takes {_TAKEN[wanted.kind]}"
            ],
        )
    return make(source, wanted, count, generator)


def _regression(name: str, wanted: Wanted, count: int, generator: torch.Generator) -> SampleSet:
    """Normal vectors x, and tanh(A B x + x) with A and B of low rank, of unit scale.

    Where outputs are not as many as inputs, x in the sum is repeated, or its first part taken.
    """
    width, outputs = wanted.width, wanted.outputs
    rank = min(_RANK, width, outputs)
    inputs = torch.randn(count, width, generator=generator)
    down = torch.randn(width, rank, generator=generator) / width**0.5
    up = torch.randn(rank, outputs, generator=generator) / rank**0.5
    same = inputs[:, torch.arange(outputs) % width]
    return SampleSet(name=name, inputs=(inputs,), targets=torch.tanh(inputs @ down @ up + same))


def _classification(name: str, wanted: Wanted, count: int, generator: torch.Generator) -> SampleSet:
    """Normal vectors; the class of each is that of the nearest direction."""
    inputs = torch.randn(count, wanted.width, generator=generator)
    centers = torch.randn(wanted.width, min(CLASSES, wanted.outputs), generator=generator)
    return SampleSet(name=name, inputs=(inputs,), targets=(inputs @ centers).argmax(dim=1))


def _tokens(name: str, wanted: Wanted, count: int, generator: torch.Generator) -> SampleSet:
    """A chain in which one of four successors follows each token, to be predicted."""
    followers = torch.randint(wanted.width, (wanted.width, 4), generator=generator)
    ids = torch.empty(count, wanted.sequence, dtype=torch.long)
    ids[:, 0] = torch.randint(wanted.width, (count,), generator=generator)
    choices = torch.randint(4, (count, wanted.sequence), generator=generator)
    for place in range(1, wanted.sequence):
        ids[:, place] = followers[ids[:, place - 1], choices[:, place]]
    return SampleSet(name=name, inputs=(ids,), targets=_following(ids))


def _text(name: str, wanted: Wanted, count: int, generator: torch.Generator) -> SampleSet:
    """The same tokens for a model that makes its loss of them."""
    make = _digit_tokens if name == "digits" else _tokens
    ids = make(name, wanted, count, generator).inputs[0]
    return SampleSet(name=name, inputs=(ids, ids.clone()), targets=None)


def _taught(name: str, wanted: Wanted, count: int, generator: torch.Generator) -> SampleSet:
    """Inputs of a user's module, and targets from the same module with other initial weights."""
    del generator  # a user's inputs are drawn from the global one, which is seeded
    assert wanted.make is not None
    inputs = wanted.make(count)
    if wanted.teach is None:
        return SampleSet(name=name, inputs=inputs, targets=None)
    answers = wanted.teach(inputs)
    is_class = name == "synthetic-classification"
    return SampleSet(
        name=name, inputs=inputs, targets=answers.argmax(dim=-1) if is_class else answers
    )


def _digit_vectors(name: str, wanted: Wanted, count: int, generator: torch.Generator) -> SampleSet:
    """The images; for models of other widths projected by one fixed random matrix."""
    del count
    pixels, digits = _digits()
    inputs = torch.from_numpy(pixels).float() / 8.0 - 1.0
    features = inputs.shape[1]
    if wanted.width != features:
        projection = torch.randn(features, wanted.width, generator=generator)
        inputs = inputs @ projection / features**0.5
    return SampleSet(name=name, inputs=(inputs,), targets=torch.tensor(digits))


def _digit_tokens(name: str, wanted: Wanted, count: int, generator: torch.Generator) -> SampleSet:
    """Each image as a sequence: the digit, then its pixels row by row, as far as there is room."""
    del count, generator
    if wanted.width < _GRAYS + CLASSES:
        raise JobError(
            "data.source",
            [
                f"digits have {_GRAYS + CLASSES} tokens, found a model of {wanted.width}; "
                f"expected model.transformer.vocab of {_GRAYS + CLASSES} or more"
            ],
        )
    pixels, digits = _digits()
    ids = torch.from_numpy(np.concatenate([digits[:, None] + _GRAYS, pixels], axis=1))
    if ids.shape[1] < wanted.sequence:
        raise JobError(
            "data.sequence_length",
            [f"found {wanted.sequence}, expected at most {ids.shape[1]}, the tokens of a digit"],
        )
    ids = ids[:, : wanted.sequence].contiguous()
    return SampleSet(name=name, inputs=(ids,), targets=_following(ids))


def _following(ids: Tensor) -> Tensor:
    """Return the token after each; -100, which losses leave out, after the last."""
    after = torch.full_like(ids, -100)
    after[:, :-1] = ids[:, 1:]
    return after


@cache
def _digits() -> tuple[Any, Any]:
    """Return the bundled images, `(1797, 64)` from 0 to 16, and their digits."""
    packed = resources.files("wattree.runtime.data").joinpath("digits.csv.gz").read_bytes()
    lines = gzip.decompress(packed).decode().splitlines()
    table = np.loadtxt(lines, dtype=np.int64, delimiter=",")
    return np.ascontiguousarray(table[:, :-1]), np.ascontiguousarray(table[:, -1])
