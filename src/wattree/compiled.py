"""Functions over arrays, compiled by numba once and kept as machine code.

Loading numba and its tables takes longer than playing most jobs, so only a first run does it.
Later ones load the machine code by itself and call it as C would.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, Generic, ParamSpec, TypeVar, cast

import numpy as np

from wattree.cached import cached, cached_names, store

F = TypeVar("F", bound=Callable[..., object])
P = ParamSpec("P")
R = TypeVar("R")

#: What a kernel may return, as annotations say it.
_RESULTS: dict[object, type | None] = {"None": None, "bool": bool, "int": int}
#: Functions that are compiled into kernels → whether they write instructions themselves.
_PARTS: dict[object, bool] = {}
_NOT_KEPT = (
    "{}: machine code cannot be kept with this numba ({}), so every process compiles it; the "
    "numba of constraints.txt is known to do"
)
#: Kernels are compiled here once another process has taken so long that it must have come to harm.
_PATIENCE_S = 120.0
#: Kernels that other processes compile, by the names of their files.
_ELSEWHERE: dict[str, subprocess.Popen[bytes]] = {}


def kernel(function: Callable[P, R]) -> Kernel[P, R]:
    """Make an entry point of a function of arrays, tuples of them, and numbers.

    It returns nothing, or one number.
    """
    return Kernel(function)


def part(function: F) -> F:
    """Mark a function that kernels call: it is compiled into them."""
    _PARTS[function] = False
    return function


def intrinsic(function: F) -> F:
    """Mark a function that gives numba the instructions of a call, as its own intrinsics do."""
    _PARTS[function] = True
    return function


class Kernel(Generic[P, R]):
    """An entry point. Its machine code is loaded, or made, at its first call.

    Attributes:
        name: Of the function and its module, as the files that keep its code begin.
    """

    def __init__(self, function: Callable[P, R]) -> None:
        assert isinstance(function, FunctionType)
        self.name = f"{function.__module__}.{function.__name__}"
        self._function = function
        self._source = Path(function.__code__.co_filename).resolve()
        self._result = _RESULTS[function.__annotations__["return"]]
        self._entries: dict[tuple[object, ...], Callable[..., int]] = {}
        self._plain: Callable[..., object] | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the compiled function."""
        assert not kwargs, "machine code has no names of arguments"
        if self._plain is not None:
            return self._of_plain(args)
        kinds: list[object] = []
        values: list[int | float | None] = []
        for argument in args:
            _flatten(argument, kinds, values)
        entry = self._entries.get(tuple(kinds))
        if entry is None:
            try:
                entry = self._entries[tuple(kinds)] = self._entry(str(kinds), values, args)
            except Exception as error:  # noqa: BLE001 - of private parts that came and went
                why = f"{type(error).__name__}: {error}"
                warnings.warn(_NOT_KEPT.format(self.name, why), RuntimeWarning, stacklevel=2)
                self._plain = _plain(self._function, {})
                return self._of_plain(args)
        result = (ctypes.c_int64 * 1)()
        if entry(result, ctypes.byref(ctypes.c_void_p()), *values):
            raise ArithmeticError(f"{self.name}: a division by zero or another fault of the kernel")
        return cast("R", self._result and self._result(result[0]))

    def _of_plain(self, args: tuple[object, ...]) -> R:
        assert self._plain is not None
        found = self._plain(*args)
        return cast("R", self._result and self._result(found))

    def is_compiled(self) -> bool:
        """Return whether machine code is kept and up to date."""
        names = cached_names(self._source, f"{self.name}.")
        return any(cached(self._source, name, self._key()) is not None for name in names)

    def _entry(
        self, kinds: str, values: list[int | float | None], args: tuple[object, ...]
    ) -> Callable[..., int]:
        name = f"{self.name}.{hashlib.sha256(kinds.encode()).hexdigest()[:12]}.o"
        if (other := _ELSEWHERE.pop(self.name, None)) is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                other.wait(_PATIENCE_S)
        content = cached(self._source, name, self._key())
        if content is None:
            _say_that_it_compiles()
            content = _compiled(self._function, args)
            store(self._source, name, self._key(), content)
        symbol, _, code = content.partition(b"\n")
        types = (_c_type(value) for value in values)
        kind = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *types)
        return kind(_loaded(symbol.decode(), code))

    def _key(self) -> str:
        """Return what machine code depends on: the sources, constants among them, and where."""
        import llvmlite  # numba takes one version of it, so it stands for that of numba

        machine = f"{sys.version} {llvmlite.__version__} {_host()}"
        return f"{machine} {_sources_digest(self._function)}"


@cache
def _say_that_it_compiles() -> None:
    """Tell a person at a terminal or notebook what takes long; commands say it themselves."""
    if sys.stderr is not None and (sys.stderr.isatty() or hasattr(sys, "ps1")):
        words = "wattree: first run: compiling kernels, some 10 s; later runs load them.\n"
        sys.stderr.write(words)
        sys.stderr.flush()


