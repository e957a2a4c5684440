"""What `make gpu` needs, said at once, before any part of it starts.

    python benchmarks/gpu_ready.py

Exit code 0 if all of it is there, or if there is no NVIDIA device: each part then says that it does
nothing. 2 if there is a device and something else is missing.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module

#: Module → what it is for.
_MODULES = {
    "wattree": "the program itself, with what it depends on: pip install -e .",
    "torch": "training: a build for CUDA",
    "pynvml": "the energy counter: pip install nvidia-ml-py",
    "pytest": "gpu-tests",
}
_MPS = "nvidia-cuda-mps-control"


def has_device() -> bool:
    """Return whether the driver lists a device."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return False
    found = subprocess.run([program, "-L"], capture_output=True, text=True, check=False, timeout=60)
    return found.returncode == 0 and "GPU 0" in found.stdout


def missing() -> Iterator[str]:
    """Yield what is missing."""
    lacks = []
    for name, purpose in _MODULES.items():
        try:
            import_module(name)
        except ImportError as error:
            lacks.append(name)
            yield f"{name}, for {purpose} ({error})"
    if "torch" not in lacks:
        import torch

        if not torch.cuda.is_available():
            yield f"a torch that sees the device: {torch.__version__} does not"
        elif "wattree" not in lacks:
            yield from _unknown(torch.cuda.get_device_name(0))
    if shutil.which(_MPS) is None:
        yield f"{_MPS}, for gpu-colocation: it comes with the driver"


def _unknown(device: str) -> Iterator[str]:
    from wattree.errors import UnknownNameError
    from wattree.hardware import canonical_name

    try:
        canonical_name("device", device)
    except UnknownNameError as error:
        yield f"an entry of the catalog for this device: {error}"


def main() -> int:
    """Print what is missing."""
    if not has_device():
        print("no NVIDIA device: nothing of this is run here", file=sys.stderr)
        return 0
    lacks = list(missing())
    for line in lacks:
        print(f"missing: {line}", file=sys.stderr)
    return 2 if lacks else 0


if __name__ == "__main__":
    raise SystemExit(main())
