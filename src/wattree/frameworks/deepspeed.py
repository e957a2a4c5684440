"""DeepSpeed: its JSON, and a script that passes it to DeepSpeed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from wattree.files import is_file, read_json, read_text
from wattree.frameworks.command import model_next_to, read_flags, with_flags
from wattree.frameworks.engines import ENGINE_TRAITS, runs_all_again
from wattree.frameworks.found import Found, reader
from wattree.frameworks.framework import FRAMEWORKS, ConcreteJob, Framework, Written
from wattree.frameworks.launch import (
    BY_LAYER,
    CONFIG,
    ENTER,
    LEARNING_RATE,
    SAMPLES,
    as_json,
    assumed_rate,
    causal_misfits,
    first_of,
    hosts_to_fill_in,
    model_files,
    on_cpus,
    script,
    torchrun,
    unexpressed,
)
from wattree.frameworks.settings import Settings
from wattree.frameworks.shell_files import read_named
from wattree.frameworks.trainer_arguments import FlagsSpec
from wattree.frameworks.zero_json import (
    CPU,
    NARROW_COPIES,
    NARROW_MOMENTS,
    OPTIMIZERS,
    PRECISIONS,
    ZERO_KEYS,
    narrow_keys,
    narrow_misfits,
    zero_json,
    zero_misfits,
)
from wattree.frameworks.zero_read import IGNORED, read_zero_json
from wattree.job.problems import Problems
from wattree.strategy import StrategyOptions

FILE: Final = "ds_config.json"
#: Flags that name the JSON, and a flag at the beginning of a word.
_NAMING: Final = ("deepspeed_config", "deepspeed")
#: Families (`model_type`) with the modules of Llama, of which layers need nothing but positions.
_CUT: Final = ("llama", "mistral", "mixtral", "olmo2", "phi3", "qwen2", "qwen3", "qwen3_moe")
_FLAG: Final = re.compile(r"(?m)(^|\s)--[a-z]")


def write(concrete: ConcreteJob) -> Written:
    """Return the files that start a job with DeepSpeed."""
    job, options = concrete.job, concrete.options
    misfits = [
        *causal_misfits(concrete),
        *unexpressed(options, ZERO_KEYS),
        *zero_misfits(options, job.precision),
        *narrow_misfits(options, job.traits, job.precision),
    ]
    if options.pp > 1 and not _is_cut(concrete):
        names = ", ".join(_CUT)
        why = f"expected a model whose layers train.py knows: {names}, without windows"
        misfits.append(("strategy.pp", f"found {options.pp} for {concrete.title}, {why}"))
    if concrete.compiled:
        misfits.append(("compile", "found true, which a script asks for (engine.compile())"))
    if job.optimizer == "muon":
        misfits += _muon_misfits(options)
    if misfits or job.optimizer not in OPTIMIZERS or job.precision not in PRECISIONS:
        return Written(misfits=first_of(iter(misfits)))
    settings: dict[str, Any] = {
        "train_batch_size": job.data.global_batch,
        "train_micro_batch_size_per_gpu": options.pipeline.micro_batch,
        "gradient_accumulation_steps": concrete.micro_batches,
        **zero_json(options, job.precision),
        **_optimizer(concrete),
    }
    if narrow := narrow_keys(job.traits):
        settings["bf16"] = {**settings["bf16"], **narrow}
    files, missing = model_files(
        concrete,
        loads_split=False,
        made_in_shards=options.memory.sharding == "zero3" or options.pp > 1,
        **({"started": BY_LAYER} if options.pp > 1 else {}),
    )
    flags = f"--block_size {job.data.sequence_length}"
    if job.training.steps > 1:
        flags += f" --max_steps {job.training.steps}"
    if options.memory.recompute == "full" and runs_all_again(concrete):
        flags += " --use_reentrant"
    command = torchrun(concrete, f'train.py {flags} "$@"')
    return Written(
        files={FILE: as_json(settings), "train.py": script("deepspeed"), **files},
        launch=f"{ENTER}{CPU} {command}" if on_cpus(concrete) else f"{ENTER}{command}",
        fill_in=(SAMPLES, *missing, *hosts_to_fill_in(concrete)),
        assumed=assumed_rate(concrete),
    )


def _muon_misfits(options: StrategyOptions) -> Iterator[tuple[str, str]]:
    """Yield what of a strategy Muon is not run with as predicted (`runtime/zero`, 0.19.8)."""
    if options.memory.sharding == "zero3":
        yield "strategy.sharding", "'zero3' with muon, which needs reduce_scatter: false there"
    for axis in ("pp", "ep"):  # names of layers, and matrices of experts, are not known to it
        if options.value(axis) > 1:
            yield f"strategy.{axis}", "above 1 with muon, expected 1"


def _optimizer(concrete: ConcreteJob) -> dict[str, Any]:
    kind, arguments = OPTIMIZERS[concrete.job.optimizer]
    rate = concrete.job.training.learning_rate or LEARNING_RATE
    params: dict[str, Any] = {"lr": rate, **arguments}
    if kind in {"AdamW", "Adam", "Muon"} and on_cpus(concrete):
        params["torch_adam"] = True  # DeepSpeed's own is compiled at the first start
    found: dict[str, Any] = {"optimizer": {"type": kind, "params": params}}
    if kind not in {"AdamW", "Adam", "Lion"}:  # PyTorch's, which ZeRO accepts with this key
        found["zero_allow_untested_optimizer"] = True
    return found


def _is_cut(concrete: ConcreteJob) -> bool:
    """Whether the script can make a list of layers of a model, which a pipeline is cut from."""
    shape = concrete.shape
    return (
        shape is not None
        and not shape.window
        and concrete.config.get("model_type", "llama") in _CUT
    )


def _parse(path: Path) -> dict[str, Any]:
    """Return the JSON in a file; nothing of a file with a command."""
    is_command = path.suffix != ".json" and _FLAG.search(read_text(path))
    return {} if is_command else _read_config(path)


def _read_config(path: Path) -> dict[str, Any]:
    """Return a configuration, with all that Hjson allows in JSON: DeepSpeed loads it as that."""
    return read_json(path, comments=True)


def _find(settings: Settings, problems: Problems) -> Found | None:
    path = settings.path
    if values := _parse(path):
        return read_zero_json(values, problems)
    flags = read_flags(path)
    named = next((word for name in _NAMING if isinstance(word := flags.get(name), str)), None)
    model = settings.given.model
    if named is None and is_file(path.with_name(FILE)):  # as train.py of an export reads both
        named = FILE
        model = model or (model_next_to(path, ".") if is_file(path.with_name(CONFIG)) else None)
    if named is None:
        problems.add("--deepspeed_config", "is missing, expected a command that names a JSON")
        return None
    known = {name: flags[name] for name in ("bf16", "fp16") if name in flags}
    spec = problems.read(FlagsSpec, known, "")
    filled = "fp32" if spec is None else spec.precision
    config = read_named(path, named, comments=True)
    recipe = read_zero_json(config.values, problems, filled=filled)
    if recipe is None:
        return None
    recipe = replace(recipe, assumed=(*config.assumed, *recipe.assumed))
    return with_flags(recipe, path, flags, model, problems)


FRAMEWORKS.register("deepspeed")(
    Framework(
        name="deepspeed",
        title="DeepSpeed",
        versions="deepspeed 0.19.8",
        source="https://www.deepspeed.ai/docs/config-json",
        software=("deepspeed",),
        knobs=ZERO_KEYS,
        precisions=tuple(PRECISIONS),
        optimizers=tuple(OPTIMIZERS),
        traits={
            **ENGINE_TRAITS,
            **{name: (width,) for name, width in {**NARROW_COPIES, **NARROW_MOMENTS}.items()},
        },
        ignored=IGNORED,
        write=write,
        parse=_parse,
        read=reader(_find, _parse),
    )
)
