"""Constructors of the operators that transformers are made of. One operator each, no topology.

Conventions shared by every operator made here:

- Activations are three-dimensional, `(batch, seq, features)`; tensors of routed tokens are
  `(expert, batch, seq, features)`.
- A projection's features are indexed by `out` and `in`; `units` says how many heads they hold,
  so that a split never cuts a head.
- `saved` is what autograd keeps with fused (flash) attention. A tensor is known by its name, so
  one that two operators save counts once.
- `kernels` counts launches of plain eager PyTorch: bias inside the matmul, one kernel
  per element-wise function, norms and rotary as written below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from wattree.capture.shape import TransformerShape
from wattree.graph import (
    DimRole,
    Extent,
    IterationDim,
    Operand,
    Operator,
    OperatorKind,
    Parameter,
)

BATCH: Final = IterationDim(name="batch", extent=Extent(batch=1))
HIDDEN_DIMS: Final = ("batch", "seq", "hidden")

#: Launches of a norm. PyTorch has one kernel for layer norm; RMS norm decomposes into square,
#: mean, add epsilon, reciprocal root, scale, weight (torch.nn.functional.rms_norm, composite).
_NORM_KERNELS: Final = {"rms": 6, "layer": 1, "layer_weight": 1, "layer_plain": 1}


def sequence_dim(ratio: float = 1.0) -> IterationDim:
    """Return a dim over token positions, `ratio` times as long as the sequence."""
    return IterationDim(name="seq", extent=Extent(coefficient=ratio, seq=1))


def features(
    name: str, size: float, *, role: DimRole = DimRole.SPLITTABLE, units: int | None = None
) -> IterationDim:
    """Return a dim of constant length."""
    return IterationDim(name=name, extent=Extent(coefficient=size), role=role, units=units)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A tensor that a projection writes, and its share of the output features."""

    tensor: str
    share: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertGroup:
    """Experts that a grouped projection runs over.

    Attributes:
        experts: How many there are.
        token_share: Tokens each expert sees over all tokens, `top_k / experts`.
    """

    experts: int
    token_share: float

    @property
    def dim(self) -> IterationDim:
        """The dim over experts."""
        return features("expert", self.experts, units=self.experts)


def linear(
    path: str,
    *,
    reads: str,
    writes: str | Sequence[Output] | None = None,
    in_features: int,
    out_features: int,
    bias: bool = False,
    seq: IterationDim | None = None,
    in_units: int | None = None,
    out_units: int | None = None,
    out_name: str = "out",
    experts: ExpertGroup | None = None,
    tied_to: str | None = None,
    layers: int = 1,
) -> Operator:
    """Return a matmul with its weight `(out, in)`, grouped over experts if given.

    Like all operators here it writes the tensor of its own path by default. `layers`: linear layers
    of the library's module that it joins.
    """
    writes = writes or path
    seq = seq or sequence_dim()
    lead: tuple[IterationDim, ...] = (BATCH, seq)
    if experts is not None:
        # Every expert sees its share of the positions, so the loop nest holds exactly the work.
        share = Extent(coefficient=seq.extent.coefficient * experts.token_share, seq=1)
        lead = (experts.dim, BATCH, IterationDim(name="seq", extent=share))
    group = experts.experts if experts is not None else 1
    names = tuple(dim.name for dim in lead)
    group_names = names[:-2]
    outputs = [Output(tensor=writes)] if isinstance(writes, str) else writes
    weight = Parameter(
        name=f"{path}.weight",
        dims=(*group_names, out_name, "in"),
        elements=group * in_features * out_features,
        tied_to=tied_to,
    )
    bias_dims = (*group_names, out_name)
    biases = (Parameter(name=f"{path}.bias", dims=bias_dims, elements=group * out_features),)
    return Operator(
        path=path,
        kind=OperatorKind.MATMUL,
        function="grouped_linear" if experts is not None else "linear",
        dims=(
            *lead,
            features(out_name, out_features, units=out_units),
            features("in", in_features, role=DimRole.CONTRACTED, units=in_units),
        ),
        inputs=(Operand(tensor=reads, dims=(*names, "in")),),
        outputs=tuple(
            Operand(tensor=out.tensor, dims=(*names, out_name), fraction=out.share)
            for out in outputs
        ),
        parameters=(weight, *(biases if bias else ())),
        saved=(reads,),
        linear_layers=layers,
    )


def norm(
    path: str,
    shape: TransformerShape,
    *,
    reads: str,
    writes: str | None = None,
    width: int,
    seq: IterationDim | None = None,
) -> Operator:
    """Return a norm over the last dim. That dim is opaque: its parts are not independent."""
    weight = Parameter(name=f"{path}.weight", dims=("hidden",), elements=width)
    bias = Parameter(name=f"{path}.bias", dims=("hidden",), elements=width)
    parameters = {"layer": (weight, bias), "layer_plain": ()}.get(shape.norm, (weight,))
    return Operator(
        path=path,
        kind=OperatorKind.NORM,
        function=shape.norm_function,
        dims=(BATCH, seq or sequence_dim(), features("hidden", width, role=DimRole.OPAQUE)),
        inputs=(Operand(tensor=reads, dims=HIDDEN_DIMS),),
        outputs=(Operand(tensor=writes or path, dims=HIDDEN_DIMS),),
        parameters=parameters,
        saved=(reads,),
        kernels=_NORM_KERNELS[shape.norm],
    )


def elementwise(
    path: str,
    function: str,
    *,
    reads: Sequence[Operand | str],
    writes: str | None = None,
    width: int,
    seq: IterationDim | None = None,
    last: str = "hidden",
    units: int | None = None,
    saved: tuple[str, ...] = (),
    saved_mask_bytes: float = 0.0,
    kernels: int = 1,
) -> Operator:
    """Return an element-wise operator over `(batch, seq, last)`."""
    seq = seq or sequence_dim()
    dims = ("batch", seq.name, last)
    return Operator(
        path=path,
        kind=OperatorKind.ELEMENTWISE,
        function=function,
        dims=(BATCH, seq, features(last, width, units=units)),
        inputs=tuple(
            Operand(tensor=read, dims=dims) if isinstance(read, str) else read for read in reads
        ),
        outputs=(Operand(tensor=writes or path, dims=dims),),
        saved=saved,
        saved_mask_bytes=saved_mask_bytes,
        kernels=kernels,
    )


def dropout(path: str, *, reads: str, width: int, seq: IterationDim | None = None) -> Operator:
    """Return a dropout that saves only a one-byte mask for backward."""
    return elementwise(path, "dropout", reads=[reads], width=width, seq=seq, saved_mask_bytes=1.0)
