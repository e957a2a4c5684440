"""What autocast keeps for backward: which tensors of a block it leaves in fp32, and its casts.

Parameters are in fp32, and so is what is computed of them or listed by PyTorch (torch.amp, "CUDA
Ops that autocast to float32"); products cast what they read to 16 bits; the rest promotes types.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from wattree.graph import Block, Operand, Operator, OperatorKind
from wattree.lowering.passes.operator_instruction import MATMULS
from wattree.lowering.program import SavedTensor

_NARROW_BYTES, _FULL_BYTES = 2.0, 4.0
#: Products that autocast has no rule for: they run in the width of their parameters.
_UNLISTED: Final = frozenset({"grouped_linear"})
_CAST: Final = "cast"
#: A norm that ends in the width of its input, where no weight widens it.
_PLAIN_NORM: Final = "rms_norm"
#: Functions of PyTorch's list; those that are written out follow from one.
_LISTED: Final = frozenset(
    {
        *("acos", "asin", "cosh", "cumprod", "cumsum", "erfinv", "exp", "expm1", "log", "log10"),
        *("log1p", "log2", "logsumexp", "linalg_vector_norm", "norm", "pow", "prod", "reciprocal"),
        *("rsqrt", "sinh", "softplus", "sum", "tan", "layer_norm", "group_norm"),
    }
)
#: Those, and GPT-2's GELU, which is one of powers, and xIELU, one of exponentials.
_COMPUTING: Final = _LISTED | {"gelu_new", "gelu_new_gate", "xielu"}
#: Kernels whose result has the width of their input, whatever that of their parameters is.
_OF_OWN_WIDTH: Final = (OperatorKind.BATCH_NORM, OperatorKind.OTHER)
_WIDE_KINDS: Final = (OperatorKind.NORM, OperatorKind.SOFTMAX, OperatorKind.EMBEDDING)


def is_cast(operator: Operator) -> bool:
    """Return whether autocast casts what an operator reads to 16 bits."""
    is_product = operator.kind in MATMULS or operator.kind is OperatorKind.ATTENTION
    return is_product and operator.function not in _UNLISTED


@dataclass(slots=True)
class _Widths:
    """Tensors of a block under autocast.

    Attributes:
        wide: In fp32, where they have the width of activations without autocast.
        same: Cast to fp32 → what it is a cast of, if that is fp32 already: nothing is cast.
        restored: Of what is in fp32 in any case: whether what it was cast from is `wide`.
        makers: Paths of operators that compute in fp32.
    """

    wide: set[str] = field(default_factory=set)
    same: dict[str, str] = field(default_factory=dict)
    restored: dict[str, bool] = field(default_factory=dict)
    makers: set[str] = field(default_factory=set)

    def follow(self, operator: Operator) -> None:
        """Enter what an operator makes."""
        if is_cast(operator):
            return
        reads = operator.inputs
        is_wide = any(self._is_wide(operand) for operand in reads)
        for output in operator.outputs:
            if output.element_bytes == _FULL_BYTES:
                self.restored[output.tensor] = is_wide
                if operator.function == _CAST and is_wide:
                    self.same[output.tensor] = reads[0].tensor
            elif output.element_bytes is None and (is_wide or _makes_fp32(operator)):
                self.wide.add(output.tensor)
                self.makers.add(operator.path)

    def _is_wide(self, operand: Operand) -> bool:
        if operand.element_bytes not in (None, _FULL_BYTES):
            return False
        return self.is_wide(operand.tensor)

    def is_wide(self, name: str) -> bool:
        """Return whether a tensor is in fp32 under autocast, or is made of one that is."""
        return name in self.wide or self.restored.get(name, False)


def _makes_fp32(operator: Operator) -> bool:
    if operator.kind in _WIDE_KINDS and operator.function != _PLAIN_NORM:
        return True
    promotes = operator.kind not in _OF_OWN_WIDTH
    return (promotes and bool(operator.parameters)) or operator.function in _COMPUTING


def _widths(block: Block, entering: Collection[str]) -> _Widths:
    """Return the widths of a block of which some inputs are in fp32.

    So is what is given from elsewhere, such as angles: it is computed of buffers.
    """
    made = {output.tensor for operator in block.operators for output in operator.outputs}
    found = _Widths(wide={*entering, *block.given} - made)
    for operator in block.operators:
        found.follow(operator)
    return found


def wide_outputs(block: Block, entering: Collection[str]) -> frozenset[str]:
    """Return the outputs of a block in fp32, if those inputs are: a table's, sums with it."""
    widths = _widths(block, entering)
    return frozenset(name for name in block.outputs if widths.is_wide(name))


def wide_tensors(block: Block, entering: Collection[str]) -> frozenset[str]:
    """Return the tensors of a block in fp32, if those inputs are."""
    widths = _widths(block, entering)
    operands = (each for o in block.operators for each in (*o.inputs, *o.outputs))
    return frozenset(each.tensor for each in operands if widths.is_wide(each.tensor))


