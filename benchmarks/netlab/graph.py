"""A scenario as an execution graph: every message of every call is a task of the executor.

Each call is a task without work at its begin and one at its end on every host, which hold the
host's stream in between. A message is a row of transfers: the last is what the sender's socket
holds, so its sender goes on before it. Messages from one host to another on one communicator
follow each other on a connection, which is a stream at either end.

Shares: the executor lets every flow's *busiest* link grow at equal speed. So a flow that also
uses a boundless link, at `1 / w` times its bandwidth, grows at `w` times the speed of others. What
a flow's window holds below the rate of its links is its full speed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.netlab.columns import Columns
from benchmarks.netlab.machine import Machine
from benchmarks.netlab.scenario import Scenario, ScenarioTask
from benchmarks.netlab.traffic import Message, messages_of
from benchmarks.netlab.windows import Way
from wattree.errors import JobError
from wattree.graph import ExecutionGraph, StreamKind, TaskKind
from wattree.hardware.network import Link, Network, cable

#: Longer messages are split, so that their weight may change on the way. [B]
_PIECE_BYTES = 2**20
#: Of the link that only carries weights: no flow comes near it. [B/s]
_BOUNDLESS_BYTES_PER_S = 1e18
#: Products go on at this rate whatever the traffic: the kernel leaves programs some time.
_LEAST_RATE = 0.1
#: More messages than this are refused: a mistyped count would fill the memory.
_MOST_MESSAGES = 300_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a transfer gets where others are under way.

    Attributes:
        weight: Besides others on a full link, in (0, 1].
        limit: At most, of the rate of its links, in (0, 1].
    """

    weight: float = 1.0
    limit: float = 1.0


WHOLE = Share()


