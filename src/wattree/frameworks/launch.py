"""What starts a training: scripts, `torchrun`, the model, YAML and JSON."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from wattree.files import read_json, read_yaml
from wattree.frameworks.framework import ConcreteJob
from wattree.job.problems import shown
from wattree.strategy import AXES, StrategyOptions

#: Keys that say how many, for which every framework has rules of its own.
_DEGREES: Final = (*AXES, "micro_batch")
#: Size of a bucket → what is in it.
BUCKETS: Final = {"gradient_bucket_bytes": "gradients", "parameter_bucket_bytes": "parameters"}
#: Files of an export are named relative to their folder.
ENTER: Final = 'cd "$(dirname "${BASH_SOURCE[0]}")"\n'
CONFIG: Final = "config.json"
#: What scripts use where the job does not say.
LEARNING_RATE: Final = 1e-4
#: What every script leaves to its user.
SAMPLES: Final = "`samples` in train.py: the data; as written it trains on random tokens."
_LOADED: Final = f"Weights next to `{CONFIG}`, of the checkpoint that is tuned or split."
_OWN_CONFIG: Final = (
    f"`{CONFIG}` holds sizes alone: with a checkpoint's weights goes its own `{CONFIG}`."
)
#: Key of an exported configuration without what shapes do not show, such as `rope_theta`.
SIZES_ONLY: Final = "sizes_only"
#: Of a script that loads each layer by itself.
BY_LAYER: Final = f"Weights start at random, or are those of `*.safetensors` next to `{CONFIG}`."
_RANDOM: Final = (
    f"Weights start at random. To start from a checkpoint, put its weights next to `{CONFIG}` and "
    "replace `from_config(config` by `from_pretrained(config.name_or_path` in train.py."
)


def as_json(values: Mapping[str, Any]) -> str:
    """Return a mapping as the text of a file."""
    return json.dumps(values, indent=2) + "\n"


def as_yaml(values: Mapping[str, Any]) -> str:
    """Return a mapping as YAML that versions 1.1 and 1.2 read alike.

    PyYAML reads 1.1, where `no` is false and `1e-05` a text: texts are quoted, and numbers have a
    point before their exponent.
    """
    return "\n".join([*_lines(values, ""), ""])


def _lines(values: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield f"{indent}{key}:"
            yield from _lines(value, f"{indent}  ")
        else:
            text = json.dumps(value)
            if isinstance(value, float) and "e" in text and "." not in text:
                text = text.replace("e", ".0e")
            yield f"{indent}{key}: {text}"


def parsed(
    path: Path, *, comments: bool = False, repeated: list[str] | None = None
) -> Mapping[str, Any]:
    """Return the settings in a YAML or JSON file; those of another file are read by its reader.

    Args:
        path: The file.
        comments: JSON may have comments, which some frameworks allow.
        repeated: Takes duplicate keys of YAML, of which the last counts, as in PyYAML.
    """
    if path.suffix == ".json":
        return read_json(path, comments=comments)
    if path.suffix in {".yaml", ".yml"}:
        return read_yaml(path, repeated=[] if repeated is None else repeated)
    return {}


def on_cpus(concrete: ConcreteJob) -> bool:
    """Return whether a job runs on processors, which frameworks need as a setting."""
    return concrete.job.cluster.node.device.kind == "cpu"


def model_files(
    concrete: ConcreteJob,
    *,
    loads_split: bool = True,
    made_in_shards: bool = False,
    started: str = _RANDOM,
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the model's configuration for the transformers library, and what to fill in of it.

    Args:
        loads_split: Tensor parallelism splits weights as they are loaded.
        made_in_shards: No rank makes more than its shards (ZeRO-3's `zero.Init`), or its stage.
        started: What to say of the weights that a script starts from.
    """
    notes = tuple(_host_memory(concrete, made_in_shards=made_in_shards))
    loads = concrete.job.model.lora is not None or (loads_split and concrete.options.tp > 1)
    weights = _LOADED if loads else started
    if concrete.config and concrete.model_name:
        config = {**concrete.config, SIZES_ONLY: True}
        return {CONFIG: as_json(config)}, (f"{weights} {_OWN_CONFIG}", *notes)
    if concrete.config:
        return {CONFIG: as_json(concrete.config)}, (weights, *notes)
    missing = f"`{CONFIG}`: the model, as the transformers library describes it."
    return {}, (missing, weights, *notes)


def _host_memory(concrete: ConcreteJob, *, made_in_shards: bool) -> Iterator[str]:
    """Yield what to do where a node has no room for a whole model of each of its ranks."""
    node = concrete.job.cluster.node
    ranks = min(concrete.options.ranks, node.devices)
    need_bytes = ranks * _FULL_BYTES * concrete.model.parameters
    if not made_in_shards and node.host is not None and need_bytes > node.host.memory_bytes:
        yield (
            f"Host memory: each of {ranks} ranks of a node makes the whole model before it is "
            f"sharded, {need_bytes / 1e9:,.0f} GB of {node.host.memory_bytes / 1e9:,.0f} GB; make "
            "it on the meta device in train.py, or load it on one rank."
        )


