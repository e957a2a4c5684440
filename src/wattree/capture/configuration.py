"""A parsed `config.json` → its graph: by its family's reader, or captured with transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any, Final, NamedTuple

from wattree.capture.huggingface import (
    readable_model_types,
    reads_class,
    transformer_from_config,
)
from wattree.capture.kept_graphs import kept_graph
from wattree.capture.library_types import (
    check_model_type,
    library_model_types,
    may_be_library_class,
)
from wattree.capture.module import RECORDED_BATCH
from wattree.capture.recording import Recording
from wattree.errors import ModelError, check_packages
from wattree.graph import ModelGraph

#: Argument of a captured model → the size of a sample that it sets, as `InputSizes` calls it.
INPUT_SIZES: Final = {
    "image_size": "image",
    "samples": "samples",
    "frames": "frames",
    "tokens": "text",
}
#: How classes of language models end, and those of models that get something besides tokens.
_CAUSAL, _CONDITIONAL = "ForCausalLM", "ForConditionalGeneration"
#: How classes of models of tokens end.
_TOKEN_HEADS: Final = (_CAUSAL, _CONDITIONAL, "ForMaskedLM", "ForPreTraining")
#: The same, of transcripts and of base models: classifiers have another head instead.
_OTHER_HEADS: Final = (*_TOKEN_HEADS, "ForCTC", "WithLMHeadModel", "LMHeadModel", "Model")
#: Keys of models whose classifiers the library does not call those of sequences → of what.
_CLASSIFIED: Final = {"image_size": "Image", "num_mel_bins": "Audio"}

#: Names of classes, which overrule their number.
_LABELS: Final = ("id2label", "label2id")
#: Keys of models that read images or sound, whose classes are pretrained by the same name.
_OF_OTHER_INPUTS: Final = ("image_size", "conv_dim", "num_mel_bins")


def model_from_config(
    config: Mapping[str, Any],
    where: str,
    *,
    name: str = "",
    sources: tuple[str, ...] = (),
    sequence: int | None = None,
    capture: bool = False,
    normal: bool = True,
    narrow: bool = False,
    changes: Mapping[str, Any] | None = None,
    sizes: tuple[tuple[str, int], ...] = (),
) -> ModelGraph:
    """Return the model graph of a parsed `config.json`.

    Language models of the known families are read without any library. Every other type, and
    classes with another head, such as classifiers of texts, are built by the transformers library
    and captured: without weights, without network, and never with code of its repository.

    Args:
        config: Parsed.
        where: The file, for messages.
        name: Of the model; the file if empty.
        sequence: Tokens per sample at which a captured model's sizes are exact; None: the model's.
        capture: Capture it even where it can be read.
        normal: As `wattree.capture.convert.model_graph` has it, where it is captured.
        narrow: It is captured with parameters of 16 bits.
        changes: As of `transformer_from_config`, of a captured model the decoder's length alone;
            and `classes`, as of `with_classes`.
        sizes: Keys of `INPUT_SIZES` with the sizes of one sample, where it is captured.

    Raises:
        ModelError: It cannot be read, built or recorded.
        MissingExtraError: It has to be captured, and torch or transformers are missing.
    """
    changes = dict(changes or {})
    if classes := changes.pop("classes", None):
        config = with_classes(config, classes, where)
    model_type = config.get("model_type")
    if not capture and (not isinstance(model_type, str) or is_read(config)):
        if sizes:
            raise ModelError(
                f"{where}: arguments: found {sizes[0][0]}, but its inputs are tokens, whose number "
                "is data.sequence_length"
            )
        return transformer_from_config(config, where, name=name, sources=sources, changes=changes)
    for key in changes.keys() - {"decoder_sequence_ratio"}:
        raise ModelError(f"{where}: {key}: found for a captured model, which does not have it")
    graph = captured_from_config(
        config,
        where,
        sequence=sequence,
        normal=normal,
        narrow=narrow,
        sizes=sizes,
        decoder_share=changes.get("decoder_sequence_ratio", 1.0),
    )
    graph = replace(graph, name=name or where, sources=(*sources, *graph.sources))
    return described(graph, config)


def with_classes(config: Mapping[str, Any], classes: int, where: str) -> dict[str, Any]:
    """Return a configuration with another number of classes.

    A class that predicts tokens, or codes of sound, and a base model become the one that classifies
    sequences, images or sound: its logits are those of a sample, not of every position.

    Raises:
        ModelError: It names no class.
    """
    name = _class_named(config)
    if not name:
        raise ModelError(
            f"{where}: arguments: found classes, expected a configuration with 'architectures', "
            "the class that has them"
        )
    found = {key: each for key, each in config.items() if key not in _LABELS}
    found["num_labels"] = classes
    if head := next(filter(name.endswith, _OTHER_HEADS), None):
        of = next((each for key, each in _CLASSIFIED.items() if key in config), "Sequence")
        found["architectures"] = [f"{name.removesuffix(head)}For{of}Classification"]
    return found


def described(graph: ModelGraph, config: Mapping[str, Any]) -> ModelGraph:
    """Return a captured graph with what its configuration says of it."""
    vocabulary = config.get("vocab_size")
    return replace(
        graph,
        architecture=str(config.get("model_type")),
        **kind_of(config)._asdict(),
        vocabulary=vocabulary if isinstance(vocabulary, int) else 0,
    )


class ModelKind(NamedTuple):
    """Which software takes a model; as of `ModelGraph`."""

    language: bool
    known_family: bool


def kind_of(config: Mapping[str, Any]) -> ModelKind:
    """Return which kind of model a configuration is of."""
    return ModelKind(language=_is_language(config), known_family=_is_known(config))


def _is_language(config: Mapping[str, Any]) -> bool:
    """Return whether a configuration is that of a language model, with images or without.

    Those with images are captured on tokens alone.
    """
    if is_read(config):
        return True
    name = _class_named(config)
    if name.endswith(_CONDITIONAL):
        return "text_config" in config
    if not config.keys().isdisjoint(_OF_OTHER_INPUTS):
        return False
    return name.endswith((*_TOKEN_HEADS, "LMHeadModel", "MTModel"))


def is_read(config: Mapping[str, Any]) -> bool:
    """Return whether a family's reader knows the type of a configuration, and its class's head."""
    if config.get("model_type") not in readable_model_types():
        return False
    name = _class_named(config)
    return "For" not in name or not may_be_library_class(name) or reads_class(config)


def _is_known(config: Mapping[str, Any]) -> bool:
    """Return whether a reader knows a configuration, or the language model in it."""
    text = config.get("text_config")
    return is_read(config) or (isinstance(text, Mapping) and is_read(text))


def _class_named(config: Mapping[str, Any]) -> str:
    """Return the class that a configuration names first; "" for none."""
    classes = config.get("architectures")
    name = classes[0] if isinstance(classes, list) and classes else None
    return name if isinstance(name, str) else ""


def with_known_type(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration of an unknown type with the type of its class, if a reader has that.

    Repositories with code of their own often name a class of the library under another type:
    `kimi_k2` is a `DeepseekV3ForCausalLM`.
    """
    model_type, known = config.get("model_type"), readable_model_types()
    if not isinstance(model_type, str) or not _class_named(config):
        return config
    if model_type in known or model_type in library_model_types():
        return config
    named = _class_named(config).partition("For")[0].lower()
    found = next((each for each in known if each.replace("_", "") == named), model_type)
    return {**config, "model_type": found}


