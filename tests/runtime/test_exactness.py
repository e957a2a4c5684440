"""Forward and every gradient of every contestant against the dense layer, in float64."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.distributed.ranks import run_ranks

#: Groups of the first ranks of four; under `make soak` of eight. [ranks]
SIZES = (1, 2, 3, 4)
SOAKED = (*SIZES, 8)
#: A sum of some hundred products in float64 is off by fewer than so many roundings.
TOLERANCE = 1e-12


@pytest.fixture(scope="module")
def errors(*, soaking: bool) -> list[dict[str, dict[str, dict[str, float]]]]:
    """Return, by rank, group size and case, the relative error of each tensor."""
    sizes = SOAKED if soaking else SIZES
    return run_ranks(max(sizes), "tests/runtime/cases.py:exactness", {"sizes": sizes})


@pytest.mark.slow
@pytest.mark.parametrize("size", [*SIZES, pytest.param(8, marks=pytest.mark.soak)])
def test_layers_equal_their_dense_equivalents(
    errors: list[dict[str, dict[str, dict[str, float]]]], size: int
) -> None:
    """Ghosts 0, 1, m/4 and m, both variants, uneven widths, overlap or none, every baseline."""
    found = {
        f"rank {rank}, {case}, {tensor}": error
        for rank, by_size in enumerate(errors)
        for case, tensors in by_size.get(str(size), {}).items()
        for tensor, error in tensors.items()
    }

    assert len(found) > 300 * size
    assert {name: error for name, error in found.items() if not error <= TOLERANCE} == {}
