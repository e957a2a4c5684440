"""One layer: norms, attention, feed-forward part and residual sums, in the model's order."""

from __future__ import annotations

from wattree.capture.attention import cross_attention, self_attention
from wattree.capture.head import hidden_state
from wattree.capture.latent_attention import latent_attention
from wattree.capture.layer_kind import LayerKind
from wattree.capture.mamba import mamba_mixer
from wattree.capture.mlp import feed_forward
from wattree.capture.moe import mixture_of_experts
from wattree.capture.parts import Builder, sequence_dim
from wattree.capture.shape import TransformerShape
from wattree.graph import Block, Operator

_PRE = ("pre", "sandwich")
_AFTER_BRANCH = ("sandwich", "branch")


class _Layer:
    """Operators of one layer as they are written down, in order."""

    def __init__(self, build: Builder, kind: LayerKind) -> None:
        self.build, self.shape, self.kind = build, build.shape, kind
        self.operators: list[Operator] = []

    def norm(self, path: str, reads: str) -> str:
        """Add a norm and return the tensor it writes."""
        self.operators.append(self.build.norm(path, reads))
        return path

    def close_branch(self, part: str, state: str, results: tuple[str, ...]) -> str:
        """Add dropout, norm and residual sum after a branch; return the new state."""
        if self.shape.dropout:
            dropped = (f"{part}.dropout", f"{part}.shared_dropout")[: len(results)]
            self.operators += map(self.build.dropout, dropped, results)
            results = dropped
        named = "attention" if part == "attention" else part.replace("moe", "mlp")
        if self.shape.norm_placement in _AFTER_BRANCH:
            results = (self.norm(f"post_{named}_norm", self._sum(f"{part}.sum", *results)),)
        residual = self._sum(f"{part}.residual", state, *results)
        if self.shape.norm_placement == "post":
            return self.norm(f"post_{named}_norm", residual)
        return residual

    def _sum(self, path: str, *terms: str) -> str:
        if len(terms) == 1:
            return terms[0]
        added = self.build.elementwise(path, "add", *terms, kernels=len(terms) - 1)
        self.operators.append(added)
        return path

    def attention(self, reads: str) -> str:
        """Add self-attention and return the tensor it writes."""
        attention = latent_attention if self.shape.kv_lora_rank else self_attention
        self.operators += attention(self.build, self.kind, reads=reads)
        return "attention.out"

    def mlp(self, reads: str) -> tuple[str, tuple[str, ...]]:
        """Add the feed-forward part; return its name and the tensors whose sum it writes."""
        shape = self.shape
        if self.kind.moe or self.kind.mixer == "moe":
            operators, results = mixture_of_experts(self.build, reads=reads)
            self.operators += operators
            return "moe", results
        ffn, joint = shape.ffn, shape.joint_projections
        if self.kind.side == "encoder":
            ffn = shape.encoder_ffn
        self.operators += feed_forward(
            self.build, "mlp", reads=reads, ffn=ffn, bias=shape.mlp_bias, joint=joint
        )
        return "mlp", ("mlp.down",)


def layer_block(shape: TransformerShape, kind: LayerKind) -> Block:
    """Return the operators of one layer of the given kind."""
    ratio = shape.decoder_sequence_ratio if kind.side == "decoder" else 1.0
    build = Builder(shape, sequence_dim(ratio))
    layer = _Layer(build, kind)
    if kind.mixer:
        output = _single(layer)
    else:
        output = _parallel(layer) if shape.parallel else _sequential(layer)
    inputs = [hidden_state(build)]
    if kind.side == "decoder":
        inputs.append(hidden_state(Builder(shape), name="encoded"))
    return Block(
        name=kind.block, operators=tuple(layer.operators), inputs=tuple(inputs), output=output
    )


def _sequential(layer: _Layer) -> str:
    shape, kind = layer.shape, layer.kind
    state = "hidden"
    normed = shape.norm_placement in _PRE
    reads = layer.norm("input_norm", state) if normed and kind.input_norm else state
    state = layer.close_branch("attention", state, (layer.attention(reads),))
    if kind.side == "decoder":
        reads = layer.norm("cross_attention_norm", state) if normed else state
        layer.operators += cross_attention(layer.build, reads=reads, memory="encoded")
        state = layer.close_branch("cross_attention", state, ("cross_attention.out",))
    reads = layer.norm("mlp_norm", state) if normed else state
    part, results = layer.mlp(reads)
    return layer.close_branch(part, state, results)


def _single(layer: _Layer) -> str:
    """Write a layer of one branch (Nemotron-H)."""
    shape, part = layer.shape, layer.kind.mixer
    reads = layer.norm("input_norm", "hidden") if shape.norm_placement in _PRE else "hidden"
    results: tuple[str, ...]
    if part == "attention":
        results = (layer.attention(reads),)
    elif part == "mamba":
        results = ("mamba.out",)
        layer.operators += mamba_mixer(layer.build, reads=reads)
    else:
        part, results = layer.mlp(reads)
    return layer.close_branch(part, "hidden", results)


def _parallel(layer: _Layer) -> str:
    """Write a layer whose two branches read the same state (GPT-J, NeoX, Falcon, PaLM)."""
    state = "hidden"
    reads = layer.norm("input_norm", state)
    attended = layer.attention(reads)
    mlp_reads = layer.norm("mlp_norm", state) if layer.shape.parallel_norms == 2 else reads
    part, results = layer.mlp(mlp_reads)
    state = layer.close_branch("attention", state, (attended,))
    return layer.close_branch(part, state, results)
