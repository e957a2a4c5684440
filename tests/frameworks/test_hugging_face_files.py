"""Files and commands of the Hugging Face libraries: checkpoints, truth, and numbers of nodes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from wattree.errors import JobError
from wattree.files import read_yaml
from wattree.frameworks import Given, export_recipe, hf_trainer_read, import_recipe
from wattree.frameworks.hf_trainer_read import TrainerSpec
from wattree.frameworks.trainer_arguments import matters
from wattree.job import job_from_mapping
from wattree.job.written import yaml_text

TRAINER = Path(hf_trainer_read.__file__).with_name("trainer.yaml")


@pytest.mark.parametrize(
    ("arguments", "traits"),
    [
        ({}, None),
        ({"gradient_checkpointing_kwargs": {"use_reentrant": False}}, None),
        ({"gradient_checkpointing_kwargs": {"use_reentrant": True}}, {"early_stop": False}),
        ({"use_reentrant": True}, {"early_stop": False}),
    ],
)
def test_reentrant_checkpoints_do_not_stop_early(
    arguments: dict[str, Any], traits: dict[str, bool] | None, tmp_path: Path
) -> None:
    """In the Trainer's file, from a command with Accelerate, and back from an export."""
    given = Given(model="llama-3.1-8b", sequence_length=2048, global_batch=64)
    values = {"per_device_train_batch_size": 8, "gradient_checkpointing": True, **arguments}
    (tmp_path / "trainer.yaml").write_text(yaml_text(values), encoding="utf-8")
    (tmp_path / "accelerate.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 8\n")
    words = " ".join(f"--{key} '{json.dumps(value)}'" for key, value in values.items())
    (tmp_path / "run.sh").write_text(
        f"accelerate launch --config_file accelerate.yaml train.py {words}"
    )

    files = {"hf-trainer": "trainer.yaml", "accelerate": "run.sh"}
    found = {
        name: import_recipe(tmp_path / file, name, node="dgx-h100", nodes=1, given=given).job
        for name, file in files.items()
    }

    assert [job.get("traits") for job in found.values()] == [traits, traits]
    for name, job in found.items():
        for sharding in ("none", "zero3"):
            strategy = {**job["strategy"], "sharding": sharding}
            folder = tmp_path / f"{name}-{sharding}"
            export_recipe(job_from_mapping({**job, "strategy": strategy}), name, folder)
            back = import_recipe(folder / "launch.sh", name, node="dgx-h100", nodes=1).job
            assert (back.get("traits"), back["strategy"]["recompute"]) == (traits, "full")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("""--gradient_checkpointing_kwargs='{"use_reentrant": true}'""", "again"),
        ("""--gradient_checkpointing_kwargs {\\"use_reentrant\\":true}""", "again"),
        ("""--use_reentrant True --gradient_checkpointing_kwargs '{"x": 1}'""", "again"),
        ("""--gradient_checkpointing_kwargs='{"use_reentrant": false}'""", "early"),
        ("""--gradient_checkpointing_kwargs="$GC" --bf16""", "unread"),
        ("""--use_reentrant $AGAIN""", "unread"),
        ("""--gradient_checkpointing_kwargs '{"use_reentrant": "$AGAIN"}'""", "unread"),
    ],
)
def test_arguments_of_checkpoints_are_read_or_not_understood(
    words: str, expected: str, tmp_path: Path
) -> None:
    """As shells quote them, in a command or an array; what the environment says ends no import."""
    (tmp_path / "accelerate.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 8\n")
    start = "accelerate launch --config_file accelerate.yaml train.py --gradient_checkpointing "
    batch = "--per_device_train_batch_size 1 --gradient_accumulation_steps 1"
    given = Given(model="llama-3.1-8b", sequence_length=2048)
    path = tmp_path / "run.sh"
    for text in (f"{start} {words} {batch}", f'A=(\n  {words}\n)\n{start} {batch} "${{A[@]}}"'):
        path.write_text(text)
        for name in ("accelerate", "hf-trainer"):
            found = import_recipe(path, name, node="dgx-h100", nodes=1, given=given)
            is_again = found.job.get("traits") == {"early_stop": False}
            read = "again" if is_again else "unread" if found.not_understood else "early"
            assert read == expected


