"""Scenarios of emulated networks: what was run where, and what was measured.

How they are read is the business of `scenario_file`, what a task sends that of `traffic`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
KINDS = ("compute", "matmul", "send_recv", *COLLECTIVES)
QUEUEING = ("fair", "fifo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cable:
    """A full-duplex connection of two nodes.

    Attributes:
        ends: Names of the nodes.
        rate_bit_per_s: Of each direction, headers included. [bit/s]
        rail: Cables of different rails are separate networks.
    """

    ends: tuple[str, str]
    rate_bit_per_s: float
    rail: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Communicator:
    """Hosts that talk to each other, as ranks in this order, over one rail."""

    hosts: tuple[str, ...]
    rail: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioTask:
    """One task of a scenario on all of its hosts.

    Attributes:
        name, kind: Its id in the file; one of `KINDS`.
        hosts: Where it runs.
        stream: Tasks of one host and stream run one at a time, in file order.
        after: Tasks that must have ended on the same host.
        count: Calls, or matmuls, back to back.
        duration_s: (compute) For each of `hosts`. [s]
        order: (matmul) Rows and columns of the matrices.
        communicator: (communication) Its name.
        size_bytes: (communication) As the file format defines it for each kind. [B]
        root: (broadcast, send_recv) Position of the sender in `hosts`.
    """

    name: str
    kind: str
    hosts: tuple[str, ...]
    stream: str
    after: tuple[str, ...] = ()
    count: int = 1
    duration_s: tuple[float, ...] = ()
    order: int = 0
    communicator: str | None = None
    size_bytes: int = 0
    root: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What really happened.

    Attributes:
        makespan_s: End of the last task. [s]
        end_s: (task, host) → end. [s]
    """

    makespan_s: float
    end_s: Mapping[tuple[str, str], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One file.

    Attributes:
        name: Its id.
        hosts, switches, cables: The network.
        queueing: `fair`: a link serves the pairs of hosts that use it in turn; `fifo`: one queue.
        communicators: By name.
        tasks: In file order.
        measured: None where the file has no measurement.
    """

    name: str
    hosts: tuple[str, ...]
    switches: tuple[str, ...]
    cables: tuple[Cable, ...]
    queueing: str
    communicators: Mapping[str, Communicator]
    tasks: tuple[ScenarioTask, ...]
    measured: Measured | None = None

    @property
    def communicates(self) -> bool:
        """Whether any task uses the network."""
        return any(task.communicator is not None for task in self.tasks)

    @property
    def multiplies(self) -> bool:
        """Whether any task is a matmul, whose length depends on the machine."""
        return any(task.kind == "matmul" for task in self.tasks)
