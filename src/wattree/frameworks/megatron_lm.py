"""Megatron-LM: flags of `pretrain_gpt.py` in a script, and back from a script, flags or YAML."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from wattree.dotted import dotted
from wattree.errors import JobError
from wattree.frameworks.framework import FRAMEWORKS, ConcreteJob, Framework, Imported, Written
from wattree.frameworks.launch import hosts_to_fill_in, parsed, torchrun
from wattree.frameworks.megatron import (
    FACTS,
    IGNORED,
    KNOBS,
    OPTIMIZERS,
    TRAITS,
    connections,
    muon_misfits,
    predictions_of,
    strategy_arguments,
    strategy_misfits,
)
from wattree.frameworks.megatron_forks import (
    as_megatron_lm,
    family_of,
    started_flags,
    take_started,
)
from wattree.frameworks.megatron_model import (
    MOCK_TOKENIZER,
    assumed_vocabulary,
    given_model,
    model_arguments,
    model_block,
    model_misfits,
)
from wattree.frameworks.megatron_read import (
    length_of,
    optimizer_of,
    read_data,
    read_strategy,
    take_devices,
)
from wattree.frameworks.megatron_read_traits import (
    gradient_traits,
    moment_traits,
    note_slower_kernels,
    read_traits,
)
from wattree.frameworks.models import (
    named_by_sizes,
    with_predictions,
)
from wattree.frameworks.settings import Settings
from wattree.frameworks.shell_flags import (
    LAUNCHER_FLAGS,
    script_text,
    without_comments,
)
from wattree.units import whole_number

_FAMILIES: Final = (
    *("megatron-lm", "megatron-core", "megatron-te", "megatron-lm-2021", "megatron-deepspeed"),
)
#: Precision of a job → flags.
_PRECISIONS: Final[dict[str, dict[str, Any]]] = {
    "bf16": {"bf16": True},
    "fp16": {"fp16": True},
    "fp32": {},
    "fp8": {"bf16": True, "fp8_format": "hybrid", "fp8_recipe": "tensorwise"},
    "mxfp8": {"bf16": True, "fp8_format": "e4m3", "fp8_recipe": "mxfp8"},
    "nvfp4": {"bf16": True, "fp4_format": "e2m1", "fp4_recipe": "nvfp4"},
}
#: Flags that say the opposite of their destination.
_NEGATED: Final = {
    "no_overlap_p2p_communication": "overlap_p2p_comm",
    "no_add_bias_linear": "add_bias_linear",
}
#: The program that a script starts, and the key it is read under.
_PROGRAM: Final = re.compile(r"\b(pretrain_[a-z0-9_]+)\.py\b")
#: The launcher whose `--nnodes` is 1 unless it is given.
_TORCHRUN: Final = re.compile(r"\btorchrun\b|\btorch\.distributed\.(?:run|launch)\b")
_STARTED: Final = "started_program"
#: Names of earlier versions, and of the launcher.
_RENAMED: Final = {
    "nproc_per_node": "gpus_per_node",
    "num_gpus": "gpus_per_node",  # of the launcher `deepspeed`, as the next
    "num_nodes": "nnodes",
    "model_parallel_size": "tensor_model_parallel_size",
    "batch_size": "micro_batch_size",
    "use_custom_fsdp": "use_megatron_fsdp",
    "pad_vocab_size_to": "padded_vocab_size",
    # Of Megatron-DeepSpeed: other releases of the same kernels.
    **dict.fromkeys(("use_flash_attn_v2", "use_flash_attn_triton"), "use_flash_attn"),
}
#: Of a gradient in 16 bits. [B]
_HALF_BYTES: Final = 2.0
#: The learning rate that is written where a job says none.
_LEARNING_RATE: Final = 3e-4


def write(concrete: ConcreteJob) -> Written:
    """Return the script that starts a job with Megatron-LM."""
    found = strategy_misfits(concrete) | muon_misfits(concrete)
    if concrete.shape is None:
        found["model"] = f"{concrete.model.name} is no transformer of a known family"
    else:
        found |= model_misfits(concrete.shape) | _prediction_misfits(concrete)
    if found or concrete.shape is None:
        return Written(misfits=found)
    groups = {
        "MODEL_ARGS": model_arguments(concrete.shape) | _model_extras(concrete),
        "STRATEGY_ARGS": _flags(strategy_arguments(concrete), concrete),
        "TRAINING_ARGS": _training(concrete),
        "DATA_ARGS": {"mock_data": True, **MOCK_TOKENIZER},
    }
    arrays = "\n".join(_array(name, arguments) for name, arguments in groups.items())
    program = " \\\n    ".join(
        ["pretrain_gpt.py", *(f'"${{{name}[@]}}"' for name in groups), '"$@"']
    )
    queues = f"export CUDA_DEVICE_MAX_CONNECTIONS={connections(concrete)}\n"
    return Written(
        launch=f'{queues}{arrays}\n\ncd "${{MEGATRON_LM:?}}"\n' + torchrun(concrete, program),
        fill_in=(
            "`MEGATRON_LM` in the environment of `launch.sh`: folder of Megatron-LM's repository.",
            "`DATA_ARGS` in `launch.sh`: data and tokenizer in place of mock data (`--data-path`, "
            "`--tokenizer-type`, `--tokenizer-model`).",
            "`TRAINING_ARGS`: length, learning rate and its schedule; `--save` and `--load` for "
            "checkpoints.",
            f"`MODEL_ARGS`: {_unwritten(concrete)}.",
            *hosts_to_fill_in(concrete),
        ),
        assumed=_assumed(concrete),
    )


def _prediction_misfits(concrete: ConcreteJob) -> dict[str, str]:
    """Return why modules of multi-token prediction do not start (`validate_args`)."""
    assert concrete.shape is not None
    kind = model_arguments(concrete.shape)["position_embedding_type"]
    if not predictions_of(concrete) or kind in ("rope", "none"):
        return {}
    needed = "expected rope or none, which --mtp-num-layers needs"
    return {"model.arguments": f"predictions: found --position-embedding-type {kind}, {needed}"}


def _unwritten(concrete: ConcreteJob) -> str:
    """Return the arguments of a model that neither its sizes nor its configuration say."""
    found = ["scaling of positions, if the model has any"]
    if _rotary_base(concrete) is None:
        found.append("`--rotary-base`, if not 10,000")
    if _stated(concrete, "rms_norm_eps", "layer_norm_eps") is None:
        found.append("`--norm-epsilon`, if not 1e-5")
    shape = concrete.shape
    if shape is not None and shape.experts:
        if shape.architecture not in FACTS["routers"]:
            found.append("the router's `--moe-router-score-function` and load balancing")
        if _stated(concrete, "routed_scaling_factor") is None:
            found.append("`--moe-router-topk-scaling-factor`, if it scales")
    return "; ".join(found)


def _assumed(concrete: ConcreteJob) -> tuple[str, ...]:
    said = []
    if concrete.job.training.steps == 1:
        said.append("100 steps: the job does not say how many")
    if concrete.job.training.learning_rate is None:
        said.append(f"learning rate {_LEARNING_RATE:g}: the job does not say which")
    if concrete.options.memory.recompute.startswith("block_"):
        said.append("the first layers of each chunk are recomputed, not every N-th")
    return tuple(said)


def _model_extras(concrete: ConcreteJob) -> dict[str, Any]:
    extras: dict[str, Any] = {"use_mcore_models": True}
    extras["mtp_num_layers"] = predictions_of(concrete) or None
    longest, shape = concrete.job.data.sequence_length, concrete.shape
    if shape is not None:
        longest = max(shape.max_positions, longest)
    extras["max_position_embeddings"] = longest
    if (base := _rotary_base(concrete)) is not None:
        extras["rotary_base"] = base
    if (epsilon := _stated(concrete, "rms_norm_eps", "layer_norm_eps")) is not None:
        extras["norm_epsilon"] = epsilon
    if shape is not None and shape.experts:
        extras |= {"moe_grouped_gemm": True, **FACTS["routers"].get(shape.architecture, {})}
        if (scaling := _stated(concrete, "routed_scaling_factor")) is not None:
            extras["moe_router_topk_scaling_factor"] = scaling
    return extras


def _stated(concrete: ConcreteJob, *keys: str) -> float | None:
    """Return a number of the model's configuration; None where it states none."""
    config = concrete.config.get("text_config") or concrete.config
    return next((found for key in keys if isinstance(found := config.get(key), int | float)), None)


