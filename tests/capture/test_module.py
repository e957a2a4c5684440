"""Modules by name: what is run and what never is, what is missing, what is done once."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

import wattree
from wattree.capture import load_model, module_graph, module_rows
from wattree.capture.adapters import with_lora
from wattree.capture.load import located_model
from wattree.capture.module import record_source
from wattree.errors import JobError, MissingExtraError, ModelError, UnknownNameError, WattreeError
from wattree.graph import DimRole
from wattree.job import job_from_mapping, module_source
from wattree.lowering.model import model_of

MODULE = """
import torch
from torch import nn

def build(width=8, depth=2):
    return nn.Sequential(*[nn.Linear(width, width) for _ in range(depth)])

def example_inputs(batch):
    return torch.randn(batch, 8)
"""
TOKENS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(50, 8), nn.Linear(8, 50)

    def forward(self, ids, labels=None):
        return self.head(self.table(ids))

build = Net

def example_inputs(batch, sequence_length):
    return {"ids": torch.randint(0, 50, (batch, sequence_length))}
"""
#: Python that leaves a mark where it is run.
MARK = "open({mark!r}, 'w').close()\n"


@pytest.fixture
def torch() -> Any:
    """Return torch, where it is installed."""
    return pytest.importorskip("torch")


def written(folder: Path, text: str, name: str = "mine.py") -> Path:
    """Return a file with that text."""
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


# --------------------------------------------------------------------------------- safety


@pytest.mark.parametrize(
    "name", ["config.json", "model/config.json", "x.yaml", "trace.et", "model", "link.json"]
)
def test_data_that_is_really_python_does_not_run(tmp_path: Path, name: str) -> None:
    """Whatever a file holds, only a function named in `model` makes it code."""
    mark = tmp_path / "ran"
    real = written(tmp_path, MARK.format(mark=str(mark)), "real.py")
    (tmp_path / "model").mkdir()
    file = tmp_path / (name if name != "model" else "model/config.json")
    if name == "link.json":
        file.symlink_to(real)
    else:
        file.write_text(real.read_text())

    with pytest.raises(WattreeError):
        load_model(tmp_path / name)
    for model in (name, f"./{name}", f"../{tmp_path.name}/{name}"):
        mapping = {
            "model": model,
            "data": {"sequence_length": 8, "global_batch": 8},
            "cluster": {"node": "dgx-h100"},
        }
        with pytest.raises(WattreeError):
            model_of(job_from_mapping(mapping, "job.yaml", folder=tmp_path))
    with pytest.raises((JobError, ModelError)):
        wattree.load_job(tmp_path / name)

    assert not mark.exists()


@pytest.mark.parametrize("key", ["auto_map", "architectures", "model_type"])
def test_a_configuration_that_names_code_does_not_run_it(tmp_path: Path, key: str) -> None:
    """As configurations of hubs do to have their own classes loaded."""
    mark = tmp_path / "ran"
    written(tmp_path, MARK.format(mark=str(mark)), "modeling.py")
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 100,
        "intermediate_size": 128,
        key: {"AutoModel": "modeling.py:build"} if key == "auto_map" else "modeling.py:build",
    }
    written(tmp_path, json.dumps(config), "config.json")

    with contextlib.suppress(WattreeError):
        load_model(tmp_path / "config.json")

    assert not mark.exists()


def test_a_model_file_is_named_with_its_function(tmp_path: Path) -> None:
    """A path alone, as from a trace or a table of measured rows, runs nothing."""
    mark = tmp_path / "ran"
    file = written(tmp_path, MARK.format(mark=str(mark)))

    for name in (str(file), f"{file}:build", located_model("mine.py:build", tmp_path)):
        with pytest.raises((ModelError, UnknownNameError)):
            load_model(name)

    assert not mark.exists()


# --------------------------------------------------------------------------------- loading


@pytest.mark.usefixtures("torch")
def test_a_module_is_a_model(tmp_path: Path) -> None:
    """Parameters and FLOP reach the graph that jobs are compiled from."""
    graph = module_graph(
        module_source("mine.py:build", written(tmp_path, MODULE).parent), sequence=None
    )

    assert graph.parameters == 2 * (64 + 8)


