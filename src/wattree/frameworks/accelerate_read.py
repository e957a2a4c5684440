"""Accelerate's YAML: the strategy settings in it, for any engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field

from wattree.files import read_yaml
from wattree.frameworks.found import Found
from wattree.frameworks.launch import notes_of, parsed
from wattree.frameworks.read import known_of, refuse_sections, without
from wattree.frameworks.shell_files import NamedFile, read_named
from wattree.frameworks.zero_read import read_zero_json, run_by_deepspeed
from wattree.job.problems import Problems, shown
from wattree.job.section import Section
from wattree.job.values import Degree, Samples
from wattree.strategy import ULYSSES
from wattree.units import whole_number

_LISTS: Final[Mapping[str, list[str]]] = read_yaml(Path(__file__).with_name("accelerate.yaml"))
#: Settings without effect on a step.
IGNORED: Final = tuple(_LISTS["ignored"])
#: Shardings of FSDP1 by name and number (`torch.distributed.fsdp.ShardingStrategy`): the sharding,
#: and whether parameters are dropped after forward.
FSDP1: Final[Mapping[str, tuple[str, bool]]] = {
    "full_shard": ("zero3", True),
    "shard_grad_op": ("zero3", False),
    "no_shard": ("none", True),
    "hybrid_shard": ("hybrid", True),
    "hybrid_shard_zero2": ("hybrid", False),
}
_CONTEXTS: Final = {"allgather": "gather", "alltoall": "ring"}
_OFFLOADED: Final = {"optimizer": "host", "parameters": "host"}
_FSDP: Final = "FSDP"


#: Words of YAML 1.1, which the libraries read their files as.
_TRUTH: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def flag(value: object) -> object:
    """Return true or false, which files have as a text, too."""
    return _TRUTH.get(value.lower(), value) if isinstance(value, str) else value


def _upper(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


def _lower(value: object) -> object:
    if value is False or value is None:  # `no` of YAML 1.1
        return "no"
    return value.lower() if isinstance(value, str) else value


Flag = Annotated[bool, BeforeValidator(flag)]


class FsdpSpec(Section):
    """The section `fsdp_config`."""

    fsdp_version: Literal[1, 2] = Field(1, description="1 or 2")
    fsdp_reshard_after_forward: bool | str | None = Field(None, description="true or false")
    fsdp_sharding_strategy: str | int | None = Field(None, description="a sharding of FSDP1")
    fsdp_offload_params: Flag = Field(False, description="true or false")
    fsdp_activation_checkpointing: Flag = Field(False, description="true or false")
    fsdp_activation_checkpointing_offload: Literal[False] = Field(
        False, description="false; no strategy here offloads what all layers keep"
    )
    fsdp_auto_wrap_policy: Annotated[str | None, BeforeValidator(_upper)] = Field(
        None, description="the name of a policy"
    )
    fsdp_backward_prefetch: str | None = Field(None, description="the name of a prefetch")
    fsdp_forward_prefetch: Flag = Field(False, description="true or false")


class ParallelismSpec(Section):
    """The section `parallelism_config`; keys of Accelerate's YAML begin with its name."""

    dp_replicate_size: Degree = Field(1, description="a whole number")
    dp_shard_size: Degree = Field(1, description="a whole number")
    tp_size: Degree = Field(1, description="a whole number")
    cp_size: Degree = Field(1, description="a whole number")
    sp_size: Degree = Field(1, description="a whole number")
    cp_comm_strategy: Literal["allgather", "alltoall"] = Field(
        "allgather", description="'allgather' or 'alltoall'"
    )


class InlineZeroSpec(Section):
    """The section `deepspeed_config`."""

    deepspeed_config_file: str | None = Field(None, description="the name of a JSON file")
    zero_stage: Literal[0, 1, 2, 3] = Field(2, description="0, 1, 2 or 3")
    offload_optimizer_device: Literal["none", "cpu"] | None = Field(
        None, description="'none' or 'cpu'"
    )
    offload_param_device: Literal["none", "cpu"] | None = Field(None, description="'none' or 'cpu'")
    gradient_accumulation_steps: Samples | Literal["auto"] | None = Field(
        None, description="a whole number"
    )


