"""Makes arguments of the right shapes, from a class's signature and its configuration."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from transformers.models.auto.feature_extraction_auto import FEATURE_EXTRACTOR_MAPPING_NAMES

from wattree.capture.huggingface_modules.classes import nested_parts
from wattree.capture.huggingface_modules.other_inputs import OTHER_INPUTS, with_tokens
from wattree.errors import ModelError

#: Further labels, one a sample, without which BERT and its kin compute no loss.
_BESIDE: Final = ("next_sentence_label", "sentence_order_label")
#: End of a class's name → what one sample's labels are. Classes with other losses get none: those
#: of detection match boxes on the host, and that of CTC looks into its labels.
_SAMPLE_LABELS: Final = (
    ("SequenceClassification", "class"),
    ("ImageClassification", "class"),
    ("AudioClassification", "class"),
    ("VideoClassification", "class"),
    ("MultipleChoice", "class"),
    ("NextSentencePrediction", "class"),
    ("SemanticSegmentation", "pixel"),
    ("CausalLM", "token"),
    ("MaskedLM", "token"),
    ("PreTraining", "token"),
    ("LMHeadModel", "token"),
    ("TokenClassification", "token"),
    ("ConditionalGeneration", "token"),
    ("QuestionAnswering", "span"),
)


#: Where the configuration says nothing. Image and audio sizes are those of the library's own
#: feature extractors: ImageNet crops, and 5 s of speech at 16 kHz (wav2vec 2.0 trains on crops of
#: up to 15.6 s, arXiv:2006.11477, section 4.2).
_IMAGE: Final = 224
_CHANNELS: Final = 3
_SAMPLES: Final = 80_000
_FRAMES: Final = 16
#: Feature extractors that give bins before time, as encoders of multimodal models take them; those
#: of other models give time first.
_BINS_FIRST: Final = (None, "WhisperFeatureExtractor", "ClvpFeatureExtractor")
#: Argument of models of images of any shape, whose patches come one after the other.
_PATCHES: Final = "spatial_shapes"
#: What to do where inputs cannot be made up.
_OWN: Final = "give its module and inputs instead: 'model: {module: file.py:build, inputs: {…}}'"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSizes:
    """Sizes of inputs that differ from the configuration.

    Attributes:
        image: Height and width in pixels.
        frames, mel: Of a spectrogram: time steps, and bins.
        decoder_share: Length of the decoder's sequence for each token of the encoder's.
        text: Tokens in addition to another input, such as the captions of images.
        among_tokens: Images and sounds are given along with tokens, where the class takes them.
    """

    image: int | None = None
    channels: int | None = None
    samples: int | None = None
    frames: int | None = None
    mel: int | None = None
    decoder_share: float = 1.0
    text: int | None = None
    among_tokens: bool = False


def takes_tokens(model: type, config: Any) -> bool:
    """Return whether the sequence of the main input is as long as the user wants."""
    return _main_input(model) == "input_ids" and not _compares_images(model, config)


def longest_sequence(config: Any) -> int | None:
    """Return the most tokens that the model admits; None if unknown."""
    text = getattr(config, "text_config", None)  # not the patches that an image may have
    limit = _setting(text or config, "max_position_embeddings", "n_positions", "max_seq_len")
    if limit is None or limit <= 0:
        return None
    # RoBERTa and its kin start to count positions behind the padding token.
    pad = getattr(config, "pad_token_id", None)
    return int(limit) - (pad + 1 if pad == 1 and limit % 2 == 0 and limit % 8 == 2 else 0)


def left_out(model: type, config: Any) -> tuple[str, ...]:
    """Return the images and sounds that the model may get among its tokens, and does not."""
    if not takes_tokens(model, config):
        return ()
    return tuple(name for name in _MAKERS if name in _taken(model))


def model_inputs(
    model: type, config: Any, sizes: InputSizes, *, batch: int, sequence: int | None, loss: bool
) -> dict[str, Any]:
    """Return the arguments of one forward pass, all of them named.

    Raises:
        ModelError: The class takes something else than tokens, images, video or sound.
    """
    taken = _taken(model)
    main = _main_input(model)
    found: dict[str, Any] = {}
    if main in _MAKERS:
        found[main] = _MAKERS[main](config, sizes, batch)
    elif main in OTHER_INPUTS:
        found |= OTHER_INPUTS[main](config, batch)
    elif main != "input_ids":
        raise ModelError(_unknown(model, [main]))
    if "input_ids" in taken and (main == "input_ids" or _reads_text(model)):
        tokens = sequence if takes_tokens(model, config) else sizes.text
        found["input_ids"] = _ids(batch, tokens or longest_sequence(config) or 1, model)
        found |= with_tokens(config, batch, found["input_ids"].shape[-1])
    if main == "input_ids" and _compares_images(model, config):
        found["pixel_values"] = _image(config, sizes, batch)
    if sizes.among_tokens:
        found |= {name: _MAKERS[name](config, sizes, batch) for name in left_out(model, config)}
    if "decoder_input_ids" in taken and getattr(config, "is_encoder_decoder", False):
        found["decoder_input_ids"] = _ids(batch, _decoder_length(config, sizes, sequence), model)
    found = {name: value for name, value in found.items() if name in taken}
    _refuse_patches(model, found)
    missing = [name for name in taken if name not in found and not _is_optional(model, name)]
    if missing or not found:
        raise ModelError(_unknown(model, missing or list(taken)[:1]))
    if loss:
        found |= labels_of(model, taken, config, found)
    return found


def _refuse_patches(model: type, found: Mapping[str, Any]) -> None:
    if "pixel_values" in found and _PATCHES in _taken(model):
        raise ModelError(
            f"{model.__name__} takes images that its processor cuts into patches, and the rows and "
            f"columns of each ('{_PATCHES}'), for which no inputs can be made up; give its module "
            "in a Python file whose example_inputs return them, or a configuration for images of "
            "one size (of 'siglip' where this is 'siglip2')"
        )


def advice(given: Iterable[str]) -> str:
    """Return what to do where a class cannot be run on the inputs that are made up for it."""
    return f"; it was run on {' and '.join(given)} alone: if that is not what it needs, {_OWN}"


def _unknown(model: type, names: list[str]) -> str:
    named = ", ".join(f"'{name}'" for name in names)
    found = f"takes {named}" if named else "has no forward pass of its own"
    return f"{model.__name__} {found}, for which no inputs can be made up; {_OWN}"


def chosen_inputs(
    model: type, config: Any, sizes: InputSizes, given: Mapping[str, torch.Tensor], *, loss: bool
) -> tuple[str, ...]:
    """Return what is given and computed where nothing states it, in words.

    Args:
        given: Arguments of a forward pass of one sample whose tokens no one counted.
        loss: The loss is asked for.
    """
    limits = {
        "image_size": sizes.image or _setting(config, "image_size", "input_size"),
        "samples": sizes.samples or _setting(config, "num_mel_bins"),
        "frames": sizes.frames or _setting(config, "max_source_positions"),
        "tokens": sizes.text,
    }
    data = {name: given[name] for name in given if name in _SIZED}
    open_ = dict.fromkeys(_SIZED[name] for name in data if limits[_SIZED[name]] is None)
    words = []
    if open_ and not takes_tokens(model, config):
        shapes = (
            f"{name} of {' x '.join(map(str, each.shape[1:]))}" for name, each in data.items()
        )
        words.append(
            f"a sample is {' and '.join(shapes)}; model.arguments sets {' and '.join(open_)}"
        )
    labelled = any(name == "start_positions" or "label" in name for name in given)
    if loss and "labels" in _taken(model) and not labelled:
        words.append(f"the loss of {model.__name__} looks into its labels, and is left out")
    return tuple(words)


def refuse_idle_sizes(where: str, sizes: InputSizes, given: Mapping[str, torch.Tensor]) -> None:
    """Reject sizes that no input has.

    Raises:
        ModelError: One is set, and the model takes no such input, or of the length of its sequence.
    """
    if sizes.decoder_share != 1.0 and "decoder_input_ids" not in given:
        raise ModelError(f"{where}: decoder_length: found for a model without an encoder")
    shapes = {name: tuple(each.shape[1:]) for name, each in given.items() if name in _SIZED}
    asked = (
        (sizes.image, "pixel_"),
        (sizes.samples, "input_values"),
        (sizes.frames, ("input_features", "input_values")),  # the latter may be a spectrogram
        (sizes.text, ("input_ids", "decoder_input_ids")),
    )
    for size, names in asked:
        own = [shape for name, shape in shapes.items() if name.startswith(names)]
        if size is not None and not any(size in shape for shape in own):
            found = ", ".join(f"{name} of {shape}" for name, shape in shapes.items())
            raise ModelError(
                f"{where}: arguments: found a size of {size}, which no input has; it takes {found}"
            )


def _taken(model: Any) -> Mapping[str, inspect.Parameter]:
    _, *given = inspect.signature(model.forward).parameters.values()  # `self` first
    return {one.name: one for one in given if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)}


def _main_input(model: Any) -> str:
    name = model.main_input_name
    name = str(name[0] if isinstance(name, list | tuple) else name)
    taken = _taken(model)
    # Some encoders of images have the library's default, which they do not take.
    return name if name in taken else next((each for each in taken if each in _MAKERS), name)


def _is_optional(model: Any, name: str) -> bool:
    return _taken(model)[name].default is not inspect.Parameter.empty


def _reads_text(model: Any) -> bool:
    """Return whether a class that takes something else needs a text, too: its decoder's."""
    writes = model.__name__.endswith("ForConditionalGeneration")
    has_own_decoder = writes and "decoder_input_ids" not in _taken(model)
    return has_own_decoder or not _is_optional(model, "input_ids")