def test_an_exported_script_of_deepspeed_is_read(tmp_path: Path) -> None:
    """Its program names neither the JSON nor the model: both are next to it."""
    job = {
        "model": "llama-3.1-8b",
        "data": {"sequence_length": 2048, "global_batch": 16},
        "cluster": {"node": "dgx-h100"},
        "software": "deepspeed",
        "strategy": {"dp": 8, "sharding": "zero2", "micro_batch": 1, "recompute": "full"},
    }
    export_recipe(job_from_mapping(job, "job.yaml"), "deepspeed", tmp_path / "out")
    found = import_recipe(tmp_path / "out" / "launch.sh", "deepspeed", node="dgx-h100").job

    assert (found["model"], found["data"]) == (job["model"], job["data"])
    assert found["strategy"].items() >= job["strategy"].items()  # type: ignore[attr-defined]


@pytest.mark.parametrize("word", ["yes", "on", "On", "true"])
def test_truth_is_that_of_yaml_1_1(tmp_path: Path, word: str) -> None:
    """The Trainer reads its file with PyYAML."""
    path = tmp_path / "a.yaml"
    path.write_text(f"{{block_size: 64, bf16: {word}, fsdp: {word}, gradient_checkpointing: no}}")
    found = import_recipe(path, "hf-trainer", node="dgx-h100", nodes=1, given=Given(model="gpt2"))

    assert found.job["precision"] == "bf16"
    assert found.job["strategy"]["sharding"] == "zero3"
    assert found.job["strategy"]["recompute"] == "none"


