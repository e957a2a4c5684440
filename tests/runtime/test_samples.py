"""Samples and weights of training: every sample once, blocks of one matrix, files of users."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from wattree.errors import JobError
from wattree.job import module_source
from wattree.runtime.data import Wanted, WantedKind, sample_set
from wattree.runtime.data.given import given_set
from wattree.runtime.data.loader import batch_samples
from wattree.runtime.models.linears import normal_block

# ---------------------------------------------------------------- samples


@given(
    samples=st.integers(1, 40),
    batch=st.integers(1, 30),
    steps=st.integers(1, 12),
    seed=st.integers(0, 5),
)
def test_every_epoch_sees_every_sample_once(
    samples: int, batch: int, steps: int, seed: int
) -> None:
    """However batches lie across epochs."""
    order = np.concatenate(
        [batch_samples(step=step, batch=batch, samples=samples, seed=seed) for step in range(steps)]
    )
    for begin in range(0, len(order) - samples + 1, samples):
        assert sorted(order[begin : begin + samples]) == list(range(samples))


@given(
    rows=st.tuples(st.integers(0, 1200), st.integers(1, 60)),
    columns=st.tuples(st.integers(0, 1200), st.integers(1, 60)),
)
def test_a_block_is_that_of_the_whole_matrix(
    rows: tuple[int, int], columns: tuple[int, int]
) -> None:
    """Whoever holds an entry draws the same number."""
    block = normal_block(
        seed=1,
        name="w",
        rows=(rows[0], sum(rows)),
        columns=(columns[0], sum(columns)),
        std=0.5,
    )
    one = normal_block(
        seed=1,
        name="w",
        rows=(rows[0], rows[0] + 1),
        columns=(sum(columns) - 1, sum(columns)),
        std=0.5,
    )
    assert block.shape == (rows[1], columns[1])
    assert block[0, -1] == one[0, 0]


def test_blocks_are_normal_and_of_their_name() -> None:
    """Mean, spread, and another matrix for another name or seed."""
    block = normal_block(seed=1, name="a", rows=(0, 600), columns=(0, 600), std=2.0)
    assert abs(float(block.mean())) < 0.02
    assert float(block.std()) == pytest.approx(2.0, rel=0.01)
    for seed, name in ((2, "a"), (1, "b")):
        other = normal_block(seed=seed, name=name, rows=(0, 600), columns=(0, 600), std=2.0)
        assert abs(float((block * other).mean())) < 0.05


def test_the_digits_are_all_there() -> None:
    """As images, projected, and as tokens."""
    plain = Wanted(kind=WantedKind.VECTORS, width=64, outputs=10, batch=8)
    found = sample_set("digits", plain, seed=0)
    assert found.targets is not None
    assert (found.samples, found.is_classification) == (1797, True)
    assert np.bincount(found.targets.numpy()).min() > 170
    assert (float(found.inputs[0].min()), float(found.inputs[0].max())) == (-1.0, 1.0)
    wide = sample_set("digits", Wanted(**{**_fields(plain), "width": 100}), seed=0)
    assert wide.inputs[0].shape == (1797, 100)
    tokens = Wanted(kind=WantedKind.TOKENS, width=27, sequence=65, batch=8)
    text = sample_set("digits", tokens, seed=0)
    ids = text.inputs[0]
    assert torch.equal(ids[:, 0] - 17, found.targets)
    assert text.targets is not None
    assert torch.equal(text.targets[:, :-1], ids[:, 1:])
    assert set(text.targets[:, -1].tolist()) == {-100}


def _fields(wanted: Wanted) -> dict[str, Any]:
    from dataclasses import fields

    return {field.name: getattr(wanted, field.name) for field in fields(wanted)}


#: A Dataset of three samples with these inputs.
PAIRS = (
    "type('Three', (), {{'__len__': lambda self: 3, "
    "'__getitem__': lambda self, number: ({}, torch.zeros(4))}})()"
)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return torch.zeros(3, 8), torch.zeros(3, 8)", ""),
        ("return [(torch.zeros(8), 1)] * 2", "expected a pair (inputs, targets)"),
        ("return torch.zeros(3, 8), torch.zeros(2, 8)", "found 2, 3 rows, expected as many"),
        ("return torch.zeros(3, 9), torch.zeros(3, 8)", "found samples of [9], expected [8]"),
        ("return 7", "found a int, expected a pair"),
        (f"return {PAIRS.format('torch.zeros(3 + number)')}", "equal size"),
    ],
)
def test_a_users_samples_are_checked(tmp_path: Path, body: str, words: str) -> None:
    """One function; what it returns is looked at before anything is trained."""
    path = tmp_path / "data.py"
    path.write_text(f"import torch\n\n\ndef dataset():\n    {body}\n")
    source = module_source("data.py:dataset", tmp_path)
    wanted = Wanted(kind=WantedKind.VECTORS, width=8, outputs=8, batch=2)
    if not words:
        assert given_set(source, wanted).samples == 3
        return
    with pytest.raises(JobError) as caught:
        given_set(source, wanted)
    assert words in str(caught.value)


def test_samples_of_a_module_with_several_inputs_are_tuples(tmp_path: Path) -> None:
    """Each member of the tuple is stacked."""
    body = PAIRS.format("(torch.zeros(2, 5), torch.ones(7, dtype=torch.int64))")
    (tmp_path / "data.py").write_text(f"import torch\n\n\ndef dataset():\n    return {body}\n")
    source = module_source("data.py:dataset", tmp_path)
    found = given_set(source, Wanted(kind=WantedKind.OWN, batch=2))

    assert [tuple(part.shape) for part in found.inputs] == [(3, 2, 5), (3, 7)]
