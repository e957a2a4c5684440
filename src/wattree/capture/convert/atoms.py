"""Atoms: the finest pieces that reshapes split the dims of a module's tensors into.

A dim is a sequence of atoms, major first. Two dims that an operator walks together are *equated*:
their atoms become the same, and where one is cut finer so is the other. What is never equated
stays apart, however alike the sizes are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from wattree.graph import Extent


class Size(NamedTuple):
    """A length at the sizes of the first run, and how it grows with batch and sequence."""

    length: int
    batch: int = 0
    seq: int = 0

    def over(self, part: Size) -> Size | None:
        """Return this length divided by `part`, None if that is not a whole number."""
        if part.length < 1 or self.length % part.length:
            return None
        batch, seq = self.batch - part.batch, self.seq - part.seq
        if batch < 0 or seq < 0:
            return None
        return Size(self.length // part.length, batch, seq)


ONE = Size(1)


class Atom(NamedTuple):
    """A piece of a dim. Copies of a node have the same length and cuts, but independent loops."""

    node: int
    copy: int = 0


#: Atoms of one dim, major first.
Dim = tuple[Atom, ...]


def sizes_product(sizes: Iterable[Size]) -> Size:
    """Return the length of dims walked together."""
    sizes = list(sizes)
    return Size(
        prod(s.length for s in sizes), sum(s.batch for s in sizes), sum(s.seq for s in sizes)
    )


@dataclass(slots=True)
class _Node:
    size: Size
    parent: int
    shift: int = 0  # copies are counted from the parent's copy `shift`
    parts: tuple[Atom, ...] = ()
    copies: int = 1


class Atoms:
    """All atoms of a recording; a union-find in which a class can be cut into parts."""

    def __init__(self, batch: int, sequence: int | None) -> None:
        self._nodes: list[_Node] = []
        self._batch, self._sequence = batch, sequence or 1

    def fresh(self, size: Size) -> Dim:
        """Return a dim of its own; of length 1 it has no atoms."""
        if size == ONE:
            return ()
        self._nodes.append(_Node(size=size, parent=len(self._nodes)))
        return (Atom(len(self._nodes) - 1),)

    def size_of(self, extent: Extent) -> Size:
        """Return a recorded length."""
        value = extent.value(micro_batch=self._batch, sequence=self._sequence)
        return Size(round(value), extent.batch, extent.seq)

    def extent(self, size: Size) -> Extent:
        """Return a length as graphs have it."""
        unit = self._batch**size.batch * self._sequence**size.seq
        return Extent(coefficient=size.length / unit, batch=size.batch, seq=size.seq)

    def leaves(self, dim: Iterable[Atom]) -> Dim:
        """Return the atoms of `dim` as finely cut as they are by now, each by its class."""
        found: list[Atom] = []
        for atom in dim:
            root = self._root(atom)
            parts = self._nodes[root.node].parts
            if parts:
                found += self.leaves(Atom(p.node, p.copy + root.copy) for p in parts)
            else:
                found.append(root)
        return tuple(found)

    def size(self, atom: Atom) -> Size:
        """Return the length of an atom."""
        return self._nodes[self._root(atom).node].size

    def length(self, dim: Iterable[Atom]) -> Size:
        """Return the length of a dim."""
        return sizes_product(self.size(atom) for atom in dim)

    def another(self, dim: Dim) -> Dim:
        """Return a dim of the same length and cuts with an independent loop."""
        found = []
        for atom in self.leaves(dim):
            node = self._nodes[atom.node]
            found.append(Atom(atom.node, node.copies))
            node.copies += 1
        return tuple(found)

    def equate(self, one: Dim, other: Dim) -> bool:
        """Make two dims the same; return False if their cuts are incompatible."""
        left, right = list(self.leaves(one)), list(self.leaves(other))
        if left == right:
            return True
        while left and right:
            a, b = left[0], right[0]
            if a == b:
                left.pop(0)
                right.pop(0)
                continue
            size_a, size_b = self.size(a), self.size(b)
            if size_a == size_b:
                if not self._union(a, b):
                    return False
            elif size_a.over(size_b) is not None:
                self.cut(a, size_b)
            elif size_b.over(size_a) is not None:
                self.cut(b, size_a)
            else:
                return False
            # Cutting and joining may have changed what follows.
            left, right = list(self.leaves(left)), list(self.leaves(right))
        return not left and not right

    def cut(self, atom: Atom, major: Size) -> bool:
        """Cut an atom into a major part of the given length and the rest, in all its copies."""
        root = self._root(atom)
        node = self._nodes[root.node]
        rest = node.size.over(major)
        if rest is None or node.parts:
            return False
        if ONE in (rest, major):
            return True
        node.parts = (*self.fresh(major), *self.fresh(rest))
        for part in node.parts:
            self._nodes[part.node].copies = node.copies
        return True

    def regroup(self, flat: Sequence[Atom], sizes: Sequence[Size]) -> list[Dim] | None:
        """Return atoms walked in a row as dims of the given lengths; None if they straddle them."""
        rest = list(self.leaves(flat))
        dims: list[Dim] = []
        for size in sizes:
            dim: list[Atom] = []
            missing = size
            while missing != ONE:
                if not rest:
                    return None
                head = self.size(rest[0])
                left = missing.over(head)
                if left is None:
                    if head.over(missing) is None or not self.cut(rest[0], missing):
                        return None
                    rest = list(self.leaves(rest))
                    continue
                dim.append(rest.pop(0))
                missing = left
            dims.append(tuple(dim))
        return dims if not rest else None

    def _root(self, atom: Atom) -> Atom:
        node, copy = atom
        while (parent := self._nodes[node].parent) != node:
            known, above = self._nodes[node], self._nodes[parent]
            if above.parent != parent:  # shorter from now on: loops join each step to the last
                known.parent, known.shift = above.parent, known.shift + above.shift
            copy += known.shift
            node = known.parent
        return Atom(node, copy)

    def _union(self, one: Atom, other: Atom) -> bool:
        """Join two uncut atoms of one length; False if they are different copies of one."""
        a, b = self._root(one), self._root(other)
        if a.node == b.node:
            return a.copy == b.copy
        if b.copy > a.copy:  # copies never count below 0
            a, b = b, a
        below, above = self._nodes[b.node], self._nodes[a.node]
        below.parent, below.shift = a.node, a.copy - b.copy
        above.copies = max(above.copies, below.copies + below.shift)
        return True
