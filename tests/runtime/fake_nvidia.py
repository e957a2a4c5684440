"""Stand-ins for NVIDIA's programs, for machines without its devices.

`install` writes `nvidia-smi` and `nvidia-cuda-mps-control` to a folder. The first lists devices
that a file describes; the second is a daemon with a server process, whose clients are the processes
that leave their number in its pipe folder (`CONNECT` does, as CUDA does when it starts).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["CONNECT", "DEVICE", "install"]

#: A device as `nvidia-smi --query-gpu` describes it. No other test process has one of its name:
#: the daemon of one test is a foreign one to another that has the same device.
DEVICE = {
    "uuid": f"GPU-0000aaaa-0000-0000-0000-{os.getpid():012x}",
    "name": "NVIDIA A100-SXM4-40GB",
    "pci.bus_id": "00000000:07:00.0",
    "compute_cap": "8.0",
    "compute_mode": "Default",
    "mig.mode.current": "Disabled",
    "memory.total": "40960",
    "memory.free": "40000",
}

#: Makes a Python program a client of the daemon that its environment names, if that is there.
CONNECT = """
import os, pathlib
_pipes = pathlib.Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/nowhere"))
if (_pipes / "control").exists():
    (_pipes / "clients").mkdir(exist_ok=True)
    (_pipes / "clients" / str(os.getpid())).touch()
elif "FAKE_NVIDIA" in os.environ:
    pathlib.Path(os.environ["FAKE_NVIDIA"], "apps", str(os.getpid())).touch()
"""

_SMI = """
import json, os, pathlib, sys
home = pathlib.Path(os.environ["FAKE_NVIDIA"])
told = json.loads((home / "devices.json").read_text())
if told["fault"]:
    print(told["fault"]); sys.exit(9)
asked = [word for word in sys.argv[1:] if word.startswith("--query-")]
if not asked:
    print("| NVIDIA-SMI 550.54   Driver Version: 550.54   CUDA Version: " + told["cuda"] + " |")
elif asked[0].startswith("--query-gpu="):
    for index, device in enumerate(told["devices"]):
        names = asked[0].removeprefix("--query-gpu=").split(",")
        print(", ".join(str({"index": index, **device}[name]) for name in names))
else:
    for path in (home / "apps").iterdir():
        print(path.name)
"""

_CONTROL = """
import os, pathlib, signal, socket, subprocess, sys
pipes = pathlib.Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/nowhere"))
door = str(pipes / "control")
here = pathlib.Path(__file__).parent
if "-f" not in sys.argv:
    try:
        link = socket.socket(socket.AF_UNIX); link.connect(door)
    except OSError:
        print("Cannot find MPS control daemon process"); sys.exit(1)
    link.sendall(sys.stdin.read().encode()); link.shutdown(socket.SHUT_WR)
    answer = b""
    while part := link.recv(4096): answer += part
    sys.stdout.write(answer.decode()); sys.exit(0)
fault = os.environ.get("FAKE_MPS_FAULT", "")
log = pathlib.Path(os.environ["CUDA_MPS_LOG_DIRECTORY"], "control.log")
log.write_text("Start\\n" + fault + "\\n")
if fault == "refuses to start": sys.exit(1)
servers = []
listener = socket.socket(socket.AF_UNIX); listener.bind(door); listener.listen(8)
while True:
    link, _ = listener.accept()
    said = b""
    while part := link.recv(4096): said += part
    for words in (line.split() for line in said.decode().splitlines()):
        answer = ""
        servers = [each for each in servers if each.poll() is None]
        if words[:1] == ["start_server"] and fault != "no server":
            servers.append(subprocess.Popen([str(here / "nvidia-cuda-mps-server")]))
        elif words[:1] == ["get_server_list"]:
            answer = "".join(f"{each.pid}\\n" for each in servers)
        elif words[:1] == ["get_client_list"]:
            for path in sorted((pipes / "clients").glob("*")):
                if pathlib.Path("/proc", path.name).exists(): answer += path.name + "\\n"
        elif words[:1] == ["quit"]:
            for each in servers: each.kill(); each.wait()
            link.close(); sys.exit(0)
        link.sendall(answer.encode())
    link.close()
"""

_SERVER = "import time\nwhile True: time.sleep(1)\n"


def install(
    folder: Path,
    *,
    devices: Sequence[Mapping[str, str]] = (DEVICE,),
    cuda: str = "12.4",
    fault: str = "",
    with_mps: bool = True,
) -> dict[str, str]:
    """Write the programs; return the variables by which they are found.

    Args:
        folder: Where to.
        devices: What `nvidia-smi` lists.
        cuda: Version that it names.
        fault: What it says instead, failing.
        with_mps: Whether there is a daemon to be had.
    """
    (folder / "apps").mkdir(parents=True)
    as_dict = {"devices": list(devices), "cuda": cuda, "fault": fault}
    (folder / "devices.json").write_text(json.dumps(as_dict))
    programs = {"nvidia-smi": _SMI}
    if with_mps:
        programs |= {"nvidia-cuda-mps-control": _CONTROL, "nvidia-cuda-mps-server": _SERVER}
    for name, program in programs.items():
        path = folder / name
        path.write_text(f"#!{sys.executable} -SE\n{program}")
        path.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "FAKE_NVIDIA": str(folder)}
