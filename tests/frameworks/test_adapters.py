"""Low-rank adapters in the Trainer's files, and the names that PEFT has for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from wattree.capture import catalog_entry, configuration_names
from wattree.capture.linear_layers import LIBRARY_MODULES
from wattree.errors import WattreeError
from wattree.files import read_yaml
from wattree.frameworks import Given, export_recipe, import_recipe, peft
from wattree.frameworks.concrete import concrete_job
from wattree.job import Job, job_from_mapping
from wattree.job.problems import Problems

TYPES = LIBRARY_MODULES


def job(
    name: str, *targets: str, framework: str = "hf-trainer", sharding: str = "none", **lora: str
) -> Job:
    """Return a job with adapters, on one device where it is not sharded."""
    return job_from_mapping(
        {
            "model": {"name": name, "lora": {"rank": 8, "targets": list(targets), **lora}},
            "data": {"sequence_length": 512, "global_batch": 8},
            "cluster": {"node": "workstation-rtx-4090" if sharding == "none" else "8x-rtx-3090"},
            "software": framework,
            "strategy": {"micro_batch": 1, "sharding": sharding, "recompute": "none"},
        }
    )


@pytest.mark.parametrize(
    ("name", "targets", "modules"),
    [
        ("llama-3.1-8b", ["attention.*"], ["q_proj", "k_proj", "v_proj", "o_proj"]),
        ("gpt2", ["mlp.down", "attention.qkv"], ["c_attn", "mlp.c_proj"]),
        ("pythia-1.4b", ["attention.out"], ["attention.dense"]),
        ("mixtral-8x7b", ["attention.qkv"], ["q_proj", "k_proj", "v_proj"]),
        ("mixtral-8x7b", ["all-linear"], ["q_proj", "k_proj", "v_proj", "o_proj"]),
    ],
)
def test_adapters_come_back(
    tmp_path: Path, name: str, targets: list[str], modules: list[str]
) -> None:
    """By the names of the model's own modules."""
    asked = job(name, *targets)
    export_recipe(asked, "hf-trainer", tmp_path / "out")
    written = read_yaml(tmp_path / "out" / "trainer.yaml")
    found = import_recipe(
        tmp_path / "out" / "trainer.yaml", "hf-trainer", node="workstation-rtx-4090"
    )
    back = job_from_mapping(found.job, "imported").model

    assert written["lora_target_modules"] == modules
    assert back.lora is not None
    assert (back.name, back.lora.rank) == (name, 8)
    assert peft.adapted_modules(concrete_job(asked)) == peft.adapted_modules(
        concrete_job(job(name, *back.lora.targets))
    )


def test_adapters_of_a_captured_model_come_back(tmp_path: Path) -> None:
    """Of all linear layers as PEFT says it, of others by the names of the model's modules."""
    pytest.importorskip("transformers")
    config = tmp_path / "config.json"
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 64}
    sizes |= {"num_key_value_heads": 2, "intermediate_size": 64}
    kind = {"model_type": "cwm", "architectures": ["CwmForCausalLM"]}
    config.write_text(json.dumps({**kind, **sizes}), encoding="utf-8")
    written = {}
    for targets in (("all-linear",), ("self_attn.q_proj", "self_attn.o_proj", "mlp.down_proj")):
        asked = job(str(config), *targets)
        export_recipe(asked, "hf-trainer", tmp_path / targets[0])
        written[targets[0]] = read_yaml(tmp_path / targets[0] / "trainer.yaml")

    found = import_recipe(
        tmp_path / "all-linear" / "trainer.yaml", "hf-trainer", node="workstation-rtx-4090"
    )
    assert written["all-linear"]["lora_target_modules"] == "all-linear"
    assert list(found.job["model"]["lora"]["targets"]) == ["all-linear"]
    assert {"o_proj", "down_proj"} < set(written["self_attn.q_proj"]["lora_target_modules"])


