"""Memory besides tensors of the model: what updates and frameworks add, and what processes load."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import wattree
from wattree.cost import SOFTWARE, load_calibration
from wattree.job import job_from_mapping
from wattree.lowering.optimizer_state import update_working_bytes
from wattree.lowering.storage import buffer_bytes

LAYERS, HIDDEN, FFN, HEADS, KV_HEADS, VOCAB = 4, 1024, 4096, 16, 4, 32768
MODEL: dict[str, Any] = {
    "layers": LAYERS,
    "hidden": HIDDEN,
    "ffn": FFN,
    "heads": HEADS,
    "kv_heads": KV_HEADS,
    "vocab": VOCAB,
    "gated": True,
}


def job(software: str, strategy: dict[str, Any], model: dict[str, Any] = MODEL, **more: Any) -> Any:
    """Return a job of a small model on one node."""
    return job_from_mapping(
        {
            "model": {"transformer": model},
            "data": {"sequence_length": 1024, "global_batch": 16},
            "cluster": {"node": "dgx-a100"},
            "software": software,
            "strategy": {"micro_batch": 1, "recompute": "none", **strategy},
            **more,
        }
    )


def memory(*args: Any, **more: Any) -> wattree.MemoryUse:
    """Return the memory of a step of such a job."""
    return wattree.simulate(job(*args, **more)).result.memory


def named(found: wattree.MemoryUse, name: str) -> float:
    """Return the bytes of the live tensors of a name, 0 without any."""
    return sum(each.bytes for each in found.live if each.name == name)


def most_live_bytes(step: Callable[[], object]) -> float:
    """Return the most bytes of results of PyTorch's operations that are live at once."""
    from torch import Tensor
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    levels = [0]

    def add(size: int) -> None:
        levels.append(levels[-1] + size)

    class Live(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            found = func(*args, **(kwargs or {}))
            for each in tree_leaves(found):
                if isinstance(each, Tensor) and not str(func.overloadpacket).endswith("_"):
                    add(each.nbytes)
                    weakref.finalize(each, add, -each.nbytes)
            return found

    with Live():
        step()
    return max(levels)


@pytest.mark.parametrize(
    ("whole", "parts", "expected"),
    [
        # The rank's own gradients take the bucket's memory; all parameters are gathered in that of
        # the fp32 gradients of the update, which are as many bytes.
        (0.8e9, 2, 0.8e9 - 0.4e9),
        # The bucket is full; two gathers of 0.65e9 values each need a tensor of their own.
        (2.6e9, 8, (1e9 - 2.6e9 / 8) + 1.3e9),
        # One gather of nearly two buckets.
        (1.8e9, 4, (1e9 - 1.8e9 / 4) + 1.8e9),
        # Nothing is sharded.
        (0.0, 1, 0.0),
    ],
)
def test_tensors_of_a_sharded_update_take_turns(whole: float, parts: int, expected: float) -> None:
    """DeepSpeed 0.5, runtime/zero/stage2.py: `reduce_gradients`, then `step`. [B]"""
    updated = np.array([whole / 2.0 / parts])

    found = buffer_bytes(np.array([whole]), updated, SOFTWARE["megatron-deepspeed"])

    assert found[0] == pytest.approx(expected)


def test_one_placeholder_for_each_shape_of_weights() -> None:
    """`get_dummy_wgrad` of Transformer Engine: 16 bits each, for all layers together."""
    found = memory("megatron-core", {"dp": 8})

    head_dim = HIDDEN // HEADS
    layer = HIDDEN * (HEADS + 2 * KV_HEADS) * head_dim + HIDDEN**2 + 3 * HIDDEN * FFN
    assert named(found, "placeholders of gradients") == 2.0 * (layer + VOCAB * HIDDEN)


def test_experts_share_a_placeholder() -> None:
    """Their weights have the same shape."""
    experts = {**MODEL, "experts": 8, "top_k": 2, "expert_ffn": 512}
    found, alone = (
        named(memory("megatron-core", {"dp": 8}, model), "placeholders of gradients")
        for model in (experts, {**MODEL, "ffn": 512})
    )

    router = 2.0 * HIDDEN * 8
    assert found == alone + router


def test_software_without_fused_gradients_has_no_placeholders() -> None:
    """Autograd gets the gradients themselves."""
    assert named(memory("torchtitan", {"fsdp": 8}), "placeholders of gradients") == 0.0


@pytest.mark.parametrize(
    ("software", "strategy"),
    [
        ("megatron-core", {"dp": 4, "pp": 2}),
        ("megatron-core", {"tp": 2, "pp": 4, "recompute": "full"}),
        ("megatron-deepspeed", {"dp": 2, "pp": 4, "sharding": "zero1"}),
        ("megatron-deepspeed", {"dp": 8, "sharding": "zero1"}),
        ("torchtitan", {"tp": 4, "fsdp": 2, "sharding": "zero3"}),
        ("pytorch", {"dp": 8}),
        ("pytorch", {"dp": 4, "pp": 2}),
        ("deepspeed", {"dp": 8, "sharding": "zero3"}),
    ],
)
def test_the_closed_form_counts_the_same(software: str, strategy: dict[str, Any]) -> None:
    """A search must not choose by another memory than the simulation's."""
    one = job(software, strategy)
    estimated = wattree.estimate(one).as_json()["memory"]["peak_bytes"]

    assert wattree.simulate(one).result.memory.peak_bytes == pytest.approx(estimated, rel=0.01)


@pytest.mark.parametrize("sharding", ["none", "zero1", "zero3"])
def test_an_update_of_lists_holds_a_value_per_parameter(sharding: str) -> None:
    """`exp_avg_sq_sqrt` of `_multi_tensor_adam`, besides two moments: a rank's share. [B]"""
    small = {"data": {"sequence_length": 8, "global_batch": 8}, "precision": "fp32"}
    strategy, deep = {"dp": 8, "sharding": sharding}, {**MODEL, "layers": 64, "vocab": 1024}
    fused, lists = (
        memory("pytorch", strategy, deep, **small, traits={"fused_optimizer": each})
        for each in (True, False)
    )

    state = lists.by_category["optimizer"] / fused.by_category["optimizer"]
    assert state == pytest.approx((2 + 1) / 2)


@pytest.mark.parametrize(
    ("software", "node", "ranks"), [("pytorch", "2x-xeon-8480c", 2), ("paddle", "dgx-h100", 8)]
)
def test_an_update_of_one_parameter_after_another_has_no_lists(
    software: str, node: str, ranks: int
) -> None:
    """PyTorch's on CPUs, and Paddle's."""
    small = {"data": {"sequence_length": 8, "global_batch": 8}, "cluster": {"node": node}}
    deep = {**MODEL, "layers": 64, "vocab": 1024}
    found = [
        memory(software, {"dp": ranks}, deep, **small, precision="fp32", traits=traits).peak_bytes
        for traits in ({}, {"fused_optimizer": True}, {"foreach": True})
    ]
    assert found[0] == found[1] < found[2]


@pytest.mark.parametrize("strategy", [{}, {"overlap_optimizer": True}])
def test_an_update_needs_it_only_while_nothing_else_does(strategy: dict[str, Any]) -> None:
    """Where activations are more, or few parameters are updated at a time, no peak moves."""
    fused, lists = (
        memory("pytorch", {"dp": 8, **strategy}, traits={"fused_optimizer": each})
        for each in (True, False)
    )

    assert lists.peak_bytes == fused.peak_bytes


@pytest.mark.parametrize("kind", ["Adagrad", "Adam", "AdamW", "RMSprop", "SGD"])
def test_pytorch_holds_what_its_updates_are_said_to_need(kind: str) -> None:
    """Most of the bytes that operations of an update return and that are live at once."""
    torch = pytest.importorskip("torch")
    weights = [torch.nn.Parameter(torch.ones(64, 64)) for _ in range(4)]
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer = getattr(torch.optim, kind)(weights, lr=0.1, foreach=True)
    optimizer.step()

    found = most_live_bytes(optimizer.step) / sum(weight.numel() for weight in weights)
    expected = update_working_bytes(kind.lower(), SOFTWARE["pytorch"])
    assert found == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
def test_zero_3_updates_some_parameters_at_a_time(sharding: str) -> None:
    """DeepSpeed's `sub_group_size`; other stages copy all of a rank's gradients at once."""
    strategy = {"dp": 8, "sharding": sharding}
    some, everything = (
        memory("deepspeed", strategy, traits=traits).by_category["optimizer"]
        for traits in ({"zero_group_elements": 1e6}, {})
    )

    updated = everything / (4.0 + 8.0 + 2.0 + 4.0)  # master, moments, two copies of gradients
    left = (2.0 + 4.0) * (updated - 1e6) * (sharding == "zero3")
    assert everything - some == pytest.approx(left)


def test_old_software_loads_all_kernels() -> None:
    """1,573 MiB on A100 before PyTorch 1.13 loaded kernels as they are called."""
    strategy = {"dp": 8}
    found, lazy = (
        memory("megatron-lm-2021", strategy, traits=traits).by_category["context"]
        for traits in ({}, {"loads_all_kernels": False})
    )

    assert found == pytest.approx(1573 * 2**20, rel=1e-4)
    assert lazy == load_calibration().constants["pooled.memory_context_bytes"].value


def test_a_split_vocabulary_takes_more_of_an_eager_loss() -> None:
    """`loss_parallel` of PyTorch: four fp32 tensors, against three of `cross_entropy`."""
    logits = 1024 * VOCAB
    whole, split = (
        named(memory("torchtitan", strategy, traits={"fused_loss": False}), "logits")
        for strategy in ({"fsdp": 8}, {"tp": 4, "fsdp": 2})
    )

    gradient = 2.0 * logits
    assert (whole - gradient, split - gradient / 4) == (12.0 * logits, 16.0 * logits / 4)


def test_what_is_made_again_for_backward_is_there_once() -> None:
    """Gate and up projection of a layer: tensors of recomputation, and not results besides."""
    live = memory("megatron-core", {"dp": 8, "recompute": "full"}, {**MODEL, "vocab": 1024}).live

    assert [each.kind for each in live if each.name == "mlp.up"] == ["saved"]


@pytest.mark.parametrize(("software", "bytes_"), [("hf-trainer", 8 - 2), ("accelerate", 0)])
@pytest.mark.parametrize("tied", [True, False])
def test_the_trainer_keeps_states_of_tables_in_32_bits(
    software: str, bytes_: int, *, tied: bool
) -> None:
    """It registers each `nn.Embedding` with `optim_bits: 32`; a head that shares one, too.

    These states are in fp32 beside weights in 16 bits as well, where other ones are not.
    """
    model = {**MODEL, "tied_embedding": tied}
    pure = {"parameter_bytes": 2, "gradient_bytes": 2, "master_bytes": 0}
    eight, narrow, whole = (
        memory(software, {"sharding": "none"}, model, **job).by_category["optimizer"]
        for job in (
            {"optimizer": "adamw8bit"},
            {"optimizer": "adamw8bit", "traits": pure},
            {"optimizer": "adamw"},
        )
    )
    expected = whole / 4 + bytes_ * VOCAB * HIDDEN
    assert (eight, narrow) == (pytest.approx(expected), pytest.approx(expected))


@pytest.mark.parametrize(("accumulated", "expected"), [(1, 0.0), (3, 4.0)])
def test_logits_of_the_micro_batch_before_wait_where_there_is_one(
    accumulated: int, expected: float
) -> None:
    """DeepSpeed's pipeline engine has two buffers, with one stage too; the allocator adds some."""
    job: dict[str, Any] = {
        "model": "gpt2",
        "data": {"sequence_length": 1024, "global_batch": 16 * accumulated},
        "precision": "fp16",
        "optimizer": "adamw",
        "cluster": {"node": "dgx-h100"},
        "software": "megatron-deepspeed",
        "strategy": {"dp": 8, "micro_batch": 2, "sharding": "zero1", "recompute": "full"},
    }
    peaks = [
        wattree.simulate(job_from_mapping({**job, "traits": traits})).result.memory.peak_bytes
        for traits in ({}, {"earlier_logit_bytes": 0.0})
    ]

    assert peaks[0] - peaks[1] == pytest.approx(expected * 2 * 1024 * 50257, rel=0.1)


def test_an_allocator_of_little_reserves_little() -> None:
    """No more than what it has in use, next to a workspace and a segment."""
    tiny = MODEL | {"layers": 1, "hidden": 16, "heads": 1, "kv_heads": 1, "ffn": 16, "vocab": 16}
    found = memory("pytorch", {"dp": 8}, tiny).by_category
    tensors = sum(found.values()) - sum(found[key] for key in ("allocator", "context"))

    assert found["allocator"] < 1.1 * tensors + 64 * 2**20
    assert memory("pytorch", {"dp": 8}).by_category["allocator"] > 600e6
