"""A Python function that a job names → how to build its module and make its inputs.

The only place where a user's code is imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any, Final

import torch

from wattree.capture.record.recorder import Inputs
from wattree.capture.record.trees import tensors_in
from wattree.errors import ModelError
from wattree.job import Input, InputDeclaration, ModuleSource

#: What the second parameter of `example_inputs` is called where it is the sequence length.
_SEQUENCE_NAMES: Final = ("sequence_length", "sequence", "seq_len", "seq_length", "seqlen", "seq")
#: Function in the builder's module that makes inputs.
_EXAMPLE: Final = "example_inputs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The inputs for recording a named function.

    Attributes:
        has_sequence: Inputs have a dim of the sequence length.
    """

    build: Callable[[], Any]
    inputs: Inputs
    has_sequence: bool


def load_source(source: ModuleSource) -> Loaded:
    """Import the file or package that `source` names and find the functions in it.

    Raises:
        ModelError: There is no such file, package or function, it cannot be imported, or nothing
            says what the module takes.
    """
    code, build = _code_and_call(source)
    folder = None if source.path is None else source.path.parent
    if source.inputs is not None:
        return Loaded(
            build=build,
            inputs=declared(source.inputs),
            has_sequence=any(getattr(one, "has_sequence", False) for one in _all(source.inputs)),
        )
    example = getattr(code, _EXAMPLE, None)
    if not callable(example):
        raise ModelError(
            f"{source.name}: the module's inputs are not declared; define {_EXAMPLE}(batch) or "
            f"{_EXAMPLE}(batch, sequence_length) in the same file, or give 'inputs', such as "
            "['float32[batch, 3, 224, 224]']"
        )
    example = _given(example, source.arguments)
    has_sequence = _takes_sequence(example, source.name)
    return Loaded(build=build, inputs=made_by(example, folder), has_sequence=has_sequence)


def named_function(source: ModuleSource) -> Callable[[], Any]:
    """Import the file or package that `source` names; return a call of the function in it.

    Raises:
        ModelError: There is no such file, package or function, or it cannot be imported.
    """
    return _code_and_call(source)[1]


def _code_and_call(source: ModuleSource) -> tuple[Any, Callable[[], Any]]:
    code = _of_file(source.path) if source.path is not None else _of_package(source)
    folder = None if source.path is None else source.path.parent
    function = getattr(code, source.function, None)
    if isinstance(function, torch.nn.Module):
        raise ModelError(
            f"{source.name}: '{source.function}' is a module ({type(function).__name__}), expected "
            f"a function that returns one: def build(): return {source.function}"
        )
    if not callable(function):
        known = [name for name, value in vars(code).items() if inspect.isfunction(value)]
        raise ModelError(
            f"{source.name}: there is no function '{source.function}'; functions there: "
            f"{', '.join(known) or 'none'}"
        )

    def call() -> Any:
        with _importing_from(folder):
            return function(**source.arguments)

    return code, call


def declared(declarations: tuple[Input, ...] | Mapping[str, Input]) -> Inputs:
    """Return a function that makes declared tensors: normal floats, integers below their bound.

    Whole numbers without a bound, and flags, are 0. Constants stay as they are.
    """

    def inputs(batch: int, sequence: int | None) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        def tensor(one: Input) -> torch.Tensor | float:
            if not isinstance(one, InputDeclaration):
                return one
            return _drawn(one, one.shape(batch=batch, sequence=sequence))

        if isinstance(declarations, Mapping):
            return (), {name: tensor(one) for name, one in declarations.items()}
        return tuple(tensor(one) for one in declarations), {}

    return inputs


def _drawn(declaration: InputDeclaration, shape: tuple[int, ...]) -> torch.Tensor:
    dtype = getattr(torch, declaration.dtype)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, dtype=dtype)
    if declaration.below is None:
        return torch.zeros(shape, dtype=dtype)
    return torch.randint(0, declaration.below, shape, dtype=dtype)


def _all(inputs: Any) -> tuple[Input, ...]:
    return tuple(inputs.values()) if isinstance(inputs, Mapping) else inputs


