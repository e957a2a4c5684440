"""Jobs that differ in more than their strategies."""

from __future__ import annotations

from typing import Any

import pytest

from wattree.job import job_from_mapping
from wattree.search.compared import compare

JOB: dict[str, Any] = {
    "model": "gpt2",
    "data": {"sequence_length": 1024, "global_batch": 64},
    "cluster": {"node": "dgx-a100"},
    "software": "torchtitan",
    "strategy": {"dp": 8},
}


@pytest.mark.parametrize(
    ("changes", "row", "clause"),
    [
        ({"compile": True}, ("compile", "–", "true"), "compile"),
        ({"released": "2024-06"}, ("released", "–", "2024-06"), "released"),
        (
            {"cluster": JOB["cluster"] | {"power_limit": "250 W"}, "strategy": {"dp": 4, "tp": 2}},
            ("power limit", "–", "250 W"),
            "power_limit and strategy",
        ),
        ({"traits": {"gradient_bytes": 4}}, ("gradient_bytes", "–", "4.0"), "gradient_bytes"),
        (
            {"precision": "fp32", "optimizer": "sgd", "software": "pytorch", "compile": True},
            ("compile", "–", "true"),
            "precision, optimizer, software and more",
        ),
    ],
)
def test_settings_beside_the_strategy_are_shown_and_named_as_what_differs(
    changes: dict[str, Any], row: tuple[str, ...], clause: str
) -> None:
    """Once a compiled job was compared with one that is not as two strategies of the same job."""
    name, *words = row
    comparison = compare([job_from_mapping(each, "job") for each in (JOB, JOB | changes)])

    assert comparison.differing[name] == tuple(words)
    assert comparison.reasons[0].startswith(f"B, which differs in {clause}: the step")
