"""From a model's name, file or description to its graph."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from wattree.capture.catalog_entries import catalog_entry, is_model_name
from wattree.capture.configuration import (
    INPUT_SIZES,
    ModelKind,
    kind_of,
    model_from_config,
    recorded_configuration,
    with_known_type,
)
from wattree.capture.library_types import FLOAT_TAG
from wattree.capture.module import RECORDED_BATCH
from wattree.capture.recording import Recording
from wattree.errors import ModelError, UnknownNameError
from wattree.files import exists, is_folder, read_json
from wattree.graph import ModelGraph
from wattree.job import ModelSource, seen_from

#: Largest `config.json` that is read. Those of public models are below 100 kB; classifiers with
#: a name for each of 20,000 classes reach 1 MB. [B]
_CONFIG_LIMIT_BYTES: Final = 4 * 2**20
#: Most further tokens that a model predicts; published ones predict one or two.
_MOST_PREDICTED: Final = 64
#: Largest size of a captured model's input: ten minutes of sound at 16 kHz.
_LARGEST_INPUT: Final = 10_000_000
#: Ends of files that hold a model in another form.
_EXPORTED: Final = (".onnx", ".pt2", ".pt", ".pth", ".ckpt", ".safetensors", ".gguf")
#: Arguments that a family's reader takes.
_OF_SHAPES: Final = ("predictions", "decoder_length", "classes")
_Pairs = tuple[tuple[str, Any], ...]


def load_model(
    name_or_path: str | Path,
    *,
    arguments: Mapping[str, Any] | None = None,
    sequence: int | None = None,
    capture: bool = False,
    normal: bool = True,
    narrow: bool = False,
) -> ModelGraph:
    """Return the graph of a model of the catalog, or of a `config.json` or its folder.

    What ends in `.json`, or names an existing file or folder with a separator in it, is a path.
    Everything else is a name; of the catalog first, then of a file or folder.

    Args:
        arguments: Options of a model of the catalog that has some, such as `image_size`; of
            hybrids `predictions`, the tokens beyond the next that training predicts; of
            encoder-decoders `decoder_length`, the tokens of a sample that the decoder reads; of
            captured configurations its sizes (`image_size`, `samples`, `frames`, `tokens`); of
            configurations `classes`, as of `with_classes`.
        sequence: Tokens per sample at which sizes of a captured model are exact; None: its own.
        capture: Build and capture it with transformers even where its family can be read.
        normal: As `wattree.capture.convert.model_graph` has it, where it is captured.
        narrow: It is captured with parameters of 16 bits.

    Raises:
        MissingExtraError: It has to be captured, and torch or transformers are missing.
        UnknownNameError: No such name in the catalog; the nearest is suggested.
        ModelError: The file describes no model that can be read, or there are no such arguments.
        JobError: The file cannot be read at all.
    """
    text = os.fspath(name_or_path)
    if ".py:" in text or text.endswith(".py"):
        raise ModelError(
            f"model '{text}': a Python module is run, and is taken only where a job's 'model' or "
            "wattree.capture_module names it; expected a catalog name or a config.json"
        )
    how: dict[str, Any] = {
        "sequence": sequence, "capture": capture, "normal": normal, "narrow": narrow,
    }  # fmt: skip
    if names_configuration(name_or_path):
        changes, sizes = _options(arguments, text, sequence)
        file = config_file(Path(text))
        return model_from_config(
            read_config(file), str(file), changes=dict(changes), sizes=sizes, **how
        )
    entry, given = catalog_entry(text), arguments or {}
    # The library's modules are captured anew at other sizes, and stored between processes.
    if entry.config is None or (entry.module and not capture and entry.ships_with(given)):
        from wattree.capture.zoo.graph import built_in_graph

        return built_in_graph(entry.name, given, normal=normal)
    changes, sizes = _options({**entry.options, **given}, entry.name, sequence)
    return _of_catalogue(entry.name, changes, sizes, **how)


@lru_cache(maxsize=64)  # entries do not change, and what is compiled of a graph is kept with it
def _of_catalogue(name: str, changes: _Pairs, sizes: _Pairs, **how: Any) -> ModelGraph:
    entry = catalog_entry(name)
    assert entry.config is not None
    return model_from_config(
        entry.config,
        f"catalog model {entry.name}",
        name=entry.name,
        sources=(entry.source,),
        changes=dict(changes),
        sizes=sizes,
        **how,
    )


def kind_of_model(name_or_path: str) -> ModelKind:
    """Return what a name of the catalog, or a file or folder, is the name of; no graph is built."""
    if names_configuration(name_or_path):
        return kind_of(read_config(config_file(Path(name_or_path))))
    config = catalog_entry(name_or_path).config
    return ModelKind(language=False, known_family=False) if config is None else kind_of(config)


def capture_config(
    path: Path, *, batch: int = RECORDED_BATCH, sequence: int | None = None
) -> Recording:
    """Return the operators of the transformers library's module for a `config.json`, or its folder.

    Args:
        path: The file or folder.
        batch: Samples at which sizes are exact.
        sequence: Tokens per sample; None: up to 2,048, as the model admits them.

    Raises:
        ModelError: It cannot be built or recorded.
        MissingExtraError: Torch or transformers are missing.
    """
    file = config_file(path)
    return recorded_configuration(read_config(file), str(file), batch=batch, sequence=sequence)


def read_config(file: Path) -> dict[str, Any]:
    """Return a parsed `config.json`, with the known type of its class where its own is unknown.

    Older releases of the library wrote infinities that JSON does not have: they come back as newer
    ones write them, `{"__float__": "Infinity"}`.

    Raises:
        JobError: The file cannot be read, or holds no JSON object.
    """
    config = read_json(
        file, limit_bytes=_CONFIG_LIMIT_BYTES, constant=lambda name: {FLOAT_TAG: name}
    )
    return with_known_type(config)


def located_model(name: str, folder: Path) -> str:
    """Return the argument of `load_model` for a model named in a file of `folder`.

    A name of the catalog stays what it is, even where a file is called the same; otherwise it
    may be a file or folder there. What is neither comes back unchanged.

    Args:
        name: As the file says it.
        folder: Where its relative paths start.
    """
    path = folder / name
    if is_model_name(name) or not exists(path):
        return name
    return str(config_file(path))


def located_source(source: ModelSource) -> str:
    """Return the argument of `load_model` for the named model of a job, from any folder."""
    name = source.name or ""
    if name.endswith(".json"):  # a path since the job was read
        return str(seen_from(source.start, Path(name)))
    if not name or "/" in name:
        return name
    return located_model(name, seen_from(source.start, source.folder))


def name_fault(name: str, folder: Path) -> str | None:
    """Return why a name in a file of `folder` is that of no model; None if it is one's."""
    try:
        located = located_model(name, folder)
        if not names_configuration(located):
            catalog_entry(located)
    except (ModelError, UnknownNameError) as error:
        return str(error)
    return None


