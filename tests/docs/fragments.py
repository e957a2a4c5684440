"""Runs parts of programs that pages show, on every rank, after what such a program has by then."""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import Any

from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import wattree
import wattree.runtime.reduce


def model_for(body: str) -> nn.Module:
    """Return a model with the names that a block's plan has."""
    layers = {"up": nn.Linear(64, 256), "act": nn.ReLU(), "down": nn.Linear(256, 64)}
    if "'mlp'" in body or '"mlp"' in body:
        return nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 256, 0.0), 2)
    parts = {"attn": nn.Sequential(nn.Linear(64, 64)), **layers}
    return nn.Sequential(nn.Sequential(OrderedDict(parts)))


def execute(body: str, page: str, folder: str) -> None:
    """Run a block of Python where its page expects a model, its mesh or a process group."""
    os.chdir(folder)
    mesh: Any = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    names = {"wattree": wattree, "DistributedDataParallel": DistributedDataParallel}
    names |= {"net": nn.Linear(4, 4), "mesh": mesh["tp"] if "model, mesh," in body else mesh}
    if page == "docs/phantom.md":
        from wattree.runtime import phantomize

        names |= {"phantomize": phantomize, "model": model_for(body)}
    exec(compile(body, page, "exec"), names)
