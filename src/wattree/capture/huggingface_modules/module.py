"""A configuration → a module to be built, with its inputs, and its recording."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal

import torch
from torch import nn

from wattree.capture.huggingface_modules.choices import ConfigurationChoices
from wattree.capture.huggingface_modules.classes import (
    library_class,
    library_config,
    nested_parts,
    offline,
    one_line,
)
from wattree.capture.huggingface_modules.experts import route_all, routed_experts
from wattree.capture.huggingface_modules.inputs import (
    InputSizes,
    advice,
    chosen_inputs,
    left_out,
    longest_sequence,
    model_inputs,
    refuse_idle_sizes,
    takes_tokens,
)
from wattree.capture.huggingface_modules.scan import fused_scans
from wattree.capture.module import RECORDED_BATCH
from wattree.capture.record import record
from wattree.capture.record.trees import tensors_in
from wattree.capture.recording import Recording
from wattree.errors import ModelError

#: What backward starts from where there is no loss, the first that the output has.
_MAIN_OUTPUTS: Final = ("logits", "logits_per_image", "last_hidden_state")

#: Tokens at which models are recorded where no one asks for a length and they admit that many.
_SEQUENCE: Final = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class HuggingFaceModule:
    """The recorder's inputs for a model of the library.

    Attributes:
        name: For messages.
        build: Makes the module; called on the meta device.
        inputs: `(batch, sequence) → (positional arguments, keyword arguments)`.
        has_sequence: The sequence may be of any length up to `longest_sequence`.
        longest_sequence: Most tokens that it admits; None where nothing says so.
        left_out: Inputs that it may get and does not.
        advice: What to do where it cannot be run on these inputs.
        assumed: Sizes of its inputs and parts that nothing states, in words.
    """

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[int, int | None], tuple[tuple[Any, ...], Mapping[str, Any]]]
    has_sequence: bool
    longest_sequence: int | None = None
    left_out: tuple[str, ...] = ()
    advice: str = ""
    assumed: tuple[str, ...] = ()


def huggingface_module(
    config: Mapping[str, Any],
    where: str,
    *,
    choices: ConfigurationChoices | None = None,
    sizes: InputSizes | None = None,
) -> HuggingFaceModule:
    """Return how to build and run the model of a parsed `config.json`.

    Raises:
        ModelError: It is not a model of the library, or needs code or inputs of its own.
    """
    choices, sizes = choices or ConfigurationChoices(), sizes or InputSizes()
    found = library_config(config, where, choices)
    model = library_class(config, found, where)
    # A class of one part, as of a text model, takes the configuration of that part.
    found = next((part for part in nested_parts(found) if type(part) is model.config_class), found)
    if not getattr(model, "_supports_sdpa", True):
        found._attn_implementation = "eager"
    if model.__name__.endswith("ForSequenceClassification") and found.pad_token_id is None:
        found.pad_token_id = 0  # needed to find the last token of several samples

    def build() -> nn.Module:
        try:
            with offline():
                dtype = torch.bfloat16 if choices.narrow else torch.float32
                module: nn.Module = model._from_config(found, dtype=dtype)
        except Exception as error:
            if isinstance(error, ValueError) and found._attn_implementation == "sdpa":
                found._attn_implementation = "eager"
                return build()
            raise ModelError(
                f"{where}: {model.__name__} cannot be built: {one_line(error)}"
            ) from error
        if config.get("tie_word_embeddings") is False:
            _give_a_head_of_its_own(module)
        module.train(choices.training)
        _return_main_output(module, loss=choices.loss)
        return module

    def inputs(batch: int, sequence: int | None) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        named = model_inputs(model, found, sizes, batch=batch, sequence=sequence, loss=choices.loss)
        refuse_idle_sizes(where, sizes, named)
        return (), named

    example = inputs(1, None)[1]
    return HuggingFaceModule(
        name=where,
        build=build,
        inputs=inputs,
        has_sequence=takes_tokens(model, found),
        longest_sequence=longest_sequence(found),
        left_out=() if sizes.among_tokens else left_out(model, found),
        advice=advice(example),
        assumed=chosen_inputs(model, found, sizes, example, loss=choices.loss),
    )


def recorded_config(
    config: Mapping[str, Any],
    where: str,
    *,
    choices: ConfigurationChoices | None = None,
    sizes: InputSizes | None = None,
    batch: int = RECORDED_BATCH,
    sequence: int | None = None,
    attention: Literal["fused", "cpu", "math"] = "fused",
) -> Recording:
    """Return the recording of the model of a parsed `config.json`.

    Where its loss cannot be recorded, it is recorded without, and a warning says so.

    Args:
        config: Parsed.
        where: The file, for messages.
        sizes: Of inputs, where they are not what the configuration says.
        batch: Samples at which sizes are exact.
        sequence: Tokens at which sizes are exact; None: up to 2,048, as the model admits them.
        attention: As `record` has it; matters where `choices` ask for `sdpa`.

    Raises:
        ModelError: It cannot be built or run; the message says where and what to do.
    """
    choices, sizes = choices or ConfigurationChoices(), sizes or InputSizes()
    module = huggingface_module(config, where, choices=choices, sizes=sizes)
    again = partial(
        recorded_config, config, where, batch=batch, sequence=sequence, attention=attention
    )
    length = _length(module, sequence) if module.has_sequence else None
    try:
        found = record(
            lambda: as_recorded(module.build()),
            module.inputs,
            name=where,
            batch=batch,
            sequence=length,
            attention=attention,
        )
    except ModelError as error:
        if module.left_out and " raised" in str(error):
            with suppress(ModelError):  # images and sounds may be required
                return again(choices=choices, sizes=replace(sizes, among_tokens=True))
        if not choices.loss:
            more = _layers_beyond(config) or (module.advice if " raised" in str(error) else "")
            raise ModelError(f"{error}{more}") from error
        found = again(choices=replace(choices, loss=False), sizes=sizes)
        note = f"its loss is left out, since it cannot be recorded: {error}"
        return replace(found, warnings=(*found.warnings, note))
    found = replace(found, assumed=module.assumed)
    if not module.left_out:
        return found
    note = f"recorded on tokens alone; what it does with {', '.join(module.left_out)} is left out"
    return replace(found, warnings=(*found.warnings, note))


def _layers_beyond(config: Mapping[str, Any]) -> str:
    """Return what a failed run may come from: lists of layers that the model does not have."""
    layers = config.get("num_hidden_layers")
    if not isinstance(layers, int):
        return ""
    for key, value in config.items():
        numbers = value if "layer" in key and isinstance(value, list) else ()
        beyond = [each for each in numbers if isinstance(each, int) and each >= layers]
        if beyond:
            return (
                f"; {key} names layer {max(beyond)}, but num_hidden_layers is {layers}: leave "
                f"it out, or name layers from 0 to {layers - 1}"
            )
    return ""


def _length(module: HuggingFaceModule, sequence: int | None) -> int:
    """Return the length to record at, at which sizes are exact; the other is half of it."""
    longest = module.longest_sequence
    if longest is None:
        return sequence or _SEQUENCE
    if sequence is not None and sequence > longest:
        raise ModelError(f"{module.name}: admits {longest} tokens, found a sequence of {sequence}")
    wanted = sequence or min(_SEQUENCE, longest)
    # A table of positions that is read whole is not cut: one operator fewer than at half of it.
    return wanted if wanted < longest else max(1, wanted // 2)


def _give_a_head_of_its_own(module: Any) -> None:
    """Untie a head that the library ties against the file, as in Flan-T5."""
    table, head = module.get_input_embeddings(), module.get_output_embeddings()
    if table is not None and head is not None and head.weight is table.weight:
        head.weight = nn.Parameter(torch.empty_like(table.weight))


def _return_main_output(module: nn.Module, *, loss: bool) -> None:
    """Let `module` return the one tensor that backward starts from."""
    original = module.forward

    def forward(*args: Any, **kwargs: Any) -> torch.Tensor:
        kwargs = {key: _of_width(value, module) for key, value in kwargs.items()}
        with offline():
            out = original(*args, **kwargs)
        found = getattr(out, "loss", None) if loss else None
        return found if found is not None else _main_output(out)

    module.forward = forward


def as_recorded(module: nn.Module) -> nn.Module:
    """Let `module` run by the operators that a recording knows.

    They stand for the kernels of GPUs, and some are defined by shapes alone: none to train with.
    """
    route_all(module)
    original = module.forward

    def forward(*args: Any, **kwargs: Any) -> torch.Tensor:
        with fused_scans(module), routed_experts():
            return original(*args, **kwargs)

    module.forward = forward
    return module


def _of_width(value: Any, module: nn.Module) -> Any:
    """Return an input in the width of the parameters, as loaders hand it over."""
    is_real = isinstance(value, torch.Tensor) and value.is_floating_point()
    first = next(module.parameters(), None)
    return value.to(first.dtype) if is_real and first is not None else value


def _main_output(out: Any) -> torch.Tensor:
    for name in _MAIN_OUTPUTS:
        if isinstance(found := getattr(out, name, None), torch.Tensor):
            return found
    return next(tensor for tensor in tensors_in(out) if tensor.is_floating_point())
