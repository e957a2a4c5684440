"""torchtitan out: settings by section, as TOML and as flags, and `torchrun` on its training script.

Releases up to 0.2.2 read the TOML, later ones the flags; `launch.sh` starts the one installed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from wattree.cost import software_family
from wattree.cost.families import VERSIONS
from wattree.frameworks.framework import FRAMEWORKS, ConcreteJob, Framework, Imported, Written
from wattree.frameworks.launch import hosts_to_fill_in, torchrun
from wattree.frameworks.settings import Settings
from wattree.frameworks.toml_text import toml_text
from wattree.frameworks.torchtitan_flags import (
    SINCE,
    flags_and_function,
    lacking,
    only_later,
    parse,
)
from wattree.frameworks.torchtitan_read import (
    FACTS,
    GATHERED_AGAIN,
    HOST_OFFLOAD,
    SCHEDULES,
    read,
)
from wattree.strategy import Offload

_FILE: Final = "train.toml"
#: Month of the last release that reads it.
_LAST_TOML: Final = VERSIONS["torchtitan"]["0.2.2"]
#: Named parts of `module_fqns_per_model_part` around the layers.
_FIRST, _LAST = ["tok_embeddings"], ["norm", "output"]
_OPTIMIZERS: Final = {"adamw": "AdamW", "adam": "Adam"}
#: Of a parameter in 16 bits. [B]
_HALF_BYTES: Final = 2.0
#: Trait → values that have a setting.
_TRAITS: Final = {
    "row_scales": (True,),
    "gather_bytes": (1.0,),
    "parameter_bytes": (_HALF_BYTES,),
    "fused_optimizer": (False,),
    "compiled_loss_bytes": (0.0,),
    **SINCE,
    "fused_loss": (True, False),
    "attention_kernels": ("ampere", "torch"),
}
_CONVERTERS: Final = {"fp8": "quantize.linear.float8", "mxfp8": "quantize.linear.mx"}


def write(concrete: ConcreteJob) -> Written:
    """Return the files that start a job with torchtitan."""
    found = _misfits(concrete)
    model, flavor = _flavor(concrete)
    if not model:
        known = [
            name
            for flavors in FACTS["models"].values()
            for each in flavors.values()
            for name in each
        ]
        found["model"] = (
            f"found {concrete.model_name or concrete.model.name}, expected a model of torchtitan's "
            f"registry: {', '.join(known)}; for others, register a flavor there, or use "
            "hf-trainer, accelerate or deepspeed, which take a config.json"
        )
    later, lacks = only_later(concrete), lacking(concrete)
    if lacks:
        why = f"no release has it with {', '.join(lacks.values())}"
        found |= dict.fromkeys(later, why)
    if found:
        return Written(misfits=found)
    sections = _sections(concrete, model, flavor)
    files, head, program = {}, "", '"$@"'
    toml = "" if later else f'--job.config_file "$here/{_FILE}"'
    if toml:
        files[_FILE] = toml_text(sections, head="Written by `wattree export`.")
        program = f"{toml} {program}"
    if not lacks:
        file, head, program = flags_and_function(concrete, sections, toml)
        files |= file
    start = torchrun(concrete, f"-m torchtitan.train \\\n    {program}")
    return Written(
        files=files,
        launch='here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"\n'
        f"export PYTORCH_ALLOC_CONF=expandable_segments:True\n{head}{start}",
        fill_in=(
            f"{', '.join(files)}: folder of the tokenizer, `hf_assets_path` (torchtitan's "
            "scripts/download_hf_assets.py fetches it), and `dataset`, the data.",
            "`checkpoint` settings: whether and where checkpoints are written.",
            *hosts_to_fill_in(concrete),
        ),
        assumed=(*_releases(later, lacks), *_assumed(concrete)),
    )


def _releases(later: dict[str, str], lacks: dict[str, str]) -> tuple[str, ...]:
    """Return what to say of the releases that the files start."""
    if lacks:
        return (
            f"torchtitan 0.2.2, the last that reads TOML: 0.3 has no {', '.join(lacks.values())}",
        )
    if later:
        return (f"torchtitan 0.3: earlier releases have no {', '.join(later.values())}",)
    return (
        "`launch.sh` starts the release that is installed: 0.3 with flags, 0.2.2 with the TOML, "
        f"whose attention and loss `released: {_LAST_TOML}` predicts",
    )


def _assumed(concrete: ConcreteJob) -> tuple[str, ...]:
    said = []
    if concrete.job.training.steps == 1:
        said.append("100 steps: the job does not say how many")
    kind, is_piped = concrete.options.memory.sharding, concrete.options.pp > 1
    if kind == "zero2" and concrete.micro_batches > 1 and not is_piped:
        said.append(GATHERED_AGAIN)
    if is_piped and kind != "none":
        said.append(
            "in a pipeline FSDP2 keeps gradients whole until the last micro-batch and then reduces "
            "them once"
        )
    return tuple(said)


def _flavor(concrete: ConcreteJob) -> tuple[str, str]:
    """Return model and flavor of torchtitan's registry; empty if it has none."""
    for model, flavors in FACTS["models"].items():
        for flavor, names in flavors.items():
            if concrete.model_name and concrete.model_name in names:
                return model, flavor
    return "", ""


