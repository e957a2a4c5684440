"""Small models whose linear layers are converted."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["FAMILIES", "encoder", "family", "stack"]

#: Models of transformers: configuration and its keys.
FAMILIES: dict[str, tuple[str, dict[str, int]]] = {
    "llama": (
        "LlamaConfig",
        {
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "num_hidden_layers": 2,
            "vocab_size": 32,
        },
    ),
    "gpt2": (
        "GPT2Config",
        {"n_embd": 16, "n_head": 4, "n_layer": 2, "vocab_size": 32, "n_positions": 16},
    ),
    "bert": (
        "BertConfig",
        {
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_attention_heads": 4,
            "num_hidden_layers": 1,
            "vocab_size": 32,
            "max_position_embeddings": 16,
        },
    ),
    "opt": (
        "OPTConfig",
        {
            "hidden_size": 16,
            "ffn_dim": 24,
            "num_attention_heads": 4,
            "num_hidden_layers": 1,
            "vocab_size": 32,
            "max_position_embeddings": 16,
            "word_embed_proj_dim": 16,
        },
    ),
}


def stack(*widths: int, seed: int = 1) -> nn.Sequential:
    """Return linear layers of these widths, with functions between."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*layers[:-1]).double()


def encoder() -> nn.Module:
    """Return an encoder of PyTorch, in the mode in which it takes its fast path."""
    torch.manual_seed(2)
    layer = nn.TransformerEncoderLayer(16, 4, 30, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double().eval()


class Answer(nn.Module):
    """The main tensor of what a model of transformers returns."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        found = self.model(input_ids=ids)
        return getattr(found, "logits", found[0])


def family(name: str) -> nn.Module:
    """Return a small model of a family of transformers."""
    import transformers

    kind, keys = FAMILIES[name]
    torch.manual_seed(3)
    config = getattr(transformers, kind)(**keys)
    build = (
        transformers.AutoModel if name == "bert" else transformers.AutoModelForCausalLM
    ).from_config
    return Answer(build(config)).double().eval()
