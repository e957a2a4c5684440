"""Job files: what they mean, and what is said about those that mean nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tests.job.mappings import mapping, problems
from wattree.cost import load_calibration
from wattree.errors import JobError
from wattree.job import AUTO, Job, job_from_mapping, job_schema, load_job
from wattree.job.job import CheckpointOptions, Lora
from wattree.predict import setting_of
from wattree.strategy import (
    ActivationStore,
    ExpertLoad,
    MemoryChoice,
    Mesh,
    Schedule,
    Strategy,
    StrategyOptions,
    TreeNode,
)

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.yaml"))


def strategy(value: Any, **cluster: Any) -> Any:
    """Return the strategy that a job with it gets."""
    return job_from_mapping(
        mapping(strategy=value, cluster={"node": "dgx-h100", **cluster})
    ).strategy


# ---------------------------------------------------------------- what they mean


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_loads(path: Path) -> None:
    """Users start from an example; a broken one is the worst first impression."""
    assert isinstance(load_job(path), Job)


def test_what_a_job_leaves_out_is_filled_in() -> None:
    """The shortest job names a model, a batch and a node."""
    job = job_from_mapping(mapping(), "job.yaml")

    assert (job.precision, job.optimizer, job.strategy, job.software, job.source) == (
        "bf16",
        "adamw",
        AUTO,
        "auto",
        "job.yaml",
    )
    assert (job.cluster.devices, job.cluster.site.name) == (8, "world-average")
    assert job.cluster.power_limit_w is None


def test_a_cluster_takes_quantities_and_stragglers() -> None:
    """Units at the edge, SI inside; device indices with or without quotes."""
    cluster = job_from_mapping(
        mapping(
            cluster={
                "node": "dgx-h100",
                "nodes": 2,
                "power_limit": "0.4 kW",
                "slowdown": {3: 1.2, "12-13, 15": 2},
            }
        )
    ).cluster

    assert (cluster.devices, cluster.power_limit_w, cluster.slowdown) == (
        16,
        400.0,
        {3: 1.2, 12: 2.0, 13: 2.0, 15: 2.0},
    )


def test_names_of_dtypes_and_keys_for_anchors_are_read() -> None:
    """PyTorch's names of formats, and top-level keys that only hold anchors."""
    for name, own in {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}.items():
        assert job_from_mapping(mapping(precision=name, **{"x-notes": [1]})).precision == own


def test_paths_start_in_the_folder_of_the_job(tmp_path: Path) -> None:
    """A folder with a job and its files can be moved and used from anywhere."""
    (tmp_path / "job.yaml").write_text(
        "model: mine/config.json\n"
        "data: {sequence_length: 8, global_batch: 8}\n"
        "cluster: {node: dgx-h100}\n"
    )

    assert load_job(tmp_path / "job.yaml").model.name == str(tmp_path / "mine/config.json")


def test_a_model_may_have_adapters_and_frozen_parts() -> None:
    """LoRA and freezing belong to the model, not to the strategy; a tuple is a list."""
    model = job_from_mapping(
        mapping(
            model={
                "name": "gpt2",
                "lora": {"rank": 8, "targets": "all-linear"},
                "freeze": ("embedding.*",),
            }
        )
    ).model

    lora = Lora(rank=8, targets=("all-linear",))
    assert (model.name, model.lora, model.freeze) == ("gpt2", lora, ("embedding.*",))


def test_a_transformer_block_is_handed_on_as_it_is() -> None:
    """Its keys belong to the reader of models."""
    block = {"layers": 2, "hidden_size": 64, "norm": "rms", "tied": True, "sizes": [1, 2]}

    assert job_from_mapping(mapping(model={"transformer": block})).model.transformer == block