def _misfits(concrete: ConcreteJob) -> dict[str, str]:
    options, found = concrete.options, {}
    sharding, traffic = options.memory.sharding, options.traffic
    if sharding == "none" and (options.cp > 1 or options.ep > 1):
        found["strategy.sharding"] = "cp and ep ranks shard the model's state; use zero3"
    if sharding == "hybrid" and options.cp * options.ep > 1:
        found["strategy.sharding"] = (
            "hybrid shards over cp and ep ranks as well, which hybrid here does not; use zero3"
        )
    if sharding == "zero3" and not traffic.reshard_after_forward:
        found["strategy.reshard_after_forward"] = "false with zero3 is zero2 there; use that"
    if options.cp > 1 and options.parallelism.context_order != "zigzag":
        found["strategy.context_order"] = "found contiguous, which no TOML can say; use zigzag"
    if traffic.offload not in (Offload(), HOST_OFFLOAD):
        found["strategy.offload"] = (
            "found other than {optimizer: host, parameters: host}, which enable_cpu_offload moves"
        )
    if traffic.offload == HOST_OFFLOAD and sharding == "none":
        found["strategy.offload"] = "needs sharding: FSDP2 offloads what it shards"
    if traffic.overlap_tensor and not concrete.compiled:
        found["strategy.overlap_tensor"] = "asynchronous tensor parallelism needs compile: true"
    return found | _trait_misfits(concrete)


def _trait_misfits(concrete: ConcreteJob) -> dict[str, str]:
    job, software, found = concrete.job, concrete.software, {}
    masters_bytes = software_family(job.software).with_traits(job.traits).master_bytes
    if software.parameter_bytes == _HALF_BYTES and masters_bytes:
        found["traits.parameter_bytes"] = "found 2 with masters; expected master_bytes: 0, too"
    narrow = software.gather_bytes == 1.0
    if narrow and (job.precision != "fp8" or software.row_scales):
        found["traits.gather_bytes"] = "found 1: fp8 with one scale per tensor alone is gathered so"
    return found


def _sections(concrete: ConcreteJob, model: str, flavor: str) -> dict[str, dict[str, Any]]:
    job, options = concrete.job, concrete.options
    share = job.data.global_batch // options.replicas
    by_itself = job.traits.get("compiled_loss_bytes") == 0.0  # the loss, as PyTorch runs it
    micro_batch = options.pipeline.micro_batch
    found: dict[str, dict[str, Any]] = {
        "job": {"description": f"{concrete.title}, planned by Wattree"},
        "model": {"name": model, "flavor": flavor, "hf_assets_path": f"./assets/hf/{flavor}"},
        "optimizer": {"name": _OPTIMIZERS.get(job.optimizer, "")},
        "training": {
            "local_batch_size": share if options.pp > 1 else micro_batch,
            "global_batch_size": job.data.global_batch,
            "seq_len": job.data.sequence_length,
            "steps": job.training.steps if job.training.steps > 1 else 100,
            "dataset": "c4",
            "mixed_precision_param": "float32" if job.precision == "tf32" else "bfloat16",
            "enable_cpu_offload": options.traffic.offload == HOST_OFFLOAD,
        },
        "parallelism": _parallelism(concrete),
        "activation_checkpoint": _checkpointing(options.memory.recompute),
        "compile": {
            "enable": concrete.compiled,
            "components": ["model"] if by_itself else ["model", "loss"],
        },
        "checkpoint": {"enable": False},
    }
    if options.traffic.overlap_optimizer:
        found["optimizer"]["early_step_in_backward"] = True
    if job.training.learning_rate is not None:
        found["optimizer"]["lr"] = job.training.learning_rate
    if concrete.software.parameter_bytes == _HALF_BYTES:
        found["training"]["dtype"] = "bfloat16"
    if not concrete.software.fused_optimizer:
        found["optimizer"]["implementation"] = "foreach"
    if converter := _CONVERTERS.get(job.precision):
        found["model"]["converters"] = [converter]
        if job.precision == "fp8":
            by_row, narrow = job.traits.get("row_scales"), concrete.software.gather_bytes == 1.0
            found[converter] = {
                "recipe_name": "rowwise" if by_row else "tensorwise",
                "filter_fqns": ["output"],
                **({"enable_fsdp_float8_all_gather": True} if narrow else {}),
            }
    return found


