"""What arguments of Megatron say of kernels: graphs, and how layers of experts run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wattree.frameworks import import_recipe
from wattree.frameworks.megatron_read_traits import read_traits
from wattree.frameworks.settings import Settings
from wattree.job.written import yaml_text

EXPERTS = {"recipe": "qwen3_30b_a3b_pretrain_config", "mixed_precision": "bf16_mixed"}


def traits(folder: Path, model: dict[str, Any], **more: object) -> dict[str, Any]:
    """Return the traits of a recipe with keys of its model."""
    path = folder / "recipe.yaml"
    model = {"expert_model_parallel_size": 8, **model}
    path.write_text(yaml_text({**EXPERTS, "model": model, **more}), encoding="utf-8")
    found = import_recipe(path, "megatron-bridge", node="dgx-h100", nodes=1)
    assert found.not_understood == ()
    return dict(found.job.get("traits", {}))


@pytest.mark.parametrize(
    ("model", "graphs"),
    [
        ({"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": ["attn"]}, "partial"),
        ({"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": "moe_router"}, "router"),
        ({"cuda_graph_impl": "local", "cuda_graph_scope": "full_iteration"}, "full"),
        ({"cuda_graph_impl": "local", "cuda_graph_scope": ["full_iteration"]}, "full"),
        ({"cuda_graph_impl": "full_iteration", "cuda_graph_scope": []}, "full"),
        ({"cuda_graph_impl": "none"}, None),
    ],
)
def test_graphs_are_of_layers_or_of_the_step(
    model: dict[str, Any], graphs: str | None, tmp_path: Path
) -> None:
    """Megatron-Core has had two ways of saying that the whole iteration is one graph."""
    assert traits(tmp_path, model).get("cuda_graphs") == graphs


def test_experts_are_dispatched_fused_and_hidden_as_arguments_say(tmp_path: Path) -> None:
    """Each argument that Megatron-Bridge's recipes of experts set is a trait."""
    model = {
        "moe_token_dispatcher_type": "flex",
        "moe_flex_dispatcher_backend": "hybridep",
        "use_transformer_engine_op_fuser": True,
        "moe_mlp_glu_interleave_size": 32,
        "moe_expert_capacity_factor": 1.0,
    }
    hidden = {"overlap_moe_expert_parallel_comm": True, "delay_wgrad_compute": True}

    assert traits(tmp_path, model, comm_overlap=hidden) == {
        "moe_dispatch": "hybridep",
        "moe_overlap": True,
        "moe_fused_experts": True,
        "moe_dropless": False,
    }


def test_no_option_means_what_the_family_does(tmp_path: Path) -> None:
    """Options that are off, or that another one would have to turn on, are no traits."""
    model = {
        "moe_flex_dispatcher_backend": "hybridep",
        "use_transformer_engine_op_fuser": True,
        "moe_expert_capacity_factor": -1.0,
    }

    assert traits(tmp_path, model) == {"moe_dispatch": "alltoall"}


def test_dispatchers_are_known_refused_or_assumed() -> None:
    """A dispatcher that no reader knows is no all-to-all."""
    stated: tuple[dict[str, str], ...] = (
        {"moe_token_dispatcher_type": "flux"},
        {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "nvshmem"},
        {"moe_token_dispatcher_type": "allgather"},
    )
    found = [Settings.of(each) for each in stated]
    read = [read_traits(each, has_experts=True)["moe_dispatch"] for each in found]

    assert [bool(each.problems) for each in found] == [True, True, False]
    assert read[2] == "alltoall"
    assert "allgather is predicted as an all-to-all" in found[2].notes[0]


def test_settings_of_training_that_no_step_depends_on_are_named(tmp_path: Path) -> None:
    """An export of the job would train otherwise without a word."""
    path = tmp_path / "flags.sh"
    path.write_text(
        "python pretrain_gpt.py --num-layers 2 --hidden-size 256 --num-attention-heads 4 "
        "--seq-length 512 --max-position-embeddings 512 --micro-batch-size 1 --bf16 --lr 1e-4 "
        "--vocab-size 1024 --num-experts 8 --moe-router-load-balancing-type aux_loss "
        "--moe-aux-loss-coeff 1e-2 --init-method-std 0.01 --rotary-base 500000 --log-interval 1\n"
    )
    found = import_recipe(path, "megatron-lm", node="dgx-h100", nodes=1)

    assert found.not_understood == ()
    assert (
        "left out, as no job states it: init_method_std, moe_aux_loss_coeff, "
        "moe_router_load_balancing_type, rotary_base" in found.assumed
    )


def imported(folder: Path, arguments: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the job of a script of Megatron-LM, and what was assumed."""
    path = folder / "flags.sh"
    path.write_text(
        "python pretrain_gpt.py --num-layers 2 --hidden-size 256 --num-attention-heads 4 "
        "--seq-length 512 --max-position-embeddings 512 --micro-batch-size 1 --bf16 "
        f"--tensor-model-parallel-size 2 --sequence-parallel --vocab-size 1024 {arguments}\n"
    )
    found = import_recipe(path, "megatron-lm", node="dgx-h100", nodes=1)
    assert found.not_understood == ()
    return dict(found.job), found.assumed


@pytest.mark.parametrize(
    ("arguments", "traits"),
    [
        ("", {}),
        ("--attention-backend auto", {}),
        ("--use-flash-attn", {}),  # which Transformer Engine does not read
        ("--attention-backend flash", {"attention_kernels": "ampere"}),
        ("--attention-backend flash --flash-attention-version 3", {"attention_kernels": "native"}),
        ("--attention-backend fused", {"attention_kernels": "native"}),
        ("--attention-backend unfused", {"fused_attention": False}),
        ("--transformer-impl local", {"fused_attention": False}),
        ("--grad-reduce-in-bf16", {"gradient_bytes": 2.0, "reduce_bytes": 2.0}),
    ],
)
def test_scripts_say_kernels_of_attention_and_widths_of_gradients(
    arguments: str, traits: dict[str, Any], tmp_path: Path
) -> None:
    """What no argument says is as Megatron-LM has it, not as recipes for it do."""
    job, _ = imported(tmp_path, arguments)

    assert job["software"] == "megatron-lm"
    assert job.get("traits", {}) == traits


def test_tensor_overlap_is_off_unless_a_script_turns_it_on(tmp_path: Path) -> None:
    """Recipes of Megatron-Bridge turn it on; Megatron-LM's default is off."""
    found = [imported(tmp_path, each)[0] for each in ("", "--tp-comm-overlap")]

    assert [each["strategy"].get("overlap_tensor", False) for each in found] == [False, True]


def test_slower_kernels_that_no_job_states_are_named(tmp_path: Path) -> None:
    """They would be predicted as fast as fused ones without a word."""
    _, assumed = imported(tmp_path, "--no-bias-swiglu-fusion --no-rope-fusion --num-experts 4")

    assert (
        "no_bias_swiglu_fusion, no_rope_fusion, experts without moe_grouped_gemm: predicted with "
        "the faster kernels" in assumed
    )
