"""Reads exported folders with the parsers of torchtitan or Megatron; prints what they say.

Run as a program, in a process of its own: `titan_parsers.py FRAMEWORK FOLDER...`. The file `ranks`
of a folder says how many ranks there are.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

#: In place of `torchrun`: prints a variable of its environment, and its words.
_TORCHRUN = """#!/usr/bin/env bash
printf "%s\\0" "${CUDA_DEVICE_MAX_CONNECTIONS:-}" "$@"
"""


def torchtitan_toml(folder: Path) -> dict[str, Any]:
    """Return what `ConfigManager` and `ParallelDims` of 0.2.2 understand."""
    from torchtitan.config import ConfigManager
    from torchtitan.protocols.train_spec import get_train_spec

    config = ConfigManager().parse_args(["--job.config_file", str(folder / "train.toml")])
    model = get_train_spec(config.model.name).model_args[config.model.flavor]
    return {
        "degrees": _degrees(config, folder, etp=config.parallelism.expert_tensor_parallel_degree),
        "layers": model.n_layers,
        "hidden": model.dim,
        "global_batch": config.training.global_batch_size,
        "optimizer": config.optimizer.name.lower(),
    }


def torchtitan_flags(folder: Path) -> dict[str, Any]:
    """Return what those of 0.3 understand of the flags, and of the function that they override.

    Converters to narrow formats want a GPU and torchao: only their settings are read.
    """
    from torchtitan.components import quantization
    from torchtitan.config import ConfigManager

    for kind in (quantization.Float8LinearConverter, quantization.MXFP8LinearConverter):
        kind.__init__, kind.convert = lambda *_, **__: None, lambda _, model: model
    words = words_of(folder)
    sys.path.insert(0, str(folder))
    sys.modules.pop("wattree_config", None)
    config = ConfigManager().parse_args(words[words.index("torchtitan.train") + 1 :])
    sys.path.remove(str(folder))
    [group] = config.optimizer.param_groups
    return {
        "degrees": _degrees(config, folder),
        "layers": len(config.model_spec.model.layers),
        "hidden": config.model_spec.model.dim,
        "global_batch": config.training.global_batch_size,
        "optimizer": group.optimizer_name.lower(),
    }


def torchtitan_registry(folder: Path) -> dict[str, Any]:
    """Return what a function of the registry of 0.3, after which a folder is named, sets."""
    from importlib import import_module

    from torchtitan.components import quantization
    from torchtitan.trainer import Trainer

    for kind in ("Float8Linear", "Float8GroupedExperts", "MXFP8Linear"):
        converter = getattr(quantization, f"{kind}Converter")
        converter.__init__, converter.convert = lambda *_, **__: None, lambda _, model: model
    module = import_module(f"torchtitan.models.{(folder / 'module').read_text()}.config_registry")
    usual, config = Trainer.Config(), getattr(module, folder.name)()
    kind = type(config.activation_checkpoint).__qualname__.partition("AC.")[0].lower()
    found = {
        f"{section}.{key}": getattr(getattr(config, section), key)
        for section in ("training", "parallelism", "compile")
        for key in getattr(usual, section).__slots__
        if getattr(getattr(config, section), key) != getattr(getattr(usual, section), key)
    }
    return found | {
        "activation_checkpoint.mode": kind.replace("nonetype", "none"),
        "model.name": config.model_spec.name,
        "model.flavor": config.model_spec.flavor,
    }


def _degrees(config: Any, folder: Path, **others: int) -> list[int]:
    from torchtitan.distributed import ParallelDims

    layout = config.parallelism
    dims = ParallelDims(
        dp_replicate=layout.data_parallel_replicate_degree,
        dp_shard=layout.data_parallel_shard_degree,
        cp=layout.context_parallel_degree,
        tp=layout.tensor_parallel_degree,
        pp=layout.pipeline_parallel_degree,
        ep=layout.expert_parallel_degree,
        world_size=int((folder / "ranks").read_text()),
        **others,
    )
    return [dims.dp_replicate * dims.dp_shard, dims.tp, dims.cp, dims.pp]


def words_of(folder: Path) -> list[str]:
    """Return the words that `launch.sh` gives to `torchrun`, run by a shell."""
    tools = folder / "bin"
    tools.mkdir()
    (tools / "torchrun").write_text(_TORCHRUN)
    (tools / "torchrun").chmod(0o755)
    settings = {
        **os.environ,
        "PATH": f"{tools}:{os.environ['PATH']}",
        "MASTER_ADDR": "localhost",
        "MEGATRON_LM": str(folder),
    }
    found = subprocess.run(
        ["bash", str(folder / "launch.sh")],
        capture_output=True,
        text=True,
        check=True,
        env=settings,
    )
    return found.stdout.rstrip("\0").split("\0")


def megatron_lm(folder: Path) -> dict[str, Any]:
    """Return what `parse_args`, `validate_args` and `TransformerConfig` understand."""
    words = words_of(folder)
    os.environ["WORLD_SIZE"], os.environ["RANK"] = (folder / "ranks").read_text(), "0"
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = words[0]
    # Fused rotary embeddings need Transformer Engine.
    sys.argv = [*words[words.index("pretrain_gpt.py") :], "--no-rope-fusion"]
    import torch
    from megatron.core import utils
    from megatron.training import arguments
    from packaging.version import Version

    # Checks ask for the architecture of a device and for a library that are not there.
    utils.get_te_version = lambda: Version("2.10")
    torch.cuda.get_device_capability = lambda *_: (10, 0)
    torch.cuda.get_device_properties = lambda *_: type("H100", (), {"major": 10, "minor": 0})()
    args = arguments.parse_args()
    arguments.validate_args(args)
    config = arguments.core_transformer_config_from_args(args)
    return {
        "degrees": [
            *(args.data_parallel_size, args.tensor_model_parallel_size),
            *(args.context_parallel_size, args.pipeline_model_parallel_size),
        ],
        "layers": config.num_layers,
        "hidden": config.hidden_size,
        "global_batch": args.global_batch_size,
        "optimizer": args.optimizer,
    }


def megatron_bridge(folder: Path) -> dict[str, Any]:
    """Return what the configuration classes of Megatron-Core understand of the overrides.

    Megatron-Bridge itself cannot be imported without Transformer Engine. Its own classes are read
    as text: every key has to be a field of its class, and the recipe a function.
    """
    import megatron.core
    from megatron.core.transformer.transformer_config import TransformerConfig

    bridge = Path(megatron.core.__file__).parents[1] / "bridge"
    whole = yaml.safe_load((folder / "overrides.yaml").read_text())
    classes = _fields(bridge / "training" / "config.py")
    for section, name in (("train", "TrainingConfig"), ("dataset", "GPTDatasetConfig")):
        unknown = set(whole.get(section, {})) - classes[name] - {"sequence_length"}
        assert not unknown, (section, unknown)
    _check_fields(whole)
    named = {
        node.name
        for node in _tree(bridge / "training" / "mixed_precision.py").body
        if isinstance(node, ast.FunctionDef)
    }
    assert whole["mixed_precision"] in named
    script = (folder / "train.py").read_text()
    recipe = script.partition("recipes.")[2].partition("(")[0]
    assert any(f"def {recipe}(" in path.read_text() for path in bridge.rglob("recipes/*/*.py"))
    model = {key: value for key, value in whole["model"].items() if value is not None}
    config = TransformerConfig(
        **{key: value for key, value in model.items() if key != "seq_length"},
        pipeline_dtype="bf16",
        add_bias_linear=False,  # a recipe's; its default is true, which no recipe of experts has
    )
    ranks = int((folder / "ranks").read_text())
    shape = [config.tensor_model_parallel_size, config.context_parallel_size]
    shape.append(config.pipeline_model_parallel_size)
    return {
        "degrees": [ranks // (shape[0] * shape[1] * shape[2]), *shape],
        "layers": config.num_layers,
        "hidden": config.hidden_size,
        "global_batch": whole["train"]["global_batch_size"],
        "optimizer": whole["optimizer"]["optimizer"],
    }


def _check_fields(whole: dict[str, Any]) -> None:
    from dataclasses import fields

    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig

    for section, kind in (("ddp", DistributedDataParallelConfig), ("optimizer", OptimizerConfig)):
        unknown = set(whole.get(section, {})) - {field.name for field in fields(kind)}
        assert not unknown, (section, unknown)


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _fields(path: Path) -> dict[str, set[str]]:
    """Return class → its annotated names."""
    return {
        node.name: {
            line.target.id
            for line in node.body
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
        }
        for node in _tree(path).body
        if isinstance(node, ast.ClassDef)
    }


if __name__ == "__main__":
    reader = {
        "torchtitan-toml": torchtitan_toml,
        "torchtitan-flags": torchtitan_flags,
        "torchtitan-registry": torchtitan_registry,
        "megatron-lm": megatron_lm,
        "megatron-bridge": megatron_bridge,
    }[sys.argv[1]]
    found = [reader(Path(folder)) for folder in list(sys.argv[2:])]
    sys.stdout.write(f"\nPARSED {json.dumps(found)}\n")
