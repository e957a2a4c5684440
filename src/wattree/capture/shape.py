"""The shape of a transformer: the numbers that decide its operators, and which layers differ.

Every way in (catalog, `config.json`, a job's `transformer:` block) ends in a
`TransformerShape`; `transformer.build_transformer` turns it into operators.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from wattree.capture.layer_kind import MIXERS, LayerKind, layer_problems
from wattree.errors import ModelError

#: Bounds beyond which a number is a typing error, not a model. The largest published models
#: have some 130 layers and tables of some 10^6 rows.
MOST_LAYERS: Final = 10_000
LARGEST_COUNT: Final = 10**9

#: Fields that take one of a few words.
CHOICES: Final[dict[str, tuple[str, ...]]] = {
    # rms: a weight; layer: weight and bias; layer_weight: weight only; layer_plain: neither
    "norm": ("rms", "layer", "layer_weight", "layer_plain"),
    # pre: before each branch; post: after each residual sum; sandwich: before and after each
    # branch; branch: after each branch, before the sum (OLMo 2)
    "norm_placement": ("pre", "post", "sandwich", "branch"),
    # how the library's module computes it: as a kernel, or cast back to 16 bits before the weight
    # (`usual`); in fp32 to the end (Gemma, OLMo 2); and so, mean and variance step by step (Cohere)
    "norm_steps": ("usual", "fp32", "fp32_steps"),
    "positions": ("rotary", "learned", "alibi", "relative", "none"),
    # head, heads: of each head, by a weight that heads share or one of each head (Cohere);
    # width: of all heads together; plain: of each rotated head, without weights (Llama 4)
    "qk_norm": ("none", "head", "heads", "width", "plain"),
    # language_model: logits over the vocabulary; masked_lm: transform, norm, logits;
    # discriminator: transform and one logit per token; pooler: dense on the first token;
    # none: hidden states are the output
    "head": ("language_model", "masked_lm", "discriminator", "pooler", "none"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerShape:
    """A transformer in numbers. Zero means "the usual": see each field.

    Attributes:
        layers: Layers of the (decoder) stack.
        hidden: Width of the hidden state.
        vocab, padded_vocab: Rows of the token table that are used; all of them (0: as many).
        heads, kv_heads: Query heads; key/value heads (0: as many).
        head_dim: Features per query/key head; 0: `hidden / heads`.
        ffn: Width of the feed-forward part; 0: four times `hidden`.
        gated: The feed-forward part multiplies an activated gate with an up projection.
        activation: Its function, for people.
        norm, norm_placement, norm_steps: See `CHOICES`.
        parallel: Attention and feed-forward part read the same input and are added together.
        parallel_norms: 1 if they share one norm, 2 if each has its own.
        joint_projections: The library's module has one linear layer for queries, keys and values
            (and one for a gate and what it multiplies), not one for each.
        stepwise_attention: It does not run on PyTorch's SDPA, and keeps all scores.
        casts_softmax: Where it does so, its softmax of 16-bit scores is in fp32.
        concatenated_rotary: Its rotations end in a concatenation, as partial ones do.
        wide_rotary: They are in fp32, with casts before and after.
        scaled_rotary: They also scale queries and keys, as YaRN's do.
        qkv_bias, attention_out_bias, mlp_bias, head_bias: Linear layers that have a bias.
        positions: See `CHOICES`.
        no_rope_layers: Layers (by index) without rotations (NoPE); None: none.
        max_positions: Longest sequence; 0: unlimited.
        position_rows: Rows of a learned position table; 0: `max_positions`.
        tied_embedding: The output projection is the token table.
        decoder_table: The decoder has a token table of its own (BART, if nothing is tied).
        unread_parameters: Parameters that the reference class holds and no operator reads, such as
            the shared table of an untied BART.
        token_types: Rows of a token-type table (BERT).
        embedding_norm: The embedding is normalized.
        embedding_width: Width of the token table; 0: `hidden`. If it differs, the embedding is
            projected into `hidden` (ELECTRA with a bias, OPT without: `embedding_bias`).
        embedding_projected_first: Positions are added after that projection, so that their table
            has `hidden` columns (OPT), instead of before.
        dropout, attention_dropout, embedding_dropout: Probabilities.
        causal: Later positions are hidden from earlier ones.
        window, window_layers: Sliding window in tokens (0: none); layers that use it (None: all).
        qk_norm, qk_norm_bias: See `CHOICES`; these norms have a bias too (Phi).
        attention_sinks: One learned logit per head joins the softmax (gpt-oss).
        q_lora_rank, kv_lora_rank: Ranks of the compressed queries, and of keys and values (latent
            attention); 0: not compressed.
        qk_nope_head_dim, qk_rope_head_dim, v_head_dim: Head sizes of latent attention.
        experts, top_k: Routed experts of a mixture layer (0: no mixture); those of each token.
        expert_groups, group_top_k: Groups of equally many experts, of which each token chooses some
            before it chooses experts in them (DeepSeek V3); 1: all experts are one group.
        expert_ffn, shared_ffn: Width of one expert (0: `ffn`); of those that every token visits,
            all together (0: none).
        shared_gate: A sigmoid gate scales the shared experts (Qwen2-MoE).
        expert_bias, router_bias: Biases of experts and router.
        expert_latent: Width of what routed experts read and write, projected from the hidden state
            and back; 0: `hidden` itself.
        moe_layers: Layers (by index) that are mixtures; None: all, if there are experts.
        pattern: One letter of `MIXERS` for each layer, which then has that branch alone; "": every
            layer has attention and a feed-forward part.
        predictions: Further tokens that are predicted in training, one module after another, each
            with an embedding, layers and logits (multi-token prediction); the modules share their
            parameters.
        prediction_pattern: The layers of such a module, in the letters of `pattern`.
        mamba_heads, mamba_head_dim, mamba_groups: Heads of Mamba-2, their features, and the groups
            of heads that share input and output projections.
        mamba_state, mamba_conv, mamba_chunk: Size of its state for each feature; tokens of its
            convolution, and of a chunk of its scan.
        encoder_layers: Layers of an encoder whose output the stack attends to; 0: none.
        encoder_ffn, encoder_heads: Where the encoder differs; 0: the same.
        relative_buckets: Rows of the table of relative position biases.
        disentangled_positions: Relative positions that attention scores against (DeBERTa).
        first_layer_norm: False: the first layer has no input norm (ModernBERT).
        final_norm: A norm follows the last layer.
        logit_softcap, score_softcap: The logits pass through a tanh, or attention's scores do
            (Gemma 2).
        head: See `CHOICES`.
        next_sentence: A pooler and a two-way classifier join the head (BERT pre-training).
        transform_bias: The transform of a masked-LM head has a bias.
        decoder_sequence_ratio: Length of the decoder's sequence over the encoder's.
        name, architecture, sources: For people; where the numbers come from.
    """

    layers: int
    hidden: int
    heads: int
    vocab: int
    kv_heads: int = 0
    head_dim: int = 0
    ffn: int = 0
    gated: bool = False
    activation: str = "gelu"
    norm: str = "layer"
    norm_placement: str = "pre"
    norm_steps: str = "usual"
    parallel: bool = False
    parallel_norms: int = 1
    joint_projections: bool = False
    stepwise_attention: bool = False
    casts_softmax: bool = True
    concatenated_rotary: bool = False
    wide_rotary: bool = False
    scaled_rotary: bool = False
    qkv_bias: bool = False
    attention_out_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    positions: str = "rotary"
    no_rope_layers: tuple[int, ...] | None = None
    max_positions: int = 0
    position_rows: int = 0
    padded_vocab: int = 0
    tied_embedding: bool = False
    decoder_table: bool = False
    unread_parameters: int = 0
    token_types: int = 0
    embedding_norm: bool = False
    embedding_width: int = 0
    embedding_bias: bool = False
    embedding_projected_first: bool = False
    dropout: float = 0.0
    attention_dropout: float = 0.0
    embedding_dropout: float = 0.0
    causal: bool = True
    window: int = 0
    window_layers: tuple[int, ...] | None = None
    qk_norm: str = "none"
    qk_norm_bias: bool = False
    attention_sinks: bool = False
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    experts: int = 0
    top_k: int = 0
    expert_groups: int = 1
    group_top_k: int = 1
    expert_ffn: int = 0
    shared_ffn: int = 0
    shared_gate: bool = False
    expert_bias: bool = False
    router_bias: bool = False
    expert_latent: int = 0
    moe_layers: tuple[int, ...] | None = None
    pattern: str = ""
    predictions: int = 0
    prediction_pattern: str = "*E"
    mamba_heads: int = 0
    mamba_head_dim: int = 0
    mamba_groups: int = 0
    mamba_state: int = 0
    mamba_conv: int = 4
    mamba_chunk: int = 128
    encoder_layers: int = 0
    encoder_ffn: int = 0
    encoder_heads: int = 0
    relative_buckets: int = 0
    disentangled_positions: int = 0
    first_layer_norm: bool = True
    final_norm: bool = True
    logit_softcap: bool = False
    score_softcap: bool = False
    head: str = "language_model"
    next_sentence: bool = False
    transform_bias: bool = True
    decoder_sequence_ratio: float = 1.0
    name: str = "transformer"
    architecture: str = "transformer"
    sources: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if problems := _range_problems(self):
            raise ModelError(_refusal(self.name, problems))
        self._fill_in_defaults()
        if problems := _fit_problems(self):
            raise ModelError(_refusal(self.name, problems))

    def _fill_in_defaults(self) -> None:
        usual = {
            "kv_heads": self.heads,
            "head_dim": self._usual_head_dim(),
            "ffn": 4 * self.hidden,
            "padded_vocab": self.vocab,
            "position_rows": self.max_positions,
            "embedding_width": self.hidden,
            "encoder_heads": self.heads,
        }
        for name, value in usual.items():
            if getattr(self, name) == 0:
                object.__setattr__(self, name, value)
        for name, value in {
            "v_head_dim": self.head_dim,
            "expert_ffn": self.ffn,
            "encoder_ffn": self.ffn,
        }.items():
            if getattr(self, name) == 0:
                object.__setattr__(self, name, value)

    def _usual_head_dim(self) -> int:
        if self.head_dim:
            return self.head_dim
        if self.kv_lora_rank:
            return self.qk_nope_head_dim + self.qk_rope_head_dim
        if self.hidden % self.heads:
            problem = (
                f"hidden: found {self.hidden}, expected a multiple of heads ({self.heads}); "
                "change one of them or give head_dim"
            )
            raise ModelError(_refusal(self.name, [problem]))
        return self.hidden // self.heads

    @property
    def norm_function(self) -> str:
        """What its norms compute: `rms_norm`, `layer_norm`, `rms_norm_fp32`, …."""
        of_steps = "" if self.norm_steps == "usual" else f"_{self.norm_steps}"
        return f"{'rms' if self.norm == 'rms' else 'layer'}_norm{of_steps}"

    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """Return the kind of each layer of the (decoder) stack, in order."""
        if self.pattern:
            return self.single_kinds(self.pattern)
        every = range(self.layers)
        windowed = frozenset(every if self.window_layers is None else self.window_layers)
        mixed = frozenset(every if self.moe_layers is None else self.moe_layers)
        return tuple(
            self._layer_kind(index, windowed=index in windowed, mixed=index in mixed)
            for index in every
        )

    @staticmethod
    def single_kinds(pattern: str) -> tuple[LayerKind, ...]:
        """Return the kinds of layers of one branch each, by their letters."""
        return tuple(LayerKind(mixer=MIXERS[letter]) for letter in pattern)

    def encoder_kinds(self) -> tuple[LayerKind, ...]:
        """Return the kind of each encoder layer, in order."""
        has_table = self.positions == "relative"
        return tuple(
            LayerKind(side="encoder", relative_bias=has_table and index == 0)
            for index in range(self.encoder_layers)
        )

    def _layer_kind(self, index: int, *, windowed: bool, mixed: bool) -> LayerKind:
        return LayerKind(
            side="decoder" if self.encoder_layers else "",
            moe=bool(self.experts) and mixed,
            window=self.window if self.window and windowed else None,
            rotary=index not in (self.no_rope_layers or ()),
            input_norm=index > 0 or self.first_layer_norm,
            relative_bias=self.positions == "relative" and index == 0,
        )


def _refusal(name: str, problems: list[str]) -> str:
    if len(problems) == 1:
        return f"{name}: {problems[0]}"
    return "\n".join([f"{name}: {len(problems)} problems:", *(f"  {p}" for p in problems)])


#: Fields that a transformer cannot have at zero.
_POSITIVE: Final = ("layers", "hidden", "heads", "vocab")
_PROBABILITIES: Final = ("dropout", "attention_dropout", "embedding_dropout")


def _range_problems(shape: TransformerShape) -> list[str]:
    """Return one line for each field with an impossible value."""
    problems = []
    for field in fields(shape):
        value = getattr(shape, field.name)
        if field.name in _PROBABILITIES:
            if not 0 <= value < 1:
                problems.append(f"{field.name}: found {value}, expected a probability below 1")
        elif field.name in CHOICES:
            if value not in CHOICES[field.name]:
                words = ", ".join(CHOICES[field.name])
                problems.append(f"{field.name}: found '{value}', expected one of {words}")
        elif isinstance(value, int) and not isinstance(value, bool):
            least = 1 if field.name in _POSITIVE else 0
            most = MOST_LAYERS if field.name in ("layers", "encoder_layers") else LARGEST_COUNT
            if not least <= value <= most:
                problems.append(
                    f"{field.name}: found {value}, expected a whole number from {least} to {most}"
                )
    if not 0 < shape.decoder_sequence_ratio <= LARGEST_COUNT:
        problems.append(
            f"decoder_sequence_ratio: found {shape.decoder_sequence_ratio}, expected above 0"
        )
    return problems


def _fit_problems(shape: TransformerShape) -> list[str]:
    """Return one line for each pair of fields that contradict each other."""
    problems = []
    if shape.heads % shape.kv_heads:
        problems.append(
            f"kv_heads: found {shape.kv_heads}, expected a number that divides heads "
            f"({shape.heads})"
        )
    if shape.padded_vocab < shape.vocab:
        problems.append(
            f"padded_vocab: found {shape.padded_vocab}, expected at least vocab ({shape.vocab})"
        )
    if shape.experts and not 1 <= shape.top_k <= shape.experts:
        problems.append(
            f"top_k: found {shape.top_k}, expected 1 to {shape.experts}, the number of experts"
        )
    groups, chosen = shape.expert_groups, shape.group_top_k
    if not (1 <= chosen <= groups and shape.experts % groups == 0) or (
        shape.top_k * groups > shape.experts * chosen
    ):
        problems.append(
            f"expert_groups, group_top_k: found {groups} and {chosen}, expected groups of equally "
            f"many of {shape.experts} experts, and as many of them as hold {shape.top_k} or more"
        )
    problems += layer_problems(shape)
    if shape.kv_lora_rank and not (shape.qk_nope_head_dim and shape.qk_rope_head_dim):
        problems.append(
            "kv_lora_rank: latent attention also needs qk_nope_head_dim and qk_rope_head_dim "
            "above zero"
        )
    if shape.positions == "learned" and not shape.position_rows:
        problems.append("max_positions: found 0, expected the length of the learned position table")
    if shape.positions == "relative" and not shape.relative_buckets:
        problems.append("relative_buckets: found 0, expected the rows of the relative bias table")
    if shape.tied_embedding and shape.head in ("discriminator", "pooler", "none"):
        problems.append(f"tied_embedding: a head of kind '{shape.head}' has no logits to tie")
    return problems
