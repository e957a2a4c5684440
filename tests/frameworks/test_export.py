"""What is written for torchtitan and Megatron, and what is refused."""

from __future__ import annotations

import ast
import itertools
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from wattree import simulate
from wattree.errors import JobError, WattreeError
from wattree.frameworks import FRAMEWORKS, export_recipe, import_recipe
from wattree.frameworks.concrete import concrete_job
from wattree.frameworks.export import recipe_files
from wattree.frameworks.toml_text import read_toml
from wattree.job import Job, job_from_mapping
from wattree.strategy import RECOMPUTATIONS, SHARDINGS

ULYSSES = {"dp": 4, "cp": 4, "context": "ulysses", "sharding": "zero3"}
OURS = ("megatron-bridge", "megatron-lm", "torchtitan")


def job(strategy: Any, **changes: Any) -> Job:
    """Return a job of 16 devices."""
    return job_from_mapping(
        {
            "model": "llama-3.1-8b",
            "data": {"sequence_length": 8192, "global_batch": 128},
            "cluster": {"node": "dgx-h100", "nodes": 2},
            "strategy": strategy,
            **changes,
        },
        "job.yaml",
    )


def test_a_strategy_to_be_planned_is_refused(tmp_path: Path) -> None:
    """The message names the command that finds one."""
    with pytest.raises(JobError, match=r"`wattree plan --out best.yaml` writes a job that has one"):
        export_recipe(job("auto"), "torchtitan", tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("torchtitan", ("strategy.sharding", "strategy.context", "strategy.prefetch", "optimizer")),
        ("megatron-lm", ("strategy.context", "strategy.prefetch", "optimizer", "compile")),
        ("megatron-bridge", ("strategy.context", "strategy.prefetch", "optimizer", "compile")),
    ],
)
def test_every_misfit_is_listed(tmp_path: Path, name: str, keys: tuple[str, ...]) -> None:
    """A user mends a job once, not once for each message."""
    strategy = {"dp": 8, "cp": 2, "sharding": "zero1", "prefetch": {"forward": 2, "backward": 2}}
    changes = {"optimizer": "lion", "compile": True, "precision": "fp16"}

    with pytest.raises(JobError) as caught:
        export_recipe(job(strategy, **changes), name, tmp_path / "run")

    assert [key for key in keys if f"{key}: " not in str(caught.value)] == []
    assert not (tmp_path / "run").exists()


def test_models_without_a_recipe_are_refused(tmp_path: Path) -> None:
    """Two know models by name, Megatron-LM by its arguments."""
    other = job(
        {"dp": 16, "sharding": "zero1"},
        model="falcon-7b",
        data={"sequence_length": 2048, "global_batch": 128},
    )
    messages = {}
    for name in OURS:
        with pytest.raises(JobError) as caught:
            export_recipe(other, name, tmp_path / name)
        messages[name] = str(caught.value)

    assert "expected a model of torchtitan's registry" in messages["torchtitan"]
    assert "expected a model that Megatron-Bridge has a recipe of" in messages["megatron-bridge"]
    assert "Megatron's GPT model has no parallel True" in messages["megatron-lm"]


@pytest.mark.parametrize("name", OURS)
def test_the_folder_starts_the_job(tmp_path: Path, name: str) -> None:
    """It holds what starts it and says what is left to do."""
    done = export_recipe(
        job(
            {
                "dp": 8,
                "tp": 2,
                "sharding": "none" if name == "megatron-lm" else "zero3",
                "sequence_parallel": True,
            }
        ),
        name,
        tmp_path / "run",
    )
    launch, readme = tmp_path / "run" / "launch.sh", (tmp_path / "run" / "README.md").read_text()

    assert sorted(path.name for path in launch.parent.iterdir()) == sorted(done.files)
    assert os.access(launch, os.X_OK)
    assert "torchrun --nnodes=2 --nproc_per_node=8" in launch.read_text()
    assert all(line in readme for line in (*done.fill_in, *done.assumed))
    assert FRAMEWORKS[name].versions in readme


@pytest.mark.parametrize("where", ["rope_theta", "rope_parameters"])
def test_the_base_of_rotary_positions_is_the_configuration_s(where: str, tmp_path: Path) -> None:
    """Megatron trains another model with its default, 10,000."""
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "vocab_size": 512, "max_position_embeddings": 8192}
    theta: Any = 5e5 if where == "rope_theta" else {"rope_theta": 5e5, "rope_type": "default"}
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **sizes, **heads}
    (tmp_path / "config.json").write_text(json.dumps({**config, where: theta}))
    found = job({"dp": 16, "sharding": "zero1"}, model=str(tmp_path / "config.json"))

    done = export_recipe(found, "megatron-lm", tmp_path / "run")
    assert "--rotary-base 500000" in (tmp_path / "run" / "launch.sh").read_text()
    assert not any("--rotary-base" in line for line in done.fill_in)