@pytest.mark.parametrize(
    ("value", "cluster", "expected"),
    [
        ("ddp", {}, {"dp": 8}),
        ("fsdp", {"nodes": 2}, {"dp": 16, "sharding": "zero3"}),
        ("hsdp", {"nodes": 2}, {"dp": 2, "fsdp": 8, "sharding": "hybrid"}),
        (
            {"preset": "hsdp", "tp": 2},
            {"nodes": 2},
            {"dp": 2, "fsdp": 4, "tp": 2, "sharding": "hybrid"},
        ),
        ({"fsdp": 8}, {}, {"fsdp": 8, "sharding": "zero3"}),
        ({"fsdp": 8}, {"nodes": 2}, {"dp": 2, "fsdp": 8, "sharding": "hybrid"}),
        ({"fsdp": 8, "sharding": "none"}, {}, {"fsdp": 8}),
        ({"preset": "zero1", "fsdp": 8}, {}, {"fsdp": 8, "sharding": "zero1"}),
        ({"tp": 4}, {}, {"dp": 2, "tp": 4}),
        ({"preset": "zero1", "tp": 4, "dp": 2}, {}, {"dp": 2, "tp": 4, "sharding": "zero1"}),
        (
            {"tp": 4, "pp": 2, "stage_layers": [20, 12]},
            {},
            {"tp": 4, "pp": 2, "stage_layers": (20, 12)},
        ),
    ],
)
def test_data_parallelism_takes_the_devices_that_are_left(
    value: Any, cluster: dict[str, Any], expected: dict[str, Any]
) -> None:
    """`strategy: ddp` on eight devices means eight replicas, not one."""
    assert strategy(value, **cluster) == StrategyOptions(**expected)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.3, ExpertLoad(imbalance=1.3)),
        (2, ExpertLoad(imbalance=2.0)),
        ({"spread": 0.3, "seed": 1}, ExpertLoad(spread=0.3, seed=1)),
        ({"spread": 0.3}, ExpertLoad(spread=0.3)),
    ],
)
def test_the_load_of_experts_is_a_factor_or_a_draw(value: Any, expected: ExpertLoad) -> None:
    """Both in short form and with a tree."""
    short = strategy({"ep": 8, "expert_imbalance": value})
    tree = strategy({"mesh": {"dp": 8}, "tree": {}, "expert_imbalance": value})

    assert (short.expert_load, tree.expert_load) == (expected, expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"expert_imbalance": 0.9},
            "strategy.expert_imbalance: found 0.9, expected tokens of the busiest rank over the "
            "mean, from 1 (balanced) to 1000, or {spread: 0.3, seed: 1}",
        ),
        (
            {"expert_imbalance": {"seed": 1}},
            "strategy.expert_imbalance: found a mapping of 1 keys, expected a mapping of spread "
            "and seed",
        ),
        (
            {"expert_imbalance": {"spread": 7}},
            "strategy.expert_imbalance: found 7, expected a standard deviation above 0 and up to 1",
        ),
        (
            {"context": "rings"},
            "strategy.context: found 'rings', expected one of overlapped, gather, ring, ulysses, "
            "spatial",
        ),
        (
            {"tensor_pieces": 0},
            "strategy.tensor_pieces: found 0, expected a whole number from 1 to 1,000,000",
        ),
    ],
)
def test_settings_of_traffic_are_checked(changes: dict[str, Any], message: str) -> None:
    """Each names its key, what was found and what is expected."""
    assert problems(strategy=changes) == (message,)


def test_a_tree_is_read_as_written() -> None:
    """The form of the design document, with one axis or several."""
    found = strategy(
        {
            "mesh": {"pp": 2, "dp": 2, "tp": 2},
            "schedule": {"name": "1f1b", "micro_batches": 32},
            "bucket": "25 MiB",
            "overlap_tensor": True,
            "tree": {
                "": {"compute": {"batch": "dp"}, "memory": {"optimizer": {"shard": "dp"}}},
                "layers.*.mlp.up": {"compute": {"out": ["tp"]}},
                "layers.*": {
                    "memory": {"activations": "recompute", "parameters": {"shard": ["dp", "tp"]}}
                },
                "head": {"memory": {"gradients": "replicate"}},
            },
        }
    )

    assert isinstance(found, Strategy)
    assert found.mesh == Mesh(axes=(("pp", 2), ("dp", 2), ("tp", 2)))
    assert found.schedule == Schedule(name="1f1b", micro_batches=32)
    assert (found.traffic.gradient_bucket_bytes, found.traffic.overlap_tensor) == (25 * 2**20, True)
    assert found.tree.nodes == {
        "": TreeNode(compute={"batch": ("dp",)}, memory=MemoryChoice(optimizer=("dp",))),
        "layers.*.mlp.up": TreeNode(compute={"out": ("tp",)}),
        "layers.*": TreeNode(
            memory=MemoryChoice(parameters=("dp", "tp"), activations=ActivationStore.RECOMPUTE)
        ),
        "head": TreeNode(memory=MemoryChoice(gradients=())),
    }


def test_training_and_traits_are_kept() -> None:
    """Both are read by others; here they are only checked."""
    job = job_from_mapping(
        mapping(
            training={
                "steps": 100,
                "seed": 7,
                "learning_rate": 1e-3,
                "checkpoint": {"dir": "runs/a", "every": 50},
                "failures": 0.864,
                "restart": "2 h",
                "checkpoint_rate": "2 GB/s",
            },
            traits={"compiled": True, "gradient_bytes": 2},
        )
    )

    assert (job.training.steps, job.training.seed) == (100, 7)
    assert job.training.learning_rate == 1e-3
    assert job.training.checkpoint == CheckpointOptions(folder=Path("runs/a"), every=50)
    assert job.training.failures_per_device_s == pytest.approx(1e-8)
    assert (job.training.restart_s, job.training.checkpoint_bytes_per_s) == (7200.0, 2e9)
    assert job.traits == {"compiled": True, "gradient_bytes": 2.0}