@pytest.mark.parametrize("base", ["nf4", "nf4-double", "int8"])
def test_linear_layers_of_fewer_bits_come_back(tmp_path: Path, base: str) -> None:
    """As TRL names them; without adapters they are refused."""
    export_recipe(job("llama-3.1-8b", "attention.*", base=base), "hf-trainer", tmp_path / "out")
    path = tmp_path / "out" / "trainer.yaml"
    found = import_recipe(path, "hf-trainer", node="workstation-rtx-4090")

    assert found.job["model"]["lora"]["base"] == base
    bits = 8 if base == "int8" else 4
    path.write_text(f"{{block_size: 64, load_in_{bits}bit: true}}")
    with pytest.raises(WattreeError, match=f"{bits} bits cannot be trained"):
        import_recipe(path, "hf-trainer", node="dgx-h100", nodes=1, given=Given(model="gpt2"))


@pytest.mark.parametrize("framework", ["accelerate", "hf-trainer"])
def test_weights_that_adapters_are_added_to_are_loaded(tmp_path: Path, framework: str) -> None:
    """Frozen weights come from a checkpoint; all that is trained may start at random."""
    done = export_recipe(job("gpt2", "mlp.*", framework=framework), framework, tmp_path / "tuned")
    script = (tmp_path / "tuned" / "train.py").read_text()
    assert any("Weights next to `config.json`" in each for each in done.fill_in)
    assert (
        "not loaded and not arguments.use_peft" in script
        or 'loaded or JOB.get("use_peft")' in script
    )

    whole = job_from_mapping(
        {
            "model": "gpt2",
            "data": {"sequence_length": 512, "global_batch": 8},
            "cluster": {"node": "workstation-rtx-4090"},
            "software": framework,
            "strategy": {"micro_batch": 1},
        }
    )
    done = export_recipe(whole, framework, tmp_path / "trained")
    assert any("Weights start at random" in each for each in done.fill_in)


