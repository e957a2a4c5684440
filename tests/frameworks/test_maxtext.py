"""MaxText's recipes: scripts, bases, scales of the model, policies of recomputation."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattree.errors import JobError
from wattree.frameworks import FRAMEWORKS, import_recipe
from wattree.frameworks.concrete import concrete_job
from wattree.frameworks.export import recipe_files
from wattree.frameworks.imports import ImportedRecipe
from wattree.frameworks.maxtext_remat import RematSpec, kind_of, tensors_of
from wattree.job import job_from_mapping
from wattree.job.problems import Problems
from wattree.lowering.model import model_of
from wattree.strategy import SAVED_OUTPUTS

TRAIN = 'python3 -m maxtext.trainers.pre_train.train "${CONFIGS:-$PWD/configs}"/base.yml'


def imported(folder: Path, files: dict[str, str], name: str, **cluster: Any) -> ImportedRecipe:
    """Return the job of the file called `name`."""
    for each, text in files.items():
        path = folder / each
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return import_recipe(folder / name, "maxtext", **cluster)


def test_a_script_that_calls_another_gives_it_its_arguments(tmp_path: Path) -> None:
    """Published recipes of one model at several scales are such scripts."""
    base = (
        "SIZE=${1:-${SIZE:-4}}\nREMAT=${2:-full}\nFSDP=${3:-${FSDP:-64}}\n"
        f'{TRAIN} model_name=gpt3-175b per_device_batch_size="${{SIZE}}" '
        'remat_policy="${REMAT}" ici_fsdp_parallelism="${FSDP}" ici_tensor_parallelism=8\n'
    )
    call = 'chmod +x "${CONFIGS}"/base.sh\n./maxtext/configs/base.sh 2 "minimal" 16 "${RUN}"\n'
    found = imported(tmp_path, {"base.sh": base, "call.sh": call}, "call.sh")

    assert found.job["strategy"]["dp"] == 16
    assert found.job["strategy"]["recompute"] == "selective_matmul"
    assert found.job["data"]["global_batch"] == 2 * 16 * 8


def test_a_command_starts_from_the_yaml_that_it_names(tmp_path: Path) -> None:
    """Its settings are in no override: without them the model would be another one."""
    files = {
        "gpu/models/small.yml": "base_config: base.yml\nmodel_name: llama2-7b\n"
        "per_device_batch_size: 4\nmax_target_length: 4096\n",
        "gpu/a3/run.sh": "train ${CONFIGS}/models/gpu/small.yml ici_fsdp_parallelism=8\n",
    }
    found = imported(tmp_path, files, "gpu/a3/run.sh")

    assert found.job["model"] == "llama-2-7b"
    assert found.job["data"] == {"sequence_length": 4096, "global_batch": 32}
    assert any("small.yml" in note for note in found.assumed)


def test_yaml_builds_on_its_base_config(tmp_path: Path) -> None:
    """What it says itself counts."""
    files = {
        "common.yml": "model_name: llama3-8b\nremat_policy: full\nper_device_batch_size: 1\n",
        "run.yml": "base_config: common.yml\nremat_policy: save_dot_except_mlpwi\n",
    }
    found = imported(tmp_path, files, "run.yml")

    assert found.job["model"] == "llama-3-8b"
    assert found.job["strategy"]["recompute"] == "selective_attention_matmul"


def test_a_missing_base_config_is_refused(tmp_path: Path) -> None:
    """Its settings are not known, so the job would be another one."""
    with pytest.raises(JobError, match=r"base_config: found 'there.yml', expected base.yml or"):
        imported(tmp_path, {"run.yml": "base_config: there.yml\nmodel_name: gemma-2b\n"}, "run.yml")


@pytest.mark.parametrize(("scale", "billions"), [(16, 16), (32, 32), (64, 64), (128, 125)])
def test_a_scale_of_parameters_scales_the_model(tmp_path: Path, scale: int, billions: int) -> None:
    """Heads and feed-forward width, width, and layers double in turns; base.yml has 1 billion."""
    text = f"global_parameter_scale: {scale}\nmax_target_length: 2048\nremat_policy: full\n"
    found = imported(tmp_path, {"run.yml": text}, "run.yml")
    parameters = model_of(job_from_mapping(found.job, "job")).parameters

    assert parameters / 1e9 == pytest.approx(billions, rel=0.05)


def test_sizes_change_those_of_a_named_model(tmp_path: Path) -> None:
    """MaxText's own GPU recipes cut models to a few layers."""
    text = "model_name: mixtral-8x7b\nbase_num_decoder_layers: 5\nper_device_batch_size: 1\n"
    block = imported(tmp_path, {"run.yml": text}, "run.yml").job["model"]["transformer"]

    assert block["layers"] == 5
    assert block["experts"] == 8


def test_offloaded_policies_offload(tmp_path: Path) -> None:
    """What they keep is kept on the host, of every layer."""
    text = (
        f"{TRAIN} model_name=llama2-13b remat_policy=qkv_proj_offloaded per_device_batch_size=1\n"
    )
    strategy = imported(tmp_path, {"run.sh": text}, "run.sh").job["strategy"]

    assert strategy["recompute"] == "selective_qkv"
    assert strategy["offload"]["activations"]["layers"] == 40
    assert strategy["offload"]["activations"]["tensors"] == ["query", "key", "value"]