#: Of a parameter that a script makes. [B]
_FULL_BYTES: Final = 4.0
#: How classes end that `AutoModelForCausalLM` makes.
_CAUSAL: Final = ("ForCausalLM", "LMHeadModel")


def causal_misfits(concrete: ConcreteJob) -> Iterator[tuple[str, str]]:
    """Yield why a script's `AutoModelForCausalLM` cannot be the model of a job, if it cannot."""
    shape = concrete.shape
    if shape is None:
        classes = concrete.config.get("architectures")
        is_causal = not concrete.model_name
        if isinstance(classes, list) and classes:
            is_causal = str(classes[0]).endswith(_CAUSAL)
    else:
        is_causal = shape.causal and not shape.encoder_layers and shape.head == "language_model"
    if not is_causal:
        yield (
            "model",
            f"found {concrete.model.name}, expected a decoder that predicts the next token, which "
            "train.py loads as AutoModelForCausalLM",
        )


def assumed_rate(concrete: ConcreteJob) -> tuple[str, ...]:
    """Return what to say of a learning rate that the job does not have."""
    if concrete.job.training.learning_rate is not None:
        return ()
    return (f"learning rate {LEARNING_RATE:g}: the job has none",)


def script(name: str) -> str:
    """Return the program of a framework."""
    return (files("wattree.frameworks") / "scripts" / f"{name}.txt").read_text(encoding="utf-8")


def unexpressed(options: StrategyOptions, known: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the keys of a strategy that an engine has no setting for.

    Args:
        known: Keys that it has, degrees aside.
    """
    for key, value in options.chosen().items():
        if key not in known and key not in _DEGREES:
            found = str(value) if key == "offload" else shown(value)
            yield f"strategy.{key}", f"found {found}, which it has no setting for"
    for name, part in BUCKETS.items():
        if getattr(options.traffic, name) is not None and name not in known:
            yield "strategy.bucket", f"found buckets of {part}, which it has no setting for"
    offload = options.traffic.offload
    for name in ("activations", "tables", "overflow"):
        if getattr(offload, name) is not None:
            yield f"strategy.offload.{name}", "found a place for it, which it has no setting for"
    for name in ("optimizer", "parameters"):
        if (tier := getattr(offload, name)) not in {None, "host"}:
            yield f"strategy.offload.{name}", f"found '{tier}', expected host"


def recompute_misfits(options: StrategyOptions) -> Iterator[tuple[str, str]]:
    """Yield a kind of recomputation that is neither none nor whole layers."""
    if (kind := options.memory.recompute) not in {"none", "full"}:
        yield "strategy.recompute", f"found '{kind}', expected none or full"


def first_of(misfits: Iterator[tuple[str, str]]) -> dict[str, str]:
    """Return the first reason for each key."""
    found: dict[str, str] = {}
    for key, why in misfits:
        found.setdefault(key, why)
    return found


#: Settings that pack documents into samples: of the Trainer's libraries, of torchtune.
_PACKING: Final = ("packing", "packed")
_PACKED: Final = (
    "samples are packed: state data.document_length, the mean length of the documents, for "
    "attention within documents; without it, a sample counts as one document"
)


def notes_of(automatic: Collection[str], left_out: Collection[str]) -> tuple[str, ...]:
    """Return what to say of settings that were left to the framework, and of those not taken."""
    notes = []
    packing = [key for key in left_out if key.rpartition(".")[2] in _PACKING]
    left_out = [key for key in left_out if key not in packing]
    if packing:
        notes.append(f"{', '.join(packing)}: {_PACKED}")
    if automatic:
        notes.append(f"left to the framework (auto): {', '.join(automatic)}")
    if left_out:
        notes.append(f"left out, as no job states it: {', '.join(left_out)}")
    return tuple(notes)


#: Settings that the user adds to scripts with `torchrun`.
_HOSTS: Final = (
    "`MASTER_ADDR` in the environment of `launch.sh`: name of the first host, the same on every "
    "host.",
)


def torchrun(concrete: ConcreteJob, program: str) -> str:
    """Return a command that starts a program on all devices of a host, one rank each.

    Args:
        concrete: The job, with its numbers of hosts and ranks.
        program: Program and its arguments, as `torchrun` takes them.
    """
    lines = [f"torchrun --nnodes={concrete.nodes} --nproc_per_node={concrete.devices_per_node}"]
    if concrete.nodes > 1:
        lines.append(
            '--rdzv_backend=c10d --rdzv_id=wattree --rdzv_endpoint="${MASTER_ADDR:?}:${MASTER_PORT'
            ':-29500}"'
        )
    else:
        lines.append("--standalone")
    return " \\\n    ".join([*lines, program])


def hosts_to_fill_in(concrete: ConcreteJob) -> tuple[str, ...]:
    """Return the facts about the hosts that the user must fill in."""
    return _HOSTS if concrete.nodes > 1 else ()
