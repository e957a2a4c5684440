"""What arguments of Megatron say of kernels: graphs, and how layers of experts run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wattree.frameworks import import_recipe
from wattree.frameworks.megatron_read import read_traits
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
