"""The feed-forward part of a layer: up, activation, down."""

from __future__ import annotations

from wattree.capture.parts import ExpertGroup, features, linear
from wattree.graph import IterationDim, Operand, Operator, OperatorKind, Parameter


def feed_forward(
    path: str,
    *,
    reads: str,
    writes: str,
    hidden: int,
    ffn: int,
    gated: bool,
    activation: str,
    bias: bool,
    seq: IterationDim,
    experts: ExpertGroup | None = None,
    joint: bool = False,
) -> list[Operator]:
    """Return `<path>.up` (gate and up fused), `<path>.activation`, `<path>.down`.

    `joint`: Gate and up are fused in the library's module too.
    """
    up, activated = f"{path}.up", f"{path}.activation"
    return [
        linear(
            up,
            reads=reads,
            in_features=hidden,
            out_features=2 * ffn if gated else ffn,
            bias=bias,
            seq=seq,
            experts=experts,
            layers=2 if gated and not joint else 1,
        ),
        _activation(
            activated, activation, reads=up, ffn=ffn, gated=gated, seq=seq, experts=experts
        ),
        linear(
            f"{path}.down",
            reads=activated,
            writes=writes,
            in_features=ffn,
            out_features=hidden,
            bias=bias,
            seq=seq,
            experts=experts,
        ),
    ]


def _activation(
    path: str,
    function: str,
    *,
    reads: str,
    ffn: int,
    gated: bool,
    seq: IterationDim,
    experts: ExpertGroup | None,
) -> Operator:
    # The lead dims are those of the projections, so take them from one.
    lead = linear(path, reads=reads, in_features=1, out_features=1, seq=seq, experts=experts).dims[
        :-2
    ]
    dims = (*(dim.name for dim in lead), "ffn")
    # ReLU's backward needs only its output, which the next projection keeps anyway.
    saves_output = function == "relu" and not gated
    return Operator(
        path=path,
        kind=OperatorKind.ELEMENTWISE,
        function=f"{function}_gate" if gated else function,
        dims=(*lead, features("ffn", ffn)),
        inputs=(Operand(tensor=reads, dims=dims, fraction=2.0 if gated else 1.0),),
        outputs=(Operand(tensor=path, dims=dims),),
        # Of both sides of xIELU, in each layer.
        parameters=(
            (Parameter(name=f"{path}.alphas", dims=(), elements=2),) if function == "xielu" else ()
        ),
        saved=(path,) if saves_output else (reads,),
        kernels=2 if gated else 1,
    )
