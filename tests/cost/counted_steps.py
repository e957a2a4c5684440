"""What operations of PyTorch move, as a dispatch mode sees them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

#: Operations that move nothing: views, and memory that is not written.
_VIEWS = {
    "view", "_unsafe_view", "transpose", "permute", "expand", "slice", "unsqueeze", "squeeze",
    "t", "detach", "split", "as_strided", "empty_like", "new_empty_strided",
}  # fmt: skip
#: Steps of a leaf in a test alone: its gradient is copied where it is kept.
_OF_LEAVES = {"copy_"}


def counted(act: Callable[[], Any], only: Collection[str] = ()) -> tuple[Any, float, int]:
    """Return what `act` returns, the bytes that its operations move, and how many they are.

    Args:
        only: Operations that count; all if empty.
    """
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    moved: Counter[str] = Counter()

    class Count(TorchDispatchMode):
        def __torch_dispatch__(  # type: ignore[misc]
            self, function: Any, _: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            found = function(*args, **(kwargs or {}))
            name = function.overloadpacket.__name__
            if name in only or not (only or name in _VIEWS | _OF_LEAVES):
                operands = tree_leaves((args, kwargs or {}, found))
                moved[name] += sum(_bytes(each) for each in operands)
                launched.append(name)
            return found

    launched: list[str] = []
    with Count():
        found = act()
    return found, float(sum(moved.values())), len(launched)


def _bytes(operand: Any) -> int:
    """Return the size of a tensor; what is repeated along a dim is read once."""
    if not isinstance(operand, torch.Tensor):
        return 0
    dims: Iterable[tuple[int, int]] = zip(operand.shape, operand.stride(), strict=True)
    return operand.element_size() * math.prod(size for size, stride in dims if stride)
