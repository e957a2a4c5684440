"""What holds for every module: what replicas exchange, and what recomputation makes."""

from __future__ import annotations

from functools import cache

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.capture.convert.odd_modules import COMPUTED_WEIGHTS, STOPPED_GRADIENTS
from wattree.capture.convert import model_graph
from wattree.capture.record import record
from wattree.graph import ModelGraph
from wattree.lowering.block import compile_model
from wattree.lowering.program import BlockProgram
from wattree.strategy import StrategyOptions
from wattree.strategy.presets import options_of_preset, tree_of

WIDTH = 16


class _Mixer(nn.Module):
    """Residual layers of which each does something with the rows of all samples."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + getattr(self, f"_{self.kind}")(x, layer)
        return x

    def _picked(self, x: Tensor, layer: nn.Module) -> Tensor:
        """Run two experts one by one on rows of all samples."""
        rows = x.flatten(0, 1)
        first = (rows @ self.mean).argsort()[: len(rows) // 2]
        return torch.zeros_like(rows).index_add_(0, first, layer(rows[first])).view_as(x)

    def _averaged(self, x: Tensor, layer: nn.Module) -> Tensor:
        with torch.no_grad():
            self.mean.mul_(0.9).add_(x.detach().mean((0, 1)), alpha=0.1)
        return layer(x)

    def _transformed(self, x: Tensor, layer: nn.Module) -> Tensor:
        waves = torch.fft.rfft(layer(x), dim=1)
        return torch.fft.irfft(waves * waves.abs().mean(0), n=x.shape[1], dim=1)

    def _compared(self, x: Tensor, layer: nn.Module) -> Tensor:
        pooled = layer(x).mean(1)
        return ((pooled @ pooled.t()).softmax(-1) @ pooled)[:, None]

    def _attended(self, x: Tensor, layer: nn.Module) -> Tensor:
        """Attend with queries and keys that are parts of one projection."""
        queries, keys = layer(x).unflatten(-1, (2, 1, WIDTH // 2)).transpose(1, 3).unbind(2)
        made = functional.scaled_dot_product_attention(queries, keys, keys)
        return torch.cat([made, made], -1)[:, 0]

    def _sorted(self, x: Tensor, layer: nn.Module) -> Tensor:
        return layer(x.sort(dim=0).values) + x.flip(0).cumsum(0)


class _Cell(nn.Module):
    """A recurrent cell, which writes into parts of its projections, as a checkpointed region."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.GRUCell(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.b, self.a(x), x, use_reentrant=False).square().mean()


MIXERS = ("attended", "picked", "averaged", "transformed", "compared", "sorted")


@cache
def graphs() -> dict[str, ModelGraph]:
    """Return the graphs of odd modules and of those that mix samples."""
    modules = {name: (build, shape) for name, (build, shape) in COMPUTED_WEIGHTS.items()}
    modules |= STOPPED_GRADIENTS
    modules["cell"] = (_Cell, (WIDTH,))
    modules |= {name: (lambda name=name: _Mixer(name), (8, WIDTH)) for name in MIXERS}
    return {
        name: model_graph(
            record(build, lambda b, _, s=shape: ((torch.zeros(b, *s),), {}), name=name)
        )
        for name, (build, shape) in modules.items()
    }


def work(program: BlockProgram) -> tuple[object, ...]:
    """Return what a program does and stores, parameters aside."""
    return program.forward, program.backward, program.recomputation, program.saved


def test_a_replica_runs_what_one_device_runs_on_its_samples() -> None:
    """Whatever the module does: DistributedDataParallel wraps it, and changes nothing inside.

    Each parameter's gradient is summed over all replicas, also of weights that are computed.
    """
    found = []
    for name, graph in graphs().items():
        alone = compile_model(graph, tree_of(StrategyOptions(), graph), frozenset())
        for preset, axis in (("ddp", "dp"), ("fsdp", "fsdp")):
            tree = tree_of(options_of_preset(preset, {axis: 4}), graph)
            spread = compile_model(graph, tree, frozenset({axis}))
            pairs = zip(spread.programs, alone.programs, strict=True)
            groups = [group for each in spread.programs for group in each.parameters]
            if any(work(one) != work(other) for one, other in pairs):
                found.append((name, preset, "work"))
            if any(group.partial_axes != (axis,) for group in groups):
                found.append((name, preset, "gradients"))

    assert not found


@pytest.mark.parametrize("kind", ["selective", "full"])
def test_recomputation_keeps_what_autograd_saves_and_inputs(kind: str) -> None:
    """It frees what only it reads, as forward does, so that it never needs more than one region.

    A view of what is saved is no tensor of its own.
    """
    found = []
    for name, graph in graphs().items():
        plain, again = (
            compile_model(
                graph, tree_of(options_of_preset("ddp", {"recompute": each}), graph), frozenset()
            )
            for each in ("none", kind)
        )
        for one, other in zip(plain.programs, again.programs, strict=True):
            known = {tensor.name for tensor in one.saved}
            inputs = {tensor.name for tensor in graph.blocks[other.block].inputs}
            names = [t.name for t in other.saved if t.name.partition(".")[0] not in inputs]
            found += [(name, each) for each in names if each not in known]

    assert not found


def test_parts_that_are_picked_again_lie_in_their_region() -> None:
    """A value that was written to since: the region makes it again, too, and keeps its input."""
    graph = graphs()["cell"]
    program = compile_model(graph, tree_of(StrategyOptions(), graph), frozenset())

    kept = {t.name for each in program.programs for t in each.saved if not t.recomputed}

    assert any(each.recomputation for each in program.programs)
    assert not {name for name in kept if name.startswith("view")}