def config_file(path: Path) -> Path:
    """Return the configuration in a folder, or the file itself."""
    return path / "config.json" if path.is_dir() else path


def _options(
    arguments: Mapping[str, Any] | None, name: str, sequence: int | None
) -> tuple[_Pairs, _Pairs]:
    """Return the arguments of a configuration: fields of a shape, and input sizes."""
    given = dict(arguments or {})
    for key, found in given.items():
        if key not in (*_OF_SHAPES, *INPUT_SIZES):
            raise ModelError(
                f"{name}: arguments: found {key}, expected {', '.join((*_OF_SHAPES, *INPUT_SIZES))}"
                ": all else is read from a configuration"
            )
        least, most = (0, _MOST_PREDICTED) if key == "predictions" else (1, _LARGEST_INPUT)
        if isinstance(found, bool) or not isinstance(found, int) or not least <= found <= most:
            raise ModelError(
                f"{name}: {key}: found {found!r}, expected a whole number from {least} to {most}"
            )
    changes = {}
    if predictions := given.pop("predictions", 0):
        changes["predictions"] = predictions
    if classes := given.pop("classes", None):
        changes["classes"] = classes
    if length := given.pop("decoder_length", None):
        if sequence is None:
            raise ModelError(f"{name}: decoder_length: found without data.sequence_length")
        changes["decoder_sequence_ratio"] = length / sequence
    return tuple(changes.items()), tuple(sorted(given.items()))


def names_configuration(name_or_path: str | Path) -> bool:
    """Return whether a model is named by a file or folder, not by a name of the catalog.

    Raises:
        ModelError: It can be neither.
    """
    if str(name_or_path).endswith(_EXPORTED) and not is_folder(Path(name_or_path)):
        raise ModelError(
            f"found {str(name_or_path)!r}: exported graphs and weights are not read; expected the "
            "function that builds the nn.Module, such as file.py:build, or a config.json"
        )
    if isinstance(name_or_path, Path) or name_or_path.endswith(".json"):
        return True
    if "\0" in name_or_path:
        raise ModelError(f"model: found {name_or_path!r}, expected a name or a path")
    if os.sep not in name_or_path and is_model_name(name_or_path):
        return False
    return exists(Path(name_or_path))
