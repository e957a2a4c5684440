"""Ranks that own unlike parts of a model have the same tasks, whatever the software."""

from __future__ import annotations

from typing import Any

import pytest

from wattree import job_from_mapping, simulate
from wattree.cost import SOFTWARE
from wattree.job import Job
from wattree.lowering.optimizer_state import optimizer_state_bytes


def tables(**changes: Any) -> Job:
    """Return a job whose tables lie on some ranks alone."""
    return job_from_mapping(
        {
            "model": "dlrm-proteus",
            "data": {"global_batch": 2048},
            "precision": "tf32",
            "optimizer": "adagrad",
            "software": "pytorch",
            "cluster": {"node": "dgx-a100"},
            "strategy": {"dp": 8, "tables": "auto"},
            **changes,
        },
        "job.yaml",
    )


@pytest.mark.parametrize("software", ["pytorch", "generic"])
def test_tables_on_some_ranks_alone_can_be_executed(software: str) -> None:
    """Gradients that go with the update went on ranks with tables alone, and tasks differed."""
    found = simulate(tables(software=software, optimizer="sgd")).result

    assert found.memory.peak_bytes > 0


def test_dense_updates_of_tables_are_said_to_be_assumed() -> None:
    """They take most of a step where the software updates the rows looked up alone."""
    assumed, stated, dense = (
        [line for line in simulate(tables(**keys)).result.assumed if "embedding tables" in line]
        for keys in (
            {},
            {"traits": {"sparse_gradients": True}},
            {"traits": {"sparse_gradients": False}},
        )
    )

    assert assumed[0].startswith("embedding tables have dense gradients, and adagrad updates all")
    assert stated == dense == []


_REFUSED = (
    "adamw of torch.optim takes no sparse gradients; use adagrad or sgd, SparseAdam for the tables,"
    " or fused optimizers of TorchRec"
)
_ADVISED = (
    "as TorchRec and MLPerf's DLRM train, only those looked up: traits: {sparse_gradients: true}"
)


@pytest.mark.parametrize(
    ("optimizer", "software", "warns"),
    [
        ("adamw", "pytorch", True),
        ("adamw", "auto", True),
        ("adagrad", "pytorch", False),
        ("adamw", "generic", False),
    ],
)
def test_optimizers_that_refuse_sparse_gradients_are_warned_of(
    optimizer: str, software: str, *, warns: bool
) -> None:
    """`torch.optim.AdamW` raises, whether PyTorch is named or assumed; others are advised."""
    keys = {"optimizer": optimizer, "software": software}
    sparse = simulate(tables(**keys, traits={"sparse_gradients": True})).warnings
    dense = simulate(tables(**keys)).result.assumed

    refused = f"traits.sparse_gradients: {_REFUSED}; predicted all the same"
    assert (refused in sparse) == warns
    assert (
        f"embedding tables have dense gradients, and {optimizer} updates all of their rows in each "
        f"step; {_REFUSED if warns else _ADVISED}"
    ) in dense


def test_adagrad_keeps_one_sum_of_each_parameter() -> None:
    """Half of Adam's state."""
    pytorch = SOFTWARE["pytorch"]

    assert optimizer_state_bytes("adagrad", pytorch) == optimizer_state_bytes("adam", pytorch) / 2