def test_axes_of_the_same_meaning_are_written_alike(tmp_path: Path) -> None:
    """Sharding over all replicas asks for no axis by name."""
    for name, degrees in (("a", {"dp": 16}), ("b", {"fsdp": 16}), ("c", {"dp": 2, "fsdp": 8})):
        export_recipe(job({**degrees, "sharding": "zero3"}), "torchtitan", tmp_path / name)

    found = [read_toml(tmp_path / name / "train.toml")["parallelism"] for name in "abc"]
    assert found[0]["data_parallel_shard_degree"] == 16
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("traits", [{}, {"row_scales": True}])
def test_scales_of_float8_come_back(traits: dict[str, bool], tmp_path: Path) -> None:
    """The recipe names them; scales by row take the time of two casts, and of slower kernels."""
    strategy = {"dp": 16, "sharding": "zero3", "recompute": "full"}
    made = job(strategy, precision="fp8", traits=traits)
    export_recipe(made, "torchtitan", tmp_path / "run")

    [file] = (tmp_path / "run").glob("*.toml")
    found = import_recipe(file, "torchtitan", node="dgx-h100", nodes=2).job

    assert found["precision"] == "fp8"
    assert found.get("traits", {}).get("row_scales", False) is traits.get("row_scales", False)
    plain = simulate(job(strategy, precision="fp8", compile=True)).result.step_time_s
    scaled = simulate(
        job(strategy, precision="fp8", compile=True, traits=traits)
    ).result.step_time_s
    assert scaled / plain == pytest.approx(1.12 if traits else 1.0, abs=0.03)


def test_other_software_than_that_of_the_plan_is_said(tmp_path: Path) -> None:
    """Its defaults differ, and so does what a step takes."""
    for planned, to, started in (
        ("megatron-core", "megatron-lm", "megatron-lm"),
        ("deepspeed", "hf-trainer", "hf-trainer with FSDP2"),
    ):
        own = job({"dp": 16, "sharding": "zero1" if started == to else "zero3"}, software=planned)
        notes = export_recipe(own, to, tmp_path / to).assumed
        said = f"the files start {started}, whose defaults are not those of {planned}"
        assert f"{said}: predict and plan again with software: {to}" in notes


@pytest.mark.parametrize(
    ("to", "sharding", "offload", "stage"),
    [
        ("deepspeed", "none", {"optimizer": "host"}, 2),
        ("deepspeed", "none", {"optimizer": "host", "parameters": "host"}, 3),
        ("hf-trainer", "zero3", {"optimizer": "host"}, 3),
        ("hf-trainer", "none", {"optimizer": "host"}, 2),
        ("accelerate", "zero1", {"optimizer": "host"}, 1),
    ],
)
def test_one_replica_offloads_in_a_stage_of_zero(
    tmp_path: Path, to: str, sharding: str, offload: dict[str, str], stage: int
) -> None:
    """DeepSpeed refuses to offload in none; there is no one to shard with, but its host updates."""
    strategy = {"sharding": sharding, "offload": offload, "micro_batch": 2}
    own = job(strategy, software=to, cluster={"node": "laptop-rtx-5090"}, model="llama-3.2-1b")
    export_recipe(own, to, tmp_path / "run")
    texts = "".join(each.read_text() for each in (tmp_path / "run").glob("*.json"))
    back = import_recipe(tmp_path / "run" / "launch.sh", to, nodes=1).job["strategy"]
    assert not any("has no effect" in line for line in own.warnings)
    assert f'"stage": {stage}' in texts
    assert (back["sharding"], back["offload"]) == (f"zero{stage}", offload)


def test_an_offload_without_a_stage_is_refused_in_words(tmp_path: Path) -> None:
    """As the file has it, not as Python would print it."""
    own = job({"dp": 16, "offload": {"optimizer": "host"}}, software="hf-trainer")
    with pytest.raises(
        JobError, match=r"strategy\.offload: found optimizer: host, which it has no"
    ):
        export_recipe(own, "hf-trainer", tmp_path / "run")