def _compares_images(model: type, config: Any) -> bool:
    """Return whether images are compared with texts, rather than put among the tokens."""
    has_two_towers = "return_loss" in _taken(model) or hasattr(config, "projection_dim")
    return "pixel_values" in _taken(model) and has_two_towers


def _ids(batch: int, tokens: int, model: type) -> torch.Tensor:
    shape = (batch, 2, tokens) if model.__name__.endswith("ForMultipleChoice") else (batch, tokens)
    return torch.zeros(shape, dtype=torch.long)


def _decoder_length(config: Any, sizes: InputSizes, sequence: int | None) -> int:
    if sequence is not None:
        return max(1, round(sequence * sizes.decoder_share))
    return int(sizes.text or _setting(config, "max_target_positions") or 128)


def _image(config: Any, sizes: InputSizes, batch: int) -> torch.Tensor:
    size = sizes.image or _setting(config, "image_size", "input_size") or _IMAGE
    height, width = size if isinstance(size, list | tuple) else (size, size)
    channels = sizes.channels or _setting(config, "num_channels", "in_channels") or _CHANNELS
    frames = _setting(config, "num_frames")
    # Video models take frames before channels.
    shape = (batch, frames, channels) if frames else (batch, channels)
    return torch.zeros(*shape, int(height), int(width))


