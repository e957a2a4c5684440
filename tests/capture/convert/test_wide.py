"""Modules that repeat where several tensors are live are blocks; shortcuts stay inside theirs."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn

from tests.capture.convert.recordings import saved_bytes
from tests.capture.convert.sums import kept_bytes
from wattree.capture.convert import model_graph
from wattree.capture.record import record
from wattree.graph import BlockDataflow, ModelGraph


class Pair(nn.Module):
    """Two convolutions, the first of which may see more channels."""

    def __init__(self, before: int, width: int = 8) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the result."""
        return torch.relu(self.second(torch.relu(self.first(x))))


class Skips(nn.Module):
    """A small U-Net of modules that are attributes with numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.down3 = Pair(3), Pair(8), Pair(8)
        self.up1, self.up2 = Pair(16), Pair(16)

    def forward(self, x: Tensor) -> Tensor:
        """Return the result."""
        a = self.down1(x)
        b = self.down2(a)
        c = self.up1(torch.cat([self.down3(b), b], 1))
        return self.up2(torch.cat([c, a], 1)).mean()


class Nested(nn.Module):
    """A small U-Net of lists in lists, whose modules read two tensors, as in diffusion models."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Linear(4, 8)
        self.inp = nn.Conv2d(3, 8, 3, padding=1)
        self.down = nn.ModuleList(nn.ModuleList([Shifted(8), Pair(8)]) for _ in range(2))
        self.up = nn.ModuleList(nn.ModuleList([Shifted(16), Pair(8)]) for _ in range(2))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """Return the result."""
        e, x = self.time(t), self.inp(x)
        seen = []
        for first, second in self.down:
            x = second(first(x, e))
            seen.append(x)
        for first, second in self.up:
            x = second(first(torch.cat([x, seen.pop()], 1), e))
        return x.mean()


class Level(nn.Module):
    """Pairs with attention's place between them, one list each, as a level of diffusion models."""

    def __init__(self, before: int) -> None:
        super().__init__()
        self.resnets = nn.ModuleList([Shifted(before), Shifted(8)])
        self.attentions = nn.ModuleList([Pair(8), Pair(8)])

    def forward(self, x: Tensor, e: Tensor, seen: list[Tensor]) -> Tensor:
        """Return the result, and leave what is seen on the way."""
        for resnet, attention in zip(self.resnets, self.attentions, strict=True):
            x = attention(resnet(x, e))
            seen.append(x)
        return x


class Levels(Nested):
    """A small U-Net whose levels are modules that hold lists."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(Level(8) for _ in range(2))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """Return the result."""
        e, x = self.time(t), self.inp(x)
        seen: list[Tensor] = []
        for level in self.down:
            x = level(x, e, seen)
        for first, second in self.up:
            x = second(first(torch.cat([x, seen.pop()], 1), e))
        return (x + sum(seen)).mean()


class Shifted(Pair):
    """A pair that also reads an embedding of the time."""

    def __init__(self, before: int, width: int = 8) -> None:
        super().__init__(before, width)
        self.shift = nn.Linear(8, width)

    def forward(self, x: Tensor, e: Tensor) -> Tensor:  # type: ignore[override]
        """Return the result."""
        return torch.relu(self.second(self.first(x) + self.shift(e)[:, :, None, None]))


class Dense(nn.Module):
    """Each reads all before it."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Pair(8 * (1 + number)) for number in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        """Return the result."""
        found = [x]
        for layer in self.layers:
            found.append(layer(torch.cat(found, 1)))
        return torch.cat(found, 1)


class DenseNet(nn.Module):
    """Two such, and a convolution between that makes them alike."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.block1, self.between, self.block2 = Dense(), nn.Conv2d(40, 8, 1), Dense()

    def forward(self, x: Tensor) -> Tensor:
        """Return the result."""
        return self.block2(self.between(self.block1(self.stem(x)))).mean()


class Shortcut(nn.Module):
    """A residual block of two numbered modules, which are made of others."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.conv3 = Pair(8), Pair(8), Pair(8)

    def forward(self, x: Tensor) -> Tensor:
        """Return the result."""
        return x + self.conv3(self.conv2(self.conv1(x)))


class Residual(nn.Module):
    """Three of them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.blocks = nn.Sequential(*(Shortcut() for _ in range(3)))

    def forward(self, x: Tensor) -> Tensor:
        """Return the result."""
        return self.blocks(self.stem(x)).mean()


