"""Job files: what they mean, and what is said about those that mean nothing."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from wattree.cost.software import Software
from wattree.errors import JobError
from wattree.job import AUTO, CheckpointOptions, Job, Lora, job_from_mapping, job_schema, load_job
from wattree.job.optimizers import OPTIMIZERS
from wattree.lowering.storage import optimizer_state_bytes
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


def mapping(**changes: Any) -> dict[str, Any]:
    """Return a valid job with sections replaced."""
    return {
        "model": "llama-3.1-8b",
        "data": {"sequence_length": 8192, "global_batch": 128},
        "cluster": {"node": "dgx-h100", "nodes": 1},
        **changes,
    }


def problems(**changes: Any) -> tuple[str, ...]:
    """Return what is said about a job with sections replaced."""
    with pytest.raises(JobError) as caught:
        job_from_mapping(mapping(**changes), "job.yaml")
    return caught.value.problems


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
                "slowdown": {3: 1.2, "15": 2},
            }
        )
    ).cluster

    assert (cluster.devices, cluster.power_limit_w, cluster.slowdown) == (
        16,
        400.0,
        {3: 1.2, 15: 2.0},
    )


def test_paths_start_in_the_folder_of_the_job(tmp_path: Path) -> None:
    """A folder with a job and its files can be moved and used from anywhere."""
    (tmp_path / "job.yaml").write_text(
        "model: mine/config.json\n"
        "data: {sequence_length: 8, global_batch: 8}\n"
        "cluster: {node: dgx-h100}\n"
    )

    assert load_job(tmp_path / "job.yaml").model.name == str(tmp_path / "mine/config.json")


def test_a_model_may_have_adapters_and_frozen_parts() -> None:
    """LoRA and freezing belong to the model, not to the strategy."""
    model = job_from_mapping(
        mapping(model={"name": "gpt2", "lora": {"rank": 8}, "freeze": ["embedding.*"]})
    ).model

    assert (model.name, model.lora, model.freeze) == ("gpt2", Lora(rank=8), ("embedding.*",))


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
            },
            traits={"compiled": True, "gradient_bytes": 2},
        )
    )

    assert (job.training.steps, job.training.seed) == (100, 7)
    assert job.training.learning_rate == 1e-3
    assert job.training.checkpoint == CheckpointOptions(folder=Path("runs/a"), every=50)
    assert job.traits == {"compiled": True, "gradient_bytes": 2.0}


# ---------------------------------------------------------------- what is said about the rest


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        (1e30, "found 1e+30"),
        (10**40, "found a number of more than 30 digits"),
        (0, "found 0"),
        (-1, "found -1"),
        (1.5, "found 1.5"),
        (math.nan, "found nan"),
        ("12", "found '12'"),
        (True, "found true"),
        (None, "is missing"),
        ([1], "found a list of 1 items"),
    ],
)
def test_an_absurd_number_is_refused_in_plain_words(found: Any, shown: str) -> None:
    """Where, what was found, what was expected."""
    data = {"sequence_length": 8192, "global_batch": found}

    assert problems(data=data) == (
        f"data.global_batch: {shown}, expected a whole number from 1 to 100,000,000",
    )


def test_all_problems_come_at_once() -> None:
    """Ten runs to find ten slips is nine too many."""
    assert problems(
        modle="llama",
        model="train.py",
        data={"sequence_length": 8192, "global_batches": 1},
        precision="bf15",
        cluster={"node": "dgx-h100", "power_limit": "400 GB", "slowdown": {"x": 2}},
        strategy={"tp": 0, "fdsp": 2},
        traits={"compild": True, "compiled": "yes"},
        training={"checkpoint": {"dir": 1}},
    ) == (
        (
            "unknown key 'modle'; did you mean 'model'? known keys: workload, model, data, "
            "precision, optimizer, cluster, strategy, software, traits, compile, collectives, "
            "energy, training, place, neighbours"
        ),
        "model: found 'train.py', expected the function in it, too, such as train.py:build",
        "data.global_batch: is missing, expected a whole number, samples per step over all "
        "replicas",
        (
            "data: unknown key 'global_batches'; did you mean 'global_batch'? known keys: "
            "sequence_length, global_batch, loader, source, samples, prompt_length, generate_length"
        ),
        (
            "cluster.power_limit: unknown unit 'GB' in '400 GB'; expected one of W, kW, MW, GW, "
            "TW, PW, EW, mW"
        ),
        "strategy.tp: found 0, expected a whole number from 1 to 1,000,000",
        (
            "strategy: unknown key 'fdsp'; did you mean 'fsdp'? known keys: preset, dp, fsdp, tp, "
            "cp, pp, ep, sequence_parallel, tensor_pairs, expert_over_tensor, context, "
            "context_order, sync_batch_norm, op_shard, tables, single_process, micro_batch, "
            "schedule, virtual_stages, order, placement, stage_layers, sharding, recompute, "
            "phantom, ghosts, layer_ghosts, variant, exchange, regather, phantom_layers, "
            "expert_imbalance, expert_capacity, overlap_gradients, overlap_parameters, "
            "overlap_tensor, tensor_pieces, overlap_pipeline, overlap_optimizer, "
            "reduce_every_micro_batch, in_line, prefetch, reshard_after_forward, offload, bucket, "
            "processes_per_device, batch_rule, device_sharing"
        ),
        (
            "precision: unknown precision 'bf15'; did you mean 'bf16'? known: amp, bf16, fp16, "
            "fp32, fp64, fp8, mxfp8, nvfp4, tf32"
        ),
        *trait_problems(),
        "training.checkpoint.dir: found 1, expected a folder",
        "training.checkpoint.every: is missing, expected a whole number, steps between checkpoints",
    )


def trait_problems() -> tuple[str, ...]:
    """Return what is said about the traits above; the list of known ones is the software's."""
    known = ", ".join(f.name for f in fields(Software) if f.name not in {"name", "title"})
    return (
        f"traits: unknown key 'compild'; did you mean 'compiled'? known keys: {known}",
        "traits.compiled: found 'yes', expected true or false",
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"strategy": {"dp": 3, "tp": 2}},
            (
                "strategy: the degrees multiply to 6 ranks (dp 3 × tp 2), expected 8, the devices "
                "of the cluster; set dp: 4"
            ),
        ),
        (
            {"strategy": {"tp": 3}},
            (
                "strategy: the degrees multiply to 3 ranks (tp 3), expected 8, the devices of the "
                "cluster; choose degrees that multiply to 8"
            ),
        ),
        (
            {"strategy": "zero4"},
            (
                "strategy: unknown strategy preset 'zero4'; did you mean 'zero3'? known: auto, "
                "data_parallel, ddp, dlrm, fsdp, hsdp, low_rank, megatron, op_shard, phantom, "
                "spatial, tensor, zero1, zero2, zero3"
            ),
        ),
        (
            {"strategy": [1]},
            (
                "strategy: found a list of 1 items, expected 'auto', the name of a preset, a "
                "mapping of preset and degrees, or a mapping of mesh, schedule and tree"
            ),
        ),
        (
            {"strategy": {"dp": 8, "sharding": "zero9"}},
            "strategy.sharding: found 'zero9', expected one of none, zero1, zero2, zero3, hybrid",
        ),
        (
            {"strategy": {"mesh": {"dp": 8}, "tree": {"a": {"compute": {"out": "tp"}}}}},
            (
                "strategy.tree.'a'.compute.out: found axis 'tp', which the mesh does not have; it "
                "has dp"
            ),
        ),
        (
            {"strategy": {"mesh": {"2d": 8}, "tree": {}}},
            "strategy.mesh.2d: is no name of an axis; start with a letter, go on with letters, "
            "digits, '_' and '-'",
        ),
        (
            {"strategy": {"mesh": {"dp": 8}, "tree": {"": {"memory": {"optimizer": "dp"}}}}},
            (
                "strategy.tree.''.memory.optimizer: found 'dp', expected 'replicate' or {shard: "
                "axis} or {shard: [axes]}"
            ),
        ),
        (
            {"model": {"lora": {"rank": 4}}},
            "model: found none of name, transformer, ffn and module, expected exactly one of name, "
            "transformer, ffn, module",
        ),
        (
            {"model": {"transformer": {"layers": [[1]]}}},
            (
                "model.transformer: layers: found a list of 1 items, expected a number, a name, a "
                "flag or a list"
            ),
        ),
        ({"model": " "}, "model: found an empty name, expected a catalog name or a config.json"),
        (
            {"cluster": {"node": "dgx-h100", "nodes": 2, "slowdown": {"16": 2}}},
            "cluster.slowdown.16: there is no device 16, expected 0 to 15",
        ),
        (
            {"data": None},
            "data: is missing, expected a mapping of sequence_length, global_batch, loader, "
            "source, samples, prompt_length, generate_length",
        ),
    ],
)
def test_each_problem_has_its_words(changes: dict[str, Any], message: str) -> None:
    """Where, what was found, what was expected, what to do."""
    (found,) = problems(**changes)

    assert found == message


