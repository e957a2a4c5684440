"""Model graphs from the `config.json` of public model repositories, offline and without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from wattree.capture.config_reader import ConfigReader
from wattree.capture.families import CAPTURED_TYPES, FAMILIES, LIBRARY_MODULES
from wattree.capture.shape import TransformerShape
from wattree.capture.transformer import build_transformer
from wattree.errors import ModelError, did_you_mean
from wattree.graph import ModelGraph

#: Modules of multi-token prediction that a file counts, and the start of what is said of them.
_FURTHER: Final = "num_nextn_predict_layers"
FURTHER_LEFT_OUT: Final = f"multi-token prediction ({_FURTHER} "


def readable_model_types() -> tuple[str, ...]:
    """Return the values of `model_type` that can be read, in order."""
    return tuple(FAMILIES)


def transformer_from_config(
    config: Mapping[str, Any],
    where: str,
    *,
    name: str = "",
    sources: tuple[str, ...] = (),
    changes: Mapping[str, Any] | None = None,
) -> ModelGraph:
    """Return the model graph of a parsed `config.json`.

    Args:
        changes: Fields of its `TransformerShape` that no file has, such as `predictions`.

    Raises:
        ModelError: The file is of an architecture that is not read, or some of its values are
            missing or impossible; all of them are listed.
    """
    shape = config_shape(config, where, name=name, sources=sources)
    given = changes or {}
    is_stated = "decoder_sequence_ratio" in given
    if is_stated and not shape.encoder_layers:
        raise ModelError(f"{where}: decoder_length: found for a model without an encoder")
    graph = build_transformer(replace(shape, **given), is_stated=is_stated)
    count = config.get(_FURTHER)
    if count and not given.get("predictions") and shape.head == "language_model":
        words = f"{FURTHER_LEFT_OUT}{count}) is left out; `arguments: "
        further = f"{words}{{predictions: {count}}}` adds it"
        graph = replace(graph, assumed=(*graph.assumed, further))
    return graph


def config_shape(
    config: Mapping[str, Any], where: str, *, name: str = "", sources: tuple[str, ...] = ()
) -> TransformerShape:
    """Return the shape that a parsed `config.json` describes; see `transformer_from_config`."""
    model_type = _model_type(config, where)
    reader = ConfigReader(config, where)
    shape = {**LIBRARY_MODULES.get(model_type, {}), **FAMILIES[model_type](reader)}
    if not reader.problems and shape.get("experts") and shape["top_k"] > shape["experts"]:
        reader.fault(
            "num_experts_per_tok",
            shape["top_k"],
            f"at most {shape['experts']}, the number of experts",
        )
    reader.finish()
    if shape["head"] not in ("language_model", "masked_lm"):
        shape["tied_embedding"] = False  # a base model has no output projection to tie
    return TransformerShape(
        **shape, name=name or where, architecture=model_type, sources=sources or (where,)
    )


def reads_class(config: Mapping[str, Any]) -> bool:
    """Return whether the reader of a configuration's `model_type` knows the class that it names."""
    reader = ConfigReader(config, "")
    FAMILIES[config["model_type"]](reader)
    return not any(problem.startswith("architectures:") for problem in reader.problems)


def _model_type(config: Mapping[str, Any], where: str) -> str:
    model_type = config.get("model_type")
    readable = ", ".join(readable_model_types())
    if not isinstance(model_type, str) or not model_type:
        raise ModelError(f"{where}: model_type: found {model_type!r}, expected one of {readable}")
    if model_type in FAMILIES:
        return model_type
    if model_type in CAPTURED_TYPES:
        raise ModelError(
            f"{where}: model_type '{model_type}' is not read from its configuration, since it is "
            "no plain language transformer; such a model is captured, which needs the extra 'hf' "
            f"(load_model does it). Read from config.json: {readable}"
        )
    hint = did_you_mean(model_type, readable_model_types())
    raise ModelError(f"{where}: unknown model_type '{model_type}'; {hint}known: {readable}")