def _rotary_base(concrete: ConcreteJob) -> int | None:
    """Return the base of rotary positions; None where the model's configuration states none."""
    config = concrete.config.get("text_config") or concrete.config
    parameters = config.get("rope_parameters")  # since release 5 of the transformers library
    nested = parameters.get("rope_theta") if isinstance(parameters, dict) else None
    base = config.get("rope_theta", nested)
    return round(base) if isinstance(base, int | float) and base > 0 else None


def _flags(arguments: Mapping[str, Any], concrete: ConcreteJob) -> dict[str, Any]:
    """Return arguments as flags that the parser has."""
    found = dict(arguments)
    for name in ("cpu_offloading", "train_iters", "lr"):
        found.pop(name, None)
    virtual = found.pop("virtual_pipeline_model_parallel_size", 0)
    if virtual:
        found["num_layers_per_virtual_pipeline_stage"] = concrete.stage_layers[0]
    if found.pop("overlap_p2p_comm", True) is False:
        found["no_overlap_p2p_communication"] = True
    for name in ("check_for_nan_in_loss_and_grad", "gradient_accumulation_fusion"):
        if found.pop(name, True) is False:
            found[f"no_{name}"] = True
    if found.get("use_megatron_fsdp"):
        found["ckpt_format"] = "fsdp_dtensor"
    return found


