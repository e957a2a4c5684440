"""What configurations become, and what is refused: formats, unknown settings, impossible values."""

from __future__ import annotations

from pathlib import Path

import pytest

from wattree.errors import JobError, UnknownNameError
from wattree.frameworks import FRAMEWORKS, export_recipe, import_recipe
from wattree.frameworks.concrete import concrete_job
from wattree.frameworks.export import recipe_files
from wattree.frameworks.megatron_layout import layout, layout_layers
from wattree.frameworks.megatron_model import expanded
from wattree.frameworks.shell_flags import shell_flags
from wattree.job import job_from_mapping

TOML = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
seq_len = 8192
[parallelism]
{parallelism}
[activation_checkpoint]
mode = "full"
"""
SIZES = """
--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
--group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm
--position-embedding-type rope --untie-embeddings-and-output-weights --disable-bias-linear
--vocab-size 128256 --make-vocab-size-divisible-by 1 --seq-length 8192 --global-batch-size 64 --bf16
"""


def written(folder: Path, name: str, text: str) -> Path:
    """Return a file with a text."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_leftover_devices_shard(tmp_path: Path) -> None:
    """-1 is the default there, so that most published recipes have it."""
    path = written(tmp_path, "a.toml", TOML.format(parallelism="tensor_parallel_degree = 4"))

    found = import_recipe(path, "torchtitan", node="dgx-h100", nodes=2)

    assert found.job["model"] == "llama-3.1-8b"
    assert found.job["strategy"]["dp"] == 4
    assert found.job["strategy"]["sharding"] == "zero3"
    assert found.job["data"] == {"sequence_length": 8192, "global_batch": 8}


def test_what_is_assumed_stands_in_the_job(tmp_path: Path) -> None:
    """A reader of the job alone must know that no one said what it runs on."""
    path = written(tmp_path, "a.toml", TOML.format(parallelism="tensor_parallel_degree = 4"))

    text = import_recipe(path, "torchtitan").text()

    assert "# assumed: nodes are dgx-h100" in text
    assert "# assumed: devices: 8" in text


def test_fewer_ranks_than_a_node_has_take_a_part_of_it(tmp_path: Path) -> None:
    """Degrees say how many there are; what is left of the node is no one's."""
    path = written(tmp_path, "a.toml", TOML.format(parallelism="data_parallel_shard_degree = 2"))

    found = import_recipe(path, "torchtitan")

    assert found.job["place"] == {"devices": "0-1"}
    assert len(job_from_mapping(found.job, "a").devices or ()) == 2


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("tensor_parallel_degree = 3", "multiple of 3 devices, found 8"),
        ("tensor_parallel_degree = -2", "found -2, expected a whole number from 1"),
        ("data_parallel_shard_degree = 0", "found 0, expected -1 or above 0"),
        ('pipeline_parallel_schedule = "Fast"\npipeline_parallel_degree = 2', "one of GPipe, 1F1B"),
        ("data_parallel_shard_degree = 64", "the degrees multiply to 64 ranks"),
        ("tensor_parallel_degree = 24\ndata_parallel_shard_degree = 1", "do not divide over axis"),
    ],
)
def test_impossible_values_are_refused(tmp_path: Path, setting: str, message: str) -> None:
    """A job that cannot be would be refused later, of a file that its user never wrote."""
    path = written(tmp_path, "a.toml", TOML.format(parallelism=setting))
    nodes = 3 if "24" in setting else 1

    with pytest.raises(JobError, match=message):
        import_recipe(path, "torchtitan", node="dgx-h100", nodes=nodes)


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    """A user mends them in one go."""
    text = '[model]\nname = "llama9"\nflavor = "8B"\n'

    with pytest.raises(
        JobError, match=r"llama9 8B, of which no sizes are known.*llama3 8B.*; add --model"
    ):
        import_recipe(written(tmp_path, "a.toml", text), "torchtitan")


def test_unknown_settings_are_named(tmp_path: Path) -> None:
    """A setting that is dropped silently is a wrong prediction that no one can explain."""
    text = TOML.format(parallelism="sharding_of_next_year = 4") + "[metrics]\nlog_freq = 1\n"

    found = import_recipe(written(tmp_path, "a.toml", text), "torchtitan")

    assert found.job["released"] == "2026-08"  # 0.3 reads no TOML
    assert found.not_understood == ("parallelism.sharding_of_next_year",)
    assert "# not understood: parallelism.sharding_of_next_year" in found.text()