@pytest.mark.usefixtures("torch")
def test_arguments_and_inputs_reach_the_module(tmp_path: Path) -> None:
    """By name, and in place of the example."""
    written(tmp_path, MODULE)

    recording = wattree.capture_module(
        f"{tmp_path}/mine.py:build",
        arguments={"width": 16, "depth": 3},
        inputs=["float32[batch, 16]"],
    )

    products = [o for o in recording.operators if o.target == "aten.addmm.default"]
    assert [o.flop.coefficient for o in products] == [2 * 16 * 16] * 3


@pytest.mark.usefixtures("torch")
def test_a_sequence_length_is_asked_for_and_used(tmp_path: Path) -> None:
    """A parameter of that name, or a dim `seq`, says that samples have one."""
    source = module_source("mine.py:build", written(tmp_path, TOKENS).parent)
    data: dict[str, int] = {"global_batch": 8}
    mapping = {"model": "mine.py:build", "data": data, "cluster": {"node": "dgx-h100"}}

    with pytest.raises(ModelError, match=r"^job.yaml: model: .*set data\.sequence_length of"):
        model_of(job_from_mapping(mapping, "job.yaml", folder=tmp_path))

    recording = record_source(source, sequence=6)
    assert recording.sequence == 6
    assert recording.tensors[recording.outputs[0]].extents[1].seq == 1


@pytest.mark.usefixtures("torch")
def test_a_sequence_length_without_effect_is_told(tmp_path: Path) -> None:
    """As all settings without effect."""
    source = module_source("mine.py:build", written(tmp_path, MODULE).parent)

    assert any(
        "data.sequence_length: has no effect" in w
        for w in record_source(source, sequence=6).warnings
    )


@pytest.mark.usefixtures("torch")
def test_a_recording_is_made_once_and_anew_when_the_file_changes(tmp_path: Path) -> None:
    """`plan` asks for the model often."""
    source = module_source("mine.py:build", written(tmp_path, MODULE).parent)
    first = record_source(source)

    assert record_source(source) is first
    written(tmp_path, MODULE.replace("depth=2", "depth=3"))
    assert len(record_source(source).operators) > len(first.operators)


@pytest.mark.usefixtures("torch")
def test_a_file_may_import_what_lies_beside_it(tmp_path: Path) -> None:
    """As if it were run itself."""
    written(tmp_path, MODULE, "layers_beside.py")
    written(tmp_path, "from layers_beside import build, example_inputs\n")

    assert record_source(module_source("mine.py:build", tmp_path)).operators


def test_a_function_in_python_can_be_captured(torch: Any) -> None:
    """From a notebook, say, where there is no file."""
    recording = wattree.capture_module(
        lambda: torch.nn.Linear(4, 3), inputs={"input": "float32[batch, 4]"}, batch=5
    )
    (whole,) = module_rows(recording)

    assert (whole.parameters, whole.forward_flop) == (15, 2 * 5 * 12)
    assert (whole.input_gradient_flop, whole.weight_gradient_flop) == (0, 2 * 5 * 12)
    assert whole.written_bytes == 4 * 5 * 3
    assert whole.read_bytes == 4 * (5 * 4 + 15)
    assert whole.saved_bytes == 0
    assert repr(recording) == "<Recording: <lambda>, 2 operators>"


def test_rows_include_what_lies_below(torch: Any) -> None:
    """A module has what its parts have; the whole has everything."""
    nn = torch.nn
    recording = wattree.capture_module(
        lambda: nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.ReLU(), nn.Linear(8, 8))),
        inputs=["float32[batch, 8]"],
    )
    rows = {row.path: row for row in module_rows(recording, batch=3)}

    assert rows[""].parameters == 2 * rows["1"].parameters == 2 * rows["1.1"].parameters == 144
    assert rows[""].forward_flop == 2 * 3 * 128
    assert rows["1.0"].saved_bytes == rows[""].saved_bytes == 4 * 3 * 8


