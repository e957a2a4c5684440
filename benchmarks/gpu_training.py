"""Training of images and of tokens, both synthetic, measured by stage through `Stages`."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import wattree
from wattree.capture.catalog_entries import built_in_models
from wattree.capture.shape import TransformerShape
from wattree.errors import UnknownNameError, WattreeError
from wattree.files import write_atomic
from wattree.frameworks.models import shape_of
from wattree.measure import MeterOptions, Stages
from wattree.trace import Run

#: Batches copied one after the other before they are trained on. Step by step, all readings of the
#: counter (some 100 ms apart) see nearly the same mixture of copying and computing, which puts the
#: energy of copying off by a fifth; in groups by 1 % (tests/validation/test_gpu_energy.py). What a
#: batch takes is the same.
GROUP = 32
#: Steps before the measured ones: kernels are chosen, memory is taken.
WARM_UP = GROUP
#: Where results are written unless said otherwise.
RESULTS = Path(__file__).parent / "results"
_HINT = "--known-as NAME names the catalog's entry of the same product, if it has one"
#: Different batches in host memory, so that copies do not come out of a processor's cache.
_HOST_BATCHES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What is trained.

    Attributes:
        model: Name in the catalog, whose module is that of the zoo, or a decoder's.
        batch: Samples of a step.
        image_size: Pixels of an image's side.
        tokens: Of a sample, for a decoder; None: it is an image.
        options: Of the zoo's module, over those of the catalog; of a decoder, its sizes.
    """

    model: str
    batch: int
    image_size: int = 224
    tokens: int | None = None
    options: Mapping[str, Any] | None = None

    @property
    def tensor_bytes(self) -> int:
        """Bytes of a sample as it is copied: fp32 of three channels, or int64 twice. [B]"""
        if self.tokens is not None:
            return 2 * 8 * self.tokens  # the tokens, and what follows each
        return 4 * 3 * self.image_size**2

    def module(self) -> Any:
        """Return what is trained, a torch module."""
        given = dict(self.options or {})
        if self.tokens is None:
            entry = built_in_models()[self.model]
            family = import_module(f"wattree.capture.zoo.{entry.module}")
            return family.build(**entry.options | given)
        from benchmarks.gpu_decoder import Decoder

        return Decoder(replace(_shape(self.model), **given))

    def host_batch(self) -> tuple[Any, Any]:
        """Return drawn inputs and targets of a step, in host memory."""
        import torch

        if self.tokens is None:
            shape = (self.batch, 3, self.image_size, self.image_size)
            return torch.randn(shape), torch.randint(10, (self.batch,))
        ids = torch.randint(1000, (self.batch, self.tokens + 1))
        return ids[:, :-1].contiguous(), ids[:, 1:].flatten()


def _shape(model: str) -> TransformerShape:
    found = shape_of(model)
    assert found is not None, model
    return found


class CopiedBatches:
    """Batches copied from pageable host memory, a group at a time, until a time is over.

    Args:
        host: Pairs of inputs and targets, taken in turn.
        group: Batches that are copied when the first of them is asked for.
        seconds: How long after them; the last group is given whole. [s]
        most: Batches at most, those before among them, in whole groups; None for no limit.
        clock: The monotonic clock.
    """

    def __init__(
        self,
        host: Sequence[tuple[Any, Any]],
        device: Any,
        *,
        warm_up: int,
        seconds: float,
        group: int = GROUP,
        most: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host, self._device, self._clock = host, device, clock
        self._warm_up, self._seconds = warm_up, seconds
        self._group, self._most = group, most

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        """Yield copies."""
        until_s, given = float("inf"), 0
        copies: list[tuple[Any, Any]] = []
        while copies or (self._clock() < until_s and (self._most is None or given < self._most)):
            if given == self._warm_up:
                until_s = self._clock() + self._seconds
            if not copies:
                copies = [self._copied(given + index) for index in range(self._group)]
            yield copies.pop(0)
            given += 1

    def _copied(self, number: int) -> tuple[Any, Any]:
        inputs, targets = self._host[number % len(self._host)]
        return inputs.to(self._device), targets.to(self._device)


def train(
    training: Training,
    *,
    device: str,
    seconds: float,
    meters: Sequence[str],
    options: MeterOptions | None = None,
    warm_up: int = WARM_UP,
    group: int = GROUP,
    most: int | None = None,
) -> Run:
    """Train for a time and return the run: plain SGD, bf16 by autocast, eager.

    Args:
        device: Where, as torch calls it.
        seconds: How long after `warm_up` steps. [s]
        meters: Kinds of meters that are read.
        options: What is said about them; None for that one device.
        warm_up: Steps that are left out; whole groups, so that a batch's copy is counted with it.
        most: Steps at most.

    Raises:
        MeterError: The meters cannot be read.
    """
    import torch
    from torch.nn import functional

    torch.manual_seed(0)
    model = training.module().to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    host = [training.host_batch() for _ in range(_HOST_BATCHES)]
    loader = CopiedBatches(host, device, warm_up=warm_up, seconds=seconds, group=group, most=most)
    kind = torch.device(device).type
    with tempfile.TemporaryDirectory() as folder:
        stages = Stages(
            model,
            optimizer,
            out=Path(folder) / "run.json",
            name=training.model,
            model_name=training.model,
            meters=meters,
            options=options,
            skip_steps=warm_up,
            quiet=True,
        )
        with stages:
            for inputs, targets in stages.wrap(loader):
                with torch.autocast(kind, torch.bfloat16):
                    loss = functional.cross_entropy(model(inputs), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    assert stages.run is not None  # batches were loaded
    return stages.run


def environment(index: int, nvml: Any) -> dict[str, Any]:
    """Return what a result must name: device, its power limit, driver and software.

    Args:
        nvml: The module `pynvml`, or what behaves like it.
    """
    import torch

    properties = torch.cuda.get_device_properties(index)
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{properties.uuid}")
    driver = nvml.nvmlSystemGetDriverVersion()
    return {
        "device": torch.cuda.get_device_name(index),
        "power_limit_w": nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3,
        "driver": driver.decode() if isinstance(driver, bytes) else driver,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "torch": str(torch.__version__),
    }


def sees_no_device(what: str) -> bool:
    """Return whether torch sees no NVIDIA device, after saying that `what` is left out."""
    import torch

    if torch.cuda.is_available() and torch.version.cuda is not None:
        return False
    print(f"torch {torch.__version__} sees no NVIDIA device: nothing is {what}", file=sys.stderr)
    return True


def refused(benchmark: str, error: WattreeError) -> int:
    """Say why nothing is measured, and return the exit code of a user's mistake."""
    print(f"benchmarks.{benchmark}: {error}", file=sys.stderr)
    if isinstance(error, UnknownNameError):
        print(_HINT, file=sys.stderr)
    return 2


def described(around: Mapping[str, Any]) -> str:
    """Return device and software of a result in words."""
    return f"{around['device']}, driver {around['driver']}, torch {around['torch']}"


def result_of(
    schema: str, around: Mapping[str, Any], known_as: str | None, **figures: Any
) -> dict[str, Any]:
    """Return what is written of a measurement.

    Args:
        around: As `environment` says.
        known_as: The device's name in the catalog.
    """
    return {
        "schema": schema,
        "origin": "measured",
        **around,
        "known_as": known_as,
        "wattree": wattree.__version__,
        **figures,
    }


def write_result(result: Mapping[str, Any], out: Path) -> None:
    """Write a result, with the folder it lies in, and say where."""
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(out, json.dumps(result, indent=1) + "\n")
    print(f"written to {out}")
