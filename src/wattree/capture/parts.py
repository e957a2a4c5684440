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

from collections.abc import Mapping
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class Builder:
    """Builds the operators of one part of a model.

    Like all operators here they write the tensor of their own path by default.

    Attributes:
        shape: The model.
        seq: The dim over the part's positions.
        routed: Its tensors are those of routed tokens, one expert after another.
    """

    shape: TransformerShape
    seq: IterationDim = field(default_factory=sequence_dim)
    routed: bool = False

    @property
    def expert(self) -> IterationDim:
        """The dim over the experts."""
        return features("expert", self.shape.experts, units=self.shape.experts)

    @property
    def token_share(self) -> float:
        """Tokens each expert sees over all tokens."""
        return self.shape.top_k / self.shape.experts

    @property
    def lead(self) -> tuple[IterationDim, ...]:
        """The dims before the features."""
        if not self.routed:
            return (BATCH, self.seq)
        # Every expert sees its share of the positions, so the loop nest holds exactly the work.
        share = Extent(coefficient=self.seq.extent.coefficient * self.token_share, seq=1)
        return (self.expert, BATCH, IterationDim(name="seq", extent=share))

    def linear(
        self,
        path: str,
        reads: str,
        in_features: int,
        out_features: int | Mapping[str, int],
        *,
        writes: str | None = None,
        bias: bool = False,
        in_units: int | None = None,
        out_units: int | None = None,
        out_name: str = "out",
        tied_to: str | None = None,
        layers: int = 1,
    ) -> Operator:
        """Return a matmul with its weight `(out, in)`, grouped over experts for routed tokens.

        `out_features` may state those of each tensor that it writes. `layers`: linear layers of the
        library's module that it joins.
        """
        if not isinstance(out_features, Mapping):
            out_features = {writes or path: out_features}
        out, group = sum(out_features.values()), self.shape.experts if self.routed else 1
        names = tuple(dim.name for dim in self.lead)
        weight = Parameter(
            name=f"{path}.weight",
            dims=(*names[:-2], out_name, "in"),
            elements=group * in_features * out,
            tied_to=tied_to,
        )
        added = Parameter(name=f"{path}.bias", dims=(*names[:-2], out_name), elements=group * out)
        return Operator(
            path=path,
            kind=OperatorKind.MATMUL,
            function="grouped_linear" if self.routed else "linear",
            dims=(
                *self.lead,
                features(out_name, out, units=out_units),
                features("in", in_features, role=DimRole.CONTRACTED, units=in_units),
            ),
            inputs=(Operand(tensor=reads, dims=(*names, "in")),),
            outputs=tuple(
                Operand(tensor=tensor, dims=(*names, out_name), fraction=part / out)
                for tensor, part in out_features.items()
            ),
            parameters=(weight, added) if bias else (weight,),
            saved=(reads,),
            linear_layers=layers,
        )

    def norm(
        self, path: str, reads: str, *, writes: str | None = None, width: int | None = None
    ) -> Operator:
        """Return a norm over the last dim, whose parts are not independent: it is opaque."""
        width = width or self.shape.hidden
        weight = Parameter(name=f"{path}.weight", dims=("hidden",), elements=width)
        bias = Parameter(name=f"{path}.bias", dims=("hidden",), elements=width)
        parameters = {"layer": (weight, bias), "layer_plain": ()}.get(self.shape.norm, (weight,))
        return Operator(
            path=path,
            kind=OperatorKind.NORM,
            function=self.shape.norm_function,
            dims=(BATCH, self.seq, features("hidden", width, role=DimRole.OPAQUE)),
            inputs=(Operand(tensor=reads, dims=HIDDEN_DIMS),),
            outputs=(Operand(tensor=writes or path, dims=HIDDEN_DIMS),),
            parameters=parameters,
            saved=(reads,),
            kernels=_NORM_KERNELS[self.shape.norm],
        )

    def elementwise(
        self,
        path: str,
        function: str,
        *reads: Operand | str,
        width: int | None = None,
        last: str = "hidden",
        units: int | None = None,
        saved: tuple[str, ...] = (),
        saved_mask_bytes: float = 0.0,
        kernels: int = 1,
    ) -> Operator:
        """Return an element-wise operator over `(batch, seq, last)`."""
        dims = ("batch", self.seq.name, last)
        return Operator(
            path=path,
            kind=OperatorKind.ELEMENTWISE,
            function=function,
            dims=(BATCH, self.seq, features(last, width or self.shape.hidden, units=units)),
            inputs=tuple(
                Operand(tensor=read, dims=dims) if isinstance(read, str) else read for read in reads
            ),
            outputs=(Operand(tensor=path, dims=dims),),
            saved=saved,
            saved_mask_bytes=saved_mask_bytes,
            kernels=kernels,
        )

    def dropout(self, path: str, reads: str, *, width: int | None = None) -> Operator:
        """Return a dropout that saves only a one-byte mask for backward."""
        return self.elementwise(path, "dropout", reads, width=width, saved_mask_bytes=1.0)
