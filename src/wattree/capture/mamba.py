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

from dataclasses import dataclass

from wattree.capture.parts import BATCH, Output, features, linear
from wattree.capture.recurrence import STATE_SPACE, ScanSizes
from wattree.capture.shape import TransformerShape
from wattree.graph import (
    SCAN,
    DimRole,
    IterationDim,
    Operand,
    Operator,
    OperatorKind,
    Parameter,
)

_FEATURES = ("batch", "seq", "heads")
#: Kernels of the scan [2]: sums of decays, states of chunks, states in turn, products of B and C;
#: the matmul stands for the fifth, of the outputs.
_SCAN_KERNELS = 4
_SUM_BYTES = 4.0  # of a sum of decays, in fp32


@dataclass(frozen=True, slots=True, kw_only=True)
class _MixerSizes:
    heads: int
    groups: int
    inner: int  # features of all heads
    convolved: int  # those and B and C of all groups
    scan: ScanSizes

    def per_head(self, width: float) -> float:
        return width / self.heads


def _sizes_of(shape: TransformerShape) -> _MixerSizes:
    inner = shape.mamba_heads * shape.mamba_head_dim
    return _MixerSizes(
        heads=shape.mamba_heads,
        groups=shape.mamba_groups,
        inner=inner,
        convolved=inner + 2 * shape.mamba_groups * shape.mamba_state,
        scan=STATE_SPACE.sizes(
            keys=shape.mamba_state,
            values=shape.mamba_head_dim,
            chunk=shape.mamba_chunk,
            groups_per_head=shape.mamba_groups / shape.mamba_heads,
        ),
    )


def mamba_mixer(
    shape: TransformerShape, *, reads: str, writes: str, seq: IterationDim
) -> list[Operator]:
    """Return the operators from the normalized input to the output projection."""
    sizes = _sizes_of(shape)
    total = sizes.inner + sizes.convolved + sizes.heads
    return [
        linear(
            "mamba.in_proj",
            reads=reads,
            writes=[
                Output(tensor="mamba.gate", share=sizes.inner / total),
                Output(tensor="mamba.mixed", share=sizes.convolved / total),
                Output(tensor="mamba.steps", share=sizes.heads / total),
            ],
            in_features=shape.hidden,
            out_features=total,
            out_units=sizes.groups,
            seq=seq,
        ),
        _convolution(shape, sizes, seq=seq),
        _scan(shape, sizes, seq=seq),
        _scan_matmul(shape, sizes, seq=seq),
        _gated_norm(sizes, seq=seq),
        linear(
            "mamba.out_proj",
            reads="mamba.norm",
            writes=writes,
            in_features=sizes.inner,
            out_features=shape.hidden,
            in_units=sizes.groups,
            seq=seq,
        ),
    ]


def _whole(seq: IterationDim) -> IterationDim:
    """Return the dim over positions of an operator that goes through them in turn."""
    return IterationDim(name="seq", extent=seq.extent, role=DimRole.OPAQUE)


def _convolution(shape: TransformerShape, sizes: _MixerSizes, *, seq: IterationDim) -> Operator:
    """Return convolution and SiLU, one kernel that reads and writes each feature once."""
    path = "mamba.conv"
    taps = features("taps", shape.mamba_conv, role=DimRole.OPAQUE)
    width = sizes.convolved
    return Operator(
        path=path,
        kind=OperatorKind.ELEMENTWISE,
        function="causal_conv1d_silu",
        dims=(BATCH, _whole(seq), features("heads", width, units=sizes.groups), taps),
        inputs=(Operand(tensor="mamba.mixed", dims=_FEATURES),),
        outputs=(Operand(tensor=path, dims=_FEATURES),),
        parameters=(
            Parameter(
                name=f"{path}.weight", dims=("heads", "taps"), elements=width * shape.mamba_conv
            ),
            Parameter(name=f"{path}.bias", dims=("heads",), elements=width),
        ),
        saved=("mamba.mixed",),
    )


def _scan(shape: TransformerShape, sizes: _MixerSizes, *, seq: IterationDim) -> Operator:
    turns, inner, kept = sizes.scan
    heads = ("batch", "seq", "heads")
    opaque = {"inner": inner, "turns": turns, "value": shape.mamba_head_dim}
    return Operator(
        path="mamba.scan",
        kind=OperatorKind.OTHER,
        function=SCAN,
        dims=(
            BATCH,
            _whole(seq),
            features("heads", sizes.heads, units=sizes.groups),
            *(features(name, size, role=DimRole.OPAQUE) for name, size in opaque.items()),
        ),
        inputs=(
            Operand(tensor="mamba.conv", dims=heads, fraction=sizes.per_head(sizes.convolved)),
            Operand(tensor="mamba.steps", dims=heads),
        ),
        outputs=(
            Operand(tensor="mamba.pieces", dims=(*heads, "inner")),
            Operand(tensor="mamba.states", dims=("batch", "heads", "turns", "inner", "value")),
            Operand(tensor="mamba.scanned", dims=heads, fraction=kept),
            Operand(tensor="mamba.decays", dims=heads, element_bytes=_SUM_BYTES),
        ),
        parameters=tuple(
            Parameter(name=f"mamba.{name}", dims=("heads",), elements=sizes.heads)
            for name in ("A_log", "D", "dt_bias")
        ),
        saved=("mamba.steps",),
        kernels=_SCAN_KERNELS,
    )


def _scan_matmul(shape: TransformerShape, sizes: _MixerSizes, *, seq: IterationDim) -> Operator:
    turns, inner, _ = sizes.scan
    sums = {"turns": turns, "in": inner}
    return Operator(
        path="mamba.product",
        kind=OperatorKind.MATMUL,
        function="chunked_product",
        dims=(
            BATCH,
            seq,
            features("heads", sizes.heads, units=sizes.groups),
            *(features(name, size, role=DimRole.CONTRACTED) for name, size in sums.items()),
            features("out", shape.mamba_head_dim, role=DimRole.OPAQUE),
        ),
        inputs=(
            Operand(tensor="mamba.pieces", dims=("batch", "seq", "heads", "in")),
            Operand(tensor="mamba.states", dims=("batch", "heads", "turns", "in", "out")),
        ),
        outputs=(Operand(tensor="mamba.product", dims=("batch", "seq", "heads", "out")),),
    )


def _gated_norm(sizes: _MixerSizes, *, seq: IterationDim) -> Operator:
    """Return the RMS norm over each group of heads of what the gate lets through, one kernel."""
    path = "mamba.norm"
    return Operator(
        path=path,
        kind=OperatorKind.NORM,
        function="rms_norm_gated",
        dims=(BATCH, seq, features("heads", sizes.inner, units=sizes.groups)),
        inputs=(
            Operand(tensor="mamba.product", dims=_FEATURES),
            Operand(tensor="mamba.gate", dims=_FEATURES),
        ),
        outputs=(Operand(tensor=path, dims=_FEATURES),),
        parameters=(Parameter(name=f"{path}.weight", dims=("heads",), elements=sizes.inner),),
        saved=("mamba.product", "mamba.gate"),
    )