def test_an_unknown_software_suggests_the_nearest() -> None:
    """The list of families grows; only the start of the message is fixed."""
    (found,) = problems(software="torchtitn")

    assert found.startswith(
        "software: unknown software 'torchtitn'; did you mean 'torchtitan'? known: "
    )


def test_an_unknown_node_suggests_the_nearest() -> None:
    """The catalog is long; its names are guessed, not remembered."""
    (found,) = problems(cluster={"node": "dgx-h10"})

    assert found.startswith("cluster.node: unknown node 'dgx-h10'; did you mean 'dgx-h100' or ")


def test_the_message_of_several_problems_is_a_list() -> None:
    """One line each, the file in front."""
    with pytest.raises(JobError) as caught:
        job_from_mapping(mapping(data={}, precision=3), "job.yaml")

    assert str(caught.value) == (
        "job.yaml: 2 problems:\n"
        "  data.global_batch: is missing, expected a whole number, samples per step over all "
        "replicas\n"
        "  precision: found 3, expected one of fp64, fp32, tf32, bf16, fp16, fp8, mxfp8, nvfp4, amp"
    )


def test_a_model_of_tokens_needs_a_sequence_length() -> None:
    """Said with all other problems where the file shows it; else where the model is read.

    A `config.json` may be one of an image model.
    """
    assert problems(model={"transformer": {"layers": 2}}, data={"global_batch": 8}) == (
        "data.sequence_length: is missing, expected a whole number, tokens per sample; left out "
        "where samples have none",
    )


