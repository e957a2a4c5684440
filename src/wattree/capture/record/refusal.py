"""Exceptions of PyTorch and of the user's code → one clear `ModelError`."""

from __future__ import annotations

import re
import traceback
from types import TracebackType

from torch import nn

from wattree.capture.record.private import DATA_DEPENDENT, UNSUPPORTED
from wattree.capture.record.tracker import Tracker
from wattree.errors import ModelError

_VALUES = (
    "cannot be called on meta tensors",
    "Cannot copy out of meta tensor",
    "data-dependent",
    "Tensor.item()",
    ".numpy() is not supported",
    "tensor subclasses",
    "data_ptr",
    "meta tensors",
)


#: Operators that no one calls by their name.
_WRITTEN_AS = {
    "aten._local_scalar_dense.default": ".item(), or float(), int() or bool() of a tensor",
    "aten.nonzero.default": "nonzero, or a boolean mask as an index",
}
_DENSE = (
    "give the indices of an adjacency as dense tensors and use index_select and index_add (as "
    "message passing does), or a dense matrix where it is small"
)
#: Part of PyTorch's message → what to write.
_INSTEAD = {
    "FlexAttention": "; call F.scaled_dot_product_attention instead, with is_causal or a mask",
    "HigherOrderOperator": "; write what it does in plain Python: an if, a loop over steps",
}
_SPARSE = ("SparseTensorImpl", "SparseCsrTensorImpl", "to_sparse", "_sparse_", "sparse tensor")


def _is_sparse(error: BaseException, operator: str) -> bool:
    return any(part in operator or part in str(error) for part in _SPARSE)


def needs_values(error: BaseException) -> bool:
    """Return whether something failed because tensors had no values."""
    if isinstance(error, DATA_DEPENDENT):
        return True
    text = str(error)
    return isinstance(error, RuntimeError | NotImplementedError | TypeError | ValueError) and any(
        part in text for part in _VALUES
    )


def build_refusal(error: BaseException, name: str) -> ModelError:
    """Return the message for a build function that raised."""
    if _is_sparse(error, ""):
        made = f"its build function makes sparse tensors{_line(error)}"
        return ModelError(f"model {name}: {made}, which are not recorded; {_DENSE}")
    return ModelError(f"model {name}: its build function raised {_text(error)}{_line(error)}")


def run_refusal(error: BaseException, name: str, module: nn.Module, tracker: Tracker) -> ModelError:
    """Return the error for a module that cannot run; a `ModelError` keeps its message."""
    if isinstance(error, ModelError):
        text = str(error)
        return error if text.startswith("model ") else ModelError(f"model {name}: {text}")
    operator, path = tracker.failed or ("", "")
    if operator in _WRITTEN_AS:
        operator = f"{operator} ({_WRITTEN_AS[operator]})"
    path = path or _module_of(error.__traceback__, module)
    where = f"module '{path}'" if path else "the module"
    if _is_sparse(error, operator):
        return ModelError(
            f"model {name}: {where} calls {operator or 'an operator'} on sparse tensors"
            f"{_line(error)}, which are not recorded; {_DENSE}"
        )
    if isinstance(error, DATA_DEPENDENT) or needs_values(error):
        operator = operator or _method_of(error)
        return ModelError(
            f"model {name}: {where} calls {operator}, whose result depends on values"
            f"{_line(error)}; write it with sizes that do not depend on values, or give a model "
            "small enough to be run on real ones"
        )
    if isinstance(error, UNSUPPORTED):
        return ModelError(
            f"model {name}: {where} calls {operator or error}, which has no rule for fake tensors"
            f"{_line(error)}; register one (torch.library.register_fake) in the model's file"
        )
    if _asks_for_device(error):
        return ModelError(f"model {name}: {where} {_of_device(error, module)}")
    when = "" if tracker.forward else " in backward"
    called = f" at {operator}" if operator else ""
    advice = next((words for part, words in _INSTEAD.items() if part in str(error)), "")
    if isinstance(error, TypeError) and "not list" in str(error):
        advice = "; example_inputs that return a list give one argument, a tuple gives several"
    return ModelError(
        f"model {name}: {where} raised{when}{called}: {_text(error)}{_line(error)}{advice}"
    )


def _of_device(error: BaseException, module: nn.Module) -> str:
    """Return the message about tensors on explicit devices."""
    if held := _hidden_modules(module):
        return (
            f"raised{_line(error)}: {_text(error)}; the {held} holds modules, where PyTorch finds "
            "no parameters to move or to train: use nn.ModuleList, or nn.ModuleDict for a dict"
        )
    return (
        f"asks for a device of its own{_line(error)}: {_text(error)}; use the device of its inputs "
        "(x.device)"
    )


def _method_of(error: BaseException) -> str:
    """Return the called function if no operator was dispatched, as far as the message names it."""
    named = (".numpy()", ".tolist()", ".item()", "data_ptr")
    text = str(error)
    return next((name for name in named if name.strip(".()") in text), "an operator")


def _hidden_modules(module: nn.Module) -> str:
    """Return the plain list or dict that contains modules with parameters; empty if none does."""
    for path, child in module.named_modules():
        for key, value in vars(child).items():
            held = value.values() if isinstance(value, dict) else value
            if key.startswith("_") or not isinstance(value, list | tuple | dict):
                continue
            if any(isinstance(item, nn.Module) and list(item.parameters()) for item in held):
                return f"{type(value).__name__} '{f'{path}.{key}'.lstrip('.')}'"
    return ""


def _asks_for_device(error: BaseException) -> bool:
    text = str(error)
    return any(part in text for part in ("CUDA", "cuda", "NVIDIA driver", "same device"))


def _text(error: BaseException) -> str:
    text = str(error).strip().split("\n")[0]
    if found := re.search(r"HigherOrderOperator (\w+)", text):
        text = f"operators that run functions, such as '{found[1]}', are not recorded"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _line(error: BaseException) -> str:
    """Return the last line of the traceback that is neither PyTorch's nor our own."""
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not any(part in frame.filename for part in ("/torch/", "/wattree/capture/", "<frozen"))
    ]
    return f" ({own[-1].filename}, line {own[-1].lineno}: {own[-1].line})" if own else ""


def _module_of(trace: TracebackType | None, module: nn.Module) -> str:
    """Return the path of the innermost module whose code raised an exception."""
    paths = {id(child): path for path, child in module.named_modules()}
    found = ""
    while trace is not None:
        found = paths.get(id(trace.tb_frame.f_locals.get("self")), found)
        trace = trace.tb_next
    return found
