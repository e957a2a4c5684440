"""Networks of latent diffusion, as the diffusers library (0.42) has them. Remaking them needs it.

The autoencoder and the text encoders are not trained: their outputs, latents and embeddings of
prompts, are the inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

import torch
from torch import Tensor, nn

#: Pixels of an image for each position of the latents, height and width alike.
_PIXELS: Final = 8
_TRAINED_STEPS: Final = 1000
#: Names of the inputs beyond latents, steps and prompts.
_OF_UNETS: Final = ("text_embeds", "time_ids")
_OF_FLUX: Final = ("pooled_projections", "img_ids", "txt_ids", "guidance")


class _Denoiser(nn.Module):
    """A network of the library with positional inputs, that returns its prediction."""

    def __init__(self, kind: str, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.network = getattr(import_module("diffusers"), kind)(**config)
        self.kind = kind

    def forward(self, latents: Tensor, steps: Tensor, prompt: Tensor, *others: Tensor) -> Tensor:
        keys: dict[str, Any] = {"timestep": steps, "encoder_hidden_states": prompt}
        if self.kind == "UNet2DConditionModel":
            added = dict(zip(_OF_UNETS, others, strict=True)) if others else None
            keys["added_cond_kwargs"] = added
        elif self.kind == "SD3Transformer2DModel":
            keys["pooled_projections"] = others[0]
        else:
            keys |= dict(zip(_OF_FLUX, others, strict=False))
            keys["timestep"] = steps / _TRAINED_STEPS
        found: Tensor = self.network(latents, return_dict=False, **keys)[0]
        return found


def build(kind: str, config: Mapping[str, Any]) -> nn.Module:
    """Return the network of a class of the library."""
    return _Denoiser(kind, config)


def example_inputs(
    batch: int, kind: str, config: Mapping[str, Any], image_size: int, text_tokens: int
) -> tuple[Any, ...]:
    """Return noisy latents, steps and embedded prompts of images of `image_size` pixels."""
    side, steps = image_size // _PIXELS, torch.zeros(batch, dtype=torch.long)
    if kind == "FluxTransformer2DModel":  # patches of two by two as tokens, with their places
        patches = (side // 2) ** 2
        latents = torch.zeros(batch, patches, config["in_channels"])
        prompt = torch.zeros(batch, text_tokens, config["joint_attention_dim"])
        pooled = torch.zeros(batch, config["pooled_projection_dim"])
        guidance = (torch.zeros(batch),) if config.get("guidance_embeds") else ()
        places = (torch.zeros(patches, 3), torch.zeros(text_tokens, 3))
        return latents, steps.float(), prompt, pooled, *places, *guidance
    latents = torch.zeros(batch, config["in_channels"], side, side)
    if kind == "SD3Transformer2DModel":
        prompt = torch.zeros(batch, text_tokens, config["joint_attention_dim"])
        return latents, steps, prompt, torch.zeros(batch, config["pooled_projection_dim"])
    prompt = torch.zeros(batch, text_tokens, config["cross_attention_dim"])
    if config.get("addition_embed_type") != "text_time":
        return latents, steps, prompt
    # Sizes and crops of the image, six numbers each embedded, and the pooled prompt.
    numbers = 6
    embedded = numbers * config["addition_time_embed_dim"]
    width = config["projection_class_embeddings_input_dim"] - embedded
    return latents, steps, prompt, torch.zeros(batch, width), torch.zeros(batch, numbers)