def test_endless_problems_are_cut_short() -> None:
    """A thousand wrong keys are one mistake."""
    with pytest.raises(JobError) as caught:
        job_from_mapping(mapping(**{f"key{index}": 1 for index in range(1000)}), "job.yaml")
    lines = str(caught.value).splitlines()

    assert (len(lines), lines[0], lines[-1]) == (
        52,
        "job.yaml: 1000 problems:",
        "  and 950 more",
    )
    assert len(caught.value.problems) == 1000


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"cluster": {"node": "dgx-h100", "power_limit": "1 MW"}},
            "cluster.power_limit: found '1 MW', expected '1 W' to '20 kW' per device",
        ),
        (
            {"training": {"learning_rate": 1e300}},
            "training.learning_rate: found 1e+300, expected a number from 0 to 1000",
        ),
        (
            {"traits": {"gradient_bytes": 1e9}},
            "traits.gradient_bytes: found 1000000000.0, expected a number from 0 to 1,000,000",
        ),
        (
            {"strategy": {"mesh": {"dp": 8}, "tree": {}, "bucket": "2 TiB"}},
            "strategy.bucket: found '2 TiB', expected '1 B' to '1 TiB'",
        ),
    ],
)
def test_a_number_that_is_too_large_is_told_both_ends_of_its_range(
    changes: dict[str, Any], message: str
) -> None:
    """To hear "a number of 0 or more" is no help to whoever wrote a billion."""
    assert problems(**changes) == (message,)


TREE = {"": {"compute": {"batch": "dp"}}}


