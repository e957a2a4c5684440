"""What training is made of, one process at a time: keys, recipes, samples, first weights."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

torch = pytest.importorskip("torch")

from wattree.capture import TransformerShape
from wattree.errors import JobError, StrategyError
from wattree.job import Job, job_from_mapping, load_job
from wattree.runtime.data import Wanted, WantedKind
from wattree.runtime.group import Group
from wattree.runtime.models import Linears
from wattree.runtime.models.experts import MixtureOfExperts
from wattree.runtime.models.trainable import Trainable
from wattree.runtime.parallel import assemble
from wattree.runtime.recipe import Recipe, ReplicaKind, recipe_of, with_preset, with_run_precision
from wattree.runtime.saved_job import job_text
from wattree.strategy import Schedule, StrategyOptions


def _mapping(**changes: Any) -> dict[str, Any]:
    return {
        "model": {"ffn": {"width": 64, "depth": 2}},
        "data": {"global_batch": 16},
        "precision": "fp32",
        "cluster": {"node": "2x-epyc-7742", "nodes": 2},
        "strategy": {"preset": "phantom", "tp": 2, "ghosts": 4},
        **changes,
    }


def _job(**changes: Any) -> Job:
    return job_from_mapping(_mapping(**changes), "job")


# ---------------------------------------------------------------- keys of a job


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"data": {"global_batch": 16, "source": "digit"}},
            "data.source: found 'digit'; did you mean 'digits'? expected one of synthetic-regr",
        ),
        (
            {"data": {"global_batch": 16, "source": "digits", "samples": 9}},
            "data.samples: found together with the source 'digits', which has its own",
        ),
        (
            {"training": {"target_loss": 0}},
            "training.target_loss: found 0, expected a number above 0 and up to 1e+09",
        ),
        (
            {"training": {"checkpoint": {"dir": " ", "every": 1}}},
            "training.checkpoint.dir: found an empty text, expected a folder",
        ),
    ],
)
def test_faults_of_the_new_keys_are_told(changes: dict[str, Any], message: str) -> None:
    """With key, what was found and what is expected."""
    with pytest.raises(JobError) as caught:
        _job(**changes)
    assert message in str(caught.value)


def test_no_prediction_depends_on_what_is_trained_on() -> None:
    """Source, target and checkpoints are of `train` alone."""
    import wattree

    as_dict = {"steps": 5, "target_loss": 0.5, "checkpoint": {"dir": "x", "every": 2}}
    with_keys = _job(data={"global_batch": 16, "source": "digits"}, training=as_dict)
    assert wattree.simulate(with_keys).result.step_time_s == (
        wattree.simulate(_job()).result.step_time_s
    )


# ---------------------------------------------------------------- recipes


def test_a_recipe_has_the_degrees_of_the_strategy() -> None:
    """What is left of the devices are replicas."""
    recipe = recipe_of(_job())
    assert (recipe.kind, recipe.options.dp, recipe.options.tp, recipe.options.ranks) == (
        ReplicaKind.PHANTOM,
        2,
        2,
        4,
    )
    assert (recipe.options.pipeline.micro_batch, recipe.micro_batches, recipe.ghosts) == (8, 1, 4)


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        ("auto", "found 'auto', expected a preset with degrees"),
        ({"mesh": {"dp": 4}, "tree": {}}, "found a tree, expected a preset with degrees"),
        ({"ep": 2, "dp": 2}, "strategy.ep: found 2, expected 1: ranks share the experts of"),
        ({"preset": "hsdp", "dp": 4}, "'hybrid' shards over the axis 'fsdp', found degree 1"),
        ({"preset": "op_shard"}, "strategy.op_shard: found true, expected false"),
        ({"pp": 4}, "4 chunks are more than the model's 2 layers can fill"),
        ({"pp": 2, "stage_layers": [3, 0]}, "found 2 chunks with 3 layers, expected 2 chunks"),
        (
            {"pp": 2, "schedule": "dualpipe", "micro_batch": 8},
            "micro-batches, expected an even number: as many go",
        ),
        ({"cp": 2}, "positions are spread for model.transformer alone"),
        ({"preset": "ddp", "recompute": "selective"}, "train knows of model.transformer alone"),
        (
            {"preset": "ddp", "offload": {"optimizer": "host"}},
            "train stores everything on the devices",
        ),
        ({"preset": "ddp", "micro_batch": 3}, "cannot be split into micro-batches of 3"),
    ],
)
def test_other_strategies_are_refused_with_those_that_are_run(strategy: Any, words: str) -> None:
    """The list is in every message."""
    with pytest.raises(StrategyError) as caught:
        recipe_of(_job(strategy=strategy))
    assert words in str(caught.value)


def test_every_misfit_is_told_at_once() -> None:
    """Of stages, positions, heads and recomputation, each with its key."""
    block = {"layers": 2, "hidden": 18, "heads": 3, "vocab": 27, "tied_embedding": True}
    strategy = {
        "cp": 2,
        "pp": 2,
        "context": "ulysses",
        "virtual_stages": 2,
        "schedule": "interleaved",
        "sharding": "hybrid",
        "recompute": "selective_operator",
    }
    job = _job(
        model={"transformer": block},
        data={"global_batch": 16, "sequence_length": 15},
        strategy=strategy,
        precision="amp",
    )
    with pytest.raises(StrategyError) as caught:
        recipe_of(job)
    assert set(caught.value.misfits) == {
        "data.sequence_length",
        "precision",
        "strategy.context",
        "strategy.sharding",
    }


def test_forward_passes_are_run_without_stages_processes_and_checkpoints(tmp_path: Path) -> None:
    """A recipe says that nothing is updated; what has no way to be run is listed at once."""
    assert not recipe_of(_job(workload="forward", strategy={"preset": "ddp"})).backward

    saved = {"checkpoint": {"dir": str(tmp_path), "every": 1}}
    for key in ("pp", "processes_per_device"):
        with pytest.raises(StrategyError) as caught:
            recipe_of(_job(workload="forward", strategy={"preset": "ddp", key: 2}, training=saved))
        assert set(caught.value.misfits) == {f"strategy.{key}", "training.checkpoint"}


def test_a_precision_that_no_job_states_is_one_that_is_run(tmp_path: Path) -> None:
    """The usual fp16 of V100s is not; what is run is what the job of the run says."""
    mapping = _mapping(cluster={"node": "dgx-1"}, strategy={"preset": "ddp", "dp": 8})
    for stated in ("fp16", "amp", "bf16"):
        job = job_from_mapping(mapping | {"precision": stated})
        assert with_run_precision(job) == (job, "")
    del mapping["precision"]
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(mapping))

    job, words = with_run_precision(load_job(path))

    path.write_text(job_text(path, job, None))
    assert job.precision == load_job(path).precision == "fp32"
    assert job.assumed[0] == words
    recent = job_from_mapping(mapping | {"cluster": {"node": "dgx-h100"}})
    assert with_run_precision(recent) == (recent, "")


def test_another_preset_keeps_the_ranks() -> None:
    """Degrees stay; replicas take the place of parts."""
    job = _job()
    for preset in ("tensor", "megatron", "phantom"):
        recipe = recipe_of(with_preset(job, preset))
        assert (recipe.kind.value, recipe.options.dp, recipe.options.tp) == (preset, 2, 2)
    ddp = recipe_of(with_preset(job, "ddp"))
    samples = ddp.options.pipeline.micro_batch * ddp.micro_batches
    assert (ddp.options.dp, ddp.options.tp, samples) == (4, 1, 4)
    for preset in ("tensor", "megatron"):  # else it were ddp by another name
        recipe = recipe_of(with_preset(_job(strategy={"preset": "ddp"}), preset))
        assert (recipe.options.dp, recipe.options.tp) == (2, 2)
    hybrid = recipe_of(with_preset(_job(strategy={"preset": "ddp"}), "hsdp"))
    assert (hybrid.options.dp, hybrid.options.fsdp, hybrid.options.tp) == (2, 2, 1)


@pytest.mark.parametrize("preset", ["tensor", "hsdp", "phantom", "low_rank"])
def test_a_kept_job_says_the_same_from_any_folder(preset: str, tmp_path: Path) -> None:
    """Paths are absolute, and the preset is the one that was run."""
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    (tmp_path / "here" / "data.py").write_text("")
    source = {"global_batch": 16, "source": "data.py:dataset"}
    saved = {"steps": 3, "checkpoint": {"dir": "saved", "every": 2}}
    path = tmp_path / "here" / "job.yaml"
    strategy = {
        "tensor": {"preset": "megatron", "tp": 2},
        "hsdp": {"preset": "ddp"},
        "phantom": {"preset": "phantom", "tp": 2, "ghosts": 4, "phantom_layers": ["*.up"]},
        "low_rank": {"preset": "phantom", "tp": 2, "ghosts": 4, "variant": "shared"},
    }[preset]
    path.write_text(json.dumps(_mapping(data=source, training=saved, strategy=strategy)))
    job = with_preset(load_job(path), preset)
    kept = tmp_path / "there" / "job.yaml"
    kept.write_text(job_text(path, job, preset))
    again = load_job(kept)
    assert again.strategy == job.strategy
    assert again.training == job.training
    assert again.data.source.module is not None
    assert again.data.source.module.file == tmp_path / "here" / "data.py"


def test_runtime_is_imported_without_torch() -> None:
    """Commands on other things stay fast."""
    import subprocess
    import sys

    program = (
        "import sys, wattree.runtime, wattree.runtime.recipe, wattree.runtime.launch, wattree.cli\n"
        "import wattree.runtime.train\n"
        "assert not {'torch', 'numba'} & set(sys.modules), 'loaded'"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


# ---------------------------------------------------------------- replicas


@pytest.mark.parametrize(
    ("replicas", "of_a_device", "keeps"), [(2, 1, False), (3, 1, True), (4, 2, False), (6, 2, True)]
)
def test_buckets_are_kept_only_where_sums_depend_on_them(
    monkeypatch: pytest.MonkeyPatch, replicas: int, of_a_device: int, *, keeps: bool
) -> None:
    """In a ring of more than two; of replicas that share a device only one is in it."""
    seen: dict[str, Any] = {}
    monkeypatch.setattr(
        assemble, "DistributedDataParallel", lambda module, **given: seen.update(given) or module
    )
    session = SimpleNamespace(
        recipe=Recipe(
            options=StrategyOptions(dp=replicas),
            schedule=Schedule(micro_batches=1),
            processes_per_device=of_a_device,
        ),
        device=torch.device("cpu"),
        data_group=object(),
        shard_mesh=None,
    )
    wanted = Wanted(kind=WantedKind.VECTORS, batch=1)
    trainable = Trainable(parts=(torch.nn.Linear(2, 2),), wanted=wanted, group=Group.__new__(Group))
    assemble.assemble(trainable, session)
    assert seen["find_unused_parameters"] is keeps


# ---------------------------------------------------------------- experts


def test_a_mixture_adds_what_each_token_s_experts_make() -> None:
    """The same as a loop over tokens and their experts, weighed by the renormalized router."""
    shape = TransformerShape(
        layers=1, hidden=8, heads=2, vocab=9, experts=5, top_k=2, expert_ffn=6, shared_ffn=4
    )
    linears = Linears(
        recipe=recipe_of(_job(strategy={"preset": "ddp"})),
        group=Group(None),
        seed=0,
        device=torch.device("cpu"),
        dtype=torch.float64,
    )
    layer = MixtureOfExperts(shape, linears, "mlp")
    x = torch.randn(2, 3, 8, dtype=torch.float64)

    expected = torch.zeros_like(x)
    for sample, position in ((s, p) for s in range(2) for p in range(3)):
        token = x[sample, position]
        weights, chosen = layer.router(token).softmax(0).topk(2)
        parts = [layer.experts.parts[each](token[None, None])[0, 0] for each in chosen]
        mixed = sum(w * part for w, part in zip(weights / weights.sum(), parts, strict=True))
        expected[sample, position] = mixed + layer.shared(token[None, None])[0, 0]
    torch.testing.assert_close(layer(x), expected)


def test_a_signal_does_not_kill_a_rank_that_has_done_its_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its parent would end the others for it, before the first has written the result."""
    from wattree.cli import train as command
    from wattree.runtime.launch import Launch
    from wattree.runtime.train import guard, rank

    class _LeftError(Exception):
        """The end of the process."""

    def leave(code: int) -> NoReturn:
        os.kill(os.getpid(), signal.SIGTERM)
        raise _LeftError(code)

    def done(*_: Any, stop: Any, **__: Any) -> rank.RankEnd:
        return rank.RankEnd(interrupted=stop.asked)

    monkeypatch.setattr(guard, "leave", leave)
    monkeypatch.setattr(guard, "watch_parent", lambda: None)
    monkeypatch.setattr(rank, "train_rank", done)
    job = job_from_mapping(_mapping(), "job")
    launch = Launch(rank=1, world=4, local_rank=1, local_world=4)

    with pytest.raises(_LeftError, match=r"^0$"):
        command._train_here(
            cast("Any", None), job, job, recipe_of(job), launch, settings=cast("Any", None)
        )