@pytest.mark.parametrize(
    ("tensors", "recompute", "moved"),
    [
        ("mlpwo=device", "full", None),
        ("decoder_layer_input=offload mlpwo=offload", "full", ["all"]),
        ("context=device", "saves_context", None),
        (
            "decoder_layer_input=offload key_proj=device value_proj=device mlpwo=offload",
            "saves_key+value",
            ["input"],
        ),
        ("qkv_proj=offload context=device", "saves_query+key+value+context", "query key value"),
        ("kv_proj=device mla_q=device out_proj=device", "saves_key+value+q_down+out", None),
        ("query_proj=device kv_proj=device out_proj=device", "selective_attention_matmul", None),
        ("moe_mlpwi_0=device mlpwi_1=offload", "saves_gate+up", ["up"]),
    ],
)
def test_a_policy_of_one_s_own_is_read_tensor_by_tensor(
    tmp_path: Path, tensors: str, recompute: str, moved: list[str] | str | None
) -> None:
    """By the names of its layers (`checkpoint_name`); of what no backward reads nothing is kept."""
    text = f"{TRAIN} model_name=llama2-13b remat_policy=custom {tensors} per_device_batch_size=1\n"
    strategy = imported(tmp_path, {"run.sh": text}, "run.sh").job["strategy"]

    assert strategy["recompute"] == recompute
    found = strategy.get("offload", {}).get("activations")
    words = moved.split() if isinstance(moved, str) else moved
    assert (found and found.get("tensors", ["all"])) == words


@given(st.sets(st.sampled_from(list(SAVED_OUTPUTS))))
def test_a_policy_that_is_written_is_the_same_when_read(outputs: set[str]) -> None:
    """Every set of tensors that a policy may name."""
    spec = RematSpec(remat_policy="custom", **tensors_of(outputs))
    assert spec.strategy_keys(1, Problems("test")) == {"recompute": kind_of(outputs)}


def test_an_unknown_policy_is_named(tmp_path: Path) -> None:
    """With those that there are."""
    text = f"{TRAIN} model_name=llama2-13b remat_policy=save_all per_device_batch_size=1\n"
    with pytest.raises(JobError, match=r"found 'save_all', expected one of .*save_out_proj"):
        imported(tmp_path, {"run.sh": text}, "run.sh")


def test_narrow_moments_are_read(tmp_path: Path) -> None:
    """Of optax: the first alone."""
    text = f"{TRAIN} model_name=llama2-13b mu_dtype=bfloat16 per_device_batch_size=1\n"
    assert imported(tmp_path, {"run.sh": text}, "run.sh").job["traits"] == {
        "first_moment_bytes": 2.0
    }


def test_axis_tensor_splits_activations_too(tmp_path: Path) -> None:
    """`activation_embed` lies over tensor in base.yml; an import says how that is taken."""
    text = "model_name: llama3.1-8b\nremat_policy: full\nici_tensor_parallelism: 4\nsteps: 15\n"
    first = imported(tmp_path, {"a.yml": text}, "a.yml", node="dgx-h100", nodes=1)
    job = job_from_mapping(first.job, "imported")
    files, _ = recipe_files(FRAMEWORKS["maxtext"], concrete_job(job))
    again = imported(tmp_path, files, "maxtext.yml", node="dgx-h100", nodes=1)

    assert first.job["strategy"]["sequence_parallel"] is True
    assert any("an export writes tensor_sequence" in note for note in first.assumed)
    assert "ici_tensor_sequence_parallelism: 4" in files["maxtext.yml"]
    assert again.job == first.job
    assert again.job["training"]["steps"] == 15


def test_steps_that_follow_a_schedule_are_left_out(tmp_path: Path) -> None:
    """MaxText takes -1 for those of its learning rates."""
    text = "model_name: llama3.1-8b\nsteps: -1\n"
    found = imported(tmp_path, {"a.yml": text}, "a.yml", node="dgx-h100", nodes=1)

    assert "training" not in found.job


def test_degrees_beyond_a_node_ask_for_more_nodes(tmp_path: Path) -> None:
    """A cluster that no one named is as large as the degrees need."""
    text = (
        f"{TRAIN} model_name=gpt3-175b per_device_batch_size=1 ici_tensor_parallelism=16 "
        "ici_fsdp_transpose_parallelism=4 dcn_fsdp_parallelism=2 remat_policy=full\n"
    )
    found = imported(tmp_path, {"run.sh": text}, "run.sh")

    assert found.job["cluster"]["nodes"] == 16
    assert found.job["strategy"]["tp"] == 16
    assert found.job["strategy"]["dp"] == 8


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("quantization: int4", "found 'int4', a format that is not modeled"),
        ("model_name: lama2-7b", r"of which no sizes are known \(did you mean llama2-7b"),
        ("global_parameter_scale: 3", "expected a power of 2"),
        ("model_name: gemma2-9b\nbase_num_decoder_layers: 30", "expected at most 42"),
    ],
)
def test_what_has_no_counterpart_is_refused(tmp_path: Path, setting: str, why: str) -> None:
    """The message names the setting and what was found."""
    with pytest.raises(JobError, match=why):
        imported(tmp_path, {"run.yml": f"{setting}\nper_device_batch_size: 1\n"}, "run.yml")