# --------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "def build(): pass",
            r"the module's inputs are not declared; define example_inputs\(batch\)",
        ),
        ("def make(): pass", r"there is no function 'build'; functions there: make"),
        ("import no_such_package", r"importing it raised ModuleNotFoundError: .* \(line 1\)"),
        ("x = (", r"importing it raised SyntaxError"),
        ("raise SystemExit(3)", r"importing it raised SystemExit: 3 \(line 1\)"),
        (
            "def build(): pass\ndef example_inputs(): pass",
            r"example_inputs\(\) takes no batch; let it be example_inputs\(batch\)",
        ),
        (
            "def build(): raise ValueError('no width')\ndef example_inputs(batch): pass",
            r"its build function raised ValueError: no width \(.*mine\.py, line 1",
        ),
        (
            MODULE.replace("return torch.randn(batch, 8)", "return torch.randn(batch, 8)[9:, 99]"),
            r"its example inputs raised IndexError",
        ),
    ],
)
@pytest.mark.usefixtures("torch")
def test_a_file_that_cannot_be_used(tmp_path: Path, text: str, message: str) -> None:
    """One line: the file, what was found, what to do."""
    source = module_source("mine.py:build", written(tmp_path, text).parent)

    with pytest.raises(ModelError, match=message) as caught:
        record_source(source)

    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("torch")
def test_a_missing_file_or_package_is_named(tmp_path: Path) -> None:
    """With what to give instead."""
    with pytest.raises(ModelError, match=r"nowhere\.py: cannot be read \(No such file"):
        record_source(module_source("nowhere.py:build", tmp_path))
    with pytest.raises(ModelError, match=r"there is no package 'no_such_package'.*give its path"):
        record_source(module_source("no_such_package.models:build"))


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Everything else works without it."""
    monkeypatch.setattr("wattree.errors.find_spec", lambda _: None)

    with pytest.raises(MissingExtraError, match=r"needs the package 'torch'.*\.\[torch\]"):
        record_source(module_source("mine.py:build", tmp_path))


PARTS = """
import torch
from torch import nn
from torch.nn import functional as F

print("loaded")


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out, self.idle = nn.Linear(8, 24), nn.Linear(8, 8), nn.Linear(3, 3)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.out(y)


class Joined(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8)

    def forward(self, x):
        y = self.a(x)
        return torch.cat([y, y], 0).sort(0).values


def attention():
    return Attention()


def joined():
    return Joined()


def nothing():
    return nn.Identity()


def example_inputs(batch):
    return torch.randn(batch, 16, 8)
"""


@pytest.mark.usefixtures("torch")
def test_what_a_model_prints_stays_out_of_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--json -` writes JSON alone."""
    module_graph(
        module_source("parts.py:joined", written(tmp_path, PARTS, "parts.py").parent), sequence=None
    )
    said = capsys.readouterr()

    assert said.out == ""
    assert "loaded" in said.err


@pytest.mark.usefixtures("torch")
def test_adapters_stand_beside_projections_of_several_dims(tmp_path: Path) -> None:
    """Heads and the features of a head are two dims of a captured projection."""
    folder = written(tmp_path, PARTS, "parts.py").parent
    graph = module_graph(module_source("parts.py:attention", folder), sequence=None)
    adapted = with_lora(graph, rank=2, targets=["*"])

    assert adapted.trainable_parameters == 2 * (8 + 24) + 2 * (8 + 8)


@pytest.mark.usefixtures("torch")
def test_replicas_join_and_sort_their_own_samples(tmp_path: Path) -> None:
    """Data parallelism asks nothing of an operator."""
    folder = written(tmp_path, PARTS, "parts.py").parent
    graph = module_graph(module_source("parts.py:joined", folder), sequence=None)
    roles = {
        dim.role
        for block in graph.blocks.values()
        for operator in block.operators
        for dim in operator.dims
        if dim.name == "batch"
    }

    assert roles == {DimRole.SPLITTABLE}


@pytest.mark.usefixtures("torch")
def test_a_module_that_does_nothing_is_refused(tmp_path: Path) -> None:
    """There is nothing to plan."""
    folder = written(tmp_path, PARTS, "parts.py").parent

    with pytest.raises(ModelError, match="its forward calls no operator"):
        module_graph(module_source("parts.py:nothing", folder), sequence=None)


@pytest.mark.usefixtures("torch")
def test_parameters_that_nothing_reads_are_named(tmp_path: Path) -> None:
    """They are updated, and DDP wants to know of them."""
    folder = written(tmp_path, PARTS, "parts.py").parent
    graph = module_graph(module_source("parts.py:attention", folder), sequence=None)

    assert any("2 trainable parameters" in text for text in graph.warnings)
    assert any("idle.weight, idle.bias" in text for text in graph.warnings)
