"""From a parsed `config.json` to the library's configuration and class, offline."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import transformers
from huggingface_hub import constants
from transformers import pytorch_utils
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from wattree.capture.huggingface_modules.choices import ConfigurationChoices
from wattree.capture.library_types import FLOAT_TAG, check_model_type, own_code_fault
from wattree.errors import ModelError

#: Keys that would make a run depend on chance, keep what training does not keep, or fetch weights:
#: layers dropped at random, masks drawn over features, a cache of keys and values, extra outputs.
_SWITCHED_OFF: Final[Mapping[str, Any]] = {
    "use_cache": False,
    "layerdrop": 0.0,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
    "apply_spec_augment": False,
    "gradient_checkpointing": False,
    "output_attentions": False,
    "output_hidden_states": False,
    "use_pretrained_backbone": False,
}


@contextmanager
def offline() -> Iterator[None]:
    """Prevent the library's requests to repositories, its log messages, and results kept of a run.

    Its cached methods ask whether they are compiled, and then keep nothing: with a result of an
    earlier run, of another batch or another model, a run would do other work.
    """
    before = constants.HF_HUB_OFFLINE
    logger = logging.getLogger("transformers")
    level = logger.level
    is_compiling = pytorch_utils.is_torchdynamo_compiling
    constants.HF_HUB_OFFLINE = True
    pytorch_utils.is_torchdynamo_compiling = lambda: True
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
        pytorch_utils.is_torchdynamo_compiling = is_compiling
        logger.setLevel(level)


def library_config(config: Mapping[str, Any], where: str, choices: ConfigurationChoices) -> Any:
    """Return the library's configuration of a parsed `config.json`.

    Raises:
        ModelError: It asks for code of its own, is of a type that this release of the library does
            not have, or holds values that the library refuses.
    """
    check_model_type(config, where, CONFIG_MAPPING)
    keys = {
        key: _decoded(value)
        for key, value in config.items()
        if key not in ("model_type", "auto_map")
    }
    keys.pop("quantization_config", None)  # how weights lie on disk says nothing about training
    try:
        with offline():
            found = CONFIG_MAPPING[config["model_type"]](**keys)
    except Exception as error:
        raise ModelError(f"{where}: transformers refuses it: {one_line(error)}") from error
    for part in nested_parts(found):
        for key, value in _SWITCHED_OFF.items():
            if getattr(part, key, None):
                setattr(part, key, value)
    found._attn_implementation = choices.attention  # also of the parts
    return found


def _decoded(value: Any) -> Any:
    """Return a value of a configuration with infinities as numbers."""
    if isinstance(value, dict):
        tagged = value.get(FLOAT_TAG)
        if len(value) == 1 and tagged in ("NaN", "Infinity", "-Infinity"):
            return float(tagged)
        return {key: _decoded(item) for key, item in value.items()}
    return [_decoded(item) for item in value] if isinstance(value, list) else value


def library_class(config: Mapping[str, Any], found: Any, where: str) -> Any:
    """Return the class that `architectures` names, else the base model of the type.

    Raises:
        ModelError: The library has no such class, or it is no model.
    """
    names = config.get("architectures")
    if names:
        name = names[0] if isinstance(names, list) else names
        chosen = getattr(transformers, name, None) if isinstance(name, str) else None
        if not (isinstance(chosen, type) and issubclass(chosen, transformers.PreTrainedModel)):
            if "auto_map" in config:
                raise ModelError(f"{where}: {own_code_fault(config)}")
            raise ModelError(
                f"{where}: architectures: found {name!r}, which is no model of transformers "
                f"{transformers.__version__}; leave the key out for the base model"
            )
        return chosen
    try:
        chosen = transformers.AutoModel._model_mapping[type(found)]
    except KeyError as error:
        raise ModelError(
            f"{where}: no architectures, and model_type '{found.model_type}' has no base model"
        ) from error
    return chosen[0] if isinstance(chosen, list | tuple) else chosen


def nested_parts(config: Any) -> Iterator[Any]:
    """Yield a configuration and those nested in it."""
    yield config
    for key in getattr(config, "sub_configs", {}):
        part = getattr(config, key, None)
        if part is not None and not isinstance(part, dict):
            yield from nested_parts(part)


def one_line(error: BaseException) -> str:
    """Return an error's message on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
