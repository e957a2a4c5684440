"""The feed-forward part of a layer: up, activation, down."""

from __future__ import annotations

from wattree.capture.parts import Builder, features
from wattree.graph import Operand, Operator, OperatorKind, Parameter


def feed_forward(
    build: Builder,
    path: str,
    *,
    reads: str,
    ffn: int,
    bias: bool,
    hidden: int | None = None,
    joint: bool = False,
) -> list[Operator]:
    """Return `<path>.up` (gate and up fused), `<path>.activation`, `<path>.down`.

    Args:
        hidden: Features read and written, if not those of the hidden state.
        joint: Gate and up are fused in the library's module too.
    """
    gated, width = build.shape.gated, hidden or build.shape.hidden
    up, activated, layers = f"{path}.up", f"{path}.activation", 2 if gated and not joint else 1
    return [
        build.linear(up, reads, width, 2 * ffn if gated else ffn, bias=bias, layers=layers),
        _activation(build, activated, reads=up, ffn=ffn),
        build.linear(f"{path}.down", activated, ffn, width, bias=bias),
    ]


def _activation(build: Builder, path: str, *, reads: str, ffn: int) -> Operator:
    lead, function, gated = build.lead, build.shape.activation, build.shape.gated
    dims = (*(dim.name for dim in lead), "ffn")
    # ReLU's backward needs only its output, which the next projection keeps anyway.
    saves_output = function == "relu" and not gated
    alphas = Parameter(name=f"{path}.alphas", dims=(), elements=2)  # of both sides of xIELU
    return Operator(
        path=path,
        kind=OperatorKind.ELEMENTWISE,
        function=f"{function}_gate" if gated else function,
        dims=(*lead, features("ffn", ffn)),
        inputs=(Operand(tensor=reads, dims=dims, fraction=2.0 if gated else 1.0),),
        outputs=(Operand(tensor=path, dims=dims),),
        parameters=(alphas,) if function == "xielu" else (),
        saved=(path,) if saves_output else (reads,),
        kernels=2 if gated else 1,
    )