def made_by(example: Callable[..., Any], folder: Path | None) -> Inputs:
    """Return the inputs that a function `(batch)` or `(batch, sequence)` makes.

    A tuple are positional arguments, a mapping keyword arguments, anything else is the only one.
    """
    has_sequence = _takes_sequence(example, getattr(example, "__name__", _EXAMPLE))

    def inputs(batch: int, sequence: int | None) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        given = (batch, sequence) if has_sequence and sequence is not None else (batch,)
        with _importing_from(folder):
            made = example(*given)
        if isinstance(made, tuple):
            return made, {}
        if isinstance(made, dict) and all(isinstance(key, str) for key in made):
            return (), made
        _check_only(made)
        return (made,), {}

    return inputs


def _check_only(made: Any) -> None:
    """Reject a value that no module takes as its only argument, most likely a mistake.

    Raises:
        ModelError: It is nothing, an array of NumPy, or a list without tensors.
    """
    is_array = type(made).__module__ == "numpy"
    is_bare = isinstance(made, list) and not any(True for _ in tensors_in(made))
    if made is None or is_array or is_bare:
        found = "None" if made is None else f"a {type(made).__module__}.{type(made).__qualname__}"
        raise ModelError(
            f"{_EXAMPLE} returned {found.replace('builtins.', '')}, expected a tensor, a tuple of "
            "the positional arguments, or a dict of those by keyword (torch.from_numpy makes a "
            "tensor of an array)"
        )


def _given(example: Callable[..., Any], arguments: Mapping[str, Any]) -> Callable[..., Any]:
    """Return `example_inputs` with those arguments of the build function that it takes, too."""
    names = list(inspect.signature(example).parameters)[1:]
    taken = {name: arguments[name] for name in names if name in arguments}
    return partial(example, **{k: v for k, v in taken.items() if k not in _SEQUENCE_NAMES})


def _takes_sequence(example: Callable[..., Any], name: str) -> bool:
    parameters = list(inspect.signature(example).parameters.values())
    if not parameters:
        raise ModelError(
            f"{name}: {_EXAMPLE}() takes no batch; let it be {_EXAMPLE}(batch), so that sizes that "
            "grow with the batch can be determined"
        )
    if len(parameters) < 2:
        return False
    second = parameters[1]
    return second.name in _SEQUENCE_NAMES or (
        second.default is second.empty
        and second.kind in {second.POSITIONAL_ONLY, second.POSITIONAL_OR_KEYWORD}
    )


class _FreshCode(SourceFileLoader):
    """Compiles a file again: Python's cache has its time only to the second."""

    def get_code(self, fullname: str) -> CodeType:
        """Return the code of the file as it is now."""
        return self.source_to_code(self.get_data(self.path), self.get_filename(fullname))


def _of_file(file: Path) -> Any:
    """Return the module of a file, imported anew if its content changed."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ModelError(f"{file}: cannot be read ({error.strerror})") from error
    digest = sha256(str(file.resolve()).encode() + b"\0" + content).hexdigest()[:16]
    name = f"wattree_model_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file, loader=_FreshCode(name, str(file)))
    assert spec is not None
    assert spec.loader is not None
    code = importlib.util.module_from_spec(spec)
    sys.modules[name] = code  # dataclasses look their module up while it is being imported
    try:
        with _importing_from(file.parent):
            spec.loader.exec_module(code)
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, Exception | SystemExit):
            raise
        raise ModelError(f"{file}: importing it raised {_text(error, file)}") from error
    return code


def _of_package(source: ModuleSource) -> Any:
    assert source.package is not None
    try:
        return importlib.import_module(source.package)
    except ModuleNotFoundError as error:
        raise ModelError(
            f"{source.name}: there is no package '{error.name}' among those installed; for a file "
            "give its path, such as path/to/model.py:build"
        ) from error
    except (Exception, SystemExit) as error:
        raise ModelError(f"{source.name}: importing it raised {_text(error, None)}") from error


def _text(error: BaseException, file: Path | None) -> str:
    text = str(error).strip().split("\n")[0]
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if file is not None and frame.filename == str(file)
    ]
    where = f" (line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {text}{where}" if text else f"{type(error).__name__}{where}"


@contextmanager
def _importing_from(folder: Path | None) -> Iterator[None]:
    """Let a file import modules of its folder, as if it were run itself."""
    if folder is None:
        yield
        return
    place = str(folder.resolve())
    sys.path.insert(0, place)
    try:
        yield
    finally:
        sys.path.remove(place)