def captured_from_config(
    config: Mapping[str, Any],
    where: str,
    *,
    sequence: int | None = None,
    normal: bool = True,
    narrow: bool = False,
    sizes: tuple[tuple[str, int], ...] = (),
    decoder_share: float = 1.0,
) -> ModelGraph:
    """Return the training graph of the library's module for a configuration.

    Args:
        decoder_share: Length of a decoder's sequence for each token of the encoder's.

    Raises:
        ModelError: It cannot be built or recorded.
        MissingExtraError: Torch or transformers are missing.
    """
    _check_library(config, where)

    def capture() -> ModelGraph:
        recording = recorded_configuration(
            config,
            where,
            sequence=sequence,
            narrow=narrow,
            sizes=sizes,
            decoder_share=decoder_share,
        )
        convert = import_module("wattree.capture.convert")
        graph: ModelGraph = convert.model_graph(recording, normal=normal)
        return replace(graph, assumed=recording.assumed)

    return kept_graph(config, where, (sequence, normal, narrow, sizes, decoder_share), capture)


def recorded_configuration(
    config: Mapping[str, Any],
    where: str,
    *,
    batch: int = RECORDED_BATCH,
    sequence: int | None = None,
    narrow: bool = False,
    sizes: tuple[tuple[str, int], ...] = (),
    decoder_share: float = 1.0,
) -> Recording:
    """Return the operators of the library's module for a configuration.

    Raises:
        ModelError: It cannot be built or recorded.
        MissingExtraError: Torch or transformers are missing.
    """
    _check_library(config, where)
    modules = import_module("wattree.capture.huggingface_modules")
    choices = modules.ConfigurationChoices(narrow=narrow)
    recording: Recording = modules.recorded_config(
        config,
        where,
        choices=choices,
        sizes=modules.InputSizes(
            **{INPUT_SIZES[key]: size for key, size in sizes}, decoder_share=decoder_share
        ),
        batch=batch,
        sequence=sequence,
    )
    return recording


def _check_library(config: Mapping[str, Any], where: str) -> None:
    needed_for = f"{where} (model_type '{config.get('model_type')}')"
    check_packages("torch", "transformers", needed_for=needed_for, extra="hf")
    check_model_type(config, where, library_model_types())