def _training(concrete: ConcreteJob) -> dict[str, Any]:
    training = concrete.job.training
    return {
        **_PRECISIONS.get(concrete.job.precision, {}),
        **_gradients(concrete),
        "train_iters": training.steps if training.steps > 1 else 100,
        "lr": training.learning_rate or _LEARNING_RATE,
        "eval_iters": 0,
        "log_interval": 1,
        "log_throughput": True,
    }


def _gradients(concrete: ConcreteJob) -> dict[str, Any]:
    """Return the flag that sums gradients in other than the default format: fp32 with bf16."""
    is_bf16 = "bf16" in _PRECISIONS.get(concrete.job.precision, {})
    is_wide = concrete.software.reduce_bytes > _HALF_BYTES
    if is_bf16 is not is_wide and concrete.job.precision != "fp32":
        return {"grad_reduce_in_bf16" if is_bf16 else "accumulate_allreduce_grads_in_fp32": True}
    return {}


def _array(name: str, arguments: Mapping[str, Any]) -> str:
    lines = [f"{name}=("]
    for argument, value in arguments.items():
        if value is False or value is None:
            continue
        words = value if isinstance(value, list) else [] if value is True else [value]
        flag = f"--{argument.replace('_', '-')}"
        lines.append("    " + " ".join([flag, *(shlex.quote(str(word)) for word in words)]))
    return "\n".join([*lines, ")"])


# ---------------------------------------------------------------- and back


def parse(path: Path) -> dict[str, Any]:
    """Return the arguments of a script, a list of flags or a YAML file, by destination."""
    if path.suffix in (".yaml", ".yml"):
        whole = parsed(path)
        whole = whole.get("MODEL_ARGS", whole)
        given = {str(key).rsplit(".", 1)[-1]: value for key, value in dotted(whole)}
    else:
        text = script_text(path)
        given = started_flags(text)
        if given and (program := _PROGRAM.search(without_comments(text))) is not None:
            given[_STARTED] = program[1]
        if "nproc_per_node" in given and _TORCHRUN.search(text):
            given.setdefault("nnodes", "1")
    if not given:
        raise JobError(str(path), ["found no flags, expected arguments of pretrain_gpt.py"])
    found: dict[str, Any] = {}
    for key, value in given.items():
        flag = key.removeprefix("--").replace("-", "_")
        name = _RENAMED.get(flag, flag)
        found[_NEGATED.get(name, name)] = not value if name in _NEGATED else value
    return found