@dataclass(frozen=True, slots=True, kw_only=True)
class Transit:
    """A message on its way.

    Attributes:
        tasks: One after the other; the last is what the sender's socket holds.
        size_bytes: Payload. [B]
        credit_bytes: What of it its links pass at once. [B]
        way: The links that its data crosses, and its acknowledgements.
        bandwidth_bytes_per_s: Of the slowest of them, as payload. [B/s]
    """

    tasks: tuple[int, ...]
    source: str
    target: str
    size_bytes: float
    credit_bytes: float
    way: Way
    bandwidth_bytes_per_s: float

    @property
    def head(self) -> int:
        """The task after which the sender is rid of the message."""
        return self.tasks[-2]

    @property
    def tail(self) -> int:
        """The task after which it has arrived."""
        return self.tasks[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A graph and what its tasks stand for.

    Attributes:
        begin, end: (task, host) → the task at whose end it begins, or is over.
    """

    graph: ExecutionGraph
    begin: Mapping[tuple[str, str], int]
    end: Mapping[tuple[str, str], int]
    transits: tuple[Transit, ...]


def network_of(scenario: Scenario, machine: Machine) -> Network:
    """Return the links of a scenario, with what they carry of payload."""
    links: list[Link] = []
    for wire in scenario.cables:
        links += cable(*wire.ends, wire.rate_bit_per_s / 8 * machine.payload_fraction)
    return Network(links=tuple(links))


def build_graph(
    scenario: Scenario,
    machine: Machine,
    *,
    credit_bytes: Mapping[int, float] | None = None,
    shares: Mapping[int, Share] | None = None,
    share_links: bool = True,
) -> Built:
    """Return the graph of a scenario.

    Args:
        credit_bytes: Message → what its links pass at once; none if None. [B]
        shares: Task → its share where flows meet; the whole if not named.
        share_links: Tasks meet on links; if not, each has the network to itself.

    Raises:
        HardwareError: A message has no path.
        JobError: The scenario has too many messages.
    """
    builder = _Builder(scenario, machine, credit_bytes or {}, shares or {}, share_links=share_links)
    for number, task in enumerate(scenario.tasks):
        builder.add(number, task)
    return builder.built()


class _Builder:
    """Adds the tasks of a scenario in file order, which is the order of every stream."""

    def __init__(
        self,
        scenario: Scenario,
        machine: Machine,
        credit_bytes: Mapping[int, float],
        shares: Mapping[int, Share],
        *,
        share_links: bool,
    ) -> None:
        self.scenario, self.machine = scenario, machine
        self.credit_bytes, self.shares, self.share_links = credit_bytes, shares, share_links
        self.network = network_of(scenario, machine)
        #: Rail → its links, by their numbers in the whole network.
        self.rails: dict[int, list[int]] = {}
        for place, wire in enumerate(scenario.cables):
            self.rails.setdefault(wire.rail, []).extend((2 * place, 2 * place + 1))
        links = self.network.links
        self.networks = {
            rail: Network(links=tuple(links[k] for k in own)) for rail, own in self.rails.items()
        }
        self.columns = Columns(scenario.hosts)
        self.begin: dict[tuple[str, str], int] = {}
        self.end: dict[tuple[str, str], int] = {}
        self.transits: list[Transit] = []
        self.product_s_per_flop = machine.product_s_per_flop * _crowding(scenario, machine)

    def add(self, number: int, task: ScenarioTask) -> None:
        if task.communicator is None:
            self._add_work(task)
            return
        messages = messages_of(task)
        if len(self.transits) + len(messages) * task.count > _MOST_MESSAGES:
            raise JobError(
                self.scenario.name,
                [f"task {task.name}: the scenario has over {_MOST_MESSAGES} messages; lower count"],
            )
        for call in range(task.count):
            self._add_call(number, task, messages, is_first=call == 0)

    def _add_work(self, task: ScenarioTask) -> None:
        """A sleep uses no processor, so nothing slows it; products are slowed by traffic."""
        for place, host in enumerate(task.hosts):
            if task.kind == "compute":
                kind = TaskKind.HOST
                work_s = (task.duration_s[place] + self.machine.wake_s) * task.count
            else:
                kind = TaskKind.COMPUTE
                work_s = 2.0 * task.order**3 * task.count * self.product_s_per_flop
            stream = self.columns.stream(StreamKind.COMPUTE, host, task.stream)
            index = self.columns.append(
                kind, task.name, streams=(stream,), after=self._earlier(task, host), work_s=work_s
            )
            self.begin[task.name, host] = self.end[task.name, host] = index

    def _earlier(self, task: ScenarioTask, host: str) -> tuple[int, ...]:
        return tuple(self.end[name, host] for name in task.after if (name, host) in self.end)

    def _add_call(
        self, number: int, task: ScenarioTask, messages: list[Message], *, is_first: bool
    ) -> None:
        begins = []
        for host in task.hosts:
            stream = self.columns.stream(StreamKind.COMPUTE, host, task.stream)
            after = self._earlier(task, host) if is_first else ()
            copied_s = _copied_bytes(task) * self.machine.copy_s_per_byte
            begins.append(
                self.columns.append(
                    TaskKind.HOST, task.name, streams=(stream,), after=after, latency_s=copied_s
                )
            )
            if is_first:
                self.begin[task.name, host] = begins[-1]
        first = len(self.transits)
        for message in messages:
            self._add_message(number, task, message, begins, first)
        done: list[list[int]] = [[] for _ in task.hosts]
        for message, transit in zip(messages, self.transits[first:], strict=True):
            done[message.source].append(transit.head)
            done[message.target].append(transit.tail)
        for rank, host in enumerate(task.hosts):
            stream = self.columns.stream(StreamKind.COMPUTE, host, task.stream)
            after = tuple(done[rank])
            self.end[task.name, host] = self.columns.append(
                TaskKind.HOST, task.name, streams=(stream,), after=after
            )

    def _add_message(
        self, number: int, task: ScenarioTask, message: Message, begins: list[int], first: int
    ) -> None:
        machine = self.machine
        source, target = task.hosts[message.source], task.hosts[message.target]
        rail = self.scenario.communicators[str(task.communicator)].rail
        own, network = self.rails[rail], self.networks[rail]
        links = tuple(own[k] for k in network.path(source, target))
        bandwidth_bytes_per_s = min(self.network.links[k].bandwidth_bytes_per_s for k in links)
        back = tuple(own[k] for k in network.path(target, source))
        connection = (str(task.communicator), task.stream, source, target)
        streams = tuple(
            self.columns.stream(StreamKind.COMMUNICATION, host, *connection)
            for host in (source, target)
        )
        after = [self.transits[first + k].tail for k in message.arrived]
        after += [self.transits[first + k].head for k in message.sent]
        after += [begins[message.source], begins[message.target]]
        latency_s = machine.message_latency_s
        if message.follows_barrier:
            after += begins
            latency_s += _barrier_rounds(len(task.hosts)) * machine.message_latency_s
        slowed = 1.0 if task.kind == "send_recv" else 1.0 + machine.collective_slack
        credit_bytes = min(self.credit_bytes.get(len(self.transits), 0.0), message.size_bytes)
        tasks: list[int] = []
        left_bytes = credit_bytes
        pieces = _pieces(message.size_bytes, machine.send_buffer_bytes)
        for size_bytes in pieces:
            passed_bytes = min(left_bytes, size_bytes)
            left_bytes -= passed_bytes
            share = self.shares.get(len(self.columns), WHOLE)
            rate_bytes_per_s = share.limit * bandwidth_bytes_per_s
            handed_over_s = machine.message_link_s if len(tasks) + 1 == len(pieces) else 0.0
            tasks.append(
                self.columns.append(
                    TaskKind.TRANSFER,
                    task.name,
                    streams=streams,
                    after=(tasks[-1],) if tasks else tuple(after),
                    latency_s=0.0 if tasks else latency_s,
                    work_s=slowed * (size_bytes - passed_bytes) / rate_bytes_per_s + handed_over_s,
                    flows=self._weighted(
                        self._flow(number, links, rate_bytes_per_s), rate_bytes_per_s, share.weight
                    ),
                    sent_bytes=size_bytes,
                )
            )
        self._add_acknowledgements(number, tasks, back, bandwidth_bytes_per_s)
        self.transits.append(
            Transit(
                tasks=tuple(tasks),
                source=source,
                target=target,
                size_bytes=message.size_bytes,
                credit_bytes=credit_bytes,
                way=Way(data=links, acknowledgements=back),
                bandwidth_bytes_per_s=bandwidth_bytes_per_s,
            )
        )

    def _weighted(
        self, flows: tuple[tuple[int, float], ...], bandwidth_bytes_per_s: float, weight: float
    ) -> tuple[tuple[int, float], ...]:
        """Return the flows of a task with its weight."""
        if weight >= 1.0:
            return flows
        return (*flows, (self._copies * len(self.network.links), bandwidth_bytes_per_s / weight))

    @property
    def _copies(self) -> int:
        return 1 if self.share_links else len(self.scenario.tasks)

    def _flow(
        self, number: int, links: tuple[int, ...], bandwidth_bytes_per_s: float
    ) -> tuple[tuple[int, float], ...]:
        """Return a flow over links. Without sharing every task has links of its own."""
        shift = 0 if self.share_links else number * len(self.network.links)
        return tuple((shift + link, bandwidth_bytes_per_s) for link in links)

    def _add_acknowledgements(
        self, number: int, tasks: list[int], links: tuple[int, ...], bandwidth_bytes_per_s: float
    ) -> None:
        """Let what goes back follow each piece. No one waits for it, it only takes its room.

        It is a flow of its own: tied to the data it would hold the data to the share of its own,
        far smaller, part of a crowded link.
        """
        flows = self._flow(
            number, links, bandwidth_bytes_per_s * self.machine.acknowledgement_fraction
        )
        for task in tasks:
            sent_bytes = self.columns.tasks[task].link_traffic_bytes
            if sent_bytes > 0.0:
                self.columns.append(
                    TaskKind.TRANSFER,
                    self.scenario.tasks[number].name,
                    streams=(),
                    after=(task,),
                    work_s=sent_bytes / bandwidth_bytes_per_s,
                    flows=flows,
                    sent_bytes=sent_bytes * self.machine.acknowledgement_fraction,
                    counted=False,
                )

    def built(self) -> Built:
        return Built(
            graph=self._graph(),
            begin=self.begin,
            end=self.end,
            transits=tuple(self.transits),
        )

    def _graph(self) -> ExecutionGraph:
        links = [link for _ in range(self._copies) for link in self.network.links]
        bytes_per_s = _host_bytes_per_s(self.scenario)
        return self.columns.graph(
            link_names=(*(link.name for link in links), "weights"),
            link_bandwidth_bytes_per_s=[
                *(link.bandwidth_bytes_per_s for link in links),
                _BOUNDLESS_BYTES_PER_S,
            ],
            compute_rate=max(_LEAST_RATE, 1.0 - bytes_per_s * self.machine.busy_s_per_byte),
            communication_rate=1.0 / (1.0 + bytes_per_s * self.machine.waiting_s_per_byte),
            counted_links=len(links),
        )


def _pieces(size_bytes: float, held_bytes: float) -> list[float]:
    """Return a message in pieces: at least one, of no bytes if need be, before what is held. [B]"""
    held_bytes = min(size_bytes, held_bytes)
    count = max(1, -(-int(size_bytes - held_bytes) // _PIECE_BYTES))
    return [*[(size_bytes - held_bytes) / count] * count, held_bytes]


def _copied_bytes(task: ScenarioTask) -> float:
    """Return what each rank copies before a call: its own part, or the buffer to reduce."""
    if task.kind == "all_gather":
        return task.size_bytes / len(task.hosts)
    return float(task.size_bytes) if task.kind == "reduce_scatter" else 0.0


def _barrier_rounds(ranks: int) -> int:
    """Return the rounds of a dissemination barrier."""
    return (ranks - 1).bit_length()


def _crowding(scenario: Scenario, machine: Machine) -> float:
    """Return by how much products take longer because hosts outnumber processors."""
    hosts = {host for task in scenario.tasks if task.kind == "matmul" for host in task.hosts}
    return max(1.0, len(hosts) / machine.processors)


def _host_bytes_per_s(scenario: Scenario) -> float:
    """Return the mean rate of the links that hosts have. [B/s]"""
    rates = [
        wire.rate_bit_per_s / 8
        for wire in scenario.cables
        if any(end in scenario.hosts for end in wire.ends)
    ]
    return sum(rates) / len(rates) if rates else 0.0
