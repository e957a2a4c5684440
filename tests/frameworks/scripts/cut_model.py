"""Prints the loss of the exported model as a whole, and through the layers of its pipeline."""

import importlib.util
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

FOLDER = Path("out")
spec = importlib.util.spec_from_file_location("train", FOLDER / "train.py")
train = importlib.util.module_from_spec(spec)
spec.loader.exec_module(train)
tokens = torch.randint(256, (2, 32), generator=torch.Generator().manual_seed(0))
whole = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
print("loss", whole(input_ids=tokens, labels=tokens).loss.item())

x, tied = tokens, {}
for layer in train.pipeline_layers(train.configuration(FOLDER)):
    key = getattr(layer, "key", None)
    module = layer.build() if key is None else tied.setdefault(key, layer.build())
    forward = getattr(layer, "forward_fn", None)
    x = module(x) if forward is None else forward(module, x)
print("loss", train.next_token_loss(x, tokens).item())
