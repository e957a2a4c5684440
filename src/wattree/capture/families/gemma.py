"""Gemma 1, 2 and 3 (text)."""

from __future__ import annotations

from typing import Any

from wattree.capture.config_reader import ConfigReader
from wattree.capture.families.common import (
    attention_biases,
    but_every_nth,
    llama_like,
    sliding_layers,
    sliding_window,
)
from wattree.capture.families.registry import FAMILIES


@FAMILIES.register("gemma")
def gemma(reader: ConfigReader) -> dict[str, Any]:
    """Read Gemma: heads of 256, tied head without a key saying so."""
    return _gemma(reader, kv_heads=16, max_positions=8192)


@FAMILIES.register("gemma2")
def gemma2(reader: ConfigReader) -> dict[str, Any]:
    """Read Gemma 2: four norms a layer, every other layer with a window, soft-capped logits."""
    shape = _gemma(reader, kv_heads=4, max_positions=8192)
    marked = sliding_layers(reader, shape["layers"])
    return {
        **shape,
        "norm_placement": "sandwich",
        "window": sliding_window(reader, default=4096),
        "window_layers": (tuple(range(0, shape["layers"], 2)) if marked is None else marked),
        **{
            name: reader.has(key) or not reader.mentions(key)
            for name, key in (
                ("logit_softcap", "final_logit_softcapping"),
                ("score_softcap", "attn_logit_softcapping"),
            )
        },
    }


@FAMILIES.register("gemma3_text")
def gemma3_text(reader: ConfigReader) -> dict[str, Any]:
    """Read the language model of Gemma 3: norms on query and key heads, mostly windows."""
    shape = _gemma(reader, kv_heads=4, max_positions=131072)
    period = reader.count("sliding_window_pattern", "_sliding_window_pattern", default=6)
    marked = sliding_layers(reader, shape["layers"])
    if marked is None:
        marked = but_every_nth(shape["layers"], period)
    return {
        **shape,
        "norm_placement": "sandwich",
        "qk_norm": "head",
        "window": sliding_window(reader, default=4096),
        "window_layers": marked,
        "logit_softcap": reader.has("final_logit_softcapping"),
    }


def _gemma(reader: ConfigReader, *, kv_heads: int, max_positions: int) -> dict[str, Any]:
    shape = llama_like(
        reader,
        kv_heads=kv_heads,
        head_dim=256,
        max_positions=max_positions,
        activation="gelu_pytorch_tanh",
        tied=True,
    )
    # Gemma's own key wins over the older one, which some files carry with another value.
    activation = reader.text("hidden_activation", default=str(shape["activation"]))
    return {**shape, "activation": activation, **attention_biases(reader)}
