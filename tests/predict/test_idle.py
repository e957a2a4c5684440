"""A key reported to have no effect has none: the same prediction with and without it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from wattree.capture import load_model
from wattree.errors import JobError
from wattree.hardware import Cluster, Precision, load_fabric, load_node, load_site
from wattree.job import job_from_mapping
from wattree.lowering.idle import idle_choices, idle_precision
from wattree.lowering.model import model_of
from wattree.predict import estimate, simulate

TREE = {"": {"compute": {"batch": "dp"}}}


def figures(strategy: Any, **cluster: Any) -> tuple[float, ...]:
    """Return the prediction of a small job."""
    job = {
        "model": "gpt2",
        "data": {"sequence_length": 256, "global_batch": 16},
        "cluster": {"node": "dgx-h100", **cluster},
        "strategy": strategy,
    }
    result = simulate(job_from_mapping(job)).result
    return result.step_time_s, result.energy_j.total, result.memory.peak_bytes


@pytest.mark.parametrize(
    ("said", "plain"),
    [
        ({"sequence_parallel": True}, {}),
        ({"expert_over_tensor": False}, {}),
        ({"sharding": "zero3", "tp": 4, "pp": 2}, {"tp": 4, "pp": 2}),
        ({"schedule": "breadth-first", "pp": 2}, {"schedule": "gpipe", "pp": 2}),
        ({"stage_layers": [12]}, {}),
        ({"pp": 4, "dp": 1, "overlap_gradients": False}, {"pp": 4, "dp": 1}),
        ({"overlap_parameters": False}, {"overlap_parameters": True}),
        ({"overlap_tensor": False}, {"overlap_tensor": True}),
        ({"ep": 2}, {}),
    ],
)
def test_of_the_strategy(said: dict[str, Any], plain: dict[str, Any]) -> None:
    """To the last bit."""
    devices = {"node": "dgx-h100"} if plain.get("pp") != 4 else {"node": "4x-v100-sxm2-32gb"}

    assert figures(said, **devices) == pytest.approx(figures(plain, **devices), rel=1e-12)


def test_interleaving_one_chunk_gains_nothing() -> None:
    """It takes as long as 1F1B, and stores more micro-batches."""
    interleaved, plain = (figures({"schedule": n, "pp": 2}) for n in ("interleaved", "1f1b"))

    assert interleaved[0] == pytest.approx(plain[0], rel=1e-12)
    assert interleaved[2] >= plain[2]


@pytest.mark.parametrize(
    ("said", "plain"),
    [
        ({"bucket": "1 KiB", "mesh": {"pp": 8}, "tree": {}}, {"mesh": {"pp": 8}, "tree": {}}),
        (
            {"mesh": {"dp": 8}, "tree": {"": {**TREE[""], "memory": {"recompute_share": 0.5}}}},
            {"mesh": {"dp": 8}, "tree": TREE},
        ),
    ],
)
def test_of_a_tree(said: dict[str, Any], plain: dict[str, Any]) -> None:
    """To the last bit."""
    assert figures(said) == pytest.approx(figures(plain), rel=1e-12)


def test_a_format_below_the_rate_of_a_wider_one_is_warned_of() -> None:
    """A slip in a file of a device, such as TFLOP for PFLOP."""
    node = load_node("dgx-h100")
    rates = {**node.device.peak_flop_per_s, Precision.BF16: 1e12}
    slow = replace(node, device=replace(node.device, peak_flop_per_s=rates))
    fabric, site = load_fabric("infiniband-ndr-fat-tree"), load_site("sweden")
    clusters = [Cluster(node=each, fabric=fabric, site=site) for each in (slow, node)]
    model = load_model("gpt2")
    found = [idle_precision(Precision.BF16, model, cluster) for cluster in clusters]

    assert [len(warnings) for warnings in found] == [1, 0]
    assert found[0][0].startswith("precision: bf16 is slower than tf32 by the matrix_peak of")


@pytest.mark.parametrize(("ep", "outcomes"), [(8, 1), (16, 2)])
def test_a_dispatcher_of_tokens_matters_between_nodes_alone(ep: int, outcomes: int) -> None:
    """And where it is reported to have no effect, both are predicted alike."""
    shape = {"layers": 2, "hidden": 1024, "heads": 16, "ffn": 512, "vocab": 32000}
    times, warned = set(), []
    for name in ("alltoall", "deepep"):
        job = job_from_mapping(
            {
                "model": {"transformer": {**shape, "experts": 16, "top_k": 4}},
                "data": {"sequence_length": 1024, "global_batch": 64},
                "cluster": {"node": "dgx-h100", "nodes": 2},
                "strategy": {"ep": ep},
                "traits": {"moe_dispatch": name},
            }
        )
        times.add(estimate(job).step_time_s)
        warned += [line for line in idle_choices(job, model_of(job)) if "moe_dispatch" in line]

    assert (len(times), len(warned)) == (outcomes, 2 if outcomes == 1 else 0)


@pytest.mark.parametrize(
    "section", [{"power_limit": "900 W"}, {"slow_links": {"3": 9}}, {"fabric": "ethernet-10g"}]
)
def test_of_the_cluster(section: dict[str, Any]) -> None:
    """To the last bit."""
    assert figures("zero3", **section) == pytest.approx(figures("zero3"), rel=1e-12)


def test_a_slower_fabric_slows_the_step() -> None:
    """The adapters are limited to its ports; this is reported, and used."""
    fast, slow = (figures("ddp", nodes=2, fabric=name)[0] for name in ("efa", "ethernet-10g"))

    assert slow > 1.5 * fast


@pytest.mark.parametrize(
    ("model", "changes", "warned"),
    [
        ("vit-b-16", {"strategy": {"preset": "spatial", "cp": 2}}, "strategy.cp: 2 splits rows"),
        ("resnet18", {"precision": "fp8"}, "precision: fp8 is for linear layers, 0.0 %"),
        ("resnet18", {"precision": "bf16"}, ""),
        *(
            (
                "vit-b-16",
                {"traits": {"attention_kernels": "flash4"}, "cluster": {"node": node}},
                text,
            )
            for node, text in (
                ("dgx-a100", "traits.attention_kernels: flash4 has no kernels for a100-sxm-80gb"),
                ("dgx-h100", ""),
            )
        ),
        ("vit-b-16", {"precision": "fp8"}, ""),
        ("vit-b-16", {"strategy": {"preset": "tensor", "tp": 2}}, ""),
        (
            "resnet18",
            {"data": {"global_batch": 64, "sequence_length": 8}},
            "data.sequence_length: has no effect: inputs of resnet-18",
        ),
    ],
)
def test_what_images_have_no_use_for_is_told(
    model: str, changes: dict[str, Any], warned: str
) -> None:
    """And a length that samples do not have makes no tokens of them."""
    job = {
        "model": model,
        "data": {"global_batch": 64},
        "cluster": {"node": "dgx-h100"},
        "strategy": "ddp",
    }
    found = simulate(job_from_mapping(job | changes))

    assert [text.startswith(warned) for text in found.warnings] == ([True] if warned else [])
    assert found.result.tokens_per_s is None


@pytest.mark.parametrize(
    "changes",
    [
        {"traits": {"channels_last": True}},
        {"traits": {"channels_first": "1d"}},
        {"traits": {"tuned_convolutions": False}},
        {"traits": {"moe_dropless": False}},
        {"traits": {"moe_fused_experts": True}},
        {"collectives": "rail"},
        {"collectives": {"all_reduce": "sharp"}},
    ],
)
def test_what_only_other_models_and_strategies_have_is_told(changes: dict[str, Any]) -> None:
    """A language model without experts, on replicas of one node."""
    job = {
        "model": "gpt2",
        "data": {"global_batch": 64, "sequence_length": 128},
        "cluster": {"node": "dgx-a100"},
        "strategy": "ddp",
    }
    said = job_from_mapping(job | changes)
    found, plain = simulate(said), simulate(job_from_mapping(job))

    assert found.result.step_time_s == pytest.approx(plain.result.step_time_s, rel=1e-4)
    assert sum("has no effect" in line for line in (*said.warnings, *found.warnings)) == 1


@pytest.mark.parametrize("trait", ["sparse_gradients", "full_table_state"])
@pytest.mark.parametrize(("model", "is_idle"), [("gpt2", False), ("resnet18", True)])
def test_traits_of_tables_concern_any_table_that_is_trained(
    trait: str, model: str, *, is_idle: bool
) -> None:
    """Those of tokens too; a step in PyTorch changes where no warning says that it does not."""
    job = {
        "model": model,
        "data": {"global_batch": 64} | ({} if is_idle else {"sequence_length": 1024}),
        "cluster": {"node": "dgx-a100"},
        "strategy": "ddp",
        "software": "pytorch",
        "optimizer": "adamw8bit",
    }
    found, plain = (
        simulate(job_from_mapping(each)) for each in (job | {"traits": {trait: True}}, job)
    )

    assert any("has no effect" in line for line in found.warnings) == is_idle
    assert (found.result == replace(plain.result, assumed=found.result.assumed)) == is_idle


@pytest.mark.parametrize(
    ("node", "precision", "other"),
    [
        ("8x-v100-pcie", "bf16", "fp16"),
        ("8x-v100-pcie", "fp16", ""),
        ("tpu-v5e-host", "fp16", "bf16"),
        ("dgx-h100", "fp16", ""),
        ("8x-m40", "fp32", ""),
    ],
)
def test_a_format_that_devices_do_not_compute_is_told(
    node: str, precision: str, other: str
) -> None:
    """The other one with 16 bits stands in for it."""
    job = {
        "model": "gpt2",
        "data": {"global_batch": 64, "sequence_length": 128},
        "cluster": {"node": node},
        "precision": precision,
        "strategy": "ddp",
    }
    found = [line for line in simulate(job_from_mapping(job)).warnings if "matrix units" in line]

    assert [line.partition("; ")[2] for line in found] == (
        [f"it is predicted as {other}, which the job should name"] if other else []
    )


@pytest.mark.parametrize(
    ("changes", "example"),
    [
        ({"model": "gpt2"}, ", or give one, such as 'strategy: ddp'"),
        ({"model": "llama-3.1-8b"}, ", or give one, such as 'strategy: fsdp'"),
        (
            {"model": "dlrm", "data": {"global_batch": 64}},
            ", or give one, such as 'strategy: dlrm'",
        ),
        ({"model": "llama-3.1-405b"}, ""),  # needs more devices than one node has
        ({"data": {"sequence_length": 64, "global_batch": 3}}, ""),
    ],
)
def test_a_missing_strategy_comes_with_an_example_that_fits(
    changes: dict[str, Any], example: str
) -> None:
    """It can be pasted as it stands."""
    job = {
        "model": "gpt2",
        "data": {"sequence_length": 64, "global_batch": 8},
        "cluster": {"node": "dgx-h100"},
    } | changes
    with pytest.raises(JobError) as caught:
        simulate(job_from_mapping(job))

    assert str(caught.value) == (
        f"job: strategy: found 'auto', expected a strategy to simulate; `plan` finds one{example}"
    )


@pytest.mark.parametrize(
    ("strategy", "warned"),
    [
        ({"preset": "ddp", "cp": 2}, "strategy.cp: 2 has no effect of its own"),
        ({"preset": "dlrm"}, "strategy.tables: 'auto' has no effect"),
        ({"preset": "tensor", "tp": 2}, "strategy.tp: 2 splits nothing"),
        ({"preset": "spatial", "cp": 2}, ""),
    ],
)
def test_images_have_neither_positions_nor_tables(strategy: dict[str, Any], warned: str) -> None:
    """Ranks that share nothing double the work without a word."""
    job = job_from_mapping(
        {
            "model": "resnet18",
            "data": {"global_batch": 64},
            "cluster": {"node": "dgx-a100"},
            "strategy": {**strategy, "micro_batch": 8},
        }
    )
    found = idle_choices(job, model_of(job))

    assert [text.startswith(warned) for text in found] == ([True] if warned else [])


def test_recomputation_of_few_layers_is_reported_with_its_share() -> None:
    """Most of RetinaNet is no layer; its memory hardly falls, and nothing else says why."""
    job = job_from_mapping(
        {
            "model": "retinanet-resnet50",
            "data": {"global_batch": 16},
            "cluster": {"node": "dgx-h100"},
            "strategy": {"recompute": "full"},
        }
    )

    assert idle_choices(job, model_of(job)) == (
        "strategy.recompute: full recomputes 24.7 % of the matmuls of retinanet-resnet50, those "
        "of its 12 layers; the rest is stored: modules that repeat in a list are layers",
    )
