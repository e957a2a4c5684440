"""The Mamba-2 mixer: projection, causal convolution, scan over chunks, gated norm, projection.

Heads of one group share the projections of input and output (`B`, `C`), so tensor parallelism
splits groups. Activations are `(batch, seq, features)` as everywhere; inside the scan the features
of a head are a dim of their own. The scan is a pass over its inputs and a matmul, as captured
models have it (`recurrence`), so its time does not depend on how the model was read.

Saved tensors are those of `mamba_split_conv1d_scan_combined`, which trains in Megatron-Core and,
where it is installed, in the transformers library: the projection's output and the scan's;
backward computes the convolution again.

References:
    [1] T. Dao, A. Gu, "Transformers are SSMs", 2024, arXiv:2405.21060, sections 6 to 8.
    [2] github:state-spaces/mamba `ssm/ops/triton/ssd_combined.py`;
        github:NVIDIA/Megatron-LM `megatron/core/ssm/mamba_mixer.py`.
"""

from __future__ import annotations

from wattree.capture.parts import BATCH, Builder, features
from wattree.capture.recurrence import STATE_SPACE
from wattree.graph import SCAN, DimRole, IterationDim, Operand, Operator, OperatorKind, Parameter

_FEATURES = ("batch", "seq", "heads")
#: Kernels of the scan [2]: sums of decays, states of chunks, states in turn, products of B and C;
#: the matmul stands for the fifth, of the outputs.
_SCAN_KERNELS = 4
_SUM_BYTES = 4.0  # of a sum of decays, in fp32


def mamba_mixer(build: Builder, *, reads: str) -> list[Operator]:
    """Return the operators from the normalized input to the output projection, `mamba.out`."""
    shape = build.shape
    heads, groups = shape.mamba_heads, shape.mamba_groups
    inner = heads * shape.mamba_head_dim
    convolved = inner + 2 * groups * shape.mamba_state  # all heads, and B and C of all groups
    written = {"mamba.gate": inner, "mamba.mixed": convolved, "mamba.steps": heads}
    return [
        build.linear("mamba.in_proj", reads, shape.hidden, written, out_units=groups),
        _convolution(build, convolved),
        *_scan(build, convolved),
        _gated_norm(build, inner),
        build.linear(
            "mamba.out_proj",
            "mamba.norm",
            inner,
            shape.hidden,
            writes="mamba.out",
            in_units=groups,
        ),
    ]


def _whole(build: Builder) -> IterationDim:
    """Return the dim over positions of an operator that goes through them in turn."""
    return IterationDim(name="seq", extent=build.seq.extent, role=DimRole.OPAQUE)


def _convolution(build: Builder, width: int) -> Operator:
    """Return convolution and SiLU, one kernel that reads and writes each feature once."""
    path, length = "mamba.conv", build.shape.mamba_conv
    units = build.shape.mamba_groups
    taps = features("taps", length, role=DimRole.OPAQUE)
    return Operator(
        path=path,
        kind=OperatorKind.ELEMENTWISE,
        function="causal_conv1d_silu",
        dims=(BATCH, _whole(build), features("heads", width, units=units), taps),
        inputs=(Operand(tensor="mamba.mixed", dims=_FEATURES),),
        outputs=(Operand(tensor=path, dims=_FEATURES),),
        parameters=(
            Parameter(name=f"{path}.weight", dims=("heads", "taps"), elements=width * length),
            Parameter(name=f"{path}.bias", dims=("heads",), elements=width),
        ),
        saved=("mamba.mixed",),
    )


def _scan(build: Builder, convolved: int) -> list[Operator]:
    """Return the pass over the scan's inputs, and its matmul."""
    shape = build.shape
    count, width = shape.mamba_heads, shape.mamba_head_dim
    turns, inner, kept = STATE_SPACE.sizes(
        keys=shape.mamba_state,
        values=width,
        chunk=shape.mamba_chunk,
        groups_per_head=shape.mamba_groups / count,
    )
    heads = features("heads", count, units=shape.mamba_groups)
    opaque = {"inner": inner, "turns": turns, "value": width}
    scan = Operator(
        path="mamba.scan",
        kind=OperatorKind.OTHER,
        function=SCAN,
        dims=(
            BATCH,
            _whole(build),
            heads,
            *(features(name, size, role=DimRole.OPAQUE) for name, size in opaque.items()),
        ),
        inputs=(
            Operand(tensor="mamba.conv", dims=_FEATURES, fraction=convolved / count),
            Operand(tensor="mamba.steps", dims=_FEATURES),
        ),
        outputs=(
            Operand(tensor="mamba.pieces", dims=(*_FEATURES, "inner")),
            Operand(tensor="mamba.states", dims=("batch", "heads", "turns", "inner", "value")),
            Operand(tensor="mamba.scanned", dims=_FEATURES, fraction=kept),
            Operand(tensor="mamba.decays", dims=_FEATURES, element_bytes=_SUM_BYTES),
        ),
        parameters=tuple(
            Parameter(name=f"mamba.{name}", dims=("heads",), elements=count)
            for name in ("A_log", "D", "dt_bias")
        ),
        saved=("mamba.steps",),
        kernels=_SCAN_KERNELS,
    )
    matmul = Operator(
        path="mamba.product",
        kind=OperatorKind.MATMUL,
        function="chunked_product",
        dims=(
            *build.lead,
            heads,
            features("turns", turns, role=DimRole.CONTRACTED),
            features("in", inner, role=DimRole.CONTRACTED),
            features("out", width, role=DimRole.OPAQUE),
        ),
        inputs=(
            Operand(tensor="mamba.pieces", dims=(*_FEATURES, "in")),
            Operand(tensor="mamba.states", dims=("batch", "heads", "turns", "in", "out")),
        ),
        outputs=(Operand(tensor="mamba.product", dims=(*_FEATURES, "out")),),
    )
    return [scan, matmul]


def _gated_norm(build: Builder, inner: int) -> Operator:
    """Return the RMS norm over each group of heads of what the gate lets through, one kernel."""
    path, read = "mamba.norm", ("mamba.product", "mamba.gate")
    return Operator(
        path=path,
        kind=OperatorKind.NORM,
        function="rms_norm_gated",
        dims=(*build.lead, features("heads", inner, units=build.shape.mamba_groups)),
        inputs=tuple(Operand(tensor=name, dims=_FEATURES) for name in read),
        outputs=(Operand(tensor=path, dims=_FEATURES),),
        parameters=(Parameter(name=f"{path}.weight", dims=("heads",), elements=inner),),
        saved=read,
    )