def test_a_release_that_is_predicted_and_not_started_is_said(tmp_path: Path) -> None:
    """The files are those of one version; what its job's release did otherwise is in no file."""
    strategy = {"dp": 16, "sharding": "zero3", "recompute": "full"}
    assumed = {
        month: export_recipe(
            job(strategy, software="torchtitan", released=month), "torchtitan", tmp_path / month
        ).assumed
        for month in ("2025-09", "2026-01", "2026-09")
    }

    said = "attention_kernels ampere, fused_loss false: torchtitan as released in 2025-09"
    released = FRAMEWORKS["torchtitan"].versions
    started = f"the files start {released}, not the release of 2025-09 that is predicted"
    readme = (tmp_path / "2025-09" / "README.md").read_text(encoding="utf-8")
    assert {said, started} <= set(assumed["2025-09"])
    assert said in readme
    assert started in readme
    assert "torchtitan as released in 2026-09: as the newest" in assumed["2026-09"]
    assert not any("the files start" in line for line in assumed["2026-01"] + assumed["2026-09"])
    files = [sorted(path.name for path in (tmp_path / month).iterdir()) for month in assumed]
    assert files[0] == files[1] == ["README.md", "launch.sh", "train.toml"]
    assert "wattree_config.py" in files[2]


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("node", ["dgx-h100", "8x-mi300x"])
def test_a_power_limit_is_set_or_left_to_the_user(name: str, node: str, tmp_path: Path) -> None:
    """A plan under a power cap holds only under it; devices otherwise start at their rated power.

    The script is run with a tool that reports the rated power first.
    """
    cluster = {"node": node, "nodes": 2, "power_limit": "420.7 W"}
    capped = job({"dp": 16, "sharding": "zero1"}, cluster=cluster, software="megatron-core")
    if name == "torchtitan":
        capped = job({"dp": 16, "sharding": "zero3"}, cluster=cluster, software="torchtitan")

    recipe = export_recipe(capped, name, tmp_path / "run")

    script = (tmp_path / "run" / "launch.sh").read_text(encoding="utf-8")
    assert any("Power limit of 420.7 W" in line for line in recipe.fill_in)
    if node != "dgx-h100":
        assert "nvidia-smi" not in script
        return
    lines = script.partition("-pl 420\n")
    asked = {}
    for limit in ("700.00", "420.00"):
        tool = f'nvidia-smi() {{ case "$*" in *-pl*) echo "$@" ;; *) echo {limit} ;; esac; }}\n'
        run = subprocess.run(
            ["bash", "-c", tool + lines[0] + lines[1]], capture_output=True, text=True, check=True
        )
        asked[limit] = run.stdout.strip()
    assert asked == {"700.00": "-i 0,1,2,3,4,5,6,7 -pl 420", "420.00": ""}


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("0-3, 8-11", ""),
        ("4-7, 12-15", "CUDA_VISIBLE_DEVICES=4,5,6,7"),
        ("0-3, 12-15", "found devices 0-3, 12-15"),
        ("4-7, 0-3", "found devices 4-7, 0-3"),
    ],
)
def test_ranks_are_started_where_they_are_placed(place: str, words: str, tmp_path: Path) -> None:
    """Four ranks on each of two nodes were started as eight on one."""
    cluster = {"node": "dgx-a100", "nodes": 2}
    placed = job({"dp": 8, "micro_batch": 1}, cluster=cluster, place={"devices": place})

    if words.startswith("found"):
        with pytest.raises(WattreeError, match=words):
            export_recipe(placed, "megatron-lm", tmp_path)
        return
    fill_in = " ".join(export_recipe(placed, "megatron-lm", tmp_path).fill_in)
    assert words in fill_in
    assert bool(words) == ("CUDA_VISIBLE_DEVICES" in fill_in)
    assert "--nnodes=2 --nproc_per_node=4" in (tmp_path / "launch.sh").read_text()


def test_uneven_stages_are_written_layer_by_layer(tmp_path: Path) -> None:
    """Both take the layers of each chunk, in words of their own."""
    cut = {"dp": 4, "pp": 4, "stage_layers": [7, 9, 9, 7], "sharding": "zero1"}
    export_recipe(job(cut), "megatron-lm", tmp_path / "lm")
    export_recipe(job({**cut, "sharding": "zero3"}), "torchtitan", tmp_path / "titan")

    parts = read_toml(tmp_path / "titan" / "train.toml")["parallelism"][
        "module_fqns_per_model_part"
    ]
    assert [sum(name.startswith("layers.") for name in part) for part in parts] == [7, 9, 9, 7]
    assert parts[0][0] == "tok_embeddings"
    assert parts[-1][-2:] == ["norm", "output"]
    launch = (tmp_path / "titan" / "launch.sh").read_text(encoding="utf-8")
    assert ",layers.31,norm,lm_head\n" in launch  # a name of 0.3
    script = (tmp_path / "lm" / "launch.sh").read_text()
    assert "--pipeline-model-parallel-layout 'Ettttttt|ttttttttt|ttttttttt|tttttttL'" in script


