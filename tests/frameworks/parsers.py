"""Reads exported folders with a framework's own parser; prints what it understood, as JSON.

Run as a program, in a process of its own: these libraries change much when they are imported.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def deepspeed(folder: Path) -> dict[str, Any]:
    """Return what `DeepSpeedConfig` understands, as it would on all ranks."""
    from deepspeed.runtime import config

    settings = json.loads((folder / "ds_config.json").read_text())
    others = settings.get("pipeline", {}).get("stages", 1)
    for degree in (settings.get("tensor_parallel", {}).get("autotp_size", 1), others):
        assert degree >= 1
    micro = settings["train_micro_batch_size_per_gpu"] * settings["gradient_accumulation_steps"]
    replicas = settings["train_batch_size"] // micro
    # Its own product of micro-batch, accumulation and ranks is checked against the batch.
    config.dist.get_rank = lambda: 0
    groups = type("Groups", (), {"get_data_parallel_world_size": lambda _: replicas})()
    found = config.DeepSpeedConfig(str(folder / "ds_config.json"), mpu=groups)
    zero = found.zero_config
    return {
        "stage": int(zero.stage),
        "micro_batch": found.train_micro_batch_size_per_gpu,
        "global_batch": found.train_batch_size,
        "tp": max(1, found.tensor_parallel_config.autotp_size),
        "ep": found.expert_parallel_config.autoep_size,
        "offloads": [
            part is not None and str(getattr(part.device, "value", part.device)) == "cpu"
            for part in (zero.offload_optimizer, zero.offload_param)
        ],
    }


def accelerate(folder: Path) -> dict[str, Any]:
    """Return what `accelerate launch` hands its processes, and what its plugins make of that."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils import FullyShardedDataParallelPlugin, launch

    launch.is_fp8_available = lambda: True  # it asks for libraries of GPUs
    os.chdir(folder)
    arguments, _, _ = _validate_launch_command(
        launch_command_parser().parse_args(
            ["--config_file", "accelerate.yaml", "--main_process_port", "0", "train.py"]
        )
    )
    arguments.num_machines = 1  # the port of the first host is not looked at
    arguments.deepspeed_fields_from_accelerate_config = "deepspeed_config_file"
    found: dict[str, Any] = {
        "ranks": arguments.num_processes,
        "precision": arguments.mixed_precision,
        "engine": "deepspeed" if arguments.use_deepspeed else "ddp",
    }
    if arguments.use_deepspeed:
        _, environment = launch.prepare_deepspeed_cmd_env(arguments)
        os.environ.update(environment)
        from accelerate.utils import DeepSpeedPlugin

        found["stage"] = DeepSpeedPlugin().zero_stage
    else:
        environment = launch.prepare_multi_gpu_env(arguments)
        os.environ.update(environment)
    if arguments.use_fsdp:
        plugin = FullyShardedDataParallelPlugin()
        found |= {
            "engine": f"fsdp{plugin.fsdp_version}",
            "reshards": plugin.reshard_after_forward,
            "recomputes": plugin.activation_checkpointing,
        }
    if arguments.use_parallelism_config:
        from accelerate import ParallelismConfig

        degrees = ParallelismConfig()
        found["degrees"] = [
            degrees.dp_replicate_size,
            degrees.dp_shard_size,
            degrees.tp_size,
            degrees.cp_size * degrees.sp_size,
        ]
    for key in [
        key for key in os.environ if key.startswith(("FSDP_", "PARALLELISM_", "ACCELERATE_"))
    ]:
        del os.environ[key]
    return found


def hf_trainer(folder: Path) -> dict[str, Any]:
    """Return what `HfArgumentParser` makes of the Trainer's arguments."""
    from transformers import HfArgumentParser, TrainingArguments

    os.chdir(folder)
    text = Path("trainer.yaml").read_text()
    if '"ds_config.json"' in text or "bf16: true" in text:  # these two look for accelerators
        text = text.replace("bf16: true", "bf16: false")
        Path("trainer.yaml").write_text(text)
    (found,) = HfArgumentParser(TrainingArguments).parse_yaml_file(
        "trainer.yaml", allow_extra_keys=True
    )
    return {
        "micro_batch": found.per_device_train_batch_size,
        "accumulation": found.gradient_accumulation_steps,
        "fsdp": bool(found.fsdp),
        "reshards": found.fsdp_plugin_args.get("reshard_after_forward") if found.fsdp else None,
        "stage": found.hf_deepspeed_config.config["zero_optimization"]["stage"]
        if found.deepspeed
        else None,
        "recomputes": bool(found.gradient_checkpointing)
        or bool(found.fsdp and found.fsdp_plugin_args.get("activation_checkpointing")),
        "optimizer": str(getattr(found.optim, "value", found.optim)),
    }


def maxtext(folder: Path) -> dict[str, Any]:
    """Return what MaxText's configuration makes of the overrides."""
    from maxtext.configs import pyconfig

    found = pyconfig.initialize(
        ["", str(folder / "maxtext.yml")],
        skip_jax_distributed_system=True,
        internal_compile=True,
        internal_compile_num_devices=int((folder / "ranks").read_text()),
    )
    return {
        "global_batch": found.global_batch_size_to_train_on,
        "policy": found.remat_policy,
        "length": found.max_target_length,
    }


if __name__ == "__main__":
    parser = {"hf-trainer": hf_trainer}.get(sys.argv[1]) or globals()[sys.argv[1]]
    print("PARSED", json.dumps([parser(Path(each).resolve()) for each in sys.argv[2:]]))  # noqa: T201
