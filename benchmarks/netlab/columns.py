"""Tasks collected one by one, then turned into the arrays of an execution graph.

Every host is a rank class of its own; memory and matrix FLOP do not matter to traffic.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wattree.graph import ExecutionGraph, StageLabel, StreamKind, TaskKind

Integers = NDArray[np.int64]


class Columns:
    """Tasks so far, row by row, and the streams they name."""

    def __init__(self, hosts: tuple[str, ...]) -> None:
        self.hosts = hosts
        self.kind: list[int] = []
        self.name: list[int] = []
        self.latency_s: list[float] = []
        self.work_s: list[float] = []
        self.streams: list[tuple[int, ...]] = []
        self.after: list[tuple[int, ...]] = []
        self.flows: list[tuple[tuple[int, float], ...]] = []
        self.sent_bytes: list[float] = []
        self.counted: list[bool] = []
        self._stream_ids: dict[tuple[str, ...], int] = {}
        self._stream_host: list[int] = []
        self._stream_kind: list[int] = []

    def __len__(self) -> int:
        return len(self.kind)

    def stream(self, kind: StreamKind, host: str, *key: str) -> int:
        """Return the stream of a host that goes by `key`; make it if it is new."""
        whole = (kind.name, host, *key)
        if whole not in self._stream_ids:
            self._stream_ids[whole] = len(self._stream_ids)
            self._stream_host.append(self.hosts.index(host))
            self._stream_kind.append(kind)
        return self._stream_ids[whole]

    def append(
        self,
        kind: TaskKind,
        name: int,
        *,
        streams: tuple[int, ...],
        after: tuple[int, ...] = (),
        latency_s: float = 0.0,
        work_s: float = 0.0,
        flows: tuple[tuple[int, float], ...] = (),
        sent_bytes: float = 0.0,
        counted: bool = True,
    ) -> int:
        """Add a task and return its id.

        Args:
            streams: Those that it occupies.
            after: Tasks that it waits for.
            latency_s, work_s: Its time. [s]
            flows: (link, bandwidth taken there at rate 1) of each link. [B/s]
            sent_bytes: What it sends. [B]
            counted: It is a flow where flows are counted.
        """
        self.kind.append(kind)
        self.name.append(name)
        self.latency_s.append(latency_s)
        self.work_s.append(work_s)
        self.streams.append(tuple(sorted(streams)))
        self.after.append(tuple(sorted(set(after))))
        self.flows.append(flows)
        self.sent_bytes.append(sent_bytes)
        self.counted.append(counted)
        return len(self.kind) - 1

    def graph(
        self,
        *,
        names: tuple[str, ...],
        link_names: tuple[str, ...],
        link_bandwidth_bytes_per_s: Sequence[float],
        compute_rate: float,
        communication_rate: float,
        counted_links: int,
    ) -> ExecutionGraph:
        """Return the arrays; on links from `counted_links` on no one counts flows."""
        hosts, nothing = len(self.hosts), np.zeros(len(self))
        stream_offsets, stream_ids = _rows(self.streams)
        successor_offsets, successors = _successors(self.after)
        flow_offsets, flow_links = _rows([tuple(link for link, _ in row) for row in self.flows])
        kind = np.array(self.kind, dtype=np.int8)
        is_transfer = kind == TaskKind.TRANSFER
        stage = np.where(is_transfer, StageLabel.COMMUNICATING, StageLabel.COMPUTING)
        return ExecutionGraph(
            kind=kind,
            latency_s=np.array(self.latency_s),
            work_s=np.array(self.work_s),
            stream_offsets=stream_offsets,
            stream_ids=stream_ids,
            successor_offsets=successor_offsets,
            successors=successors,
            flow_offsets=flow_offsets,
            flow_links=flow_links,
            flow_bytes_per_s=np.array([rate for row in self.flows for _, rate in row]),
            overlaps=is_transfer,
            alloc_bytes=nothing,
            free_bytes=nothing,
            stream_class=np.array(self._stream_host, dtype=np.int64),
            stream_kind=np.array(self._stream_kind, dtype=np.int8),
            class_ranks=np.ones(hosts, dtype=np.int64),
            class_names=self.hosts,
            static_bytes=np.zeros(hosts),
            link_bandwidth_bytes_per_s=np.array(link_bandwidth_bytes_per_s),
            link_names=link_names,
            compute_rate_while_communicating=compute_rate,
            communication_rate_while_computing=communication_rate,
            name_ids=np.array(self.name, dtype=np.int64),
            names=names,
            phase=np.zeros(len(self), dtype=np.int8),
            stage=stage.astype(np.int8),
            micro_batch=np.full(len(self), -1, dtype=np.int64),
            flop=nothing,
            memory_traffic_bytes=nothing,
            link_traffic_bytes=np.array(self.sent_bytes),
            flow_counts=np.repeat(np.array(self.counted, dtype=np.float64), np.diff(flow_offsets))
            * (flow_links < counted_links),
            memory_category=np.zeros(len(self), dtype=np.int8),
            category_names=("none",),
            static_by_category=np.zeros((hosts, 1)),
        )


def _rows(rows: Sequence[tuple[int, ...]]) -> tuple[Integers, Integers]:
    """Return rows as offsets and values."""
    sizes = [len(row) for row in rows]
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    return offsets, np.array([value for row in rows for value in row], dtype=np.int64)


def _successors(after: Sequence[tuple[int, ...]]) -> tuple[Integers, Integers]:
    """Return who waits for each task, from what each task waits for."""
    rows: list[list[int]] = [[] for _ in after]
    for task, earlier in enumerate(after):
        for other in earlier:
            rows[other].append(task)
    return _rows([tuple(row) for row in rows])