def _video(config: Any, sizes: InputSizes, batch: int) -> torch.Tensor:
    image = _image(config, sizes, batch)
    if image.ndim == 5:
        return image
    frames = _setting(config, "frames_per_clip") or _FRAMES
    return image.unsqueeze(1).expand(-1, frames, -1, -1, -1).contiguous()


def _waveform(config: Any, sizes: InputSizes, batch: int) -> torch.Tensor:
    bins = sizes.mel or _setting(config, "num_mel_bins")
    if bins and not _setting(config, "conv_dim"):  # a spectrogram under the name of a waveform
        return torch.zeros(batch, sizes.frames or _setting(config, "max_length") or 1024, bins)
    samples = sizes.samples or _SAMPLES
    channels = _setting(config, "audio_channels")
    return torch.zeros(batch, channels, samples) if channels else torch.zeros(batch, samples)


def _spectrogram(config: Any, sizes: InputSizes, batch: int) -> torch.Tensor:
    if wide := _setting(config, "feature_projection_input_dim"):  # pairs of frames side by side
        return torch.zeros(batch, sizes.frames or 1500, wide)
    bins = sizes.mel or _setting(config, "num_mel_bins", "feature_size", "input_feat_per_channel")
    frames = sizes.frames or 2 * (_setting(config, "max_source_positions") or 1500)
    extractor = FEATURE_EXTRACTOR_MAPPING_NAMES.get(config.model_type)
    if extractor not in _BINS_FIRST:
        return torch.zeros(batch, frames, bins or 80)
    return torch.zeros(batch, bins or 80, frames)


_MAKERS: Final = {
    "pixel_values": _image,
    "pixel_values_videos": _video,
    "input_values": _waveform,
    "input_features": _spectrogram,
}


#: Input → the argument that sizes it.
_SIZED: Final = {
    "pixel_values": "image_size",
    "pixel_values_videos": "image_size",
    "input_values": "samples",
    "input_features": "frames",
    "input_ids": "tokens",
    "decoder_input_ids": "tokens",
}


def _setting(config: Any, *names: str) -> Any:
    """Return the first of some settings, of a configuration or of one nested in it."""
    for part in nested_parts(config):
        for name in names:
            value = getattr(part, name, None)
            if value is not None:
                return value
    return None


def labels_of(
    model: type, taken: Mapping[str, Any], config: Any, given: Mapping[str, torch.Tensor]
) -> dict[str, Any]:
    """Return the arguments that make `model` compute its loss; none if it has no plain one.

    Args:
        taken: What its `forward` takes.
        config: Its configuration, whose `problem_type` is settled here.
    """
    if "return_loss" in taken:
        return {"return_loss": True}
    kind = next((kind for end, kind in _SAMPLE_LABELS if model.__name__.endswith(end)), "none")
    samples = next(iter(given.values())).shape[0]
    if kind == "span":
        zeros = torch.zeros(samples, dtype=torch.long)
        return {"start_positions": zeros, "end_positions": zeros}
    tokens = given.get("decoder_input_ids", given.get("input_ids"))
    if "labels" not in taken or kind == "none" or (kind == "token" and tokens is None):
        return {}
    if kind == "class" and config.num_labels == 1:
        config.problem_type = "regression"
        return {"labels": torch.zeros(samples)}
    if kind == "class" and not model.__name__.endswith("MultipleChoice"):
        config.problem_type = "single_label_classification"
    shape = (samples,)
    if kind == "pixel":
        shape = (samples, *next(iter(given.values())).shape[-2:])
    elif kind == "token":
        shape = tokens.shape
    beside = {name: torch.zeros(samples, dtype=torch.long) for name in _BESIDE if name in taken}
    return {"labels": torch.zeros(shape, dtype=torch.long), **beside}