def with_autocast(
    block: Block,
    saved: Sequence[SavedTensor],
    others: Sequence[SavedTensor],
    entering: Collection[str],
    share_of: Mapping[str, float],
) -> list[SavedTensor]:
    """Return saved tensors with what is kept under autocast alone, and marks of what is not.

    Products keep a cast of what is in fp32, each linear layer its own: autocast remembers its casts
    of parameters alone. What else keeps such a tensor keeps all 32 bits, and listed functions keep
    a cast to fp32 of what has 16. A cast to fp32 of what is in fp32 is the same tensor.

    Args:
        others: What it reads and other blocks keep, as if it were saved.
        entering: Its inputs that are in fp32.
        share_of: Operator → the share of its layers that are recomputed.
    """
    widths, keepers = _widths(block, entering), _Keepers.of(block)
    known = {tensor.name for tensor in saved}
    found: list[SavedTensor] = []

    def add(tensor: SavedTensor, kept: float) -> None:
        if kept > 0:
            name = f"{tensor.name}.casts"
            found.append(replace(tensor, name=name, kind="casts", mask_bytes=kept))

    for tensor in saved:
        if again := _region_share(keepers, tensor, widths, share_of):
            # Kept as it is, in fp32, until products make their casts again.
            wider = replace(tensor, name=f"{tensor.name}.wide")
            found.append(tensor)
            add(wider, _FULL_BYTES - _NARROW_BYTES)
            casts = _NARROW_BYTES * keepers.casts({tensor.name})
            add(replace(tensor, recomputed=True, share=again), casts)
            continue
        if _is_sum(keepers, tensor, widths):
            name, more = f"{tensor.name}.compiled", _FULL_BYTES - _NARROW_BYTES
            found.append(replace(tensor, name=name, kind="compiled_widths", mask_bytes=more))
        is_kept, more = _kept_bytes(keepers, tensor, known, widths)
        found.append(tensor if is_kept else replace(tensor, kind="uncast"))
        add(tensor, more)
    for tensor in others:
        if tensor.name in widths.wide:
            add(tensor, _NARROW_BYTES * keepers.casts({tensor.name}))
    return found


@dataclass(slots=True)
class _Keepers:
    """Operators by the tensors that they keep for backward.

    Attributes:
        savers: All, by what they save.
        products: Those that autocast casts for, also by what their parameters' gradients need.
    """

    savers: dict[str, list[Operator]] = field(default_factory=dict)
    products: dict[str, list[Operator]] = field(default_factory=dict)

    @classmethod
    def of(cls, block: Block) -> _Keepers:
        """Return those of a block."""
        found = cls()
        for operator in block.operators:
            for name in operator.saved:
                found.savers.setdefault(name, []).append(operator)
            if is_cast(operator):
                trains = any(parameter.trainable for parameter in operator.parameters)
                reads = [operand.tensor for operand in operator.inputs] if trains else []
                for name in {*operator.saved, *reads}:
                    found.products.setdefault(name, []).append(operator)
        return found

    def saving(self, names: Collection[str]) -> list[Operator]:
        """Return the operators that save a tensor under any of its names."""
        return list({o.path: o for name in names for o in self.savers.get(name, ())}.values())

    def casts(self, names: Collection[str]) -> int:
        """Return how many casts to 16 bits products keep of a tensor, under any of its names."""
        found = {o.path: o for name in names for o in self.products.get(name, ())}
        return sum(operator.linear_layers for operator in found.values())


def _region_share(
    keepers: _Keepers, tensor: SavedTensor, widths: _Widths, share_of: Mapping[str, float]
) -> float:
    """Return the share in which a region keeps a tensor in fp32 that its products cast, or 0."""
    products = keepers.products.get(tensor.name, ())
    if tensor.recomputed or tensor.kind != "activation" or tensor.name not in widths.wide:
        return 0.0
    return min((share_of[operator.path] for operator in products), default=0.0)


def _is_sum(keepers: _Keepers, tensor: SavedTensor, widths: _Widths) -> bool:
    """Return whether a compiler keeps a tensor in fp32: what products read it keeps cast alone."""
    if tensor.kind != "activation" or tensor.mask_bytes > 0 or tensor.name not in widths.wide:
        return False
    return not all(map(is_cast, keepers.saving({tensor.name})))


def _kept_bytes(
    keepers: _Keepers, tensor: SavedTensor, known: set[str], widths: _Widths
) -> tuple[bool, float]:
    """Return whether a tensor is kept as it is, and what is kept more, in bytes per element."""
    if tensor.kind in {"steps", "clamped_steps"} and tensor.mask_bytes == 0:
        return True, (_FULL_BYTES - _NARROW_BYTES) * (tensor.consumer in widths.makers)
    if tensor.kind != "activation":
        return True, 0.0
    names = {tensor.name, *(cast for cast, of in widths.same.items() if of == tensor.name)}
    savers = keepers.saving(names)
    others = [o for o in savers if not is_cast(o)]
    casts = _NARROW_BYTES * keepers.casts(names)
    if tensor.name in widths.restored:
        is_same = widths.same.get(tensor.name) in known
        return (False, 0.0) if is_same else (bool(others), 0.0 if others else casts)
    if tensor.mask_bytes > 0:
        return True, 0.0
    if tensor.name in widths.wide:
        return True, casts + _FULL_BYTES * bool(others) - _NARROW_BYTES
    listed = [o for o in others if o.function in _LISTED]
    own = _NARROW_BYTES * (len(savers) > len(listed)) - _NARROW_BYTES
    return True, _FULL_BYTES * bool(listed) + own
