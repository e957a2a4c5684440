"""Checkpoints of training: going on from them, refusing others', surviving any end."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.distributed.ranks import run_ranks
from tests.distributed.train_cases import check_resumed
from wattree.errors import OutputError, RunError
from wattree.runtime.checkpoint.folder import MOST_CHECKPOINTS
from wattree.runtime.checkpoint.manifest import read_manifest
from wattree.runtime.checkpoint.tensors import load_tensors, save_checkpoint, tensor_shapes

CASES = "tests/distributed/train_cases.py"
RESUMED = {
    "strategy": {"preset": "phantom", "tp": 2, "ghosts": 3},
    "optimizer": "adam",
    "training": {"steps": 9},
}
CURVED_FILE = Path(__file__).with_name("own_models.py")
CURVED = {
    "model": {
        "module": f"{CURVED_FILE}:curved",
        "inputs": ["float32[batch, 24]"],
    }
}
PHANTOM = {"preset": "phantom", "tp": 2, "ghosts": 3}


#: Where memory runs out in the third step: a method of phantom layers, and how often it was called.
SCARCE = {
    "forward": {"method": "_start_gather", "error": "device", "layer": "layers.1", "calls": 3},
    "backward": {
        "method": "_start_scatter",
        "error": "host",
        "layer": "layers.2",
        "calls": 3,
    },
    "allocator": {
        "method": "_start_scatter",
        "error": "allocator",
        "layer": "layers.1",
        "calls": 3,
    },
}


#: Jobs that cannot be trained, or not to the end; `written` and `done` end.
SAVED = {"checkpoint": {"dir": "saved", "every": 2}, "steps": 2}
WRONG: dict[str, dict[str, Any]] = {
    "nan": {"strategy": PHANTOM, "training": {"steps": 40, "learning_rate": 1e3}},
    "memory": {
        "model": {"ffn": {"width": 40_000, "depth": 2}},
        "data": {"samples": 8},
        "strategy": PHANTOM,
        "limit_bytes": 2**30,
    },
    "classes": {"strategy": PHANTOM, "data": {"source": "digits"}},
    "no-file": {"strategy": PHANTOM, "data": {"source": "nope.py:samples"}},
    "no-samples": {"strategy": PHANTOM, "data": {"source": f"{CURVED_FILE}:failing_samples"}},
    "heads": {
        "model": {"transformer": {"layers": 1, "hidden": 9, "heads": 3, "vocab": 30}},
        "data": {"sequence_length": 8, "source": "digits"},
        "strategy": {"preset": "tensor", "tp": 2},
    },
    "words": {
        "model": {"transformer": {"layers": 1, "hidden": 8, "heads": 2, "vocab": 20}},
        "data": {"sequence_length": 8, "source": "digits"},
        "strategy": {"preset": "tensor", "tp": 2},
    },
    "own-curved": {**CURVED, "strategy": PHANTOM},
    "own-misnamed": {**CURVED, "strategy": {**PHANTOM, "phantom_layers": ["third"]}},
    "own-ghosts": {
        **CURVED,
        "strategy": {**PHANTOM, "ghosts": 13, "phantom_layers": ["first"]},
    },
    "own-tensor": {**CURVED, "strategy": {"preset": "tensor", "tp": 2}},
    "own-megatron": {**CURVED, "strategy": {"preset": "megatron", "tp": 2}},
    "ffn-named": {"strategy": {**PHANTOM, "phantom_layers": ["*"]}},
    "lion": {"strategy": PHANTOM, "optimizer": "lion"},
    "written": {"strategy": PHANTOM, "training": SAVED},
    "other": {"strategy": {"preset": "tensor", "tp": 2}, "training": SAVED},
    "wider": {
        "model": {"ffn": {"width": 26, "depth": 3, "activation": "tanh"}},
        "strategy": PHANTOM,
        "training": SAVED,
    },
    "slower": {"strategy": PHANTOM, "training": {**SAVED, "learning_rate": 0.2}},
    "done": {"strategy": PHANTOM, "training": SAVED},
}


def _check_scarce(rank: int, found: Mapping[str, Any]) -> None:
    """The error names rank, layer and step, forward and backward; earlier checkpoints are whole."""
    for name, case in SCARCE.items():
        told = found[name]["said"]
        assert told.startswith(f"rank {rank}: out of memory in layer '{case['layer']}', step 3"), (
            told
        )
        assert "a smaller strategy.micro_batch or data.global_batch, or more tp, needs less" in told
        assert found[name]["saved"] == ["step-1", "step-2"]
        assert found[name]["step"] == 2


def _check_failing(first: Mapping[str, str], second: Mapping[str, str]) -> None:
    """Each says what was found, what was expected and what to do, on both ranks."""
    assert first["nan"] == second["nan"]
    assert "the loss of step" in first["nan"]
    # A weight or an output comes first: that hangs on the rounding of this processor.
    assert re.search(r"layer 'layers\.\d', whose (weight|output) ", first["nan"])
    assert "no checkpoint holds it" in first["nan"]
    for number, told in enumerate((first, second)):
        assert told["memory"].startswith(f"rank {number}: out of memory while the model")
        assert "'digits' has classes; expected model.ffn.loss: cross_entropy" in told["classes"]
        assert told["no-file"].startswith("data.source: nope.py: cannot be read")
        assert "failing_samples: failed with ValueError: no samples today (" in told["no-samples"]
        assert told["no-samples"].startswith("data.source: ")
        assert "heads: found 3, expected a multiple of strategy.tp, 2" in told["heads"]
        assert "digits have 27 tokens, found a model of 20" in told["words"]
        assert "norm: is a LayerNorm between linear layers" in told["own-curved"]
        for name in ("own-curved", "own-misnamed", "own-ghosts", "own-tensor"):
            assert "model: linear layers are first, second; " in told[name]
        assert "name some with strategy.phantom_layers" in told["own-curved"]
        assert "strategy.phantom_layers.third: names no linear layer" in told["own-misnamed"]
        assert "first: found 13 ghosts, expected 0 to 12" in told["own-ghosts"]
        assert "use preset ddp" in told["own-tensor"]
        assert "other models are trained with ddp, tensor and phantom" in told["own-megatron"]
        assert "strategy.phantom_layers: found a list" in told["ffn-named"]
        assert "optimizer: found 'lion', expected one that train runs" in told["lion"]
        assert "strategy: the checkpoint has phantom, the job tensor" in told["other"]
        assert "ghosts: the checkpoint has 3, the job 0" in told["other"]
        assert "model.ffn.width: the checkpoint has 24, the job 26" in told["wider"]
        assert "depth" not in told["wider"]
        assert "learning_rate: the checkpoint has 0.1, the job 0.2; go on" in told["slower"]
        assert "nothing is left to do" in told["done"]
        assert "written" not in told


def test_what_goes_wrong_is_said_by_rank_and_layer(tmp_path: Path) -> None:
    """NaN, memory, another mesh, other samples: on all ranks, and soon; and then they train on."""
    calls = {
        "failing": {"jobs": WRONG},
        "resumed": {"mapping": RESUMED},
        "damaged": {"mapping": RESUMED},
        "out_of_memory": {"cases": SCARCE},
    }
    arguments = {"folder": str(tmp_path), "calls": calls}
    both = run_ranks(2, f"{CASES}:several", arguments, start=False)
    _check_failing(*(each["failing"] for each in both))
    # After all that went wrong: model, optimizer and order of samples, to the bit.
    check_resumed(both[0]["resumed"])
    # Both ranks go on from the one before, though each verifies files of its own.
    found = both[0]["damaged"]
    assert (found["first_step"], found["parts"]) == (4, found["whole"])
    assert found["folders"] == ["damaged-step-6", "step-8", "step-9"]
    for number, each in enumerate(both):
        _check_scarce(number, each["out_of_memory"])


@pytest.fixture
def alone() -> Any:
    """A process group of this process."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def _tensors(step: int) -> dict[str, Any]:
    """Return tensors that all say which step they are of."""
    return {f"part0/model/{name}": torch.full((50_000,), float(step)) for name in "abcd"}