def test_misspelt_flags_are_told_what_may_have_been_meant(tmp_path: Path) -> None:
    """A degree that is dropped for a letter makes another job."""
    script = tmp_path / "run.sh"
    script.write_text(
        "torchrun pretrain_gpt.py --num-layers 2 --hidden-size 512 --num-attention-heads 8 "
        "--seq-length 512 --max-position-embeddings 512 --micro-batch-size 1 "
        "--global-batch-size 8 --tensor-model-parallel-sizes 4 --of-next-year 1"
    )
    found = import_recipe(script, "megatron-lm", node="dgx-h100", nodes=1)

    assert found.meant == {"tensor_model_parallel_sizes": "tensor_model_parallel_size"}
    assert found.unknown == (
        "tensor_model_parallel_sizes; did you mean 'tensor_model_parallel_size'?",
        "of_next_year",
    )


@pytest.mark.parametrize("name", sorted(FRAMEWORKS))
@pytest.mark.parametrize("text", ["", "\0\1\2", "{" * 5000, "just words\n", "[a]\nb = = 1\n"])
def test_what_is_no_configuration_is_refused(tmp_path: Path, name: str, text: str) -> None:
    """Any file can be named by mistake."""
    for ending in ("toml", "yaml", "json", "sh"):
        with pytest.raises(JobError):
            import_recipe(written(tmp_path, f"a.{ending}", text), name)


def test_a_framework_that_is_none_is_refused(tmp_path: Path) -> None:
    """The nearest name helps."""
    with pytest.raises(UnknownNameError, match="did you mean 'torchtitan'"):
        import_recipe(tmp_path / "a.toml", "torchtitn")


def test_a_script_is_read_without_being_run(tmp_path: Path) -> None:
    """Variables are filled in, comments and what stands after `else` are left out."""
    script = f"""#!/bin/bash
TP=2
NODES=${{NNODES:-1}}
SIZES=({SIZES})
ARGS=(
    --tensor-model-parallel-size $TP   # not --tensor-model-parallel-size 8
    --micro-batch-size 1 --global-batch-size $((8 * 16))
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
)
if [ "$FAST" = 1 ]; then
    ARGS+=("--fp8-format hybrid")
else
    ARGS+=(--sequence-parallel)
fi
touch {tmp_path}/run
torchrun --nproc_per_node 8 --nnodes $NODES pretrain_gpt.py ${{SIZES[@]}} ${{ARGS[@]}} && rm -rf x
"""

    found = import_recipe(written(tmp_path, "a.sh", script), "megatron-lm")

    assert found.job["model"] == "llama-3-8b"
    assert found.job["strategy"]["dp"] == 4
    assert found.job["strategy"]["tp"] == 2
    assert found.job["strategy"]["sequence_parallel"] is False
    assert found.job["data"]["global_batch"] == 128
    assert found.job["precision"] == "fp8"
    assert found.not_understood == ()
    assert not (tmp_path / "run").exists()


def test_flags_may_stand_in_a_text(tmp_path: Path) -> None:
    """Megatron-LM's configurations of models are written so."""
    flags = import_recipe(written(tmp_path, "a.txt", SIZES), "megatron-lm").job
    lines = " \\\n".join(SIZES.strip().splitlines())
    script = f'MODEL_ARGS=" \\\n{lines} \\\n"\n'

    assert import_recipe(written(tmp_path, "a.sh", script), "megatron-lm").job == flags


def test_yaml_of_arguments_says_the_same_as_flags(tmp_path: Path) -> None:
    """Megatron-LM's own tests are written so."""
    flags = import_recipe(written(tmp_path, "a.txt", SIZES), "megatron-lm").job
    lines = []
    for name, value in shell_flags(SIZES).items():
        lines.append(f"  --{name.replace('_', '-')}: {'true' if value is True else value}")
    path = written(tmp_path, "a.yaml", "\n".join(["ENV_VARS: {A: 1}", "MODEL_ARGS:", *lines]))

    assert import_recipe(path, "megatron-lm").job == flags


def test_a_bridge_file_without_sizes_needs_its_recipe(tmp_path: Path) -> None:
    """Overrides alone say nothing of the model."""
    overrides = "model: {tensor_model_parallel_size: 2}\ntrain: {global_batch_size: 64}\n"

    with pytest.raises(JobError, match="recipe: llama3_8b_pretrain_config"):
        import_recipe(written(tmp_path, "a.yaml", overrides), "megatron-bridge")

    named = written(tmp_path, "b.yaml", f"recipe: qwen3_8b_pretrain_config\n{overrides}")
    assert import_recipe(named, "megatron-bridge").job["model"] == "qwen3-8b"


