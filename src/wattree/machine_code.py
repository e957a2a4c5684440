"""Machine code of a kernel and its parts: numba translates each, LLVM optimizes all of them once.

Numba by itself optimizes every function when it is called for the first time, makes machine code
of it, and does both again for each caller that it is inlined into. It also compiles a function
anew for each constant that it is called with. Both together doubled the time of a first run.
What is private in numba is used here alone.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

from numba.core import codegen, registry, types

#: Without the runtime of numba, arrays are plain memory: nothing can be allocated, and nothing
#: counts references, which took nine tenths of the time of an event. Without wrappers, machine
#: code knows nothing of Python.
_KERNEL = {"nopython": True, "_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
#: Parts are called from kernels only, and a call would cost more than most of them do.
_PART = {**_KERNEL, "forceinline": True}


class _Library(codegen.JITCodeLibrary):
    """Code of one function in LLVM's language, without that of the functions that it calls."""

    def finalize(self) -> None:
        """Leave the code as it is: its callers take it in."""
        self._finalized = True

    def object_code(self) -> bytes:
        """Return the machine code of the function and of all that it calls."""
        found: dict[Any, None] = {}
        left = [self]
        while left:
            for each in left.pop()._linking_libraries:
                if each not in found:
                    found[each] = None
                    if isinstance(each, _Library):  # those of numba hold what they call
                        left.append(each)
        for each in found:
            self._final_module.link_in(each._get_module_for_linking(), preserve=True)
        self._optimize_final_module()
        self._final_module.verify()
        code: bytes = self._codegen._tm.emit_object(self._final_module)
        return code

    def undefined(self) -> set[str]:
        """Return the names of the functions that the code calls and does not contain."""
        return {each.name for each in self._final_module.functions if each.is_declaration}


class _Codegen(codegen.JITCPUCodegen):
    _library_class = _Library


class _Target(registry.CPUTarget):
    """This processor, for functions that are never called from Python."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self._context = registry.cpu_target.target_context.subtarget(
            _internal_codegen=_Codegen("wattree")
        )
        self._context.get_executable = lambda *_: object()  # what identifies a function

    @property
    def target_context(self) -> Any:
        """What lowers types and operations; it shares numba's."""
        return self._context

    @property
    def typing_context(self) -> Any:
        """Numba's own."""
        return registry.cpu_target.typing_context


class _Function(registry.CPUDispatcher):
    """A function that is compiled by the types of arguments, whatever their values."""

    targetdescr = _Target()

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Compile the function for the types of a call."""
        return super().get_call_template([types.unliteral(each) for each in args], kws)

    def add_overload(self, cres: Any) -> None:
        """Store what was compiled, which Python has no way to call."""
        self.overloads[tuple(cres.signature.args)] = cres


def part(function: FunctionType) -> Any:
    """Return a function for kernels to call; it is inlined into them."""
    return _Function(function, targetoptions=_PART)


def machine_code(function: FunctionType, kinds: tuple[Any, ...]) -> tuple[str, bytes, set[str]]:
    """Return the name of a function's machine code, the code, and what it takes from elsewhere."""
    dispatcher = _Function(function, targetoptions=_KERNEL)
    dispatcher.compile(kinds)
    compiled: Any = dispatcher.overloads[kinds]
    code = compiled.library.object_code()
    return compiled.fndesc.llvm_func_name, code, compiled.library.undefined()