class Translator(nn.Module):
    """PyTorch's own encoder and decoder."""

    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(50, 16), nn.Embedding(50, 16)
        sizes: dict[str, Any] = {"dim_feedforward": 32, "batch_first": True}
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(16, 2, **sizes), layers, enable_nested_tensor=False
        )
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 2, **sizes), layers)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the result."""
        return self.decoder(self.target(ids), self.encoder(self.source(ids))).mean()


class Joined(nn.Module):
    """Joins two streams, works on both under a condition, and parts them."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Conv2d(8, 16, 1), nn.Conv2d(16, 8, 1)

    def forward(self, text: Tensor, picture: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
        """Return both streams."""
        both = torch.cat([text, picture], 2)
        both = both + self.down(torch.relu(self.up(both))) * given
        return both[:, :, : text.shape[2]], both[:, :, text.shape[2] :]


class Streams(nn.Module):
    """Layers of two streams, as transformers of pictures and text have them."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.picture, self.given = (nn.Conv2d(3, 8, 1) for _ in range(3))
        self.blocks = nn.ModuleList(Joined() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Return the result."""
        text, picture, given = self.text(x[:, :, :4]), self.picture(x), self.given(x[:, :, :1, :1])
        for block in self.blocks:
            text, picture = block(text, picture, given)
        return picture.mean()


def image(batch: int, _: int | None) -> tuple[tuple[Tensor], dict[str, Any]]:
    """Return small images."""
    return (torch.zeros(batch, 3, 16, 16),), {}


#: Lists of a level, in the order in which their modules run.
_PARTS = ("resnets", "attentions")


def dated(batch: int, _: int | None) -> tuple[tuple[Tensor, Tensor], dict[str, Any]]:
    """Return small images and times."""
    return (*image(batch, None)[0], torch.zeros(batch, 4)), {}


def graph_of(build: Any, inputs: Any = image) -> ModelGraph:
    """Return the graph of a module."""
    return model_graph(record(build, inputs, name="module under test"))


def layers(graph: ModelGraph) -> list[str]:
    """Return the paths of what counts as layers."""
    return [instance.path for instance in graph.instances if instance.is_layer]


def alive(graph: ModelGraph) -> list[int]:
    """Return how many tensors are live before each layer but the first."""
    paths = [instance.path for instance in graph.instances]
    starts = [paths.index(path) for path in layers(graph)[1:]]
    return [len(found) for found in BlockDataflow(graph).live_at(starts)]


def test_the_levels_of_a_unet_are_layers() -> None:
    """What the way down leaves is carried to the way up."""
    graph = graph_of(Skips)

    assert layers(graph) == ["down1", "down2", "down3", "up1", "up2"]
    assert alive(graph) == [1, 2, 2, 1]


def test_modules_in_nested_lists_are_layers() -> None:
    """They are alike although the lists that hold them have numbers of their own."""
    graph = graph_of(Nested, dated)

    assert layers(graph) == [f"{way}.{n}.{m}" for way in ("down", "up") for n in "01" for m in "01"]


def test_the_modules_in_lists_of_a_level_are_layers() -> None:
    """Gradient checkpointing of diffusion models recomputes them one by one, not a whole level."""
    graph = graph_of(Levels, dated)
    down = [f"down.{n}.{part}.{m}" for n in "01" for m in "01" for part in _PARTS]

    assert layers(graph)[: len(down)] == down


def test_the_layers_of_dense_blocks_are_layers() -> None:
    """Each passes on its own result; each adds one live tensor, and one block reads all of them."""
    graph = graph_of(DenseNet)

    assert layers(graph) == [f"block{b}.layers.{n}" for b in (1, 2) for n in range(4)]
    assert alive(graph)[:3] == [3, 4, 5]


def test_the_layers_of_two_streams_are_layers() -> None:
    """What is live between them are parts of one tensor, which no one reads whole any more."""
    graph = graph_of(Streams)

    assert layers(graph) == [f"blocks.{number}" for number in range(4)]
    assert alive(graph) == [3, 3, 3]
    assert len({instance.block for instance in graph.instances[3:5]}) == 1


def test_parts_of_a_block_with_a_shortcut_are_no_layers() -> None:
    """Two tensors are live between them, as everywhere in a residual block."""
    graph = graph_of(Residual)

    assert layers(graph) == ["blocks.0", "blocks.1", "blocks.2"]
    assert len({i.block for i in graph.instances if i.is_layer}) == 1


def test_decoder_layers_are_alike_and_whole() -> None:
    """The last one too, although the encoder's output is not live after its attention."""

    def ids(batch: int, _: int | None) -> tuple[tuple[Tensor], dict[str, Any]]:
        return (torch.zeros(batch, 12, dtype=torch.long),), {}

    graph = graph_of(Translator, ids)
    decoder = [instance for instance in graph.instances if "decoder.layers" in instance.path]

    assert layers(graph) == [f"{s}.layers.{n}" for s in ("encoder", "decoder") for n in range(3)]
    assert len({instance.block for instance in decoder[:-1]}) == 1
    operators = [graph.blocks[instance.block].operators for instance in decoder]
    assert [len(each) for each in operators] == [len(operators[0])] * 3
    assert {instance.reads[1] for instance in decoder} == {decoder[0].reads[1]}


@pytest.mark.parametrize("build", [Skips, DenseNet, Streams])
def test_each_storage_is_kept_by_one_block(build: Any) -> None:
    """What is kept is what autograd keeps, however the model is cut."""
    recording = record(build, image, name="module under test")
    graph = model_graph(recording, normal=False)

    assert kept_bytes(graph, 2.0, 1.0) == pytest.approx(saved_bytes(recording))
