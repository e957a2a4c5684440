"""The model of MaxText's settings: a name, sizes, or a name with other sizes."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from wattree.files import read_yaml
from wattree.frameworks.models import named_by_sizes, resized, shape_of
from wattree.job.problems import Problems, shown
from wattree.job.section import Section
from wattree.job.values import Degree, Layers

#: Axis of ours → axis of MaxText, where `fsdp` and `dp` are not the same.
AXES: Final = {
    "dp": "data",
    "fsdp": "fsdp",
    "tp": "tensor",
    "cp": "context",
    "pp": "pipeline",
    "ep": "expert",
}
#: Its axis for tensor parallelism whose norms are split over positions.
SEQUENCE: Final = "tensor_sequence"
#: Its second axis of fully sharded weights, over their other dims.
TRANSPOSED: Final = "fsdp_transpose"
CONTEXTS: Final = {"gather": "all_gather", "ring": "ring"}
OPTIMIZERS: Final = {"adamw": "adamw", "adam": "adam_pax", "sgd": "sgd", "muon": "muon"}
PRECISIONS: Final = {
    "bf16": {"dtype": "bfloat16"},
    "fp32": {"dtype": "float32"},
    "fp8": {"dtype": "bfloat16", "quantization": "fp8"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
}


@cache
def facts() -> dict[str, Any]:
    """Return the names and policies of MaxText."""
    return read_yaml(Path(__file__).with_name("maxtext.yaml"))


_NO_NAME: Final = "default"
_GATE: Final = "linear"


def _groups(value: object) -> object:
    """Return a number of groups of experts; -1 is one group of all."""
    return 1 if value == -1 else value


#: Groups of experts that tokens choose.
_Groups = Annotated[Degree, BeforeValidator(_groups)]


class MaxTextModelSpec(Section):
    """What of MaxText's settings the model depends on; None: as the named model has it."""

    model_name: str = Field(_NO_NAME, description="the name of a model")
    global_parameter_scale: Degree = Field(1, description="a power of 2")
    base_emb_dim: Degree | None = Field(None, description="a whole number")
    base_num_query_heads: Degree | None = Field(None, description="a whole number")
    base_num_kv_heads: Degree | None = Field(None, description="a whole number")
    base_mlp_dim: Degree | None = Field(None, description="a whole number")
    base_moe_mlp_dim: Degree | None = Field(None, description="a whole number")
    base_num_decoder_layers: Layers | None = Field(None, description="a whole number")
    head_dim: Degree | None = Field(None, description="a whole number")
    vocab_size: Degree | None = Field(None, description="a whole number")
    num_experts: Degree | None = Field(None, description="a whole number")
    num_experts_per_tok: Degree | None = Field(None, description="a whole number")
    n_routing_groups: _Groups | None = Field(None, description="a whole number, or -1 for none")
    topk_routing_group: _Groups | None = Field(None, description="a whole number, or -1 for none")
    logits_via_embedding: bool | None = Field(None, description="true or false")
    mlp_activations: list[str] | None = Field(None, description="a list of functions")


def model_of_settings(spec: MaxTextModelSpec, problems: Problems) -> str | dict[str, Any] | None:
    """Return the model, as a job has it; None after noting why there is none."""
    scales = _scales(spec.global_parameter_scale)
    if scales is None:
        problems.add(
            "global_parameter_scale",
            f"found {spec.global_parameter_scale}, expected a power of 2",
        )
        return None
    sizes = {
        field: value
        for key, field in facts()["sizes"].items()
        if (value := getattr(spec, key)) is not None
    }
    if spec.model_name == _NO_NAME:
        if spec.mlp_activations:
            sizes["gated"] = _GATE in spec.mlp_activations
            sizes["activation"] = spec.mlp_activations[0]
        whole = _scaled({**facts()["default"], **sizes}, scales)
        return named_by_sizes(_without_experts(whole) if whole["experts"] == 1 else whole)
    known = _known()
    if spec.model_name not in known:
        close = difflib.get_close_matches(spec.model_name, list(known), n=3, cutoff=0.4)
        hint = f" (did you mean {' or '.join(close)}?)" if close else ""
        problems.add(
            "model_name",
            f"found {shown(spec.model_name)}, of which no sizes are known{hint}; add --model",
        )
        return None
    return _resized(spec, known[spec.model_name], sizes, scales, problems)


def _resized(
    spec: MaxTextModelSpec,
    named: str | dict[str, Any],
    sizes: dict[str, Any],
    scales: Mapping[str, int],
    problems: Problems,
) -> str | dict[str, Any] | None:
    """Return a known model with what the settings change of it."""
    shape = shape_of(named)
    if shape is None:
        return named
    if spec.model_name in facts()["pairs"] and "layers" in sizes:
        sizes = {**sizes, "layers": 2 * sizes["layers"]}
    own = {field: getattr(shape, field) for field in {*sizes, *scales}}
    changed = {
        field: value
        for field, value in _scaled({**own, **sizes}, scales).items()
        if value != own[field]
    }
    if not changed:
        return named
    found = resized(named, changed)
    if found is None:
        problems.add(
            "base_num_decoder_layers",
            f"found {shown(spec.base_num_decoder_layers)}, expected at most {shape.layers}: "
            f"which layers of {spec.model_name} differ is known of these alone",
        )
    return found


def _scales(scale: int) -> dict[str, int] | None:
    """Return field → factor of a scale of all parameters; None unless it is a power of 2.

    In turns heads and feed-forward width, width, and layers double (`get_individual_scales`).
    """
    doublings = int(math.log2(scale))
    if 2**doublings != scale:
        return None
    rounds, rest = divmod(doublings, 3)
    wide, deep = 2 ** (rounds + (rest > 0)), 2**rounds
    hidden = 2 ** (rounds + (rest > 1))
    of_heads = dict.fromkeys(("heads", "kv_heads", "ffn", "expert_ffn"), wide)
    return {**of_heads, "hidden": hidden, "layers": deep}


def _scaled(sizes: Mapping[str, Any], scales: Mapping[str, int]) -> dict[str, Any]:
    return {f: value * scales[f] if f in scales else value for f, value in sizes.items()}


def _without_experts(block: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in block.items() if key not in facts()["of_experts"]}


def _known() -> dict[str, str | dict[str, Any]]:
    """Return MaxText's name → model, as a job has it."""
    ours = {word: name for name, word in facts()["models"].items()}
    blocks = {word: {"transformer": dict(block)} for word, block in facts()["blocks"].items()}
    return {**ours, **facts()["also"], **blocks}
