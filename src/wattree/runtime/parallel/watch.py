"""Counts the traffic and waits of PyTorch's parallel libraries on their groups.

`fully_shard`, pipeline stages and attention over several ranks call `torch.distributed` by name, so
that is where they are watched. `DistributedDataParallel` is counted by its formula
(`train.account`), and layers over tp count themselves (`runtime.group`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch.distributed as dist

from wattree.runtime.train.session import RankSession
from wattree.runtime.transfers import SentTraffic, TransferWatch

#: Function → what of the bytes of its output and input a rank of `n` sends.
_SENT: Mapping[str, Callable[[int, int, int], float]] = {
    "all_gather_single": lambda n, _, given: (n - 1) * given,
    "all_gather_into_tensor": lambda n, _, given: (n - 1) * given,
    "reduce_scatter_single": lambda n, made, _: (n - 1) * made,
    "reduce_scatter_tensor": lambda n, made, _: (n - 1) * made,
    "all_to_all_single": lambda n, _, given: (n - 1) / n * given,
    "all_reduce": lambda n, made, _: 2 * (n - 1) / n * made,
}
_EXCHANGE = "all_to_all_single"
#: Names of what collectives make, and of what they are given.
_TENSORS = ("output", "output_tensor", "tensor", "input", "input_tensor")
#: What waiting for other stages is called.
STAGES_WAITED = "stages"
_GATHERS = ("all_gather_single", "all_gather_into_tensor")


@dataclass(frozen=True, slots=True)
class _WatchedGroup:
    """The purposes of a group's gathers, and of its other collectives."""

    gathers: str
    others: str


class LibraryWatch:
    """Counts bytes and waiting of libraries.

    Args:
        watch: Takes what was waited for.

    Attributes:
        in_stages: The program is between the computations of pipeline stages, all of which is
            waiting that is noted as a whole.
    """

    def __init__(self, session: RankSession, watch: TransferWatch) -> None:
        self._traffic: SentTraffic = session.group.traffic
        self._watch = watch
        self._groups = _groups_of(session)
        self._is_inside = False
        self.in_stages = False

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch `torch.distributed` while the block runs."""
        if not self._groups:
            yield
            return
        names = [name for name in (*_SENT, "batch_isend_irecv") if hasattr(dist, name)]
        originals = {name: getattr(dist, name) for name in names}
        for name, function in originals.items():
            make = self._exchange if name == "batch_isend_irecv" else self._collective
            setattr(dist, name, make(name, function))
        try:
            yield
        finally:
            for name, function in originals.items():
                setattr(dist, name, function)

    def sent(self, what: str, sent_bytes: float) -> None:
        """Count one call."""
        self._traffic.add(what, round(sent_bytes))

    def waited(self, what: str, begun: Any, since: Any) -> None:
        """Note that something was waited for until now."""
        if not self.in_stages:
            self._watch.waited(what, begun, since, self._watch.mark())

    def mark(self) -> Any:
        """Return a mark of now."""
        return self._watch.mark()

    def stages_waited(self, since: Any, until: Any) -> None:
        """Note that stages of a pipeline waited for each other, or for their replicas."""
        self._watch.waited(STAGES_WAITED, since, since, until)

    def _collective(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*tensors: Any, **options: Any) -> Any:
            group = self._groups.get(_name_of(options.get("group")))
            if group is None or self._is_inside:
                return function(*tensors, **options)
            what = group.gathers if name in _GATHERS else group.others
            named = (options[key] for key in _TENSORS if key in options)
            sizes = [each.nbytes for each in (*tensors, *named) if hasattr(each, "nbytes")]
            ranks = dist.get_world_size(options["group"])
            leaving = _leaving(tensors, options) if name == _EXCHANGE else None
            if leaving is None:
                self.sent(what, _SENT[name](ranks, sizes[0], sizes[-1]))
            else:
                self.sent(what, leaving * sizes[-1])
            begin = self.mark()
            self._is_inside = True  # older names call newer ones
            try:
                work = function(*tensors, **options)
            finally:
                self._is_inside = False
            if not options.get("async_op"):
                self.waited(what, begin, begin)
                return work
            return WatchedWork(work, what, begin, self)

        return call

    def _exchange(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        del name

        @wraps(function)
        def call(operations: Sequence[Any]) -> Any:
            group = self._groups.get(_name_of(operations[0].group))
            if group is None:
                return function(operations)
            out = sum(each.tensor.nbytes for each in operations if each.op is dist.isend)
            self.sent(group.others, out)
            begin = self.mark()
            return [WatchedWork(each, group.others, begin, self) for each in function(operations)]

        return call


def _leaving(arguments: Sequence[Any], options: Mapping[str, Any]) -> float | None:
    """Return the share of its input that a rank sends to others, where parts are not equal.

    Args:
        arguments: Of an exchange; rows from and for each rank are its third and fourth.
    """
    rows = arguments[3] if len(arguments) > 3 else options.get("input_split_sizes")
    if rows is None:
        return None
    whole = sum(rows)
    return (whole - rows[dist.get_rank(options["group"])]) / whole if whole else 0.0


class WatchedWork(dist.Work):
    """The handle of a collective in flight, which records waits."""

    def __init__(self, work: Any, what: str, begun: Any, watch: LibraryWatch) -> None:
        super().__init__()
        self._work, self._what, self._begun, self._by = work, what, begun, watch

    def wait(self, *arguments: Any, **options: Any) -> bool:
        """Wait, as the collective does."""
        since = self._by.mark()
        found: bool = self._work.wait(*arguments, **options)
        self._by.waited(self._what, self._begun, since)
        return found


def _groups_of(session: RankSession) -> dict[str, _WatchedGroup]:
    """Return name → purpose of the traffic, for the groups that libraries use."""
    found: dict[str, _WatchedGroup] = {}
    whole = _WatchedGroup(gathers="parameters", others="gradients")
    for mesh in (session.shard_mesh, session.expert_mesh):
        groups = [] if mesh is None else mesh.get_all_groups()
        found |= {_name_of(group): whole for group in groups if group.size() > 1}
    for what, group in (("context", session.context_group), ("experts", session.expert_group)):
        if group is not None:
            found[_name_of(group)] = _WatchedGroup(gathers=what, others=what)
    return found


def _name_of(group: Any) -> str:
    return "" if group is None else str(group.group_name)
