"""Tasks collected one by one, then turned into the arrays of an execution graph.

Every host is a rank class of its own; memory and matrix FLOP do not matter to traffic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from wattree.graph import ExecutionGraph, StageLabel, StreamKind, TaskKind
from wattree.graph.assembly import Assembly, Task, graph_of


class Columns:
    """Tasks so far, and the streams they name."""

    def __init__(self, hosts: tuple[str, ...]) -> None:
        self.hosts = hosts
        self.tasks: list[Task] = []
        self._after: list[tuple[int, ...]] = []
        self._counted: list[bool] = []
        self._stream_ids: dict[tuple[str, ...], int] = {}
        self._stream_host: list[int] = []
        self._stream_kind: list[int] = []

    def __len__(self) -> int:
        return len(self.tasks)

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
        name: str,
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
        is_transfer = kind == TaskKind.TRANSFER
        self.tasks.append(
            Task(
                name=name,
                kind=kind,
                latency_s=latency_s,
                work_s=work_s,
                streams=tuple(sorted(streams)),
                flows=flows,
                overlaps=is_transfer,
                phase=0,
                stage=StageLabel.COMMUNICATING if is_transfer else StageLabel.COMPUTING,
                link_traffic_bytes=sent_bytes,
            )
        )
        self._after.append(tuple(sorted(set(after))))
        self._counted.append(counted)
        return len(self.tasks) - 1

    def graph(
        self,
        *,
        link_names: tuple[str, ...],
        link_bandwidth_bytes_per_s: Sequence[float],
        compute_rate: float,
        communication_rate: float,
        counted_links: int,
    ) -> ExecutionGraph:
        """Return the arrays; on links from `counted_links` on no one counts flows."""
        graph = graph_of(
            Assembly(
                tasks=self.tasks,
                before=self._after,
                stream_kinds=self._stream_kind,
                stream_ranks=self._stream_host,
                rank_names=self.hosts,
                link_names=link_names,
                link_bytes_per_s=link_bandwidth_bytes_per_s,
                compute_rate=compute_rate,
                communication_rate=communication_rate,
                categories=("none",),
                static_bytes=np.zeros(len(self.hosts)),
                static_by_category=np.zeros((len(self.hosts), 1)),
            )
        )
        counted = np.repeat(np.array(self._counted, dtype=np.float64), np.diff(graph.flow_offsets))
        return replace(graph, flow_counts=counted * (graph.flow_links < counted_links))
