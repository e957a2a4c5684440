"""torchtitan since 0.3, which reads no TOML: flags, and a function in Python of what none states.

`torchtitan.train --module MODULE --config FUNCTION` starts from what the function returns (model,
its number format, loss, data), and flags override its settings (torchtitan/config/manager.py).
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from wattree.cost.families import VERSIONS
from wattree.dotted import dotted
from wattree.errors import JobError, did_you_mean
from wattree.files import is_file
from wattree.frameworks.framework import ConcreteJob
from wattree.frameworks.named_files import file_next_to
from wattree.frameworks.shell_flags import script_text, shell_flags
from wattree.frameworks.toml_text import read_toml
from wattree.frameworks.torchtitan_read import FACTS

#: The module that an export writes its function to.
MODULE: Final = "wattree_config"
#: Number format → its converter, and how a function is named that has it.
_CONVERTERS: Final = {
    "fp8": ("Float8LinearConverter", 'filter_fqns=["lm_head"], ', "_float8"),
    "mxfp8": ("MXFP8LinearConverter", "", "_mxfp8"),
}
#: Of a moment in 16 bits. [B]
_HALF_BYTES: Final = 2.0
#: Trait → values that no release before 0.3 has settings for. It runs FlexAttention, as SDPA takes
#: no mask of documents (torchtitan/models/common/config_utils.py).
SINCE: Final[dict[str, tuple[object, ...]]] = {
    "fused_loss": (True,),
    "loss_chunks": tuple(range(2, 65)),
    "cuda_graphs": ("full",),
    "attention_kernels": ("ampere",),
    "first_moment_bytes": (_HALF_BYTES,),
    "second_moment_bytes": (_HALF_BYTES,),
}
#: What the head was called up to 0.2.2.
_HEAD: Final = re.compile(r"\boutput\b")
#: The subcommand that selects the kind of recomputation; it stands behind all flags.
_SUBCOMMAND: Final = re.compile(r"\bactivation[_-]checkpoint:(none|full|selective|memory-budget)\b")
_FUNCTION: Final = '''\
"""Model, loss, optimizer and data of the job, for torchtitan 0.3. Written by `wattree export`."""

from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.optimizer import default_adamw
{imports}from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.models.common.config_utils import decoder_vocab_size
from torchtitan.models.{model} import model_registry
from torchtitan.trainer import Trainer


def {name}():
    spec = model_registry("{flavor}"{converters})
    loss = CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(spec))
    return Trainer.Config(
        model_spec=spec,
        loss=ChunkedLossWrapper.Config(loss_fn=loss),
        optimizer=default_adamw(lr=8e-4),
        dataloader=HuggingFaceTextDataLoader.Config(dataset="c4"),
        hf_assets_path="./assets/hf/{flavor}",
    )
'''
#: torchtitan up to 0.2.2 has this module, and reads the TOML.
_EARLIER: Final = """\
python3 -c 'import torchtitan.config.job_config' 2> /dev/null && {{
    FLAGS=({toml}); RECOMPUTE=
}}
"""


def _function(model: str, flavor: str) -> str:
    """Return how the registry names its function of a flavor, as `qwen3_30b_a3b`."""
    return re.sub(r"[.-]", "_", f"{model}_{flavor}".lower())


#: Function of the registry → its model and flavor.
_FLAVORS: Final = {
    _function(model, flavor): {"model.name": model, "model.flavor": flavor}
    for group in ("models", "blocks")
    for model, flavors in FACTS[group].items()
    for flavor in flavors
}


def lacking(concrete: ConcreteJob) -> dict[str, str]:
    """Return key of a job → what 0.3 lacks for it, in words."""
    job, options, found = concrete.job, concrete.options, {}
    if job.released is not None and job.released < VERSIONS["torchtitan"]["0.3"]:
        found["released"] = f"attention and loss of {job.released}"
    if options.memory.recompute.startswith("block_"):
        found["strategy.recompute"] = "recomputation of some layers"
    if options.cp > 1 and options.parallelism.context != "gather":
        found["strategy.context"] = f"{options.parallelism.context} attention"
    if options.cp > 1 and concrete.model_name.startswith("gpt-oss"):
        found["strategy.cp"] = "context parallelism of attention of variable length"
    if options.traffic.overlap_optimizer:
        found["strategy.overlap_optimizer"] = "updates during backward"
    if options.ep > 1 and options.tp > 1 and not options.parallelism.expert_over_tensor:
        found["strategy.expert_over_tensor"] = "experts that tensor parallelism splits"
    return found | _lacking_traits(concrete)


def _lacking_traits(concrete: ConcreteJob) -> dict[str, str]:
    job, options, software, found = concrete.job, concrete.options, concrete.software, {}
    if job.precision == "fp8" and not job.traits.get("row_scales"):
        found["traits.row_scales"] = "fp8 with one scale per tensor"
    if job.data.sequence_length // options.cp % (job.traits.get("loss_chunks") or 1):
        found["traits.loss_chunks"] = "chunks of a loss that differ in length"
    if job.traits.get("attention_kernels") == "torch":
        found["traits.attention_kernels"] = "attention of `scaled_dot_product_attention`"
    if software.cuda_graphs == "full" and options.pp * options.ep > 1:
        found["traits.cuda_graphs"] = "CUDA graphs with pp or ep"
    if software.first_moment_bytes != software.second_moment_bytes:
        found["traits.first_moment_bytes"] = "narrow moments of one kind alone"
    return found


def only_later(concrete: ConcreteJob) -> dict[str, str]:
    """Return key of a job → what no release before 0.3 has of it, in words."""
    traits, options = concrete.job.traits, concrete.options
    found = {f"traits.{name}": name for name, values in SINCE.items() if traits.get(name) in values}
    splits = options.tp * options.pp > 1
    if options.memory.sharding == "none" and options.replicas > 1 and splits:
        found["strategy.sharding"] = "replicas with tp or pp"
    if options.tp > 1 and not options.parallelism.sequence_parallel:
        found["strategy.sequence_parallel"] = "tensor parallelism without sequence parallelism"
    if options.pp > 1 and concrete.model.architecture in FACTS["pipelines_since_0.3"]:
        found["strategy.pp"] = f"pipelines of {concrete.model_name}"
    return found


def flags_and_function(
    concrete: ConcreteJob, sections: Mapping[str, Mapping[str, Any]], toml: str
) -> tuple[dict[str, str], str, str]:
    """Return the file of the function, and the script around and behind `torchtitan.train`.

    Args:
        concrete: The job.
        sections: Settings as the TOML has them.
        toml: The flags that start an earlier release; empty if none can run the job.
    """
    model, flavor = sections["model"]["name"], sections["model"]["flavor"]
    kind, arguments, suffix = _CONVERTERS.get(concrete.job.precision, ("", "", ""))
    name = f"{_function(model, flavor)}{suffix}"
    compiled = f"{arguments}model_compile_enabled={concrete.compiled}"
    text = _FUNCTION.format(
        imports=f"from torchtitan.components.quantization import {kind}\n" if kind else "",
        converters=f", converters=[{kind}.Config({compiled})]" if kind else "",
        model=model,
        flavor=flavor,
        name=name,
    )
    lines = "".join(f"    {line}\n" for line in _flags(concrete, sections))
    head = (
        f"FLAGS=(\n    --module {MODULE} --config {name}\n{lines})\n"
        f"RECOMPUTE=activation_checkpoint:{sections['activation_checkpoint']['mode']}\n"
        + (_EARLIER.format(toml=toml) if toml else "")
        + 'export PYTHONPATH="$here:${PYTHONPATH:-}"\n'
    )
    return {f"{MODULE}.py": text}, head, '"${FLAGS[@]}" "$@" $RECOMPUTE'


def _flags(concrete: ConcreteJob, sections: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield a flag with its value for each setting that 0.3 has."""
    renamed = {old: new for new, old in FACTS["since_0.3"].items()}
    sequence = concrete.job.data.sequence_length // concrete.options.cp
    chunks = int(concrete.software.loss_chunks)
    later: dict[str, Any] = {
        "training.disable_cuda_graphs": concrete.software.cuda_graphs != "full",
        "loss.num_chunks": math.gcd(chunks, sequence) if concrete.software.fused_loss else 1,
    }
    if concrete.options.tp > 1 and not concrete.options.parallelism.sequence_parallel:
        later["parallelism.enable_sequence_parallel"] = False
    if concrete.software.first_moment_bytes == _HALF_BYTES:
        later["optimizer.implementation"] = "fused_opt_states_bf16"
    for key, value in {**dict(dotted(sections)), **later}.items():
        if key in FACTS["until_0.3"] or key.partition(".")[0] not in FACTS["flagged"]:
            continue
        section, _, name = renamed.get(key, key).rpartition(".")
        if isinstance(value, bool):
            yield f"--{section}.{'' if value else 'no_'}{name}"
            continue
        words = [value]
        if isinstance(value, list | tuple):
            is_nested = any(isinstance(each, list) for each in value)
            words = [",".join(each) for each in (value if is_nested else [value])]
            words = [_HEAD.sub("lm_head", word) for word in words]
        yield " ".join([f"--{section}.{name}", *(shlex.quote(str(word)) for word in words)])


