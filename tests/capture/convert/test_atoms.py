"""Atoms: cutting dims to fit reshapes, and making dims the same, keeps every length."""

from __future__ import annotations

from itertools import pairwise
from math import prod

from hypothesis import given
from hypothesis import strategies as st

from wattree.capture.convert.atoms import ONE, Atom, Atoms, Dim, Size

FACTORS = st.lists(st.integers(2, 5), min_size=1, max_size=6)


def grouped(draw: st.DrawFn, factors: list[int]) -> list[int]:
    """Return products of neighbours: the lengths of one of the shapes that hold `factors`."""
    cuts = sorted(draw(st.sets(st.integers(1, len(factors) - 1)))) if len(factors) > 1 else []
    bounds = [0, *cuts, len(factors)]
    return [prod(factors[a:b]) for a, b in pairwise(bounds)]


@st.composite
def shapes(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    """Return three shapes that have a common refinement."""
    factors = draw(FACTORS)
    return grouped(draw, factors), grouped(draw, factors), grouped(draw, factors)


def entered(atoms: Atoms, lengths: list[int]) -> list[Dim]:
    """Return dims of their own of the given lengths."""
    return [atoms.fresh(Size(length)) for length in lengths]


@given(shapes())
def test_reshapes_there_and_back_walk_the_same_atoms(made: tuple[list[int], ...]) -> None:
    """A view of a view is the first again: nothing may be lost on the way."""
    first, second, third = made
    atoms = Atoms(batch=2, sequence=None)
    start = entered(atoms, first)
    flat = [atom for dim in start for atom in dim]
    for lengths in (second, third, first):
        dims = atoms.regroup(flat, [Size(length) for length in lengths])
        assert dims is not None
        assert [atoms.length(dim).length for dim in dims] == lengths
        flat = [atom for dim in dims for atom in dim]

    assert [atoms.leaves(dim) for dim in dims] == [atoms.leaves(dim) for dim in start]


@given(shapes())
def test_equal_dims_are_cut_alike_ever_after(made: tuple[list[int], ...]) -> None:
    """What is cut finer in one tensor is cut in every tensor that walks it."""
    first, second, third = made
    atoms = Atoms(batch=2, sequence=None)
    one = [atom for dim in entered(atoms, first) for atom in dim]
    other = [atom for dim in entered(atoms, second) for atom in dim]

    assert atoms.equate(tuple(one), tuple(other))
    assert atoms.regroup(one, [Size(length) for length in third]) is not None
    assert atoms.leaves(one) == atoms.leaves(other)


def test_another_walk_of_a_dim_stays_apart() -> None:
    """Rows and columns of `x @ x.T` are as long, and independent."""
    atoms = Atoms(batch=2, sequence=None)
    dim = atoms.fresh(Size(12))
    other = atoms.another(dim)
    atoms.cut(dim[0], Size(3))

    assert [atoms.size(atom).length for atom in atoms.leaves(other)] == [3, 4]
    assert not set(atoms.leaves(dim)) & set(atoms.leaves(other))
    assert not atoms.equate(dim, other)


def test_batch_is_told_from_a_constant_of_its_length() -> None:
    """At batch 2 a dim of 2 heads is as long as the batch; only one of them grows."""
    atoms = Atoms(batch=2, sequence=None)
    both = atoms.fresh(Size(4, batch=1))
    dims = atoms.regroup(both, [Size(2), Size(2, batch=1)])

    assert dims is not None
    assert [atoms.length(dim) for dim in dims] == [Size(2), Size(2, batch=1)]
    assert not atoms.equate(dims[0], dims[1])


def test_what_straddles_is_refused() -> None:
    """6 x 4 seen as 4 x 6 shares no loop but the whole."""
    atoms = Atoms(batch=2, sequence=None)
    flat = [*atoms.fresh(Size(6)), *atoms.fresh(Size(4))]

    assert atoms.regroup(flat, [Size(4), Size(6)]) is None
    assert atoms.fresh(ONE) == ()
    assert isinstance(flat[0], Atom)


def test_a_long_chain_is_walked() -> None:
    """A loop over steps joins the dims of each step to those of the last."""
    atoms = Atoms(batch=2, sequence=None)
    dims = entered(atoms, [8] * 3000)

    assert all(atoms.equate(one, other) for one, other in pairwise(dims))
    assert atoms.leaves(dims[0]) == atoms.leaves(dims[-1])
