"""What is said of captured models that are predicted otherwise than their code may suggest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from wattree.capture import dense_forward_flop, module_rows
from wattree.capture.module import record_source
from wattree.cost import load_calibration
from wattree.errors import ModelError
from wattree.job import job_from_mapping, module_source, read_declaration
from wattree.lowering.model import model_of
from wattree.predict import predicted, setting_of, simulate
from wattree.strategy import StrategyOptions
from wattree.strategy.presets.spatial import spatial_parallel

MODULE = """
import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def contrastive():
    def forward(self, x, y):
        scores = self.a(x) @ self.b(y).t()
        return F.cross_entropy(scores, torch.arange(len(scores), device=x.device))

    return Net(forward, a=nn.Linear(8, 8), b=nn.Linear(8, 8))


def bags(sparse=True):
    bag = nn.EmbeddingBag(100_000, 16, mode="sum", sparse=sparse)
    return Net(lambda self, ids: self.b(self.a(ids)), a=bag, b=nn.Linear(16, 16))


def transposed():
    frozen = nn.Linear(64, 96).requires_grad_(False)
    return Net(lambda self, x: self.a(x.transpose(0, 1)), a=frozen)


def normed():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.GELU(),
        nn.Conv2d(16, 16, 3, padding=1),
    )


def resized():
    up = nn.Upsample(scale_factor=2, mode="bilinear")
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), up, nn.Conv2d(16, 16, 3, padding=1))


def stated():
    net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.Flatten(), nn.Linear(14400, 8))

    def forward(self, x):
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            return self.net(x)

    return torch.compile(Net(forward, net=net.to(memory_format=torch.channels_last)))


def recurrent():
    layers = nn.Linear(2048, 2), nn.ReLU(), nn.Linear(2, 2048)
    parts = {"rnn": nn.LSTM(2048, 2048, batch_first=True), "more": nn.Sequential(*layers)}
    return Net(lambda self, x: self.more(self.rnn(x)[0]), **parts)


ready = nn.Linear(8, 8)
"""
IMAGES = ["float32[batch, 3, 32, 32]"]
IDS = ["int64[batch, 4] < 100000"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the file of the modules."""
    made = tmp_path / "nets.py"
    made.write_text(MODULE)
    return made


def job(file: Path, function: str, inputs: list[str], **changes: Any) -> Any:
    """Return a job on one of them."""
    arguments = changes.pop("arguments", {})
    model = {"module": f"{file}:{function}", "inputs": inputs, "arguments": arguments}
    plain = {
        "model": model,
        "data": {"global_batch": 64},
        "cluster": {"node": "dgx-h100"},
        "strategy": "ddp",
    }
    return job_from_mapping(plain | changes)


def test_products_of_samples_with_samples(file: Path) -> None:
    """Whose batch they are of decides FLOP and what is gathered, and the code cannot tell."""
    given = job(file, "contrastive", ["float32[batch, 8]", "float32[batch, 8]"])
    found = simulate(given)

    (told,) = found.warnings
    assert told.startswith("the module multiplies samples with samples (aten.mm.default)")
    assert "DistributedDataParallel" in told
    # Linear layers on what has no gradient take two products, scores of 8 with 8 samples three.
    assert found.result.model_flop_per_step == 64 * 2 * (2 * 2 * 8 * 8 + 3 * 8 * 8)
    still_open = setting_of(replace(given, strategy="auto"), load_calibration())
    tried = predicted(still_open, StrategyOptions(dp=8, micro_batch=2))
    assert tried.result.model_flop_per_step == 64 * 2 * (2 * 2 * 8 * 8 + 3 * 2 * 8)
    one_process = replace(given, strategy=StrategyOptions(dp=8, single_process=True))
    whole = setting_of(one_process, load_calibration()).model_flop()
    assert whole == found.result.model_flop_per_step


@pytest.mark.parametrize(
    ("sparse", "traits", "is_reported"),
    [(True, {}, True), (False, {}, False), (True, {"sparse_gradients": True}, False)],
)
def test_sparse_gradients_that_nobody_set(
    file: Path,
    sparse: bool,  # noqa: FBT001
    traits: dict[str, bool],
    is_reported: bool,  # noqa: FBT001
) -> None:
    """The trait decides; the module's own flag is heard."""
    keys = {"arguments": {"sparse": sparse}, "traits": traits, "optimizer": "sgd"}
    found = simulate(job(file, "bags", IDS, **keys))

    start = "traits.sparse_gradients: is not set for a.weight"
    assert [told.startswith(start) for told in found.warnings] == [True] * is_reported