def parse(path: Path) -> dict[str, Any]:
    """Return the settings of a TOML, or of a command, by their dotted keys as 0.2.2 has them.

    Raises:
        JobError: It is neither, or its function is not known.
    """
    if path.suffix == ".toml" or not is_file(path):
        return _of_toml(path)
    text = script_text(path)
    flags = shell_flags(text)
    module, function, file = map(flags.get, ("module", "config", "job.config_file"))
    if isinstance(module, str) and isinstance(function, str):
        found = _of_function(path, module, function)
        found = {**FACTS["defaults_0.3"], **found, "config": function}
    elif isinstance(file, str):
        found = _of_toml(file_next_to(path, file))
    else:
        return _of_toml(path)
    return found | _renamed(_given(flags, text))


def _of_toml(path: Path) -> dict[str, Any]:
    found = _renamed(dict(dotted(read_toml(path))))
    if found.pop("quantize.linear.float8.enable_float8_linear", False):
        found.setdefault("model.converters", ["quantize.linear.float8"])
    return found


def _renamed(found: dict[str, Any]) -> dict[str, Any]:
    for old, new in FACTS["renamed"].items():
        if old in found:
            found.setdefault(new, found.pop(old))
    return found


def _given(flags: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Return the settings that flags override."""
    found: dict[str, Any] = {}
    for flag, value in flags.items():
        section, _, name = flag.rpartition(".")
        key = f"{section}.{name.removeprefix('no_') if value is True else name}"
        if section not in ("", "job") and value != "None":
            is_no = value is True and name.startswith("no_")
            found[FACTS["since_0.3"].get(key, key)] = False if is_no else value
    parts = found.get("parallelism.module_fqns_per_model_part")
    if parts is not None:
        words = parts if isinstance(parts, list) else [parts]
        found["parallelism.module_fqns_per_model_part"] = [str(word).split(",") for word in words]
    if chosen := _SUBCOMMAND.findall(text):
        found["activation_checkpoint.mode"] = chosen[-1].replace("-", "_")
    return found


def _of_function(path: Path, module: str, function: str) -> dict[str, Any]:
    """Return the settings of a function: of the registry, or of the module of an export."""
    module = module.removesuffix(".config_registry").rpartition(".")[2]
    known: dict[str, dict[str, Any]] = FACTS["configs"]
    if module in FACTS["blocks"] and function in known:
        flavor = max((name for name in _FLAVORS if function.startswith(name)), key=len, default="")
        return {**_FLAVORS.get(flavor, {}), **known[function]}
    if module == MODULE:
        for precision, (_, _, suffix) in _CONVERTERS.items():
            if (flavor := function.removesuffix(suffix)) != function and flavor in _FLAVORS:
                return {**_FLAVORS[flavor], **FACTS["converted_0.3"][precision]}
        if function in _FLAVORS:
            return dict(_FLAVORS[function])
    hint = did_you_mean(function, known, before="; ", after="")
    why = f"found {function} of {module}, which is a program in Python and is not run"
    raise JobError(
        str(path), [f"--config: {why}; expected one of torchtitan's registry that is known{hint}"]
    )