@pytest.mark.parametrize("name", OURS)
def test_whatever_is_asked_is_written_or_refused(name: str, *, soaking: bool) -> None:
    """A setting that a writer does not know is a message, never a defect."""
    optimizers = ("adamw", "lion", "adafactor", "sgd")
    cases = list(
        itertools.product(
            SHARDINGS, (*RECOMPUTATIONS, "block_3"), optimizers, ("bf16", "amp", "fp16")
        )
    )
    for sharding, recompute, optimizer, precision in (
        cases if soaking else random.Random(3).sample(cases, len(cases) // 4)
    ):
        asked = {"dp": 2, "fsdp": 8, "sharding": sharding, "recompute": recompute}
        try:
            concrete = concrete_job(job(asked, optimizer=optimizer, precision=precision))
            files, _ = recipe_files(FRAMEWORKS[name], concrete)
        except WattreeError:
            continue
        assert files["launch.sh"]


def functions_of(folder: Path, chosen: list[str], **names: Any) -> dict[str, Any]:
    """Return functions of an exported script, which see `names` in place of its libraries."""
    script = ast.parse((folder / "train.py").read_text())
    body = [each for each in script.body if getattr(each, "name", "") in chosen]
    exec(compile(ast.Module(body, []), "train.py", "exec"), names)
    return names


@pytest.mark.parametrize("framework", ["accelerate", "deepspeed", "hf-trainer"])
def test_samples_have_what_splits_sequences(tmp_path: Path, framework: str) -> None:
    """DeepSpeed's adapter of data wants positions, and shifts labels itself."""
    torch = pytest.importorskip("torch")
    export_recipe(job(ULYSSES, software=framework), framework, tmp_path / "run")
    names = functions_of(tmp_path / "run", ["samples"], torch=torch, JOB={"block_size": 8})
    extra = {"accelerate": (8, 2), "deepspeed": (8, 2, 0), "hf-trainer": (2,)}[framework]
    row = names["samples"](SimpleNamespace(vocab_size=100), *extra)[0]

    assert row["position_ids"].tolist() == list(range(8))
    assert row["labels"].equal(row["input_ids"])


def test_ranks_of_a_sequence_are_fed_parts_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ulysses takes what each rank is fed for its part, so a whole sequence would be four."""
    torch = pytest.importorskip("torch")
    export_recipe(job(ULYSSES, software="deepspeed"), "deepspeed", tmp_path / "run")
    known = {"torch": torch, "DataLoader": torch.utils.data.DataLoader, "SETTINGS": {}}
    batches = functions_of(tmp_path / "run", ["samples", "batches"], **known)["batches"]
    adapter = SimpleNamespace(UlyssesSPDataLoaderAdapter=lambda loader, **_: ("split", *loader))
    path = "deepspeed.runtime.sequence_parallel.ulysses_sp"
    monkeypatch.setitem(sys.modules, path, adapter)
    fed = []
    for rank, groups in ((0, MagicMock()), (1, MagicMock())):
        engine = MagicMock(global_rank=rank)
        engine.train_micro_batch_size_per_gpu.return_value = 1
        engine.gradient_accumulation_steps.return_value = 1
        arguments = SimpleNamespace(block_size=8, max_steps=1)
        fed.append(batches(SimpleNamespace(vocab_size=100), arguments, engine, groups))

    assert [each[0] for each in fed] == ["split", "split"]
    assert not fed[0][1]["input_ids"].equal(fed[1][1]["input_ids"])


@pytest.mark.parametrize("framework", ["accelerate", "deepspeed", "hf-trainer"])
def test_sizes_alone_load_no_weights(tmp_path: Path, framework: str) -> None:
    """The catalog's config.json has no base of rotary positions, which a checkpoint needs."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "exported"
    found = export_recipe(job({"dp": 16}, software=framework), framework, folder)
    assert any("holds sizes alone" in each for each in found.fill_in)
    names = functions_of(folder, ["configuration"], AutoConfig=transformers.AutoConfig)
    assert not hasattr(names["configuration"](folder), "sizes_only")

    (folder / "model.safetensors").touch()
    with pytest.raises(SystemExit, match=r"belongs to model\.safetensors"):
        names["configuration"](folder)


@pytest.mark.parametrize("to", ["hf-trainer", "accelerate"])
def test_classifiers_are_no_decoders(tmp_path: Path, to: str) -> None:
    """They are captured, and their file is good: it is the script that makes no such class."""
    pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    kind = {"model_type": "bert", "architectures": ["BertForSequenceClassification"]}
    config = {**kind, **sizes, "intermediate_size": 64, "vocab_size": 100}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    classifier = {
        "model": str(tmp_path / "config.json"),
        "data": {"sequence_length": 64, "global_batch": 8},
        "cluster": {"node": "dgx-h100"},
        "software": to,
        "strategy": {"dp": 8, "sharding": "none", "micro_batch": 1, "recompute": "none"},
    }

    with pytest.raises(WattreeError, match="expected a decoder that predicts the next token"):
        export_recipe(job_from_mapping(classifier), to, tmp_path / "out")
