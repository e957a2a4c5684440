"""Labels communication: gradients of `DistributedDataParallel`, and collectives called by name."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

from wattree.measure.stages.timeline import Timeline

_STAGE = "communicating"
#: Functions of torch.distributed that move tensors, or wait for others.
_NAMES = (
    "all_gather",
    "all_gather_into_tensor",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "gather",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "send",
)


class GradientHook:
    """Averages gradients as `DistributedDataParallel` does by default, and records the time.

    A step waits from when its last bucket is ready, which ends the backward pass, until all
    buckets are reduced; what is reduced before that is hidden by the backward pass.

    Args:
        all_reduce: That of torch.distributed.
    """

    def __init__(self, timeline: Timeline, all_reduce: Callable[..., Any]) -> None:
        self._timeline, self._all_reduce = timeline, all_reduce
        self._lock = threading.Lock()
        self._in_flight = 0
        self._first: Any = None
        self._last: Any = None

    def reduce(self) -> Callable[[Any, Any], Any]:
        """Return the function for `register_comm_hook`, which requires exact annotations."""
        return lambda group, bucket: self(group, bucket)  # noqa: PLW0108 - has no annotations

    def __call__(self, group: Any, bucket: Any) -> Any:
        """Return the future of a bucket's averaged gradients."""
        tensor = bucket.buffer()
        tensor.div_(group.size())  # before the sum, as PyTorch's own hook does
        with self._lock:
            ready = self._timeline.clock.mark()
            if self._in_flight == 0:
                self._first = ready
            self._in_flight += 1
            if bucket.is_last():
                self._last = ready
        future = self._all_reduce(tensor, group=group, async_op=True).get_future()
        return future.then(self._reduced)

    def _reduced(self, future: Any) -> Any:
        tensors = future.value()  # raises what the collective raised
        with self._lock:
            self._in_flight -= 1
            if self._in_flight == 0:
                done = self._timeline.clock.mark()
                what = "gradients"
                self._timeline.add(_STAGE, self._first, done, exposed=False, what=what)
                if self._last is not None:
                    self._timeline.add(_STAGE, self._last, done, exposed=True, what=what)
                    self._last = None
        return tensors[0]


class Collectives:
    """Labels the program's own torch.distributed calls, until `restore`.

    Args:
        distributed: The module `torch.distributed`.
        called: Called after each one with its name, when it began, and the bytes that this
            process gave to an all-reduce [B]; 0 of other collectives.
    """

    def __init__(
        self,
        timeline: Timeline,
        distributed: Any,
        called: Callable[[str, Any, int], None] = lambda *_: None,
    ) -> None:
        self._timeline, self._distributed, self._called = timeline, distributed, called
        self._inside = threading.local()
        self.originals: dict[str, Callable[..., Any]] = {
            name: getattr(distributed, name) for name in _NAMES if hasattr(distributed, name)
        }
        for name, function in self.originals.items():
            setattr(distributed, name, self._labeled(name, function))

    def restore(self) -> None:
        """Restore the functions, unless someone else has replaced them since."""
        for name, function in self.originals.items():
            if getattr(getattr(self._distributed, name), "__wrapped__", None) is function:
                setattr(self._distributed, name, function)

    def _labeled(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            if getattr(self._inside, "call", False):  # one that another one is made of
                return function(*arguments, **options)
            self._inside.call = True
            begin = self._timeline.clock.mark()
            try:
                work = function(*arguments, **options)
            finally:
                self._inside.call = False
                end = self._timeline.clock.mark()
                self._timeline.add(_STAGE, begin, end, exposed=True, what=name)
                self._timeline.add(_STAGE, begin, end, exposed=False, what=name)
            self._called(name, begin, _reduced_bytes(name, arguments, options))
            return _Waited(work, self._timeline) if options.get("async_op") and work else work

        return call


def _reduced_bytes(name: str, arguments: Any, options: Any) -> int:
    """Return the bytes of the tensor of an all-reduce; 0 for other collectives. [B]"""
    if name != "all_reduce":
        return 0
    tensor = arguments[0] if arguments else options.get("tensor")
    return int(getattr(tensor, "nbytes", 0))


class _Waited:
    """The handle of a collective in flight, whose `wait` is labeled."""

    def __init__(self, work: Any, timeline: Timeline) -> None:
        self._work, self._timeline = work, timeline
        self._begun = timeline.clock.mark()

    def wait(self, *arguments: Any, **options: Any) -> Any:
        """Wait, as the collective does."""
        begin = self._timeline.clock.mark()
        try:
            return self._work.wait(*arguments, **options)
        finally:
            end = self._timeline.clock.mark()
            self._timeline.add(_STAGE, begin, end, exposed=True)
            self._timeline.add(_STAGE, self._begun, end, exposed=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def labeled_communication(
    model: Any,
    timeline: Timeline,
    called: Callable[[str, Any, int], None],
    notes: list[str],
    *,
    calls: bool = True,
) -> Collectives | None:
    """Label the gradients of a model and the collectives of a program; None if there are none.

    Args:
        model: `DistributedDataParallel` gets a hook, unless it has one of its own.
        called: As of `Collectives`.
        notes: Gets what could not be labeled.
        calls: Whether to label what the program calls by name.
    """
    if "torch.distributed" not in sys.modules:
        return None
    from torch import distributed

    if not distributed.is_available():
        return None
    all_reduce = distributed.all_reduce
    collectives = Collectives(timeline, distributed, called) if calls else None
    from torch.nn.parallel import DistributedDataParallel

    if isinstance(model, DistributedDataParallel):
        hook = GradientHook(timeline, all_reduce)
        try:
            model.register_comm_hook(model.process_group, hook.reduce())
        except RuntimeError:
            notes.append(
                "the model has a communication hook of its own, so that gradients are not "
                "labeled: their time is in computing"
            )
    return collectives