def compile_elsewhere(function: Callable[[], None], *kernels: Kernel[..., Any]) -> None:
    """Let another process compile kernels; their first calls wait for it.

    Not if all are kept, nor if one that this process began is at it: on a slow machine a program
    that asks again and again would add processes faster than they end.

    Args:
        function: Of a module, calls all the kernels.
    """
    import atexit

    if all(each.name in _ELSEWHERE or each.is_compiled() for each in kernels):
        return
    words = f"import gc, sys; gc.disable(); sys.path[:] = {sys.path!r}; "
    words += f"from {function.__module__} import {function.__name__} as f; f(); gc.freeze()"
    process = subprocess.Popen(  # noqa: S603 - this Python, and words of our own
        [sys.executable, "-c", words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    atexit.register(process.kill)  # what is left when this process ends is not asked for
    _ELSEWHERE.update((each.name, process) for each in kernels)


def _flatten(argument: object, kinds: list[object], values: list[int | float | None]) -> None:
    """Append the type of an argument, and what numba's calls pass of it."""
    if isinstance(argument, np.ndarray):
        kinds.append((argument.dtype, argument.ndim, argument.flags.c_contiguous))
        size, data = argument.size, argument.ctypes.data
        values += (None, None, size, argument.itemsize, data, *argument.shape, *argument.strides)
    elif isinstance(argument, tuple):
        kinds.append(type(argument).__name__)
        for each in argument:
            _flatten(each, kinds, values)
    else:
        number = _number(argument)
        kinds.append(type(number))
        values.append(number)


def _number(argument: object) -> int | float:
    """Return a number as kernels take it: truth values are whole numbers."""
    if isinstance(argument, float | np.floating):
        return float(argument)
    assert isinstance(argument, int | np.integer | np.bool_), f"found {argument!r}"
    return int(argument)


def _type(argument: object) -> Any:
    """Return numba's type of what `_flatten` passes."""
    numba = _numba()
    if isinstance(argument, np.ndarray):
        return numba.typeof(argument)
    if isinstance(argument, tuple):
        types = [_type(each) for each in argument]
        if type(argument) is tuple:
            return numba.types.BaseTuple.from_types(types)
        return numba.types.BaseTuple.from_types(types, type(argument))
    return numba.typeof(_number(argument))


def _numba() -> Any:
    """Return numba; its own types know neither all of its options nor its types."""
    import numba.extending

    return numba


def _c_type(value: float | None) -> Any:
    if value is None:
        return ctypes.c_void_p
    return ctypes.c_double if isinstance(value, float) else ctypes.c_int64


def _compiled(function: FunctionType, args: tuple[object, ...]) -> bytes:
    """Return the name of a function's machine code, and the code."""
    from wattree.machine_code import machine_code

    own = _with_parts(function, {}, _inlined)
    name, code, wanted = machine_code(own, tuple(map(_type, args)))
    missing = {each for each in wanted if not (each.startswith("llvm.") or _is_linked(each))}
    assert not missing, f"{function.__name__} needs {missing}, which only numba has"
    return name.encode() + b"\n" + code


def _plain(function: FunctionType, done: dict[object, object]) -> Any:
    """Return a function compiled as numba does it, with nothing but its documented parts."""
    return _numba().njit(_with_parts(function, done, _plain))


def _is_linked(name: str) -> bool:
    """Return whether any process of Python has a function, as that of the C library."""
    return hasattr(ctypes.CDLL(None), name)


def _inlined(function: FunctionType, done: dict[object, object]) -> Any:
    from wattree.machine_code import part

    return part(_with_parts(function, done, _inlined))


def _with_parts(
    function: FunctionType,
    done: dict[object, object],
    compiled: Callable[[FunctionType, dict[object, object]], object],
) -> FunctionType:
    """Return a function that calls compiled parts where it called marked functions."""
    names = dict(function.__globals__)
    for name, each in _parts_of(function):
        if each not in done:
            is_own = _PARTS[each]
            done[each] = _numba().extending.intrinsic(each) if is_own else compiled(each, done)
        names[name] = done[each]
    return FunctionType(function.__code__, names, function.__name__, function.__defaults__)


def _parts_of(function: FunctionType) -> Iterator[tuple[str, FunctionType]]:
    for name in function.__code__.co_names:
        each = function.__globals__.get(name)
        if isinstance(each, FunctionType) and each in _PARTS:
            yield name, each


@cache
def _sources_digest(function: FunctionType) -> str:
    """Return a digest of the files and the constants that a kernel is made of."""
    found, left = {function: None}, [function]
    while left:
        for _, each in _parts_of(left.pop()):
            if each not in found:
                found[each] = None
                left.append(each)
    digest = hashlib.sha256()
    own = {__file__, str(Path(__file__).with_name("machine_code.py"))}
    for path in sorted({each.__code__.co_filename for each in found} | own):
        digest.update(Path(path).read_bytes())
    for each in found:
        for name in each.__code__.co_names:
            if isinstance(value := each.__globals__.get(name), int | float | str):
                digest.update(f"{name}={value!r}\n".encode())
    return digest.hexdigest()


@cache
def _host() -> str:
    from llvmlite import binding

    return f"{binding.get_host_cpu_name()} {binding.get_host_cpu_features().flatten()}"


@cache
def _linker() -> Any:
    """Return what brings machine code into this process; it lives as long as that."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(jit=True)
    return binding.create_mcjit_compiler(binding.parse_assembly(""), machine)


def _loaded(symbol: str, code: bytes) -> int:
    """Return the address of a function in machine code."""
    from llvmlite import binding

    linker = _linker()
    linker.add_object_file(binding.ObjectFileRef.from_data(code))
    linker.finalize_object()
    address: int = linker.get_function_address(symbol)
    assert address, f"no {symbol} in the machine code"
    return address
