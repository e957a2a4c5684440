"""Several runs at different sizes → one recording with symbolic sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_map_only

from wattree.capture.record.run import Run, run_module
from wattree.capture.recording import (
    RecordedOperator,
    RecordedTensor,
    Recording,
    TensorSource,
)
from wattree.errors import ModelError
from wattree.graph import Extent

__all__ = ["record"]

#: `(batch, sequence) → (positional arguments, keyword arguments)`; sequence None: the model's own.
Inputs = Callable[[int, int | None], tuple[tuple[Any, ...], Mapping[str, Any]]]


def record(
    build: Callable[[], nn.Module],
    inputs: Inputs,
    *,
    name: str,
    batch: int = 2,
    sequence: int | None = None,
) -> Recording:
    """Return the recording of a module, without memory for its weights.

    Args:
        build: Makes the module; called on the meta device.
        inputs: Makes its arguments.
        name: For messages.
        batch: Samples of the first run; the second has one more.
        sequence: Tokens per sample of the first run; None where inputs have no such dim.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with torch.device("meta"):
        module = build()
    _faked(module, mode)

    def run(samples: int, tokens: int | None) -> Run:
        with torch.device("meta"):
            args, kwargs = inputs(samples, tokens)
        args, kwargs = tree_map_only(torch.Tensor, lambda t: _fake(t, mode), (args, dict(kwargs)))
        with mode:
            return run_module(module, args, kwargs)

    runs = [run(batch, sequence), run(batch + 1, sequence)]
    if sequence is not None:
        runs.append(run(batch, sequence * 2))
    return _merged(runs, name=name, batch=batch, sequence=sequence)


def _fake(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    return FakeTensor(mode, tensor.detach().to("meta"), torch.device("cpu"))


def _faked(module: nn.Module, mode: FakeTensorMode) -> None:
    """Put fake tensors in the place of the module's parameters and buffers, tied ones once."""
    fakes: dict[int, Any] = {}
    for child in module.modules():
        for key, parameter in child._parameters.items():
            if parameter is not None:
                if id(parameter) not in fakes:
                    fakes[id(parameter)] = nn.Parameter(
                        _fake(parameter, mode), requires_grad=parameter.requires_grad
                    )
                child._parameters[key] = fakes[id(parameter)]
        for key, buffer in child._buffers.items():
            if buffer is not None:
                child._buffers[key] = fakes.setdefault(id(buffer), _fake(buffer, mode))


def _merged(runs: list[Run], *, name: str, batch: int, sequence: int | None) -> Recording:
    first = runs[0]
    targets = [[operator.target for operator in run.operators] for run in runs]
    if any(other != targets[0] for other in targets[1:]):
        raise ModelError(f"model {name}: it runs other operators with another batch or sequence")

    def extent(*values: float) -> Extent:
        here = values[0]
        by_batch = _power(here, values[1], (batch + 1) / batch)
        by_seq = _power(here, values[2], 2.0) if len(values) > 2 else 0
        scale = batch**by_batch * (sequence or 1) ** by_seq
        return Extent(coefficient=here / scale, batch=by_batch, seq=by_seq)

    tensors = tuple(
        RecordedTensor(
            extents=tuple(extent(*sizes) for sizes in zip(*(t.shape for t in same), strict=True)),
            dtype=same[0].dtype,
            storage=same[0].storage,
            storage_elements=extent(*(t.storage_elements for t in same)),
            source=TensorSource(same[0].source),
            name=same[0].name,
            requires_grad=same[0].requires_grad,
        )
        for same in zip(*(run.tensors for run in runs), strict=True)
    )
    operators = tuple(
        RecordedOperator(
            target=same[0].target,
            module=same[0].module,
            inputs=same[0].inputs,
            outputs=same[0].outputs,
            arguments=same[0].arguments,
            flop=extent(*(o.flop for o in same)),
            input_gradient_flop=extent(*(o.input_gradient_flop for o in same)),
            weight_gradient_flop=extent(*(o.weight_gradient_flop for o in same)),
            saved=tuple(dict.fromkeys(same[0].saved)),
            is_view=same[0].is_view,
            in_place=same[0].in_place,
            region=same[0].region,
        )
        for same in zip(*(run.operators for run in runs), strict=True)
    )
    return Recording(
        name=name,
        operators=operators,
        tensors=tensors,
        outputs=first.outputs,
        modules=first.modules,
        tied=first.tied,
        batch=batch,
        sequence=sequence,
        recomputed_flop=extent(*(run.recomputed_flop for run in runs)),
        loss=first.loss,
    )


def _power(here: float, there: float, factor: float) -> int:
    """Return 0, 1 or 2: how a size grows with a symbol that was made `factor` times as large."""
    if here == there or here == 0:
        return 0
    return min((1, 2), key=lambda power: abs(there / here - factor**power))