def test_a_script_s_unknown_settings_are_named(tmp_path: Path) -> None:
    """They may change a step."""
    text = f"{TRAIN} model_name=llama2-7b per_device_batch_size=1 num_vocab_tiling=4\n"

    assert imported(tmp_path, {"run.sh": text}, "run.sh").not_understood == ("num_vocab_tiling",)


def test_slices_of_tpus_are_no_larger_than_pods(tmp_path: Path) -> None:
    """1,024 chips of v6e are four pods of 256, which meet over their hosts' adapters."""
    job = job_from_mapping(
        {
            "model": "llama-3.1-8b",
            "data": {"sequence_length": 4096, "global_batch": 2048},
            "cluster": {"node": "tpu-v6e-host", "nodes": 128},
            "software": "maxtext",
            "strategy": {"dp": 1024, "sharding": "zero3", "micro_batch": 2, "recompute": "full"},
        }
    )
    files, _ = recipe_files(FRAMEWORKS["maxtext"], concrete_job(job))
    text = files["maxtext.yml"]

    assert {"ici_fsdp_parallelism: 256", "dcn_fsdp_parallelism: 4", "num_slices: 4"} <= {
        *text.splitlines()
    }
    for left in (text, text.replace("ici_fsdp_parallelism: 256", "ici_fsdp_parallelism: -1")):
        found = imported(tmp_path, {"a.yml": left}, "a.yml", node="tpu-v6e-host", nodes=128)
        assert found.job["strategy"]["dp"] == 1024


def exported(node: str, *, nodes: int, precision: str, strategy: dict[str, Any]) -> str:
    """Return the YAML of a job."""
    job = job_from_mapping(
        {
            "model": "llama-3.1-8b",
            "data": {"sequence_length": 4096, "global_batch": 256},
            "cluster": {"node": node, "nodes": nodes},
            "software": "maxtext",
            "precision": precision,
            "strategy": {"recompute": "full", **strategy},
        }
    )
    return recipe_files(FRAMEWORKS["maxtext"], concrete_job(job))[0]["maxtext.yml"]


@pytest.mark.parametrize(
    "strategy",
    [
        {"dp": 32, "sharding": "zero3", "micro_batch": 4},
        {"dp": 32, "sharding": "none", "micro_batch": 2},
        {"dp": 4, "fsdp": 8, "sharding": "hybrid", "micro_batch": 8},
        {"dp": 16, "tp": 2, "sharding": "zero3", "micro_batch": 4},
    ],
)
def test_a_chip_that_is_two_devices_of_jax_is_one_here(
    strategy: dict[str, Any], tmp_path: Path
) -> None:
    """Axes lie over the cores of TPU7x, and a batch is that of a core."""
    text = exported("tpu-v7x-host", nodes=8, precision="bf16", strategy=strategy)
    values = dict(line.split(": ", 1) for line in text.splitlines())
    degrees = [int(value) for key, value in values.items() if key.endswith("_parallelism")]
    found = imported(tmp_path, {"a.yml": text}, "a.yml", node="tpu-v7x-host", nodes=8)

    assert math.prod(degrees) == 64
    assert float(values["per_device_batch_size"]) * 64 * int(
        values["gradient_accumulation_steps"]
    ) == pytest.approx(256)
    assert {key: found.job["strategy"].get(key) for key in strategy} == strategy
    assert found.job["data"]["global_batch"] == 256


def test_one_sample_is_not_shared_by_two_cores() -> None:
    """MaxText splits samples, not parts of them, over the axes of data."""
    strategy = {"dp": 32, "sharding": "zero3", "micro_batch": 1}

    with pytest.raises(JobError, match="found 1, expected a multiple of 2: each device is 2 of"):
        exported("tpu-v7x-host", nodes=8, precision="bf16", strategy=strategy)


def test_int8_is_aqt_s(tmp_path: Path) -> None:
    """And read as such (maxtext/layers/quantizations.py)."""
    strategy = {"dp": 32, "sharding": "zero3", "micro_batch": 8}
    text = exported("tpu-v5p-host", nodes=8, precision="int8", strategy=strategy)

    assert 'quantization: "int8"' in text
    read = imported(tmp_path, {"run.yml": text}, "run.yml", node="tpu-v5p-host", nodes=8)
    assert read.job["precision"] == "int8"


@pytest.mark.parametrize(("micro", "word"), [(8, '"fp8"'), (4, '"te_fp8_currentscaling"')])
def test_fp8_that_accumulates_is_the_other_library_s(micro: int, word: str) -> None:
    """MaxText refuses its own with several micro-batches (configs/types.py)."""
    strategy = {"dp": 32, "sharding": "zero3", "micro_batch": micro}

    text = exported("dgx-h100", nodes=4, precision="fp8", strategy=strategy)

    assert f"quantization: {word}" in text
