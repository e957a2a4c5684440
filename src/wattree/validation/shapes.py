"""The model of a row as keys of a plain `transformer:` block."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wattree.job import ModelSource
from wattree.validation.cells import Cells


@dataclass(frozen=True, slots=True, kw_only=True)
class _Architecture:
    """What a model family fixes and rows do not print.

    Attributes:
        keys: Keys of a `transformer:` block.
        source: Where they are written.
    """

    keys: Mapping[str, Any]
    source: str


_USUAL_VOCAB = 128_256
_BIASES = {"qkv_bias": True, "attention_out_bias": True, "mlp_bias": True}
_DROPOUT = {"dropout": 0.1, "attention_dropout": 0.1, "embedding_dropout": 0.1}
_GPT = _Architecture(
    keys={"norm": "layer", "activation": "gelu", "positions": "learned"} | _BIASES | _DROPOUT,
    source="github:NVIDIA/Megatron-LM megatron/arguments.py, defaults of 2021",
)

#: Families whose models differ in size from those of the catalog; of others the sizes say enough.
_ARCHITECTURES: Mapping[str, _Architecture] = {
    "GPT": _GPT,
    "GPT2": _GPT,
    # 13 h parameters per layer besides the matrices and 2 h at the end, from the printed counts.
    "MPT": _Architecture(
        keys={"norm": "layer", "activation": "gelu", "positions": "learned"} | _BIASES,
        source="parameter counts printed by the source",
    ),
    "BLOOM": _Architecture(
        keys={
            "norm": "layer",
            "activation": "gelu",
            "positions": "alibi",
            "embedding_norm": True,
        }
        | _BIASES
        | _DROPOUT,
        source="github:bigscience-workshop/bigscience train/tr11-176B-ml/README.md",
    ),
}


def row_model(
    cells: Cells,
    *,
    layers: int | None = None,
    heads: int | None = None,
    vocab: int | None = None,
    padded_vocab: int | None = None,
) -> ModelSource:
    """Return the model of a row.

    Args:
        cells: The row.
        layers, heads, vocab: In place of the row's cells, where a source needs its own reading of
            them; the caller notes the assumption.
        padded_vocab: Rows that the token table really has, if more than `vocab`.

    Raises:
        RowError: A size is not stated, or the model family's defaults are not known.
    """
    row = cells.row
    cells.need("hidden", "ffn_hidden", "seq_len", "gated_mlp")
    cells.need(*_unless(n_layers=layers, n_heads=heads))
    layers, heads = layers or cells.whole("n_layers"), heads or cells.whole("n_heads")
    shape: dict[str, Any] = {
        "layers": layers,
        "hidden": cells.whole("hidden"),
        "heads": heads,
        "kv_heads": row.n_kv_heads or heads,
        "head_dim": row.head_dim or cells.whole("hidden") // heads,
        "ffn": cells.whole("ffn_hidden"),
        "gated": row.gated_mlp,
        "vocab": vocab or cells.or_assume("vocab", _USUAL_VOCAB, "that of Llama 3"),
        "tied_embedding": cells.or_assume("tied_emb", value=False),
    }
    if padded_vocab is not None:
        shape["padded_vocab"] = padded_vocab
    shape |= _software_defaults(cells) | _experts(cells)
    if shape.get("positions") == "learned":
        shape["max_positions"] = cells.whole("seq_len")
    return ModelSource(transformer=shape)


def padded_vocabulary(entries: int, *, tp: int) -> int:
    """Return the vocabulary after Megatron's padding to a multiple of 128 x `tp`."""
    return 128 * tp * math.ceil(entries / (128 * tp))


def _unless(**given: int | None) -> tuple[str, ...]:
    return tuple(column for column, value in given.items() if value is None)


def _software_defaults(cells: Cells) -> dict[str, Any]:
    family = _ARCHITECTURES.get(str(cells.row.model_family))
    if family is None:
        return {}
    cells.assume(f"{cells.row.model_family} beyond the printed sizes: {family.source}")
    return dict(family.keys)


def _experts(cells: Cells) -> dict[str, Any]:
    row = cells.row
    if row.arch_type == "moe":
        cells.need("n_experts")
    if row.n_experts is None or row.n_experts <= 1:
        return {}
    cells.need("top_k", "expert_ffn")
    experts: dict[str, Any] = {
        "experts": row.n_experts,
        "top_k": cells.whole("top_k"),
        "expert_ffn": cells.whole("expert_ffn"),
    }
    if row.n_shared_experts:
        experts["shared_ffn"] = row.n_shared_experts * cells.whole("expert_ffn")
    if row.n_dense_layers:
        experts["dense_layers"] = row.n_dense_layers
    return experts