@pytest.mark.parametrize(
    ("flags", "name"),
    [("", "llama-3-8b"), ("--max-position-embeddings 131072", "llama-3.1-8b")],
)
def test_positions_tell_models_of_equal_sizes_apart(flags: str, name: str, tmp_path: Path) -> None:
    """Llama 3.1 has the sizes of Llama 3."""
    path = written(tmp_path, "a.txt", f"{SIZES} {flags}")

    assert import_recipe(path, "megatron-lm").job["model"] == name


@pytest.mark.parametrize("name", ["llama-7b", "llama-2-7b", "llama-3-8b", "llama-3.1-8b"])
def test_an_exported_model_comes_back_under_its_name(name: str, tmp_path: Path) -> None:
    """Whatever sequence the job trains, and whatever other models have its sizes."""
    job = {
        "model": name,
        "data": {"sequence_length": 1024, "global_batch": 8},
        "cluster": {"node": "dgx-h100"},
        "strategy": {"dp": 8},
    }
    concrete = concrete_job(job_from_mapping(job))
    files, _ = recipe_files(FRAMEWORKS["megatron-lm"], concrete)
    path = written(tmp_path, "launch.sh", files["launch.sh"])

    assert import_recipe(path, "megatron-lm").job["model"] == name


def test_of_equal_sizes_without_positions_the_longest_is_taken(tmp_path: Path) -> None:
    """Overrides of Megatron-Bridge do not say how many positions there are."""
    sizes = "num_layers: 32, hidden_size: 4096, ffn_hidden_size: 14336, num_attention_heads: 32"
    path = written(tmp_path, "a.yaml", f"model: {{{sizes}}}\ntrain: {{global_batch_size: 64}}\n")

    assert import_recipe(path, "megatron-bridge").job["model"] == "llama-3.1-8b"


def test_sizes_of_no_recipe_have_megatron_core_s_defaults(tmp_path: Path) -> None:
    """Three sizes once made Llama 3.1 8B of them, with its gates, groups and vocabulary."""
    sizes = "num_layers: 32, hidden_size: 4096, num_attention_heads: 32"
    path = written(tmp_path, "a.yaml", f"model: {{{sizes}}}\ntrain: {{global_batch_size: 64}}\n")

    found = import_recipe(path, "megatron-bridge")

    block = found.job["model"]["transformer"]
    assert (block["ffn"], block["gated"], block.get("kv_heads")) == (16384, False, None)
    assert any("Megatron-Core's defaults" in note for note in found.assumed)


@pytest.mark.parametrize(
    ("framework", "steps"),
    [
        *((name, 3000) for name in sorted({*FRAMEWORKS} - {"llm-foundry", "torchtune"})),
        *((name, 1) for name in ("accelerate", "deepspeed", "hf-trainer")),
    ],
)
def test_the_length_of_a_run_comes_back(framework: str, steps: int, tmp_path: Path) -> None:
    """A deadline was judged of one step after an import, and a job of one step became ten."""
    job = {
        "model": "llama-3.1-8b",
        "data": {"sequence_length": 1024, "global_batch": 8},
        "cluster": {"node": "dgx-h100"},
        "strategy": {"dp": 8, "sharding": "none" if framework == "hf-trainer" else "zero3"},
        "software": FRAMEWORKS[framework].software[0],
        "training": {"steps": steps},
    }
    if framework.startswith("megatron"):
        job["strategy"] = {"dp": 8, "sharding": "zero1"}
    export_recipe(job_from_mapping(job), framework, tmp_path / "out")
    files = {"torchtitan": "train.toml", "megatron-bridge": "overrides.yaml"}
    file = files.get(framework, "maxtext.yml" if framework == "maxtext" else "launch.sh")

    back = import_recipe(tmp_path / "out" / file, framework).job

    assert back.get("training", {}).get("steps", 1) == steps


def test_samples_of_a_run_are_steps(tmp_path: Path) -> None:
    """Megatron's own unit for runs whose batch grows."""
    path = written(tmp_path, "a.txt", f"{SIZES} --global-batch-size 64 --train-samples 6400")

    assert import_recipe(path, "megatron-lm").job["training"]["steps"] == 100


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("Et*3|(tt|)*2t|L", [3, 2, 2, 1, 0]),
        ("E,t*2|(t|)*2,m|L", [2, 1, 1, 0, 0]),
        ("Et*4|(t*4|)*2tmL", [4, 4, 4, 1]),
        ("Ett|ttL", [2, 2]),
        ("E" + "t*9999" * 9, []),
        ("what", []),
    ],
)
def test_layouts_of_pipelines_are_read(text: str, layers: list[int]) -> None:
    """Megatron's parser unrolls groups first, then single letters."""
    assert layout_layers(text) == layers


