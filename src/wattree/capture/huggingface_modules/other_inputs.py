"""Inputs that are neither tokens, images nor sound: series, trajectories, patches, boxes, regions.

Their sizes are those of the configuration; each maker's docstring has the source of what it leaves
open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from wattree.errors import ModelError

#: Regions of an image in LXMERT (arXiv:1908.07490, section 3.1).
_REGIONS: Final = 36
#: Steps of a trajectory in Decision Transformer (arXiv:2106.01345, table 9).
_STEPS: Final = 20
#: Most patches that the library's Pix2Struct processor makes of an image.
_MAX_PATCHES: Final = 2048


def _series(config: Any, batch: int) -> dict[str, torch.Tensor]:
    """Return a series to be continued; with its lags, its marks of time and what follows."""
    lags = getattr(config, "lags_sequence", None)
    if not lags and not hasattr(config, "num_input_channels"):
        return {}  # of lists of series of any lengths, as TimesFM
    if not lags:
        return {"past_values": torch.zeros(batch, config.context_length, config.num_input_channels)}
    if config.prediction_length is None:  # which its context is as long as where it says nothing
        raise ModelError("prediction_length: found none; set the steps to be predicted")
    past, future = config.context_length + max(lags), config.prediction_length
    values = () if config.input_size == 1 else (config.input_size,)
    static = config.num_static_categorical_features, config.num_static_real_features
    found = {
        "past_values": torch.zeros(batch, past, *values),
        "past_time_features": torch.zeros(batch, past, config.num_time_features),
        "past_observed_mask": torch.ones(batch, past, *values),
        "static_categorical_features": torch.zeros(batch, static[0], dtype=torch.long),
        "static_real_features": torch.zeros(batch, static[1]),
        "future_values": torch.zeros(batch, future, *values),
        "future_time_features": torch.zeros(batch, future, config.num_time_features),
    }
    return {name: value for name, value in found.items() if value.numel() or "static" not in name}


def _trajectory(config: Any, batch: int) -> dict[str, torch.Tensor]:
    rows = (batch, _STEPS)
    return {
        "states": torch.zeros(*rows, config.state_dim),
        "actions": torch.zeros(*rows, config.act_dim),
        "rewards": torch.zeros(*rows, 1),
        "returns_to_go": torch.zeros(*rows, 1),
        "timesteps": torch.zeros(rows, dtype=torch.long),
        "attention_mask": torch.ones(rows, dtype=torch.long),
    }


def _patches(config: Any, batch: int) -> dict[str, torch.Tensor]:
    """Return flat patches, whose first two values are their row and column."""
    width = 2 + getattr(config, "vision_config", config).patch_embed_hidden_size
    return {"flattened_patches": torch.zeros(batch, _MAX_PATCHES, width)}


#: Main input → what makes it, and what comes with it.
OTHER_INPUTS: Final[Mapping[str, Callable[[Any, int], dict[str, torch.Tensor]]]] = {
    "past_values": _series,
    "states": _trajectory,
    "flattened_patches": _patches,
}


def with_tokens(config: Any, batch: int, tokens: int) -> dict[str, torch.Tensor]:
    """Return what models need along with their tokens: boxes of words, regions of images."""
    found = {}
    if hasattr(config, "dim_bbox"):
        found["bbox"] = torch.zeros(batch, tokens, 4)
    if hasattr(config, "visual_feat_dim"):
        found["visual_feats"] = torch.zeros(batch, _REGIONS, config.visual_feat_dim)
        found["visual_pos"] = torch.zeros(batch, _REGIONS, config.visual_pos_dim)
    return found
