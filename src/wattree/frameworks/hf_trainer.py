"""The Trainer of the transformers library: its arguments as YAML, and a script that takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

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
from wattree.frameworks.found import reader
from wattree.frameworks.framework import FRAMEWORKS, ConcreteJob, Framework, Written
from wattree.frameworks.hf_trainer_read import (
    IGNORED,
    MIB,
    PRECISIONS,
    read_arguments,
)
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
    torchrun,
)
from wattree.frameworks.peft import adapter_misfits, adapter_needs, adapter_settings
from wattree.frameworks.trainer_arguments import (
    ATTENTION,
    LIGER_LOSS,
    LIGER_MODULES,
    OPTIMIZER_ARGUMENTS,
    OPTIMIZERS,
)
from wattree.frameworks.zero_json import CPU
from wattree.job.engines import DDP, DEEPSPEED, FSDP, engine_of

FILE: Final = "trainer.yaml"
#: Filled in by the Trainer, from its own arguments.
_AUTOMATIC: Final = (
    *("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"),
)


def write(concrete: ConcreteJob) -> Written:
    """Return the files that start a job with the Trainer."""
    misfits = _misfits(concrete)
    job = concrete.job
    if misfits or job.precision not in PRECISIONS or job.optimizer not in OPTIMIZERS:
        return Written(misfits=misfits)
    files, missing = model_files(concrete, made_in_shards=makes_shards(concrete.options))
    is_deepspeed = engine_of(concrete.options) == DEEPSPEED
    if is_deepspeed:
        own = dict.fromkeys(_AUTOMATIC, "auto") | {"zero_allow_untested_optimizer": True}
        files[ZERO_FILE] = as_json(engine_zero_json(concrete) | own)
    start = f"{CPU} " if on_cpus(concrete) and is_deepspeed else ""
    return Written(
        files={FILE: as_yaml(_arguments(concrete)), "train.py": script("hf_trainer"), **files},
        launch=f"{ENTER}{start}{torchrun(concrete, f'train.py {FILE}')}",
        fill_in=(
            SAMPLES,
            f"`max_steps` and `save_strategy` in {FILE}: how long, and what is saved.",
            *missing,
            *adapter_needs(concrete),
            *hosts_to_fill_in(concrete),
        ),
        assumed=assumed_rate(concrete),
    )


def _misfits(concrete: ConcreteJob) -> dict[str, str]:
    options, found = concrete.options, {}
    size = options.traffic.gradient_bucket_bytes
    if engine_of(options) == DDP and size is not None:  # an argument of the Trainer's own
        if size % MIB:
            found["strategy.bucket"] = f"found {size:g} B, expected whole MiB"
        options = options.changed(gradient_bucket_bytes=None)
    return found | adapter_misfits(concrete) | first_of(engine_misfits(concrete, options))


def _arguments(concrete: ConcreteJob) -> dict[str, Any]:
    job, options = concrete.job, concrete.options
    engine, recomputes = engine_of(options), options.memory.recompute == "full"
    micro, stored = options.pipeline.micro_batch, stored_format(concrete)
    found: dict[str, Any] = {
        "config_name": ".",
        "block_size": job.data.sequence_length,
        "output_dir": "output",
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": concrete.micro_batches,
        **({"max_steps": job.training.steps} if job.training.steps > 1 else {}),
        "learning_rate": job.training.learning_rate or LEARNING_RATE,
        "optim": OPTIMIZERS[job.optimizer],
        **({"dtype": stored} if stored else PRECISIONS[job.precision]),
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
    }
    if on_cpus(concrete) and engine != DEEPSPEED:
        found["use_cpu"] = True
    if arguments := OPTIMIZER_ARGUMENTS.get(job.optimizer):
        found["optim_args"] = arguments
    reentrant = recomputes and runs_all_again(concrete)
    if recomputes and (engine != FSDP or reentrant):
        found["gradient_checkpointing"] = True
    if reentrant:
        found["gradient_checkpointing_kwargs"] = {"use_reentrant": True}
    if engine == FSDP:
        found["fsdp"] = True
        found["fsdp_config"] = {
            "version": 2,
            "reshard_after_forward": options.traffic.reshard_after_forward,
            "cpu_offload": options.traffic.offload.parameters is not None,
            # Checkpoints of FSDP stop early.
            "activation_checkpointing": recomputes and not reentrant,
        }
    if engine == DEEPSPEED:
        found["deepspeed"] = ZERO_FILE
    elif (size := options.traffic.gradient_bucket_bytes) is not None:
        found["ddp_bucket_cap_mb"] = round(size / MIB)
    if parallel := parallelism_of(options):
        found["parallelism_config"] = parallel
    if concrete.compiled:
        found["torch_compile"] = True
    found |= _liger(job.traits) | _attention(job.traits)
    return found | adapter_settings(concrete)


def _attention(traits: Mapping[str, Any]) -> dict[str, str]:
    """Return the argument of the kernels of attention that a job states."""
    alike = (word for word, own in ATTENTION.items() if own.items() <= traits.items())
    return {"attn_implementation": word} if (word := next(alike, "")) else {}


def _liger(traits: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that replace the loss, modules written out in Python, or both."""
    loss, modules = traits.get("fused_loss") is True, traits.get("written_out") is False
    if not (loss or modules):
        return {}
    without = {} if loss else {LIGER_LOSS: False}
    without |= {} if modules else dict.fromkeys(LIGER_MODULES, False)
    return {"use_liger_kernel": True, **({"liger_kernel_config": without} if without else {})}


FRAMEWORKS.register("hf-trainer")(
    Framework(
        name="hf-trainer",
        title="the Trainer of the transformers library",
        versions="transformers 5.23 with accelerate 1.15.0",
        source="https://huggingface.co/docs/transformers/main_classes/trainer",
        software=("hf-trainer",),
        knobs=ENGINE_KEYS,
        precisions=tuple(PRECISIONS),
        optimizers=tuple(OPTIMIZERS),
        traits={
            **ENGINE_TRAITS,
            **NARROW_TRAITS,
            "fused_loss": (True,),
            "written_out": (False,),
            "fused_attention": (False,),
            "attention_kernels": ("ampere", "native"),
        },
        adapts=True,
        ignored=IGNORED,
        programs=("LLaMA-Factory", "Axolotl"),
        write=write,
        parse=parsed,
        read=reader(read_arguments, parsed),
    )
)
