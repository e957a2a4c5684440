"""A private MPS daemon for the devices of a job on one node: start, watch, stop.

It has pipes and logs of its own, and is a child of the launcher. A CUDA program that finds no
daemon runs without one and says nothing, so whether processes are clients is asked of the daemon,
never inferred.

References:
    NVIDIA, "Multi-Process Service", sections "Client-Server Architecture", "Environment Variables",
    "nvidia-cuda-mps-control" and "Limitations"; `nvidia-cuda-mps-control(1)`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from wattree.errors import RunError
from wattree.process import Process, is_alive, process_of
from wattree.runtime.colocation.children import Start, started
from wattree.runtime.colocation.processes import end, output_of
from wattree.runtime.colocation.state import JobState

CONTROL = "nvidia-cuda-mps-control"
#: What they are called in the state of a job.
DAEMON, SERVER = "MPS daemon", "MPS server"
_PIPES, _LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
VARIABLES = frozenset({_PIPES, _LOGS})
#: A daemon that does not answer within this has none to give. [s]
_ANSWER_S = 3.0
_START_S, _STOP_S = 15.0, 4.0
#: Longest name of a socket is 108 bytes (`unix(7)`); the daemon's have names of up to so many.
_LONGEST_FOLDER = 108 - 32
_LOOK_EVERY_S = 0.05


def control_program(environment: Mapping[str, str]) -> Path | None:
    """Return the MPS control program; None if it is not installed."""
    found = shutil.which(CONTROL, path=environment.get("PATH"))
    return None if found is None else Path(found)


class MpsControl:
    """Queries an MPS daemon of any user.

    Args:
        variables: That name the daemon's pipes and logs.
    """

    def __init__(
        self, program: Path, variables: Mapping[str, str], environment: Mapping[str, str]
    ) -> None:
        self._program, self._environment = program, {**environment, **variables}

    def asked(self, command: str) -> str | None:
        """Return the daemon's answer to a command; None if there is none."""
        program, given = [str(self._program)], f"{command}\n"
        found, fault = output_of(program, self._environment, timeout_s=_ANSWER_S, given=given)
        return None if fault else found

    def servers(self) -> list[int]:
        """Return the process ids of the daemon's servers."""
        return _numbers(self.asked("get_server_list"))

    def clients(self) -> list[int]:
        """Return the process ids of the connected clients."""
        found = []
        for server in self.servers():
            found += _numbers(self.asked(f"get_client_list {server}"))
        return found


class MpsDaemon:
    """An MPS daemon started by this process.

    Args:
        state: Of the job; pipes, logs and process numbers go there.
        uuids: Of the devices of this node that the job has.

    Raises:
        RunError: It cannot be started.
    """

    def __init__(
        self, program: Path, state: JobState, uuids: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self._program, self._state = program, state
        self._pipes, self._logs = state.folder / "pipe", state.folder / "log"
        if len(os.fsencode(self._pipes)) > _LONGEST_FOLDER:
            raise RunError(
                str(self._pipes),
                ["is too long a name for the daemon's sockets; set XDG_RUNTIME_DIR to a short one"],
            )
        for folder in (self._pipes, self._logs):
            folder.mkdir(mode=0o700, exist_ok=True)
        self._environment = {
            **environment,
            **self.variables(),
            "CUDA_VISIBLE_DEVICES": ",".join(uuids),
        }
        self.control = MpsControl(program, self.variables(), environment)
        self._server: Process | None = None
        self._process = self._started()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def ready(self) -> None:
        """Wait until the daemon answers and its server runs.

        Raises:
            RunError: It ended, or does not answer.
        """
        until_s = time.monotonic() + _START_S
        while self.control.asked("get_server_list") is None:
            self._await("does not answer", until_s)
        self.control.asked(f"start_server -uid {os.getuid()}")
        while (server := next(iter(self.control.servers()), None)) is None:
            self._await("starts no server", until_s)
        self._state.record(SERVER, server)
        self._server = process_of(server)

    def variables(self) -> dict[str, str]:
        """Return the environment variables by which programs find this daemon."""
        return {_PIPES: str(self._pipes), _LOGS: str(self._logs)}

    def fault(self) -> str:
        """Return why the daemon or its server has ended; empty while both run."""
        code = self._process.poll()
        if code is not None:
            return f"the MPS daemon (process {self.pid}) {_how(code)}"
        if self._server is not None and not is_alive(self._server):
            return f"the MPS server (process {self._server.pid}) is gone{self._last_line('server')}"
        return ""

    def stop(self) -> None:
        """Stop the daemon and its server; both have ended on return."""
        if self._process.poll() is None:
            self.control.asked("quit -t 1")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_S)
        left = [each.process for each in self._state.recorded() if each.what in {DAEMON, SERVER}]
        end(left)
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_S)

    def _started(self) -> subprocess.Popen[bytes]:
        message = self._logs / "start"
        start = Start(rank=-1, log=message)
        command = [str(self._program), "-f"]  # in the foreground: a child, whose end is seen
        try:
            child = started(command, self._environment, start)
        except OSError as error:
            raise RunError(command[0], [f"cannot be started ({error.strerror})"]) from error
        self._state.record(DAEMON, child.process.pid)
        return child.process

    def _await(self, what: str, until_s: float) -> None:
        code = self._process.poll()
        if code is None and time.monotonic() < until_s:
            time.sleep(_LOOK_EVERY_S)
            return
        message = self._last_line("control") or self._last_line("server")
        self.stop()
        raise RunError(
            CONTROL,
            [
                f"{_how(code) if code is not None else what}{message}; another process may hold a "
                "device in exclusive mode (see nvidia-smi); --without-mps does without"
            ],
        )

    def _last_line(self, name: str) -> str:
        """Return the last line of a log, after a colon; empty if there is none."""
        for path in (
            self._logs / f"{name}.log",
            self._logs / "start.err",
            self._logs / "start.out",
        ):
            with contextlib.suppress(OSError):
                lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
                last = next((line.strip() for line in reversed(lines) if line.strip()), "")
                if last:
                    return f": {last[:200]}"
        return ""


def _how(code: int) -> str:
    if code < 0:
        return f"was killed by signal {-code} ({signal.Signals(-code).name})"
    return f"ended with exit code {code}"


def _numbers(text: str | None) -> list[int]:
    return [int(word) for word in (text or "").split() if word.isdigit()]
