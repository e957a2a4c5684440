"""Runs any training script as several processes on each device, for `wattree launch`.

Alone it starts the processes of all devices of this host. Under torchrun, srun or mpirun each of
their ranks is a *launcher*, which starts those of its devices; launchers meet first, so that ranks
are counted over all of them. Where MPI itself starts every process, each launcher has one.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from wattree.errors import RunError, WattreeError
from wattree.process import host
from wattree.registry import installed_version
from wattree.runtime.colocation.clean import clear, clear_orphans
from wattree.runtime.colocation.environment import PROCESSES_PER_DEVICE
from wattree.runtime.colocation.keeper import Keeper
from wattree.runtime.colocation.layout import ProcessLayout, ProcessPlace, layout
from wattree.runtime.colocation.mps import MpsControl, MpsDaemon
from wattree.runtime.colocation.refuse import foreign_daemons
from wattree.runtime.colocation.state import JobState, new_state, state_root
from wattree.runtime.launch.agree import (
    Agreement,
    Contribution,
    Facts,
    agreement,
    exchanged,
)
from wattree.runtime.launch.environment import Launch, launch_from
from wattree.runtime.launch.meeting import MISTAKE, LauncherMeeting, meet
from wattree.runtime.launch.node import Equipment, equipment
from wattree.runtime.launch.options import LaunchOptions
from wattree.runtime.launch.spawn import Failure, Finished, LaunchWatch, run_ranks
from wattree.runtime.launch.starts import LaunchSettings, common_environment, starts_of
from wattree.runtime.launch.watches import DaemonWatch, starter_watch

#: What a launcher is that no other one started.
ALONE = Launch(rank=0, world=1, local_rank=0, local_world=1, address="127.0.0.1")

#: Takes a line for the user.
Say = Callable[[str], None]


def launch_script(
    command: Sequence[str],
    options: LaunchOptions,
    *,
    environment: Mapping[str, str],
    say: Say,
) -> Finished:
    """Run a command as several processes on each device, to its end.

    Args:
        environment: Of this process, which says whether a launcher started it.
        say: Takes lines for the user: what is started, what was fallen back to.

    Returns:
        How it ended; the failure only where this launcher is to tell it.

    Raises:
        RunError: It cannot be started: devices, MPS, memory, launchers that disagree.
    """
    if PROCESSES_PER_DEVICE in environment:
        raise RunError("launch", ["this is a process of wattree launch already"])
    outer = launch_from(environment) or ALONE
    meeting = meet(outer, environment, purpose="ranks", timeout_s=options.timeout_s)
    try:
        finished = _Job(command, options, environment, say, outer, meeting).run()
    except WattreeError as error:
        failure = Failure(rank=-1, code=MISTAKE, message=str(error), at_s=time.time())
        first = meeting.failed(failure)
        if first.launcher == meeting.number:
            raise
        return Finished(code=first.code)
    finally:
        meeting.close()
    return finished


class _Job:
    """The part of a job that one launcher has."""

    def __init__(  # noqa: PLR0917 - the arguments of `launch_script`
        self,
        command: Sequence[str],
        options: LaunchOptions,
        environment: Mapping[str, str],
        say: Say,
        outer: Launch,
        meeting: LauncherMeeting,
    ) -> None:
        self._command, self._options, self._environment = command, options, environment
        self._say, self._outer, self._meeting = say, outer, meeting
        self._is_first = meeting.number == 0
        self._watches: list[LaunchWatch] = [meeting]
        starter = starter_watch(environment, None if outer is ALONE else outer.launcher)
        if starter is not None:
            self._watches.append(starter)

    def run(self) -> Finished:
        """Run the processes of this launcher to the end of the job."""
        root = state_root(self._environment)
        for cleared in clear_orphans(root):
            self._say(cleared.summary())
        tools = equipment(self._options, self._environment)
        facts = exchanged(self._meeting, _facts(tools, self._options))
        agreed = agreement(facts)
        self._meeting.names = {
            number: f"launcher {number} on {other.host.partition(' ')[0]}"
            for number, other in enumerate(facts)
        }
        whole = layout(
            agreed.nodes, self._options.processes, loader_workers=self._options.loader_workers
        )
        number = self._meeting.number
        here = whole.on_node(agreed.node_of[number])
        places = tuple(here[local] for local in agreed.owned[number])
        with (
            reserved_port() as port,
            self._state(root) as state,
            self._daemon(root, state, tools, agreed) as daemon,
        ):
            settings = self._settings(tools, agreed, whole, state, daemon, port=port)
            self._announce(tools, whole, daemon)
            watched = None
            if tools.control is not None:
                control = MpsControl(tools.control, settings.mps, self._environment)
                watched = DaemonWatch(daemon, control, self._environment, self._say)
            return self._run(places, settings, state, watched)

    def _run(
        self,
        places: Sequence[ProcessPlace],
        settings: LaunchSettings,
        state: JobState,
        watched: DaemonWatch | None,
    ) -> Finished:
        watches = list(self._watches)
        if watched is not None:
            watches.append(watched)

        def begun(numbers: Sequence[int]) -> None:
            ranks = {pid: place.rank for place, pid in zip(places, numbers, strict=True)}
            for pid, rank in ranks.items():
                state.record(f"rank {rank}", pid)
            if watched is not None:
                watched.begin(ranks)

        finished = run_ranks(
            self._command,
            len(places),
            environment=common_environment(self._environment, settings),
            grace_s=self._options.grace_s,
            starts=starts_of(places, self._environment, settings),
            watches=watches,
            begun=begun,
            say=self._say,
            asked=self._meeting.asked,
        )
        if watched is not None and finished.failure is None:
            watched.end()
        return self._agreed_end(finished)

    def _agreed_end(self, finished: Finished) -> Finished:
        """Return how the job ended everywhere; the failure only on the host that reports it."""
        if finished.failure is None:
            first = None if finished.interrupted else self._meeting.done()
        else:
            first = self._meeting.failed(finished.failure)
        if first is None:
            return finished
        mine = first.launcher == self._meeting.number
        return Finished(code=first.code, failure=first if mine else None)

    def _settings(
        self,
        tools: Equipment,
        agreed: Agreement,
        whole: ProcessLayout,
        state: JobState,
        daemon: MpsDaemon | None,
        *,
        port: int,
    ) -> LaunchSettings:
        """Return the settings of processes, after launchers exchanged their facts."""
        mps: Mapping[str, str] = {}
        if daemon is not None:
            mps = daemon.variables()
        elif tools.kind == "cuda" and whole.processes_per_device > 1:
            # An empty folder: else programs connect to whatever daemon has the usual one.
            mps = {"CUDA_MPS_PIPE_DIRECTORY": str(state.folder)}
        mine = Contribution(mps=dict(mps), port=port)
        every = exchanged(self._meeting, mine)
        leader = agreed.leader_of(self._meeting.number)
        return LaunchSettings(
            layout=whole,
            options=replace(self._options, device=tools.kind),
            uuids=agreed.uuids[agreed.node_of[leader]] if tools.kind == "cuda" else (),
            address=self._outer.address or "127.0.0.1",
            port=every[0].port,
            token=state.token,
            mps=every[leader].mps,
            has_daemon=tools.control is not None,
            is_direct=agreed.is_direct,
        )

    @contextlib.contextmanager
    def _state(self, root: Path) -> Iterator[JobState]:
        """Record what the block starts, and remove all of it after the block."""
        state = new_state(root, self._command)
        keeper = Keeper(state)
        try:
            yield state
        finally:
            clear(state, keeps=frozenset({os.getpid(), keeper.pid}))
            state.remove()
            keeper.dismiss()

    @contextlib.contextmanager
    def _daemon(
        self, root: Path, state: JobState, tools: Equipment, agreed: Agreement
    ) -> Iterator[MpsDaemon | None]:
        """Have a daemon run while the block does, on the first launcher of a node."""
        number = self._meeting.number
        if tools.control is None or agreed.leader_of(number) != number:
            yield None
            return
        uuids = agreed.uuids[agreed.node_of[number]]
        foreign = foreign_daemons(root, uuids)
        if foreign:
            raise RunError(
                "--with-mps",
                [
                    f"found {', '.join(foreign)}, which this user's launcher did not start; end it "
                    "(echo quit | nvidia-cuda-mps-control, with its CUDA_MPS_PIPE_DIRECTORY), or "
                    "use --without-mps"
                ],
            )
        daemon = MpsDaemon(tools.control, state, uuids, self._environment)
        try:
            daemon.ready()
            yield daemon
        finally:
            # Clients first: a server whose clients are killed with it leaves the device undefined.
            clear(state, keeps=_all_but_ranks(state))
            daemon.stop()

    def _announce(self, tools: Equipment, whole: ProcessLayout, daemon: MpsDaemon | None) -> None:
        if not self._is_first:
            return
        for note in tools.notes:
            self._say(note)
        many = whole.devices > 1
        if tools.kind == "cuda":
            where = f"each of {whole.devices} accelerators" if many else "an accelerator"
        else:
            where = f"each of {whole.devices} shares of the processor" if many else "the processor"
        how = f", which they share by MPS (daemon {daemon.pid})" if daemon is not None else ""
        self._say(f"{whole.processes_per_device} process(es) on {where}{how}; {whole.ranks} ranks")


def _all_but_ranks(state: JobState) -> frozenset[int]:
    kept = {each.process.pid for each in state.recorded() if not each.what.startswith("rank")}
    return frozenset(kept | {os.getpid()})


def _facts(tools: Equipment, options: LaunchOptions) -> Facts:
    return Facts(
        host=host(),
        version=installed_version(),
        processes=options.processes,
        device=tools.kind,
        reduce=options.reduce,
        batch_rule=options.batch_rule,
        uuids=tuple(device.uuid for device in tools.devices),
        cores=tuple(device.cores for device in tools.devices),
        numa=tuple(device.numa for device in tools.devices),
    )


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """Reserve a port while the block runs; yield its number.

    Ranks need seconds until one of them listens there. A port that was only found free may be given
    to another job by then, or to a connection. This one is taken, by a socket that does not listen:
    a process that names the port and allows its reuse, as stores of torch do, may listen too
    (`socket(7)`, `SO_REUSEADDR`).
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("", 0))
        port = int(holder.getsockname()[1])
        if sys.platform != "linux":  # other systems let no second socket listen
            holder.close()
        yield port
