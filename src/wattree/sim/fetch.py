"""A prefetch hint for the processor, which numba does not provide."""

from __future__ import annotations

from typing import Any

from wattree.compiled import intrinsic

# Arguments of llvm.prefetch: to be read, soon and again, as data.
_READ, _KEEP, _DATA = 0, 3, 1


# Kernels call it as `fetch_ahead(array, index)`; numba adds the context of its types.
@intrinsic
def fetch_ahead(_context: Any, array: Any, _index: Any = None) -> Any:
    """Prefetch the cache line of an element.

    It changes no result. Ranks that are not in lock-step are executed a quarter faster with it.
    """
    import numba
    from llvmlite import ir

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        array_type, flag = signature.args[0], ir.IntType(32)
        elements = context.make_array(array_type)(context, builder, values[0]).data
        size = context.get_abi_sizeof(context.get_data_type(array_type.dtype))
        byte: Any = ir.IntType(8).as_pointer()
        offset = builder.mul(values[1], ir.Constant(ir.IntType(64), size))
        address = builder.gep(builder.bitcast(elements, byte), [offset])
        prefetch = builder.module.declare_intrinsic(
            "llvm.prefetch", [byte], ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
        )
        builder.call(prefetch, [address, flag(_READ), flag(_KEEP), flag(_DATA)])
        return context.get_dummy_value()

    return numba.types.none(array, numba.types.int64), generate