def test_a_release_is_what_its_month_had_unless_traits_say_otherwise() -> None:
    """Months come as text, numbers or dates; what has no earlier traits warns."""
    for month in ("2024-12", "2024", 2024, date(2024, 12, 1)):
        job = job_from_mapping(
            mapping(software="torchtitan", released=month, traits={"early_stop": False})
        )
        software = setting_of(job, load_calibration()).software
        assert software.attention_kernels == "ampere"
        assert not software.early_stop
        other = setting_of(replace(job, software="megatron-te"), load_calibration()).software
        assert other.attention_kernels == "native"  # as `plan --software` compares families
    newest = job_from_mapping(mapping(software="torchtitan", released="2026-01"))
    assert setting_of(newest, load_calibration()).software.attention_kernels == "torch"
    assert newest.warnings == ()
    [line] = job_from_mapping(mapping(software="maxtext", released="2024-12")).warnings
    assert line.startswith("released: has no effect")
    early = job_from_mapping(mapping(software="torchtitan", released="2019-01"))
    assert early.released == "2024-04"
    assert "torchtitan was first released in 2024-04" in early.warnings[0]
    for version in ("0.2.2", "v0.2.2", 0.3, "0.3.0"):
        month = job_from_mapping(mapping(software="torchtitan", released=version)).released
        assert month == ("2026-08" if "0.2" in str(version) else "2026-09")
    for wrong in ("2024-13", "December", True, 24, "0.31"):
        [line] = problems(software="torchtitan", released=wrong)
        assert "expected a month such as 2024-12, or the version: 0.2.2 (2026-08) or" in line
        [line] = problems(software="deepspeed", released=wrong)
        assert line.endswith("expected a month such as 2024-12")


def test_a_sharding_that_is_no_preset_suggests_the_preset_that_has_it() -> None:
    """`sharding: hybrid` is documented next to `preset: hsdp`."""
    for strategy in ("hybrid", {"preset": "hybrid", "tp": 2}):
        [line] = problems(strategy=strategy)
        assert line.endswith("; did you mean 'hsdp', whose sharding is 'hybrid'?")


# ---------------------------------------------------------------- schema


def test_the_schema_lists_the_keys_of_a_job() -> None:
    """Editors complete and check job files with it."""
    schema = job_schema()

    assert set(schema["properties"]) == {
        "model",
        "data",
        "precision",
        "optimizer",
        "cluster",
        "strategy",
        "software",
        "released",
        "traits",
        "compile",
        "collectives",
        "energy",
        "training",
        "place",
        "neighbours",
        "workload",
    }
    assert schema["required"] == ["model", "data", "cluster"]
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["ClusterSpec"]["properties"]["power_limit"]["anyOf"][0] == {
        "type": "string",
        "examples": ["400 W"],
    }


def test_a_number_that_python_refuses_to_print_is_refused() -> None:
    """Above 4,300 digits even the message about it would fail."""
    huge = 10**5000
    data = {"sequence_length": 8192, "global_batch": huge}

    assert problems(data=data) == (
        (
            "data.global_batch: found a number of more than 30 digits, expected a whole number "
            "from 1 to 100,000,000"
        ),
    )
    (found,) = problems(cluster={"node": "dgx-h100", "slowdown": {huge: 2}})
    assert found.startswith("cluster.slowdown.")
    (found,) = problems(cluster={"node": "dgx-h100", "slowdown": {3: 2, "2-4": 2}})
    assert found == "cluster.slowdown: found device 3 twice; expected it once"


def test_names_are_looked_up_whatever_else_is_wrong() -> None:
    """An unknown node appeared only once the number of nodes was mended."""
    job = {
        "model": "gpt2",
        "data": {"sequence_length": 1024, "global_batch": 8},
        "cluster": {"node": "dgx-h1000", "nodes": -3, "site": "mars"},
        "strategy": {"preset": "fsdpp", "micro_batch": 0},
    }
    with pytest.raises(JobError) as caught:
        job_from_mapping(job)

    assert [line.partition(":")[0] for line in caught.value.problems] == [
        "cluster.nodes",
        "cluster.node",
        "cluster.site",
        "strategy.micro_batch",
        "strategy",
    ]