@pytest.mark.parametrize(
    ("asked", "framework", "words"),
    [
        (job("llama-3.1-8b", "layers.0.attention.qkv"), "hf-trainer", "in some layers"),
        (job("mixtral-8x7b", "moe.experts.up"), "hf-trainer", "which have no module here"),
        (job("deepseek-v2-lite", "attention.out"), "hf-trainer", "no known names"),
        (
            job("gpt2", "mlp.*", framework="deepspeed"),
            "deepspeed",
            "adapters are exported to accelerate, hf-trainer",
        ),
        (
            job("llama-3.1-8b", "all-linear", sharding="zero3", base="int8"),
            "hf-trainer",
            "no type that zero3 can shard",
        ),
    ],
)
def test_what_peft_cannot_have_is_refused(
    tmp_path: Path, asked: Job, framework: str, words: str
) -> None:
    """Nothing is written."""
    with pytest.raises(WattreeError, match=words):
        export_recipe(asked, framework, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("base", [{}, {"base": "int8"}, {"base": "nf4-double"}])
@pytest.mark.parametrize(
    "targets", [("all-linear",), ("attention.qkv", "mlp.down"), ("q_proj", "v_proj")]
)
def test_adapters_are_flags_of_accelerates_script(
    tmp_path: Path, targets: tuple[str, ...], base: dict[str, str]
) -> None:
    """The command that is written has all of them, and comes back."""
    asked = job("llama-3.1-8b", *targets, framework="accelerate", **base)
    export_recipe(asked, "accelerate", tmp_path / "out")
    found = import_recipe(tmp_path / "out" / "launch.sh", "accelerate", node="workstation-rtx-4090")
    back = job_from_mapping(found.job, "imported")
    lora, wanted = back.model.lora, asked.model.lora

    assert lora is not None
    assert wanted is not None
    assert (back.model.name, lora.rank, lora.base) == (asked.model.name, wanted.rank, wanted.base)
    assert peft.adapted_modules(concrete_job(back)) == peft.adapted_modules(concrete_job(asked))
    assert not any("lora" in each for each in found.assumed)

    launch = tmp_path / "out" / "launch.sh"
    flags = launch.read_text(encoding="utf-8").partition("--lora_target_modules ")
    listed, _, rest = flags[2].partition(" ")
    launch.write_text(f"{flags[0]}{flags[1]}{listed.replace(',', ' ')} {rest}", encoding="utf-8")
    again = import_recipe(launch, "accelerate", node="workstation-rtx-4090")
    assert job_from_mapping(again.job, "imported").model.lora == lora


@pytest.mark.parametrize(
    ("named", "operators"),
    [
        (None, ["q_proj", "v_proj"]),
        ("all-linear", ["all-linear"]),
        (["q_proj", "k_proj", "v_proj"], ["attention.qkv"]),
        (["model.layers.self_attn.o_proj"], ["attention.out"]),
        (["attn.c_proj"], ["attention.out"]),
        (["c_proj"], ["attention.out", "mlp.down"]),
        (["q_proj", "gate_proj"], ["q_proj", "gate_proj"]),
        (["all-linear"], ["all-linear"]),
        (["layers.0.v_proj"], ["v_proj"]),
        (["up_proj"], ["up_proj"]),  # all of `mlp.up` where there is no gate
        (["gate_proj", "up_proj"], ["mlp.up"]),
    ],
)
def test_names_of_modules_are_operators(named: Any, operators: list[str]) -> None:
    """Of any model type; modules that share an operator with others keep their names."""
    problems = Problems("trainer.yaml")
    found = peft.adapted_operators(named, "llama-3.1-8b", problems)

    assert (problems.lines, found) == ([], operators)


@pytest.mark.parametrize(
    ("modules", "words"),
    [
        ("[q_prj]", "found 'q_prj'.*did you mean 'q_proj'"),
        ("[]", "found none, expected at least"),
        ("[all-linear, v_proj]", "expected it alone"),
    ],
)
def test_names_of_no_module_are_refused(tmp_path: Path, modules: str, words: str) -> None:
    """With the nearest one."""
    path = tmp_path / "trainer.yaml"
    path.write_text(f"{{block_size: 64, use_peft: true, lora_target_modules: {modules}}}")
    with pytest.raises(WattreeError, match=words):
        import_recipe(path, "hf-trainer", node="dgx-h100", nodes=1, given=Given(model="gpt2"))


def test_adapters_are_those_of_the_model_that_is_given(tmp_path: Path) -> None:
    """Recipes often leave the model to their reader; without one there is nothing to adapt."""
    path = tmp_path / "trainer.yaml"
    path.write_text("{block_size: 64, use_peft: true, lora_r: 4, lora_dropout: 0.1}")
    found = import_recipe(path, "hf-trainer", node="dgx-h100", nodes=1, given=Given(model="gpt2"))

    assert found.job["model"] == {"name": "gpt2", "lora": {"rank": 4, "targets": ["attention.qkv"]}}
    assert any("lora_dropout" in line for line in found.assumed)
    with pytest.raises(WattreeError, match="no model to adapt"):
        import_recipe(path, "hf-trainer", node="dgx-h100", nodes=1)


def test_models_of_the_library_have_these_modules() -> None:
    """Each name is that of a module with weights in every layer of a model of that type."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    configs = {}
    for name in configuration_names():
        config = dict(catalog_entry(name).config or {})
        configs[config.get("model_type")] = config
    wrong = []
    for kind, operators in TYPES.items():
        config = transformers.AutoConfig.for_model(**configs[kind])
        config.num_hidden_layers = 2
        for kinds in ("layer_types", "attention_layers"):  # of each layer
            if getattr(config, kinds, None):
                setattr(config, kinds, getattr(config, kinds)[:2])
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config)
        names = [name for name, module in model.named_modules() if hasattr(module, "weight")]
        for module in (each for modules in operators.values() for each in modules):
            times = sum(f".{name}".endswith(f".{module}") for name in names)
            wrong += [(kind, module, times)] if times != 2 else []

    assert wrong == []


def test_configurations_of_axolotl_are_read_by_its_names_and_defaults(tmp_path: Path) -> None:
    """They were refused; a section that no one knows was dropped without a word."""
    path = tmp_path / "a.yaml"
    text = "base_model: Qwen/Qwen3-0.6B\nsequence_len: 2048\nmicro_batch_size: 4\n"
    engines = {
        "fsdp: [full_shard, auto_wrap]\nfsdp_config: {fsdp_sharding_strategy: SHARD_GRAD_OP}\n": (
            {"sharding": "zero3", "reshard_after_forward": False},
            {"shard_copies": "gradients"},
        ),
        "fsdp_version: 2\nfsdp_config: {offload_params: true, reshard_after_forward: true}\n": (
            {"sharding": "zero3", "offload": {"optimizer": "host", "parameters": "host"}},
            {},
        ),
        "dp_shard_size: 4\ntensor_parallel_size: 2\nfsdp_version: 2\n"
        "fsdp_config: {final_state_dict_type: FULL_STATE_DICT}\n": (
            {"sharding": "zero3", "tp": 2},
            {},
        ),
        "liger_rms_norm: true\nqat: {weight_dtype: int4}\n": (
            {"sharding": "none"},
            {"written_out": False, "parameter_bytes": 2.0},
        ),
    }
    found = {}
    for engine, keys in engines.items():
        path.write_text(f"{text}{engine}", encoding="utf-8")
        recipe = import_recipe(path, "hf-trainer", node="dgx-h100", nodes=1)
        strategy, traits = recipe.job["strategy"], recipe.job.get("traits", {})
        found[engine] = tuple(
            {key: whole.get(key) for key in own}
            for whole, own in zip((strategy, traits), keys, strict=True)
        )
        assert strategy["micro_batch"] == 4
        assert "fused_loss" not in traits
    assert found == engines
    assert recipe.not_understood == ("qat.weight_dtype",)


@pytest.mark.parametrize(
    ("pattern", "targets"),
    [
        (r"model.layers.[\d]+.(mlp|self_attn).(up|down|gate|q|k|v|o)_proj", "all four"),
        (r"model.language_model.layers.\d+.self_attn.(q|k|v)_proj", ["attention.qkv"]),
    ],
)
def test_a_pattern_names_the_modules_that_it_has_whole(
    pattern: str, targets: object, tmp_path: Path
) -> None:
    """As PEFT reads a text (`check_target_module_exists`); it was the name of no layer."""
    path = tmp_path / "a.yaml"
    path.write_text(
        f"base_model: Qwen/Qwen3-0.6B\nsequence_len: 64\nadapter: lora\nlora_r: 4\n"
        f"lora_target_modules: '{pattern}'\n",
        encoding="utf-8",
    )
    lora = import_recipe(path, "hf-trainer", node="dgx-h100", nodes=1).job["model"]["lora"]
    every = ["attention.out", "attention.qkv", "mlp.down", "mlp.up"]
    assert sorted(lora["targets"]) == (every if targets == "all four" else targets)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("bf16: false\n", {"precision": "fp32", "parameter_bytes": None}),
        ("bf16: auto\nbfloat16: false\n", {"precision": "bf16", "parameter_bytes": 2.0}),
        (
            "liger_fused_linear_cross_entropy: true\ncut_cross_entropy: false\n",
            {"fused_loss": True},
        ),
        ("context_parallel_size: 2\nsequence_parallel_degree: 1\n", {"cp": 2}),
    ],
)
def test_of_names_for_one_setting_one_that_is_off_undoes_no_other(
    text: str, found: dict[str, object], tmp_path: Path
) -> None:
    """The last name counted, and a model without bf16 was loaded in 16 bits."""
    path = tmp_path / "a.yaml"
    path.write_text(f"base_model: gpt2\nsequence_len: 1024\n{text}", encoding="utf-8")
    job = import_recipe(path, "hf-trainer", node="dgx-h100", nodes=1).job
    read = {"precision": job["precision"], **job["strategy"], **job.get("traits", {})}
    assert {key: read.get(key) for key in found} == found


def test_a_section_that_is_a_file_is_no_reason_to_stop(tmp_path: Path) -> None:
    """Its defaults were put into a text."""
    text = "base_model: gpt2\nsequence_len: 1024\nfsdp: [full_shard]\nfsdp_config: a.json\n"
    (tmp_path / "a.json").write_text('{"fsdp_version": 2}', encoding="utf-8")
    path = tmp_path / "a.yaml"
    path.write_text(text, encoding="utf-8")
    found = import_recipe(path, "hf-trainer", node="dgx-h100")
    assert found.job["strategy"]["sharding"] == "zero3"