class DynamoSpec(Section):
    """The section `dynamo_config`."""

    dynamo_backend: Annotated[str, BeforeValidator(_upper)] = Field("NO", description="a name")


class AccelerateYaml(Section):
    """What of Accelerate's YAML a strategy depends on; the rest is in `accelerate.yaml`."""

    distributed_type: Annotated[
        Literal[
            "NO",
            "MULTI_CPU",
            "MULTI_GPU",
            "MULTI_XPU",
            "MULTI_HPU",
            "MULTI_NPU",
            "MULTI_MLU",
            "FSDP",
            "DEEPSPEED",
        ],
        BeforeValidator(_upper),
    ] = Field(description="NO, MULTI_GPU, FSDP or DEEPSPEED")
    mixed_precision: Annotated[Literal["no", "bf16", "fp16", "fp8"], BeforeValidator(_lower)] = (
        Field("no", description="no, bf16, fp16 or fp8")
    )
    num_processes: Degree | None = Field(None, description="a whole number")
    num_machines: Degree | None = Field(None, description="a whole number")
    fsdp_config: FsdpSpec = Field(FsdpSpec(), description="a mapping")
    deepspeed_config: InlineZeroSpec = Field(InlineZeroSpec(), description="a mapping")
    parallelism_config: ParallelismSpec = Field(ParallelismSpec(), description="a mapping")
    dynamo_config: DynamoSpec | None = Field(None, description="a mapping with dynamo_backend")


#: Sections of the YAML, of which `accelerate launch` has the keys as flags.
_SECTIONS: Final[Mapping[str, type[Section]]] = {
    "fsdp_config": FsdpSpec,
    "deepspeed_config": InlineZeroSpec,
    "parallelism_config": ParallelismSpec,
    "dynamo_config": DynamoSpec,
}
#: Flag of `accelerate launch` that turns an engine on (accelerate/commands/launch.py).
_ENGINES: Final = {
    "use_deepspeed": "DEEPSPEED",
    "use_fsdp": _FSDP,
    "multi_gpu": "MULTI_GPU",
    "cpu": "MULTI_CPU",
}
#: Flag that a script may have, too, with the same meaning.
_SHARED: Final = "gradient_accumulation_steps"