def read(settings: Settings) -> Imported:
    """Return what arguments of Megatron-LM say."""
    software = family_of(settings)
    as_megatron_lm(settings)
    take_devices(settings)
    program = settings.text(_STARTED)
    if program in FACTS["foreign_programs"]:
        kind = FACTS["foreign_programs"][program]
        settings.problem("", f"{program}.py trains {kind}, expected pretrain_gpt.py or similar")
        settings.check()
    if "add_bias_linear" in settings and not settings.flag("add_bias_linear", default=True):
        settings.put("disable_bias_linear", value=True)
    take_started(settings)
    sequence = settings.counted("sequence_length", "seq_length")
    model, layers, has_experts = given_model(settings) or _model(settings, program, sequence)
    settings.check()
    strategy = read_strategy(settings, layers=layers, has_experts=has_experts, defaults={})
    data = read_data(settings, strategy, sequence)
    settings.value("ckpt_format")
    note_slower_kernels(settings, has_experts=has_experts)
    precision = _precision(settings)
    training = length_of(settings, data["global_batch"])
    if "lr" in settings:
        training["learning_rate"] = settings.number("lr", _LEARNING_RATE)
    return Imported(
        model=with_predictions(model, settings.count("mtp_num_layers", 0, least=0)),
        data=data,
        strategy=strategy,
        precision=precision,
        optimizer=optimizer_of(settings),
        traits=read_traits(settings, has_experts=has_experts)
        | gradient_traits(settings, precision, software)
        | moment_traits(settings),
        training=training,
        nodes=whole_number(str(settings.value("nnodes"))) or None,
        software=software,
    )


def _model(
    settings: Settings, program: str, sequence: int | None
) -> tuple[str | dict[str, Any], int, bool]:
    """Return the model of the sizes in a file, as a job has it, its layers, if it has experts."""
    least = sequence or 1
    block = model_block(settings, sequence=least) | FACTS["programs"].get(program, {})
    positions = settings.count("max_position_embeddings", least)
    if positions < least:
        settings.problem(
            "max_position_embeddings", f"found {positions}, expected seq_length {least} or more"
        )
    settings.check()
    if "vocab" not in block:
        block |= assumed_vocabulary(settings, block, positions)
    return named_by_sizes(block, positions), block["layers"], "experts" in block


def _precision(settings: Settings) -> str:
    fp8, recipe = settings.value("fp8_format"), settings.text("fp8_recipe", "delayed")
    fp4 = settings.value("fp4_format")
    settings.value("fp4_recipe")
    is_half, is_bf16 = settings.flag("fp16"), settings.flag("bf16")
    for key in ("fp8_amax_history_len", "fp8_amax_compute_algo", "fp8_param_gather", "fp8_margin"):
        settings.value(key)
    if fp4 is not None:
        return "nvfp4"
    if fp8 is not None:
        if recipe == "blockwise":
            settings.assume("fp8_recipe blockwise is taken as fp8 with one scale per tensor")
        return "mxfp8" if recipe == "mxfp8" else "fp8"
    if not (is_half or is_bf16):
        settings.assume("precision fp32: the file sets neither bf16 nor fp16")
    return "fp16" if is_half else "bf16" if is_bf16 else "fp32"


MEGATRON_LM: Final = FRAMEWORKS.register("megatron-lm")(
    Framework(
        name="megatron-lm",
        title="Megatron-LM",
        versions="Megatron-LM with Megatron-Core 0.16",
        source="github:NVIDIA/Megatron-LM, branch core_r0.16.0, megatron/training/arguments.py",
        software=_FAMILIES,
        knobs=KNOBS,
        precisions=tuple(_PRECISIONS),
        optimizers=tuple(OPTIMIZERS),
        traits=TRAITS,
        ignored=(*IGNORED, *LAUNCHER_FLAGS),
        left_out=tuple(FACTS["left_out"]),
        predicts=True,
        write=write,
        parse=parse,
        read=read,
    )
)