@pytest.mark.parametrize("version", [1, 2])
def test_version_1_of_fsdp_copies_gradients_alone(version: int, tmp_path: Path) -> None:
    """Stated to Accelerate, in its command, to the Trainer, and to what starts the Trainer."""
    batch = "--per_device_train_batch_size 1 --gradient_accumulation_steps 1 --block_size 64"
    files = {
        "a.yaml": "{distributed_type: FSDP, num_processes: 8, mixed_precision: bf16, fsdp_config: "
        f"{{fsdp_version: {version}, fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP}}}}",
        "run.sh": f"accelerate launch --config_file a.yaml train.py {batch}",
        "trainer.yaml": f"{{block_size: 64, fsdp: true, fsdp_config: {{version: {version}}}}}",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    pairs = ("a.yaml", "accelerate"), ("run.sh", "accelerate"), ("run.sh", "hf-trainer")
    for file, name in (*pairs, ("trainer.yaml", "hf-trainer")):
        batch_of = {"sequence_length": 64, "micro_batch": 1} if file == "a.yaml" else {}
        given = Given(model="gpt2", **batch_of)
        job = import_recipe(tmp_path / file, name, node="dgx-h100", nodes=1, given=given).job
        expected = {"shard_copies": "gradients"} if version == 1 else None
        assert job.get("traits") == expected, (file, name)


def test_nodes_beyond_the_file_s_machines_are_named(tmp_path: Path) -> None:
    """A cluster of smaller nodes than the file was written for."""
    path = tmp_path / "a.yaml"
    path.write_text("{distributed_type: MULTI_GPU, num_machines: 1, num_processes: 8}")
    given = Given(model="gpt2", sequence_length=64, micro_batch=1)
    found = import_recipe(path, "accelerate", node="4x-l40s", given=given)
    same = import_recipe(path, "accelerate", node="dgx-h100", given=given)

    assert found.job["cluster"]["nodes"] == 2
    assert any(note.startswith("2 nodes: 8 processes, on 1 in the file") for note in found.assumed)
    assert not any("nodes:" in note for note in same.assumed)


def test_a_batch_decides_nodes_or_accumulation(tmp_path: Path) -> None:
    """A refused cluster says how many nodes were inferred; of one node, micro-batches follow."""
    path = tmp_path / "a.yaml"
    path.write_text("{block_size: 64, per_device_train_batch_size: 2, model_name_or_path: gpt2}")
    given = Given(global_batch=32)
    with pytest.raises(JobError, match="8 nodes, as many as its degrees and batch need; --nodes"):
        import_recipe(path, "hf-trainer", node="2x-rtx-4090", given=given)
    found = import_recipe(path, "hf-trainer", node="2x-rtx-4090", nodes=1, given=given).job

    assert (found["strategy"]["dp"], found["data"]["global_batch"]) == (2, 32)


def test_flags_of_the_launcher_replace_its_file(tmp_path: Path) -> None:
    """Ranks of one machine were placed on the two of the file."""
    (tmp_path / "a.yaml").write_text(
        "{distributed_type: MULTI_GPU, num_machines: 2, num_processes: 16}"
    )
    (tmp_path / "run.sh").write_text(
        "accelerate launch --config_file a.yaml --num_machines 1 --num_processes 8 train.py "
        "--per_device_train_batch_size 4 --model_name_or_path gpt2 --block_size 64"
    )

    found = [
        import_recipe(tmp_path / "run.sh", name, node="dgx-h100").job
        for name in ("accelerate", "hf-trainer")
    ]

    assert [each["cluster"]["nodes"] for each in found] == [1, 1]
    assert not any("place" in each for each in found)


def test_flags_of_scripts_are_read_alike_by_both(tmp_path: Path) -> None:
    """What the Trainer's reading knew, that of Accelerate did not understand, and neither these."""
    (tmp_path / "a.yaml").write_text(
        "{distributed_type: FSDP, mixed_precision: bf16, num_processes: 8, "
        "fsdp_config: {fsdp_sharding_strategy: 1, fsdp_backward_prefetch_policy: BACKWARD_PRE}}"
    )
    (tmp_path / "run.sh").write_text(
        "accelerate launch --config_file a.yaml train.py --model_name meta-llama/Llama-2-7b-hf "
        "--max_seq_len 2048 --packing True --use_gradient_checkpointing True --use_flash_attn True "
        "--per_device_train_batch_size 1 --gradient_accumulation_steps 1 --use_liger_kernel "
        "--torch_compile "
        """--completion_only_loss True --liger_kernel_config '{"rms_norm": false}'"""
    )

    found = [
        import_recipe(tmp_path / "run.sh", name, node="dgx-h100", nodes=1)
        for name in ("accelerate", "hf-trainer")
    ]

    assert [each.not_understood for each in found] == [(), ()]
    first, second = ({**each.job, "software": ""} for each in found)
    assert first == second
    assert (first["model"], first["compile"]) == ("llama-2-7b", True)
    assert first["strategy"]["recompute"] == "full"
    assert first["traits"] == {
        "shard_copies": "gradients",
        "attention_kernels": "ampere",
        "fused_loss": True,
    }


def test_only_what_is_not_given_is_asked_for(tmp_path: Path) -> None:
    """The cluster was named, and asked for again."""
    path = tmp_path / "a.yaml"
    path.write_text("{block_size: 64, per_device_train_batch_size: 2, model_name_or_path: gpt2}")

    named, free = (import_recipe(path, "hf-trainer", node=node) for node in ("dgx-h100", None))

    assert any(note.endswith("leaves their number open: --nodes sets it") for note in named.assumed)
    assert any(note.endswith("open: --cluster and --nodes set it") for note in free.assumed)


def test_arguments_without_a_meaning_here_are_named(tmp_path: Path) -> None:
    """Those of other trainers were dropped; what changes no step is none of them."""
    path = tmp_path / "a.yaml"
    path.write_text(
        "{block_size: 64, per_device_train_batch_size: 2, model_name_or_path: gpt2, batch_size: 4,"
        " logging_steps: 1, dataset_name: a, adam_beta2: 0.9, gradient_chekpointing: true,"
        " max_steps: 0, packing: true, logits_to_keep: 1, num_train_epochs: 3}"
    )

    found = import_recipe(path, "hf-trainer", node="dgx-h100")

    assert found.not_understood == ("batch_size", "gradient_chekpointing", "logits_to_keep")
    assert any(
        note.startswith("packing: samples are packed: state data.document_length")
        for note in found.assumed
    )
    assert "training" not in found.job
    assert "one step: how many steps 3 epochs take depends on the data" in "".join(found.assumed)


@pytest.mark.parametrize("on_host", [False, True])
def test_copies_in_16_bits_are_read_and_written(tmp_path: Path, *, on_host: bool) -> None:
    """DeepSpeed has them since 0.18: all on the device, copies alone with moments on the host."""
    section = {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": not on_host}
    zero = {"stage": 2} | ({"offload_optimizer": {"device": "cpu"}} if on_host else {})
    config = {"bf16": {"enabled": True, **section}, "zero_optimization": zero}
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({**config, "train_micro_batch_size_per_gpu": 1}))
    given = Given(model="llama-3.1-8b", sequence_length=2048, accumulation=2)

    job = import_recipe(path, "deepspeed", node="dgx-h100", nodes=1, given=given).job
    export_recipe(job_from_mapping(job), "deepspeed", tmp_path / "run")
    written = json.loads((tmp_path / "run" / "ds_config.json").read_text())

    narrow = ["master_bytes", "master_gradient_bytes"]
    narrow += [] if on_host else ["first_moment_bytes", "second_moment_bytes"]
    assert job["traits"] == dict.fromkeys(narrow, 2.0)
    assert written["bf16"] == {"enabled": True, **{k: v for k, v in section.items() if v}}
    del job["traits"]["master_bytes"]
    with pytest.raises(JobError, match=r"traits\.\w+: expected master_bytes: 2"):
        export_recipe(job_from_mapping(job), "deepspeed", tmp_path / "half")


def test_the_trainer_s_own_arguments_are_known() -> None:
    """What no step depends on would otherwise be warned of in most files."""
    transformers = pytest.importorskip("transformers")
    names = {each.name for each in dataclasses.fields(transformers.TrainingArguments)}
    read = {*TrainerSpec.model_fields, *read_yaml(TRAINER)["left_out"]}

    # Of GaLore and others that no optimizer here stands for.
    assert {each for each in names - read if matters(each)} == {"optim_target_modules"}


COMMENTED = """{
  // batches
  "train_micro_batch_size_per_gpu": 2, /* by device */
  "gradient_accumulation_steps": 8, # of them
  "bf16": {"enabled": true},
  "zero_optimization": {"stage": 3, "overlap_comm": true,},
}
"""


def test_comments_of_a_deepspeed_configuration_are_read(tmp_path: Path) -> None:
    """DeepSpeed loads Hjson. Accelerate and the Trainer load strict JSON, and stop where we do."""
    given = Given(model="llama-3.1-8b", sequence_length=2048)
    (tmp_path / "ds.json").write_text(COMMENTED)
    (tmp_path / "run.sh").write_text("deepspeed train.py --deepspeed_config ds.json")
    trainer = {"deepspeed": "ds.json", "per_device_train_batch_size": 2}
    (tmp_path / "trainer.yaml").write_text(yaml_text(trainer))

    jobs = [
        import_recipe(tmp_path / file, "deepspeed", node="dgx-h100", nodes=1, given=given).job
        for file in ("ds.json", "run.sh")
    ]

    assert [job["strategy"]["sharding"] for job in jobs] == ["zero3", "zero3"]
    assert [job["data"]["global_batch"] for job in jobs] == [128, 128]
    with pytest.raises(JobError, match=r"ds\.json: line 2, column 3: .*expected valid JSON"):
        import_recipe(tmp_path / "trainer.yaml", "hf-trainer", node="dgx-h100", given=given)


@pytest.mark.parametrize(
    ("processes", "machines", "place"),
    [
        (10, 2, "0-4, 8-12"),
        (2, 2, "0, 8"),
        (6, 1, "0-5"),
        (16, 2, None),
        (8, 1, None),
        (8, 2, "0-3, 8-11"),
        (12, 3, "0-3, 8-11, 16-19"),
        (16, 4, "0-3, 8-11, 16-19, 24-27"),
    ],
)
def test_even_parts_of_several_nodes_are_a_place(
    processes: int, machines: int, place: str | None, tmp_path: Path
) -> None:
    """As many nodes as the file has machines, an even part of each; a part of several is told."""
    path = tmp_path / "accelerate.yaml"
    values = {"num_processes": processes, "num_machines": machines}
    path.write_text(yaml_text({"distributed_type": "MULTI_GPU", **values}))
    given = Given(model="gpt2", sequence_length=1024, micro_batch=1)

    found = import_recipe(path, "accelerate", node="dgx-h100", given=given)

    assert found.job.get("place") == (None if place is None else {"devices": place})
    assert found.job["cluster"]["nodes"] == machines
    assert found.job["strategy"]["dp"] == processes
    told = f"{processes} ranks on {machines} machines in the file"
    assert any(told in note for note in found.assumed) == (machines > 1 and place is not None)