_STATED = ("precision", "traits.channels_last", "traits.compiled")


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch.compile's imports
@pytest.mark.parametrize(
    ("precision", "traits", "reported"),
    [
        ("fp32", {}, list(_STATED)),
        ("bf16", {"compiled": True}, ["traits.channels_last"]),
        ("bf16", {"compiled": True, "channels_last": True}, []),
        ("bf16", {"compiled": False, "channels_last": False}, []),
    ],
)
def test_what_a_module_states_and_the_job_does_not(
    file: Path, precision: str, traits: dict[str, bool], reported: list[str]
) -> None:
    """Autocast, layout and compilation in the code; the job's own are predicted."""
    stated = job(file, "stated", IMAGES, software="pytorch", precision=precision, traits=traits)

    keys = [line.split(":")[0] for line in simulate(stated).warnings]

    assert sorted(key for key in keys if key in _STATED) == reported


def test_a_network_of_ones_own_is_no_released_example(file: Path) -> None:
    """NVIDIA measured its containers with its own examples: another's loop may be slower."""
    found = [
        simulate(job(file, "normed", IMAGES, software="pytorch-ngc", **model)).result
        for model in ({}, {"model": "resnet-18"})
    ]

    slower = [each.interval["step_time_s"][1] / each.step_time_s for each in found]
    assert slower[0] > 1.5 * slower[1]
    busy = [sum("keeps its devices busy" in line for line in each.assumed) for each in found]
    assert busy == [1, 0]


def test_a_length_that_nothing_has_changes_no_default(file: Path) -> None:
    """Samples pass at once, as without it; a stated micro-batch holds."""
    plain, idle = (
        job(file, "normed", IMAGES, data={"global_batch": 64} | data)
        for data in ({}, {"sequence_length": 10})
    )

    stated = job(
        file,
        "normed",
        IMAGES,
        data={"global_batch": 64, "sequence_length": 10},
        strategy={"preset": "ddp", "micro_batch": 1},
    )

    found = [
        setting_of(each, load_calibration()).job.strategy.pipeline.micro_batch
        for each in (plain, idle, stated)
    ]

    assert found == [8, 8, 1]


@pytest.mark.parametrize("function", ["normed", "resized"])
def test_layers_that_need_all_rows_get_whole_samples(file: Path, function: str) -> None:
    """Group norm and interpolation; the convolutions around them are split."""
    spatial = {"preset": "spatial", "cp": 2, "dp": 4, "micro_batch": 16}
    split = job(file, function, IMAGES, strategy=spatial)
    found = simulate(split)
    tree = spatial_parallel(split.strategy, model_of(split))
    whole = {pattern for pattern, node in tree.nodes.items() if node.compute == {"height": ()}}

    assert found.warnings == ()
    assert found.result.parameters == 3 * 16 * 9 + 16 * 16 * 9 + 2 * 16 + 32 * (
        function == "normed"
    )
    assert len(whole) == 1
    assert tree.nodes[""].compute == {"height": ("cp",)}


def test_ranks_that_could_split_rows(file: Path) -> None:
    """By default, `cp` splits positions."""
    found = simulate(job(file, "normed", IMAGES, strategy={"cp": 2, "dp": 4, "micro_batch": 8}))

    assert found.warnings[0].endswith(
        "use dp, or context: spatial, which splits rows of images ('height')"
    )


def test_a_share_that_rounds_to_nothing_is_no_zero(file: Path) -> None:
    """Tensor ranks do not split a recurrent layer, but they split the small operators around it."""
    data = {"global_batch": 64, "sequence_length": 16}
    tensor = {"tp": 2, "dp": 4, "micro_batch": 4}
    found = simulate(
        job(file, "recurrent", ["float32[batch, seq, 2048]"], data=data, strategy=tensor)
    )

    assert "strategy.tp: 2 splits less than 0.1 % of the matmuls of" in found.warnings[0]


def test_a_module_in_place_of_a_function(file: Path) -> None:
    """Calling it would run it on nothing."""
    with pytest.raises(ModelError, match=r"'ready' is a module \(Linear\), expected a function"):
        model_of(job(file, "ready", ["float32[batch, 8]"]))


def test_tables_are_read_by_the_row(file: Path) -> None:
    """Four rows of 16 values for each sample, and its ids; not 6.4 MB."""
    source = module_source(f"{file}:bags", arguments={}, inputs=None, loss="auto")
    recording = record_source(replace(source, inputs=(read_declaration(IDS[0]),)))
    (row,) = (row for row in module_rows(recording, batch=8) if row.path == "a")

    assert row.read_bytes < 8 * 4 * (16 * 4 + 8) + 1000
    assert dense_forward_flop(model_of(job(file, "bags", IDS)), 8, 1) == 8 * 2 * 16 * 16


def test_expanded_weights_are_read_once(file: Path) -> None:
    """A frozen layer on a transposed input runs a product by entry, each with the same weight."""
    source = module_source(f"{file}:transposed", arguments={}, inputs=None, loss="auto")
    inputs = (read_declaration("float32[batch, 512, 64]"),)
    recording = record_source(replace(source, inputs=inputs))
    (row,) = (row for row in module_rows(recording, batch=2) if row.path == "a")

    values, outputs, weight = 2 * 512 * 64, 2 * 512 * 96, 64 * 96
    assert row.read_bytes < 4 * (3 * values + 2 * outputs + 2 * weight)
