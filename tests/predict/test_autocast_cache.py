"""Casts of weights stay in autocast's cache until the forward pass ends, recomputed or not."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

import wattree
from wattree.job import job_from_mapping

LAYERS, HIDDEN, FFN, VOCAB = 4, 1024, 4096, 1024
CASTS = 2 * LAYERS * (4 * HIDDEN**2 + 3 * HIDDEN * FFN) + 2 * VOCAB * HIDDEN


def memory(recompute: str, batch: int, **more: Any) -> tuple[wattree.MemoryUse, float]:
    """Return the memory of a step on one device, and its peak in closed form. [B]"""
    job = job_from_mapping(
        {
            "model": {
                "transformer": {
                    "layers": LAYERS,
                    "hidden": HIDDEN,
                    "ffn": FFN,
                    "vocab": VOCAB,
                    "heads": 8,
                    "kv_heads": 8,
                    "gated": True,
                }
            },
            "data": {"sequence_length": 64, "global_batch": batch},
            "cluster": {"node": "dgx-a100"},
            "place": {"devices": 0},
            "software": "hf-trainer",
            "strategy": {"micro_batch": 1, "recompute": recompute},
            **more,
        }
    )
    return wattree.simulate(job).result.memory, wattree.estimate(job).memory.peak_bytes


@pytest.mark.parametrize("recompute", ["none", "full", "block_2"])
def test_all_casts_exist_at_the_loss_of_a_later_micro_batch(recompute: str) -> None:
    """Gradients of the first are there too, so that this is the peak, by either way."""
    found, estimate = memory(recompute, 2)
    casts = sum(each.bytes for each in found.live if each.name.endswith(".cast"))

    assert casts == pytest.approx(CASTS)
    assert estimate == pytest.approx(found.peak_bytes, rel=1e-3)


@pytest.mark.parametrize(
    "schedule",
    [{"schedule": "zb-h1"}, {"schedule": "zb-v"}, {"virtual_stages": 2}],
    ids=str,
)
def test_casts_of_a_chunk_go_at_its_end(schedule: dict[str, Any]) -> None:
    """Where several are on a device, and where weight gradients wait."""
    strategy = {"micro_batch": 1, "recompute": "full", "pp": 2, **schedule}
    found, estimate = memory("full", 4, place={"devices": "0-1"}, strategy=strategy)

    assert estimate == pytest.approx(found.peak_bytes, rel=1e-3)


def test_weights_that_gathers_bring_in_16_bits_are_not_cast() -> None:
    """FSDP's are no leaves of fp32."""
    found, _ = memory("full", 16, place={"devices": "0-7"}, strategy={"dp": 8, "sharding": "zero3"})
    assert not any(each.name.endswith(".cast") for each in found.live)


@pytest.mark.parametrize("reentrant", [True, False])
def test_pytorch_keeps_them_so(*, reentrant: bool) -> None:
    """All casts of checkpointed layers are live at the end of forward, and none behind it."""
    torch = pytest.importorskip("torch")
    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.checkpoint import checkpoint

    class Casts(TorchDispatchMode):  # type: ignore[misc]
        made: ClassVar[list[Any]] = []

        def __torch_dispatch__(self, f: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = f(*args, **(kwargs or {}))
            if f is torch.ops.aten._to_copy.default and args[0].shape == (32, 32):
                self.made.append(StorageWeakRef(out.untyped_storage()))
            return out

        def live(self) -> int:
            return sum(not each.expired() for each in self.made)

    layers = [torch.nn.Linear(32, 32, bias=False) for _ in range(4)]
    x = torch.randn(8, 32, requires_grad=True)
    with Casts() as casts:
        with torch.autocast("cpu", torch.bfloat16):
            for layer in layers:
                x = checkpoint(lambda y, own=layer: own(y).relu(), x, use_reentrant=reentrant)
            counts = [casts.live()]
        counts.append(casts.live())

    assert counts == [4, 0]
