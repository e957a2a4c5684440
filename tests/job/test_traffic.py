"""Keys of a strategy that say how data moves: read, refused, warned of."""

from __future__ import annotations

from typing import Any

import pytest

from wattree.errors import JobError
from wattree.job import Job, job_from_mapping
from wattree.strategy import Offload, Prefetch, Strategy, StrategyOptions, Traffic

TREE = {"mesh": {"dp": 8}, "tree": {"": {"compute": {"batch": "dp"}}}}


def job(strategy: dict[str, Any]) -> Job:
    """Return a job on eight devices."""
    return job_from_mapping(
        {
            "model": "gpt2",
            "data": {"sequence_length": 512, "global_batch": 16},
            "cluster": {"node": "dgx-h100"},
            "strategy": strategy,
        }
    )


def traffic(strategy: dict[str, Any]) -> Traffic:
    """Return what a strategy says."""
    found = job(strategy).strategy
    assert isinstance(found, Strategy | StrategyOptions)
    return found.traffic


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, Traffic()),
        ({"bucket": "3 MB"}, Traffic(gradient_bucket_bytes=3e6)),
        (
            {"bucket": {"gradients": "3 MB", "parameters": "5 MB"}},
            Traffic(gradient_bucket_bytes=3e6, parameter_bucket_bytes=5e6),
        ),
        (
            {"in_line": ["tensor", "gradients"], "overlap_pipeline": False},
            Traffic(in_line=("gradients", "tensor"), overlap_pipeline=False),
        ),
        ({"prefetch": {}}, Traffic(prefetch=Prefetch())),
        (
            {"prefetch": {"forward": 2, "backward": "none", "gathers_in_flight": 2}},
            Traffic(
                prefetch=Prefetch(forward=2, backward=0, gathers_in_flight=2, after_reductions=True)
            ),
        ),
        ({"prefetch": {"backward": "post"}}, Traffic(prefetch=Prefetch(backward=0))),
        (
            {"reshard_after_forward": False, "overlap_optimizer": True},
            Traffic(reshard_after_forward=False, overlap_optimizer=True),
        ),
        (
            {"offload": {"optimizer": "host", "parameters": "cxl"}},
            Traffic(offload=Offload(optimizer="host", parameters="cxl")),
        ),
        (
            {"offload": {"activations": {"layers": 8, "to": "cxl", "prefetch": 0}}},
            Traffic(offload=Offload(activations="cxl", layers=8, prefetch=0)),
        ),
    ],
    ids=str,
)
def test_presets_and_trees_share_the_keys(keys: dict[str, Any], expected: Traffic) -> None:
    """One place, one meaning."""
    assert traffic({"preset": "fsdp", **keys}) == traffic({**TREE, **keys}) == expected


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"prefetch": {"backward": "late"}},
            "strategy.prefetch.backward: found 'late', expected a whole number of blocks, 'pre', "
            "'post' or 'none'",
        ),
        (
            {"prefetch": {"forward": -1}},
            "strategy.prefetch.forward: found -1, expected a whole number from 0 to 1,000",
        ),
        (
            {"prefetch": {"gathers_in_flight": 0}},
            "strategy.prefetch.gathers_in_flight: found 0, expected a whole number from 1 to "
            "1,000,000",
        ),
        (
            {"bucket": 25},
            "strategy.bucket: found 25, expected a quantity with its unit, such as '1 B'",
        ),
        (
            {"in_line": ["tensors"]},
            "strategy.in_line.0: found 'tensors', expected a list of gradients, parameters, "
            "tensor, context, experts or pipeline: communication on the stream of the computation",
        ),
        (
            {"offload": {"optimizer": "disk"}},
            "strategy.offload.optimizer: found 'disk', expected 'host' or 'cxl', where the "
            "optimizer state waits and is updated",
        ),
        (
            {"offload": {"activations": {"to": "host"}}},
            "strategy.offload.activations.layers: is missing, expected a whole number, the first "
            "layers of each pipeline stage",
        ),
        (
            {"offload": {"parameters": "host"}},
            "strategy.offload.parameters: found 'host' with the optimizer on the device: "
            "parameters are updated where they are stored; set offload.optimizer too",
        ),
        (
            {"in_line": ["gradients"], "overlap_gradients": True},
            "strategy.overlap_gradients: found true with 'gradients' in line, where nothing "
            "overlaps; leave one of them out",
        ),
        (
            {"overlap_optimizer": True, "overlap_gradients": False},
            "strategy.overlap_optimizer: found true with overlap_gradients false: gradients that "
            "are reduced at the end of the step cannot be used before it; leave one of them out",
        ),
        (
            {"prefetch": {}, "overlap_parameters": False},
            "strategy.prefetch: found with overlap_parameters false, which is a prefetch of 0; "
            "leave one of them out",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused(keys: dict[str, Any], message: str) -> None:
    """With the key, what was found and what would do."""
    with pytest.raises(JobError) as caught:
        job({"preset": "fsdp", **keys})

    assert caught.value.problems == (message,)


@pytest.mark.parametrize(
    ("strategy", "warning"),
    [
        (
            {"preset": "ddp", "prefetch": {"forward": 2}},
            "strategy.prefetch: has no effect: no parameters are sharded, so none are gathered "
            "for use",
        ),
        (
            {"preset": "fsdp", "prefetch": {}, "in_line": ["parameters"]},
            "strategy.prefetch: has no effect: parameters are gathered in line with the "
            "computation",
        ),
        (
            {"preset": "fsdp", "prefetch": {"forward": 1, "gathers_in_flight": 4}},
            "strategy.prefetch.gathers_in_flight: has no effect: a prefetch of 1 has no more than "
            "2 in flight",
        ),
        (
            {"preset": "zero1", "reshard_after_forward": False},
            "strategy.reshard_after_forward: has no effect: no parameters are sharded, so none "
            "are gathered for use",
        ),
        (
            {"preset": "ddp", "in_line": ["tensor"]},
            "strategy.in_line.tensor: has no effect: nothing of it is sent; set tp above 1",
        ),
        (
            {"preset": "ddp", "overlap_pipeline": True},
            "strategy.overlap_pipeline: has no effect: there is no pipeline; set pp above 1",
        ),
        (
            {"preset": "ddp", "bucket": {"parameters": "1 MB"}},
            "strategy.bucket.parameters: has no effect: no optimizer is sharded over whole "
            "parameters",
        ),
        (
            {"tp": 8, "dp": 1, "bucket": "1 MB"},
            "strategy.bucket.gradients: has no effect: there are no replicas to reduce gradients "
            "over",
        ),
    ],
    ids=str,
)
def test_what_does_nothing_is_warned_of(strategy: dict[str, Any], warning: str) -> None:
    """Whoever writes a setting down expects it to matter."""
    assert job(strategy).warnings == (warning,)


@pytest.mark.parametrize(
    "strategy",
    [
        {"preset": "fsdp", "prefetch": {"gathers_in_flight": 2}, "reshard_after_forward": False},
        {"preset": "zero1", "bucket": {"gradients": "1 MB", "parameters": "1 MB"}},
        {"preset": "tensor", "tp": 2, "in_line": ["tensor", "gradients"]},
        {"preset": "megatron", "pp": 2, "tp": 2, "in_line": ["pipeline"]},
    ],
    ids=str,
)
def test_what_matters_is_not_warned_of(strategy: dict[str, Any]) -> None:
    """A warning that always comes is not read."""
    assert job(strategy).warnings == ()