def launched(flags: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what flags of `accelerate launch` state, as its YAML does, and all other flags."""
    engines = [engine for flag_, engine in _ENGINES.items() if flags.get(flag_)]
    found: dict[str, Any] = {"distributed_type": engines[0]} if engines else {}
    taken = {*_ENGINES, "mixed_precision", "use_parallelism_config"}
    if "mixed_precision" in flags:
        found["mixed_precision"] = flags["mixed_precision"]
    for section, spec in _SECTIONS.items():
        prefix = f"{section}_" if section == "parallelism_config" else ""
        places = (place.partition(".") for place in (*IGNORED, *_LISTS["left_out"]))
        names = {key for within, _, key in places if within == section}
        names |= {f"{prefix}{name}" for name in spec.model_fields}
        if own := {name: flags[name] for name in sorted(names & flags.keys() - {_SHARED})}:
            found[section] = own
        taken |= names - {_SHARED}
    return found, {name: value for name, value in flags.items() if name not in taken}


def _with_launched(
    values: Mapping[str, Any], flags: Mapping[str, Any] | None, *, has_file: bool
) -> dict[str, Any]:
    """Return the settings of a YAML with what flags of the launcher state in their place."""
    if flags is None:
        return dict(values)
    found: dict[str, Any] = dict(values) if has_file else {"distributed_type": "MULTI_GPU"}
    for key, value in launched(flags)[0].items():
        inner = found.get(key) if isinstance(value, dict) else None
        found[key] = {**inner, **value} if isinstance(inner, dict) else value
    return found


def read_accelerate(
    path: Path, problems: Problems, name: str = "", flags: Mapping[str, Any] | None = None
) -> Found | None:
    """Return the settings of a YAML, and of the DeepSpeed JSON that it names.

    Args:
        path: The YAML; names in it are relative to its folder, or to the folder it is used in.
        name: Of the YAML, where `path` is a script that uses it, and may write it.
        flags: Of the command in a script, which count before the YAML; there may be none.
    """
    script = path
    named = read_named(path, name) if name else NamedFile(dict(parsed(path)), path)
    values, path = named.values, named.path
    values = _with_launched(values, flags, has_file=bool(name))
    if "distributed_type" not in values:
        problems.add("distributed_type", "is missing: this is no configuration of Accelerate")
        return None
    if "dynamo_backend" in values:  # before there was a section
        values["dynamo_config"] = {"dynamo_backend": values.pop("dynamo_backend")}
    for section in ("fsdp_config", "deepspeed_config", "parallelism_config"):
        if values.get(section, {}) is None:
            del values[section]
    plain, _ = without(values, IGNORED)
    plain, left_out = without(plain, _LISTS["left_out"])
    if isinstance(degrees := plain.get("parallelism_config"), Mapping):
        prefix = "parallelism_config_"
        own = {str(key).removeprefix(prefix): each for key, each in degrees.items()}
        plain["parallelism_config"] = own
    refuse_sections(AccelerateYaml, plain, problems)
    known, unknown = known_of(AccelerateYaml, plain)
    found = problems.read(AccelerateYaml, known, "")
    if found is None:
        return None
    compiler = "NO" if found.dynamo_config is None else found.dynamo_config.dynamo_backend
    kind = found.distributed_type
    base = Found(
        precision="fp32" if found.mixed_precision == "no" else found.mixed_precision,
        devices=found.num_processes,
        nodes=found.num_machines,
        compiled=None if compiler == "NO" else True,
        assumed=(*named.assumed, *notes_of((), left_out)),
        not_understood=tuple(unknown),
    )
    if kind == "DEEPSPEED":
        return _with_deepspeed(base, found, (path, script), problems)
    if kind == _FSDP:
        return _with_fsdp(base, found, problems)
    parts = found.parallelism_config
    strategy: dict[str, Any] = {"sharding": "none"} | _tensor(parts)
    if parts.cp_size * parts.sp_size > 1:
        problems.add("parallelism_config", f"found a split of sequences with {kind}, expected FSDP")
    return replace(base, strategy=strategy)


def _with_fsdp(base: Found, found: AccelerateYaml, problems: Problems) -> Found:
    """Return the recipe of FSDP, of either version."""
    spec = found.fsdp_config
    sharding, reshards = _sharding(spec, problems)
    assumed = list(base.assumed)
    if spec.fsdp_auto_wrap_policy != "TRANSFORMER_BASED_WRAP":
        assumed.append("parameters are gathered layer by layer (TRANSFORMER_BASED_WRAP)")
    if spec.fsdp_version == 1:
        assumed.append("FSDP1 is taken as FSDP2 but for its copies; its prefetch is left out")
    strategy: dict[str, Any] = {
        "sharding": sharding,
        "recompute": "full" if spec.fsdp_activation_checkpointing else "none",
        **degrees_of(found.parallelism_config, problems),
    }
    if not reshards:
        strategy["reshard_after_forward"] = False
    if spec.fsdp_offload_params:
        strategy["offload"] = dict(_OFFLOADED)
    traits = traits_of_fsdp(spec.fsdp_version)
    return replace(base, strategy=strategy, traits=traits, assumed=tuple(assumed))


def traits_of_fsdp(version: int) -> dict[str, Any]:
    """Return the traits of a version of FSDP, where they differ from the newest one's."""
    return {"shard_copies": "gradients"} if version == 1 else {}


def _sharding(spec: FsdpSpec, problems: Problems) -> tuple[str, bool]:
    """Return the sharding, and whether parameters are dropped after forward."""
    reshard = spec.fsdp_reshard_after_forward
    if spec.fsdp_version == 2:
        drops = flag(reshard)
        if drops is not None and not isinstance(drops, bool):
            problems.add(
                "fsdp_config.fsdp_reshard_after_forward",
                f"found {shown(reshard)}, expected true or false",
            )
        return "zero3", drops is not False
    word = spec.fsdp_sharding_strategy or reshard or "full_shard"
    names = list(FSDP1)
    number = whole_number(str(word))
    if number is not None and 1 <= number <= len(names):
        word = names[number - 1]
    if str(word).lower() not in FSDP1:
        problems.add(
            "fsdp_config.fsdp_sharding_strategy",
            f"found {shown(word)}, expected one of {', '.join(names)}",
        )
        return "zero3", True
    return FSDP1[str(word).lower()]


def degrees_of(spec: ParallelismSpec, problems: Problems) -> dict[str, Any]:
    """Return the degrees of `parallelism_config`."""
    found = _tensor(spec)
    if spec.cp_size > 1:
        found |= {"cp": spec.cp_size, "context": _CONTEXTS[spec.cp_comm_strategy]}
    if spec.sp_size > 1:
        found |= {"cp": spec.sp_size, "context": ULYSSES}
    if spec.dp_replicate_size > 1:
        found |= {"sharding": "hybrid", "dp": spec.dp_replicate_size, "fsdp": spec.dp_shard_size}
        if spec.cp_size > 1:
            problems.add(
                "parallelism_config",
                f"found {spec.dp_replicate_size} copies of shards that lie over sequences too, "
                "which no strategy here states",
            )
    elif "dp_shard_size" in spec.model_fields_set and _is_split(spec):
        found["dp"] = spec.dp_shard_size  # all processes have a place, as Accelerate checks
    return found


def _is_split(spec: ParallelismSpec) -> bool:
    return spec.sp_size == 1 < max(spec.dp_shard_size, spec.tp_size, spec.cp_size)


def _tensor(spec: ParallelismSpec) -> dict[str, Any]:
    return {"tp": spec.tp_size, "sequence_parallel": False} if spec.tp_size > 1 else {}


def _with_deepspeed(
    base: Found, found: AccelerateYaml, named_by: tuple[Path, Path], problems: Problems
) -> Found | None:
    """Return the recipe of DeepSpeed, from a JSON or from the section itself.

    Args:
        named_by: The YAML that names the JSON, and the script that uses it.
    """
    spec = found.deepspeed_config
    if spec.deepspeed_config_file is not None:
        path, script = named_by
        config = read_named(path, spec.deepspeed_config_file, script=script)
        values, notes = config.values, config.assumed
    else:
        notes = ()
        devices = {
            "offload_optimizer": spec.offload_optimizer_device,
            "offload_param": spec.offload_param_device,
        }
        offload = {key: {"device": device} for key, device in devices.items() if device}
        values = {
            "gradient_accumulation_steps": spec.gradient_accumulation_steps,
            "zero_optimization": {"stage": spec.zero_stage, **offload},
        }
    inner = read_zero_json(values, problems, filled=base.precision)
    if inner is None:
        return None
    strategy = dict(inner.strategy)
    if (sp := found.parallelism_config.sp_size) > 1:
        strategy |= {"cp": sp, "context": ULYSSES}
    precision = base.precision if inner.precision == "fp32" else inner.precision
    return replace(
        inner,
        precision=precision,
        devices=base.devices,
        nodes=base.nodes,
        compiled=base.compiled,
        strategy=run_by_deepspeed(strategy, precision),
        assumed=(*base.assumed, *notes, *inner.assumed),
        not_understood=(*base.not_understood, *inner.not_understood),
    )