def test_a_layout_comes_back() -> None:
    """What is written is what is read."""
    assert layout_layers(layout((3, 4, 4, 2))) == [3, 4, 4, 2]


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("[0]*3+[1]*2", [0, 0, 0, 1, 1]),
        ("([1]*2+[0]*1)*2", [1, 1, 0, 1, 1, 0]),
        ("([0]+[1]*2)", [0, 1, 1]),
        ("[1,0,1]", [1, 0, 1]),
        ("__import__('os')", None),
        ("([1]*9999)*9999", None),
    ],
)
def test_patterns_of_layers_are_read_not_run(text: str, flags: list[int] | None) -> None:
    """Megatron evaluates them as Python, which nothing here does."""
    assert expanded(text) == flags


def test_a_backend_of_another_library_has_its_model(tmp_path: Path) -> None:
    """A flavor sets sizes of its own, whatever the named model has."""
    toml = (
        '[model]\nname = "transformers_modeling_backend"\nflavor = "debugmodel"\n'
        '[hf_transformers]\nmodel = "Qwen/Qwen3-4B-Instruct-2507"\n'
    )
    found = import_recipe(written(tmp_path, "a.toml", toml), "torchtitan")

    block = found.job["model"]["transformer"]
    assert (block["layers"], block["hidden"], block["ffn"]) == (2, 256, 768)


def test_a_command_of_torchtitan_is_read_with_what_its_function_sets(tmp_path: Path) -> None:
    """Releases since 0.3 read no TOML; flags override a function, as they override a TOML."""
    path = tmp_path / "run.sh"
    start = "torchrun --nproc_per_node=8 -m torchtitan.train "
    flags = "--training.seq-len 4096 --compile.no-enable-async-tensor-parallel"
    commands = {
        "new": f"--module llama3 --config llama3_405b {flags} activation-checkpoint:none",
        "old": f"--job.config_file conf/a.toml {flags} --parallelism.tensor_parallel_degree 8",
        "other": "--module my.models --config llama3_405b_mine",
    }
    toml = '[model]\nname = "llama3"\nflavor = "405B"\n[training]\nlocal_batch_size = 2\n'
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "a.toml").write_text(f'{toml}[activation_checkpoint]\nmode = "none"\n')
    found = {}
    for name, words in commands.items():
        path.write_text(f"{start}{words}\n")
        try:
            job = import_recipe(path, "torchtitan", node="dgx-h100", nodes=16).job
        except JobError as error:
            said = str(error)
        else:
            strategy = {key: job["strategy"].get(key) for key in ("dp", "tp", "recompute")}
            traits = job.get("traits") or {"released": job["released"]}
            found[name] = (strategy, dict(job["data"]), job["precision"], traits)

    same = {"dp": 16, "tp": 8, "recompute": "none"}, {"sequence_length": 4096, "global_batch": 32}
    later = {"row_scales": True, "attention_kernels": "ampere", "fused_loss": True}
    assert found == {
        "new": (*same, "fp8", {**later, "cuda_graphs": "full"}),
        "old": (*same, "bf16", {"released": "2026-08"}),
    }
    assert "found llama3_405b_mine of models, which is a program in Python and is not run" in said
    assert "did you mean 'llama3_405b'?" in said


def test_flavors_of_earlier_releases_are_models_of_the_catalog(tmp_path: Path) -> None:
    """Torchtitan had other models in its registry, such as Llama 2."""
    text = TOML.format(parallelism="").replace("llama3", "llama2").replace("8192", "4096")
    path = written(tmp_path, "a.toml", text.replace('"8B"', '"13B"'))
    assert import_recipe(path, "torchtitan", nodes=1).job["model"] == "llama-2-13b"


def test_models_of_other_kinds_are_named_as_such(tmp_path: Path) -> None:
    """A user reads why, and what to do."""
    path = written(tmp_path, "a.toml", '[model]\nname = "flux"\nflavor = "flux-dev"\n')

    with pytest.raises(JobError, match="found flux, a diffusion model of images, which is not mod"):
        import_recipe(path, "torchtitan")


def test_a_flag_of_very_many_values_is_read_at_once() -> None:
    """A file of 400 kB took minutes."""
    values = [str(number) for number in range(100_000)]
    assert shell_flags("--stages " + " ".join(values)) == {"stages": values}
