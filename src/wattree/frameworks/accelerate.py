"""Accelerate: its YAML, DeepSpeed's JSON where that shards, and the command that launches both."""

from __future__ import annotations

from typing import Any, Final

from wattree.frameworks.accelerate_read import IGNORED, read_accelerate
from wattree.frameworks.command import read_command
from wattree.frameworks.deepspeed import FILE as ZERO_FILE
from wattree.frameworks.engines import (
    ENGINE_KEYS,
    ENGINE_TRAITS,
    NARROW_TRAITS,
    engine_misfits,
    engine_zero_json,
    makes_shards,
    parallelism_of,
    runs_all_again,
    stored_format,
)
from wattree.frameworks.found import Found, reader
from wattree.frameworks.framework import FRAMEWORKS, ConcreteJob, Framework, Written
from wattree.frameworks.launch import (
    ENTER,
    LEARNING_RATE,
    SAMPLES,
    as_json,
    as_yaml,
    assumed_rate,
    first_of,
    hosts_to_fill_in,
    model_files,
    on_cpus,
    parsed,
    script,
)
from wattree.frameworks.peft import adapter_misfits, adapter_needs, adapter_settings
from wattree.frameworks.settings import Settings
from wattree.frameworks.zero_json import CPU
from wattree.job.engines import DDP, DEEPSPEED, FSDP, engine_of
from wattree.job.problems import Problems

#: Precision → word of Accelerate.
PRECISIONS: Final = {"bf16": "bf16", "fp16": "fp16", "fp32": "no", "fp8": "fp8"}
#: That the script makes.
OPTIMIZERS: Final = ("adamw", "adam", "sgd", "rmsprop", "adafactor")
FILE: Final = "accelerate.yaml"
#: What tells each engine that there are no accelerators.
_ON_CPUS: Final = {DDP: "ACCELERATE_USE_CPU=true", DEEPSPEED: f"{CPU} ACCELERATE_TORCH_DEVICE=cpu"}
_HOSTS: Final = (
    '--machine_rank "${NODE_RANK:?}" --main_process_ip "${MASTER_ADDR:?}" '
    '--main_process_port "${MASTER_PORT:-29500}"'
)


def write(concrete: ConcreteJob) -> Written:
    """Return the files that start a job with Accelerate."""
    options = concrete.options
    misfits = adapter_misfits(concrete) | first_of(engine_misfits(concrete, options))
    if misfits or concrete.job.precision not in PRECISIONS:
        return Written(misfits=misfits)
    files, missing = model_files(concrete, made_in_shards=makes_shards(concrete.options))
    if engine_of(options) == DEEPSPEED:
        batch = {
            "train_micro_batch_size_per_gpu": options.pipeline.micro_batch,
            "gradient_accumulation_steps": concrete.micro_batches,
            "zero_allow_untested_optimizer": True,
        }
        files[ZERO_FILE] = as_json(batch | engine_zero_json(concrete))
    ranks = ("`NODE_RANK` in the environment of `launch.sh`: number of the host, from 0.",)
    return Written(
        files={FILE: as_yaml(_settings(concrete)), "train.py": script("accelerate"), **files},
        launch=ENTER + _command(concrete),
        fill_in=(
            SAMPLES,
            *missing,
            *adapter_needs(concrete),
            *hosts_to_fill_in(concrete),
            *(ranks if concrete.nodes > 1 else ()),
        ),
        assumed=assumed_rate(concrete),
    )


def _command(concrete: ConcreteJob) -> str:
    job, options = concrete.job, concrete.options
    engine = engine_of(options)
    words = [
        *([_ON_CPUS[engine]] if on_cpus(concrete) and engine != FSDP else []),
        f"accelerate launch --config_file {FILE}",
        *([_HOSTS] if concrete.nodes > 1 else []),
        f"train.py --config_name . --block_size {job.data.sequence_length}",
        f"--per_device_train_batch_size {options.pipeline.micro_batch}",
        f"--gradient_accumulation_steps {concrete.micro_batches}",
        f"--optim {job.optimizer} --learning_rate {job.training.learning_rate or LEARNING_RATE:g}",
    ]
    if stored := stored_format(concrete):
        words.append(f"--dtype {stored}")
    if job.training.steps > 1:
        words.append(f"--max_steps {job.training.steps}")
    reentrant = runs_all_again(concrete)
    if options.memory.recompute == "full" and (engine != FSDP or reentrant):
        words.append(f"--gradient_checkpointing{' --use_reentrant' if reentrant else ''}")
    if adapters := [_flag(*each) for each in adapter_settings(concrete).items()]:
        words.append(" ".join(each for each in adapters if each))
    return " \\\n    ".join([*words, '"$@"'])


def _flag(name: str, value: object) -> str:
    """Return an argument as a flag of the script; none for false."""
    if isinstance(value, bool):
        return f"--{name}" if value else ""
    return f"--{name} {','.join(value) if isinstance(value, list) else value}"


def _settings(concrete: ConcreteJob) -> dict[str, Any]:
    job, options = concrete.job, concrete.options
    engine = engine_of(options)
    mixed = "no" if stored_format(concrete) else PRECISIONS[job.precision]
    found: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": engine if options.ranks > 1 or engine == DEEPSPEED else "NO",
        # DeepSpeed's JSON says it there, and Accelerate refuses it twice.
        **({} if engine == DEEPSPEED else {"mixed_precision": mixed}),
        "num_machines": concrete.nodes,
        "num_processes": options.ranks,
        "machine_rank": 0,
        "rdzv_backend": "static",
        "same_network": True,
    }
    if engine == FSDP:
        found["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": options.traffic.reshard_after_forward,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            # Checkpoints of FSDP stop early.
            "fsdp_activation_checkpointing": options.memory.recompute == "full"
            and not runs_all_again(concrete),
            "fsdp_offload_params": options.traffic.offload.parameters is not None,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }
    if engine == DEEPSPEED:
        found["deepspeed_config"] = {
            "deepspeed_config_file": ZERO_FILE,
            "zero3_init_flag": options.memory.sharding == "zero3",
            # Without it one host starts all others by pdsh.
            **({"deepspeed_multinode_launcher": "standard"} if concrete.nodes > 1 else {}),
        }
    if parallel := parallelism_of(options):
        found["parallelism_config"] = {f"parallelism_config_{k}": v for k, v in parallel.items()}
    if concrete.compiled:
        found["dynamo_config"] = {"dynamo_backend": "INDUCTOR"}
    if job.precision == "fp8":
        found["fp8_config"] = {"backend": "TE"}
    return found


def _find(settings: Settings, problems: Problems) -> Found | None:
    is_command = settings.path.suffix not in {".yaml", ".yml", ".json"}
    if is_command:
        return read_command(settings.path, settings.given.model, problems)
    return read_accelerate(settings.path, problems)


FRAMEWORKS.register("accelerate")(
    Framework(
        name="accelerate",
        title="Accelerate",
        versions="accelerate 1.15.0",
        source="https://huggingface.co/docs/accelerate",
        software=("accelerate",),
        knobs=ENGINE_KEYS,
        precisions=tuple(PRECISIONS),
        optimizers=OPTIMIZERS,
        traits={**ENGINE_TRAITS, **NARROW_TRAITS},
        adapts=True,
        ignored=IGNORED,
        write=write,
        parse=parsed,
        read=reader(_find, parsed),
    )
)