def _parallelism(concrete: ConcreteJob) -> dict[str, Any]:
    options = concrete.options
    inner = options.fsdp * options.ep if options.memory.sharding == "hybrid" else 0
    is_plain = options.memory.sharding == "none"
    shard = inner or (1 if is_plain else options.replicas)
    keeps = options.memory.sharding == "zero2" or not options.traffic.reshard_after_forward
    found: dict[str, Any] = {
        "data_parallel_replicate_degree": options.replicas // shard,
        "data_parallel_shard_degree": shard,
        "fsdp_reshard_after_forward": "never" if keeps else "always",
        "tensor_parallel_degree": options.tp,
        "enable_async_tensor_parallel": bool(options.traffic.overlap_tensor),
        "context_parallel_degree": options.cp,
        "pipeline_parallel_degree": options.pp,
    }
    if options.cp > 1:
        way = options.parallelism.context
        found["context_parallel_rotate_method"] = {"gather": "allgather", "ring": "alltoall"}.get(
            way, way
        )
    if concrete.shape is not None and concrete.shape.experts:
        over_tensor = options.parallelism.expert_over_tensor
        found["expert_parallel_degree"] = options.ep * (options.tp if over_tensor else 1)
        found["expert_tensor_parallel_degree"] = 1 if over_tensor else options.tp
    return found | (_pipeline(concrete) if options.pp > 1 else {})


def _pipeline(concrete: ConcreteJob) -> dict[str, Any]:
    options, layers = concrete.options, concrete.model.layers
    pipeline, chunks = options.pipeline, options.pp * options.pipeline.virtual_stages
    words = {meaning: word for word, meaning in SCHEDULES.items()}
    found: dict[str, Any] = {
        "pipeline_parallel_schedule": words.get(pipeline.schedule, pipeline.schedule),
        "pipeline_parallel_microbatch_size": pipeline.micro_batch,
    }
    if pipeline.stage_layers is None and layers % chunks == 0:
        return found | {
            "pipeline_parallel_layers_per_stage": layers // chunks,
            "pipeline_parallel_first_stage_less_layers": 0,
            "pipeline_parallel_last_stage_less_layers": 0,
        }
    return found | {"module_fqns_per_model_part": _parts(concrete.stage_layers)}


def _parts(stage_layers: tuple[int, ...]) -> list[list[str]]:
    """Return the modules of each chunk of a pipeline, by their names in the model."""
    ends = [sum(stage_layers[: index + 1]) for index in range(len(stage_layers))]
    parts = [
        [f"layers.{layer}" for layer in range(end - count, end)]
        for end, count in zip(ends, stage_layers, strict=True)
    ]
    parts[0] = [*_FIRST, *parts[0]]
    parts[-1] = [*parts[-1], *_LAST]
    return parts


def _checkpointing(recompute: str) -> dict[str, str]:
    if recompute in ("none", "full"):
        return {"mode": recompute}
    option = recompute.removeprefix("block_") if recompute.startswith("block_") else "op"
    return {"mode": "selective", "selective_ac_option": option}


def _read(settings: Settings) -> Imported:
    """Return the settings of a configuration; a TOML is of the last release that reads one."""
    found = read(settings)
    if "config" in settings:  # a function of 0.3
        return found
    settings.assume(f"released {_LAST_TOML}: torchtitan 0.2.2 is the last that reads TOML")
    return replace(found, released=_LAST_TOML)


TORCHTITAN: Final = FRAMEWORKS.register("torchtitan")(
    Framework(
        name="torchtitan",
        title="torchtitan",
        versions="torchtitan 0.2.2 and 0.3.0",
        since="2025-10",
        source="github:pytorch/torchtitan, torchtitan/config/job_config.py and configs.py",
        software=("torchtitan",),
        knobs=frozenset(
            {
                *("context_order", "expert_over_tensor", "stage_layers", "overlap_tensor"),
                *("overlap_optimizer", "reshard_after_forward", "offload"),
            }
        ),
        precisions=("bf16", "fp8", "mxfp8", "tf32"),
        optimizers=tuple(_OPTIMIZERS),
        traits=_TRAITS,
        ignored=tuple(FACTS["ignored"]),
        write=write,
        parse=parse,
        read=_read,
    )
)
