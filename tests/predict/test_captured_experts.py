"""A mixture of the transformers library takes as long captured as read, however it is spread."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.cost.counted_steps import counted
from wattree.graph import ModelGraph, OperatorKind
from wattree.job import job_from_mapping
from wattree.lowering.model import model_of
from wattree.predict import Prediction, simulate

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

#: A router after each way to choose: with renormalised weights, with a shared expert, with biases.
CONFIGS: dict[str, dict[str, Any]] = {
    "mixtral": {
        "model_type": "mixtral", "hidden_size": 1024, "num_hidden_layers": 2, "vocab_size": 8192,
        "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 2048,
        "num_local_experts": 8, "num_experts_per_tok": 2, "architectures": ["MixtralForCausalLM"],
    },
    "qwen2_moe": {
        "model_type": "qwen2_moe", "hidden_size": 1024, "num_hidden_layers": 2, "vocab_size": 8192,
        "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 2048,
        "moe_intermediate_size": 1024, "shared_expert_intermediate_size": 2048, "num_experts": 16,
        "num_experts_per_tok": 4, "architectures": ["Qwen2MoeForCausalLM"],
    },
    "gpt_oss": {
        "model_type": "gpt_oss", "hidden_size": 1024, "num_hidden_layers": 2, "vocab_size": 8192,
        "num_attention_heads": 16, "num_key_value_heads": 4, "intermediate_size": 1024,
        "num_local_experts": 16, "num_experts_per_tok": 4, "architectures": ["GptOssForCausalLM"],
    },
    "ernie4_5_moe": {
        "model_type": "ernie4_5_moe", "hidden_size": 1024, "num_hidden_layers": 4,
        "vocab_size": 8192, "num_attention_heads": 8, "num_key_value_heads": 4,
        "intermediate_size": 2048, "moe_intermediate_size": 1024, "moe_num_experts": 16, "moe_k": 4,
        "architectures": ["Ernie4_5_MoeForCausalLM"],
    },
}  # fmt: skip
SPREAD: tuple[dict[str, Any], ...] = (
    {"sharding": "zero3"},
    {"sharding": "zero1", "ep": 8},
    {"sharding": "zero1", "ep": 4, "pp": 2},
    {"sharding": "zero1", "tp": 2, "sequence_parallel": True, "expert_over_tensor": False},
)
#: Most that a step of one micro-batch of 2,048 tokens takes longer captured, whose host decides:
#: modules of the library launch 1 to 3 kernels more in each router than are read, and 14 to 39 in
#: each micro-batch for positions, masks and shifted labels.
LAUNCHED = 0.08
#: Micro-batches that the device decides, where that is compared.
FULL = {"micro_batch": 8}


@pytest.fixture(scope="module")
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one folder for all tests: of a file in one place, a graph is captured once."""
    return tmp_path_factory.mktemp("captured")


def predicted(config: dict[str, Any], folder: Path, *, capture: bool, **more: Any) -> Prediction:
    """Return what is predicted of a configuration on one node."""
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return simulate(job(path, capture=capture, **more))


def job(path: Path, *, capture: bool, **more: Any) -> Any:
    """Return its job."""
    return job_from_mapping(
        {
            "model": {"name": str(path), "capture": capture},
            "data": {"sequence_length": 2048, "global_batch": 64},
            "cluster": {"node": "dgx-h100"},
            "software": "megatron-core",
            **more,
        }
    )


@pytest.mark.parametrize("name", ["mixtral", "qwen2_moe"])
@pytest.mark.parametrize("strategy", SPREAD, ids=["sharded", "spread", "in stages", "split"])
def test_captured_experts_take_as_long_as_those_that_are_read(
    name: str, strategy: dict[str, Any], tmp_path: Path
) -> None:
    """And hold as much; neither sends what the other does not."""
    read, captured = (
        predicted(CONFIGS[name], tmp_path, capture=capture, strategy={**strategy, **FULL})
        for capture in (False, True)
    )

    assert captured.warnings == read.warnings == ()
    assert captured.result.step_time_s == pytest.approx(read.result.step_time_s, rel=0.04)
    memory = [each.result.memory.peak_bytes for each in (captured, read)]
    assert memory[0] == pytest.approx(memory[1], rel=0.05)


def test_captured_experts_are_launched_one_by_one_too(tmp_path: Path) -> None:
    """Of 64 small ones, the host decides how long a step takes: it launches those and more."""
    config = {**CONFIGS["qwen2_moe"], "hidden_size": 512, "moe_intermediate_size": 256}
    config |= {"shared_expert_intermediate_size": 256, "num_experts": 64}
    read, captured = (
        predicted(config, tmp_path, capture=capture, strategy={"sharding": "zero1"})
        for capture in (False, True)
    )

    assert 1.0 <= captured.result.step_time_s / read.result.step_time_s <= 1.0 + LAUNCHED


@pytest.mark.parametrize("name", CONFIGS)
def test_experts_of_the_library_are_found(name: str, tmp_path: Path) -> None:
    """With all their parameters, biases included, and one way in and one way out of each layer."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIGS[name]))
    read, captured = (model_of(job(path, capture=capture)) for capture in (False, True))

    assert held_by_experts(captured) == held_by_experts(read)
    ways = [o.function for o in operators(captured) if o.kind is OperatorKind.PERMUTE]
    assert ways == ["dispatch", "combine"]
    assert not any("sort" in o.path or "scatter" in o.path for o in operators(captured))


@pytest.mark.parametrize(
    ("name", "router"),
    [("mixtral", "MixtralTopKRouter"), ("qwen2_moe", "Qwen2MoeTopKRouter")],
)
def test_routers_launch_what_those_of_the_library_do(
    name: str, router: str, tmp_path: Path
) -> None:
    """Casts, sums and copies included, which a router that is read has none of."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIGS[name]))
    module = import_module(f"transformers.models.{name}.modeling_{name}")
    made = getattr(module, router)(transformers.AutoConfig.from_pretrained(path)).to(torch.bfloat16)
    hidden = torch.randn(4, 1024, dtype=torch.bfloat16)

    captured = [o for o in operators(model_of(job(path, capture=True))) if ".gate." in o.path]
    assert sum(o.kernels for o in captured) == counted(lambda: made(hidden))[2]


def test_one_expert_a_token_is_a_mixture_too(tmp_path: Path) -> None:
    """A dim of one choice is no dim of the recording."""
    config = {**CONFIGS["mixtral"], "num_experts_per_tok": 1}
    strategy = {"sharding": "zero1", "ep": 8, **FULL}
    read, captured = (
        predicted(config, tmp_path, capture=capture, strategy=strategy) for capture in (False, True)
    )

    assert captured.warnings == ()
    assert captured.result.step_time_s == pytest.approx(read.result.step_time_s, rel=0.04)


def operators(model: ModelGraph) -> list[Any]:
    """Return the operators of a layer in the middle."""
    return list(model.blocks[model.instances[len(model.instances) // 2].block].operators)


def held_by_experts(model: ModelGraph) -> int:
    """Return the parameters of a layer that are spread with the experts."""
    parameters = (p for o in operators(model) for p in o.parameters)
    return sum(p.elements for p in parameters if "expert" in p.dims)
