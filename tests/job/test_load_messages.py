"""What is said of a job that cannot be, or of a setting without effect."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tests.job.mappings import mapping, problems
from wattree.cost.software import Software
from wattree.errors import JobError
from wattree.job import job_from_mapping, load_job

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
        strategy={"tp": 0, "fdsp": 2, "sharding": "zero9"},
        traits={"compild": True, "compiled": "yes"},
        training={"checkpoint": {"dir": 1}},
    ) == (
        (
            "unknown key 'modle'; did you mean 'model'? known keys: workload, model, data, "
            "precision, optimizer, cluster, strategy, software, released, traits, compile, "
            "collectives, energy, training, place, neighbours"
        ),
        "model: found 'train.py', expected the function in it, too, such as train.py:build",
        "data.global_batch: is missing, expected a whole number, samples per step over all "
        "replicas",
        (
            "data: unknown key 'global_batches'; did you mean 'global_batch'? known keys: "
            "sequence_length, global_batch, document_length, loader, source, samples, "
            "prompt_length, generate_length"
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
            "phantom, ghosts, variant, exchange, regather, phantom_layers, "
            "expert_imbalance, expert_capacity, overlap_gradients, overlap_parameters, "
            "overlap_tensor, tensor_pieces, overlap_pipeline, overlap_optimizer, "
            "reduce_every_micro_batch, in_line, prefetch, reshard_after_forward, offload, bucket, "
            "processes_per_device, batch_rule, device_sharing"
        ),
        "strategy.sharding: found 'zero9', expected one of none, zero1, zero2, zero3, hybrid",
        (
            "precision: unknown precision 'bf15'; did you mean 'bf16'? known: amp, bf16, fp16, "
            "fp32, fp8, int8, mxfp8, nvfp4, tf32"
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
            {"model": {"name": "bert-base-uncased", "classes": 5}},
            (
                "model: unknown key 'classes'; put an option of the model itself in 'arguments'; "
                "known keys: name, capture, transformer, ffn, module, arguments, inputs, loss, "
                "lora, freeze"
            ),
        ),
        (
            {"strategy": {"dp": 3, "tp": 2}},
            (
                "strategy: the degrees multiply to 6 ranks (dp 3 × tp 2), expected 8, the devices "
                "of the cluster; set dp: 4, or name the devices that it has (place.devices: 0-5)"
            ),
        ),
        (
            {"strategy": {"tp": 2, "ep": 8}},
            (
                "strategy: the degrees multiply to 16 ranks (ep 8 × tp 2), expected 8, the devices "
                "of the cluster; choose degrees that multiply to 8. ep multiplies with dp here, "
                "and experts spread over tp ranks too: what Megatron calls 8 expert-parallel ranks "
                "is ep: 4"
            ),
        ),
        (
            {"strategy": {"tp": 3}},
            (
                "strategy: the degrees multiply to 3 ranks (tp 3), expected 8, the devices of the "
                "cluster; choose degrees that multiply to 8, or name the devices that it has "
                "(place.devices: 0-2)"
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
            "data: is missing, expected a mapping of sequence_length, global_batch, "
            "document_length, loader, source, samples, prompt_length, generate_length",
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

    assert found.startswith("cluster.node: unknown node 'dgx-h10'; did you mean 'dgx-h100'? ")


def test_the_message_of_several_problems_is_a_list() -> None:
    """One line each, the file in front."""
    with pytest.raises(JobError) as caught:
        job_from_mapping(mapping(data={}, precision=3), "job.yaml")

    assert str(caught.value) == (
        "job.yaml: 2 problems:\n"
        "  data.global_batch: is missing, expected a whole number, samples per step over all "
        "replicas\n"
        "  precision: found 3, expected one of fp32, tf32, bf16, fp16, fp8, mxfp8, nvfp4, int8, amp"
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
            {"traits": {"loss_bytes_per_logit": 1e9}},
            "traits.loss_bytes_per_logit: found 1000000000.0, expected a number from 0 to 1,000",
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


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "the file holds nothing, expected a YAML mapping"),
        (b"- 1\n- 2\n", "found a list, expected a YAML mapping"),
        (b"model: {a", "expected valid YAML"),
        (b"model: \x1b[31m", "special characters are not allowed at position 7; expected valid"),
        (b"[model]\nname = 'llama3'\n", "this is TOML, expected YAML; `wattree import` reads"),
        (
            b"name = 'llama3'\n",
            "this is TOML, expected YAML; `wattree import` reads frameworks' files",
        ),
        (b"#!/bin/sh\ntorchrun train.py\n", "this is a script, expected YAML"),
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
