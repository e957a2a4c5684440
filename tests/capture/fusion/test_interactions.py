"""Dot products of features in one kernel (`fused_interactions`)."""

from __future__ import annotations

import pytest

import wattree
from wattree.capture import load_model, with_interactions
from wattree.graph import OperatorKind
from wattree.job import job_from_mapping


def test_an_interaction_is_one_kernel_that_reads_features_and_writes_pairs() -> None:
    """Products, the pairs' choice and what is joined to them never reach memory by themselves."""
    plain = load_model("dlrm-small")
    merged = with_interactions(plain)
    (kernel,) = merged.blocks["interaction"].operators
    read = plain.blocks["interaction"].operators[0].inputs[0].tensor
    assert kernel.kind is OperatorKind.OTHER
    assert [o.tensor for o in kernel.inputs if "batch" in o.dims] == [read]
    assert [o.tensor for o in kernel.outputs] == [plain.blocks["interaction"].output]


@pytest.mark.parametrize("name", ["bert-large", "resnet-50", "dlrm-dcnv2", "ncf"])
def test_models_without_dot_products_of_features_stay_as_they_are(name: str) -> None:
    """Attention and products with parameters are no interaction."""
    model = load_model(name)
    assert with_interactions(model) == model


def test_a_job_may_have_its_interactions_in_one_kernel() -> None:
    """The step of DLRM is shorter: its small products fill little of a tile."""
    given = {
        "model": "dlrm-small",
        "data": {"global_batch": 8 * 65536},
        "cluster": {"node": "dgx-a100"},
        "software": "pytorch-ngc",
        "precision": "tf32",
        "strategy": {"preset": "ddp", "dp": 8, "micro_batch": 65536, "tables": "table-wise"},
    }
    plain_s, merged_s = (
        wattree.simulate(
            job_from_mapping({**given, "traits": {"fused_interactions": on}})
        ).result.step_time_s
        for on in (False, True)
    )
    assert merged_s < 0.95 * plain_s


def test_a_kernel_for_interactions_that_a_model_lacks_is_told() -> None:
    """As of other traits, that it has no effect."""
    given = {
        "model": "gpt2",
        "data": {"sequence_length": 1024, "global_batch": 8},
        "cluster": {"node": "dgx-a100"},
        "strategy": {"preset": "ddp"},
        "traits": {"fused_interactions": True},
    }

    assert (
        "traits.fused_interactions: true has no effect: gpt2 has no dot products of features; "
        "leave it out"
    ) in wattree.simulate(job_from_mapping(given)).warnings