@pytest.mark.parametrize(
    ("value", "warnings"),
    [
        ("megatron", []),
        ({"sequence_parallel": True, "tp": 2}, []),
        ({"sequence_parallel": False}, []),
        ({"schedule": "1f1b"}, []),
        ({"schedule": "gpipe", "pp": 2}, []),
        ({"sequence_parallel": True}, ["strategy.sequence_parallel: true has no effect with tp 1"]),
        ({"schedule": "gpipe"}, ["strategy.schedule: 'gpipe' has no effect with pp 1"]),
        ({"cp": 2, "context": "ring", "context_order": "contiguous"}, []),
        ({"context": "ring"}, ["strategy.context: 'ring' has no effect with cp 1"]),
        (
            {"cp": 2, "context": "ulysses", "context_order": "contiguous"},
            ["strategy.context_order: 'contiguous' has no effect with context ulysses"],
        ),
        ({"ep": 2, "expert_imbalance": 1.3}, []),
        ({"tp": 2, "expert_imbalance": 1.3}, []),
        (
            {"expert_imbalance": {"spread": 0.3}},
            ["strategy.expert_imbalance: has no effect with ep 1"],
        ),
        (
            {"ep": 2, "expert_imbalance": 1.3, "expert_capacity": 1.2},
            ["strategy.expert_capacity: has no effect"],
        ),
        ({"tp": 2, "tensor_pieces": 2}, []),
        ({"tensor_pieces": 2}, ["strategy.tensor_pieces: has no effect with tp 1"]),
        (
            {"tp": 2, "tensor_pieces": 2, "in_line": ["tensor"]},
            ["strategy.tensor_pieces: has no effect with in_line"],
        ),
        (
            {"dp": 1, "pp": 8, "reduce_every_micro_batch": False},
            ["strategy.reduce_every_micro_batch: has no effect with one replica"],
        ),
        (
            {"mesh": {"dp": 8}, "tree": TREE, "tensor_pieces": 2, "expert_imbalance": 1.3},
            [
                "strategy.tensor_pieces: has no effect with tp 1",
                "strategy.expert_imbalance: has no effect with ep 1",
            ],
        ),
        (
            {"mesh": {"dp": 8}, "tree": TREE, "schedule": {"name": "gpipe"}},
            ["strategy.schedule.name: 'gpipe' has no effect with pp 1"],
        ),
    ],
)
def test_a_switch_without_effect_is_a_warning(value: Any, warnings: list[str]) -> None:
    """Sweeps over degrees pass through such jobs; alone it is rather a slip."""
    found = job_from_mapping(mapping(strategy=value)).warnings

    assert [warning.split(":")[0] + ":" + warning.split(":")[1] for warning in found] == warnings


def test_no_message_has_words_of_the_library_that_checks_types() -> None:
    """Its "Value error, …" in front of ours says nothing to a user."""
    wrong: dict[str, Any] = {
        "model": {"name": 1, "lora": {"rank": "x", "targets": 3}},
        "data": {"sequence_length": "x", "global_batch": []},
        "cluster": {"node": 3, "nodes": -1, "power_limit": 5, "slowdown": {"1": "x"}},
        "strategy": {
            "mesh": {"dp": "x"},
            "schedule": {"micro_batches": 0},
            "tree": {"": {"memory": {"parameters": 3, "activations": "drop"}, "compute": {"a": 1}}},
            "bucket": "x",
        },
        "training": {"learning_rate": "x", "steps": 0},
    }
    said = problems(**wrong)

    assert len(said) >= 14
    assert [line for line in said if "value error" in line.lower()] == []


def test_optimizers_are_named_in_one_place() -> None:
    """Every name that a job may give has its bytes of state."""
    assert all(optimizer_state_bytes(name, Software(name="", title="")) >= 0 for name in OPTIMIZERS)


def test_moments_are_as_wide_as_the_parameters_that_have_no_copy() -> None:
    """`torch.optim` makes its state like the parameter; blocks of 8 bits stay blocks of 8 bits."""
    pure = Software(name="", title="", parameter_bytes=2.0, master_bytes=0.0)

    found = [optimizer_state_bytes(name, pure) for name in ("adamw", "momentum", "adamw8bit")]

    assert found == [4.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "the file holds nothing, expected a YAML mapping"),
        (b"- 1\n- 2\n", "found a list, expected a YAML mapping"),
        (b"model: {a", "expected valid YAML"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "found binary content"),
        (b"model: !!python/object/apply:os.system ['true']\n", "expected valid YAML"),
        (b"model: a\n" + b"#" * (1 << 20), "expected at most"),
        (b"data: .nan\n", "expected a finite number"),
    ],
)
def test_a_file_that_is_no_job_is_one_message(tmp_path: Path, content: bytes, part: str) -> None:
    """Empty, truncated, binary, too large: each says what it is."""
    path = tmp_path / "job.yaml"
    path.write_bytes(content)
    with pytest.raises(JobError) as caught:
        load_job(path)

    assert str(caught.value).startswith(f"{path}: ")
    assert part in str(caught.value)


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