def test_the_last_checkpoints_are_kept(tmp_path: Path, alone: Any) -> None:
    """Older ones go when newer ones are whole."""
    for step in (1, 2, 3, 4):
        place = save_checkpoint(tmp_path, step, _tensors(step), {"step": step}, alone)
        assert place == tmp_path / f"step-{step}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-3", "step-4"]
    assert MOST_CHECKPOINTS == 2
    assert read_manifest(tmp_path, 4).facts == {"step": 4}


def test_a_kill_at_any_time_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    """A process that writes one after the other is killed; the last one that is there is read."""
    delays_s = [0.0, 0.002, 0.004, 0.006, 0.01, 0.015, 0.02, 0.03, 0.05]
    arguments = {"folder": str(tmp_path), "delays_s": delays_s}
    found = run_ranks(1, f"{CASES}:killed_while_writing", arguments, start=False)[0]
    assert len(found) == len(delays_s)
    for step, values, facts, left in found:
        assert values == [step]
        assert facts == {"step": step}
        assert all(name.startswith("step-") for name in left)  # after the next one was written


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path, alone: Any) -> None:
    """The checkpoints before stay."""
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="rank 0 cannot write a checkpoint"):
        save_checkpoint(tmp_path / "file", 1, _tensors(1), {}, alone)


def test_a_damaged_checkpoint_is_said(tmp_path: Path, alone: Any) -> None:
    """Tensors that are cut off, an index that is none."""
    save_checkpoint(tmp_path, 1, _tensors(1), {}, alone)
    data = next((tmp_path / "step-1").glob("*.distcp"))
    data.write_bytes(data.read_bytes()[:1000])
    into = {name: torch.zeros_like(tensor) for name, tensor in _tensors(0).items()}
    with pytest.raises(RunError, match="rank 0: is damaged"):
        load_tensors(tmp_path, 1, into, alone)
    (tmp_path / "step-1" / ".metadata").write_bytes(b"nothing")
    with pytest.raises(RunError, match="is damaged"):
        tensor_shapes(tmp_path, 1)


def test_tensors_that_differ_are_named(tmp_path: Path, alone: Any) -> None:
    """With the rank, the tensor and both shapes."""
    save_checkpoint(tmp_path, 1, {"part0/model/weight": torch.zeros(2, 3)}, {}, alone)
    into = {"part0/model/weight": torch.zeros(3, 3), "part0/model/bias": torch.zeros(3)}
    with pytest.raises(RunError) as caught:
        load_tensors(tmp_path, 1, into, alone)
    assert "'part0/model/weight': found 2 × 3, the job's model has 3 × 3" in str(caught.value)
    assert "rank 0: has no 'part0/model/bias'" in str(caught.value)


class _Trap:
    """What runs a command when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (os.environ["WATTREE_TEST_TRAP"],)


def test_reading_runs_no_code_of_the_file(
    tmp_path: Path, alone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index that would run something is refused as damaged, and nothing runs."""
    trap = tmp_path / "sprung"
    monkeypatch.setenv("WATTREE_TEST_TRAP", str(trap))
    save_checkpoint(tmp_path, 1, _tensors(1), {}, alone)
    (tmp_path / "step-1" / ".metadata").write_bytes(pickle.dumps(_Trap()))
    with pytest.raises(RunError, match="which none is made of"):
        tensor_shapes(tmp_path, 1)
    assert not trap.exists()
