"""The enumerated space: complete, legal, and without duplicates."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.search.jobs import job, setting
from wattree.capture import TransformerShape, build_transformer
from wattree.lowering.legality import misfits
from wattree.lowering.split_rules import illegal_by_rule, split_rules
from wattree.predict import Setting, predicted
from wattree.search.limits import (
    Limits,
    cluster_counts,
    cluster_counts_below,
    cluster_counts_near,
    counts_near,
    device_counts,
)
from wattree.search.space import enumerate_space
from wattree.strategy import AXES, StrategyOptions
from wattree.strategy.presets import strategy_of
from wattree.strategy.specs import TABLES

MIXTURE = "qwen3-30b-a3b"


def brute_force(job: Setting, ranks: int, micro_batches: tuple[int, ...]) -> set[StrategyOptions]:
    """Return every strategy that the compiler's own check admits, one object at a time."""
    return {
        options
        for options in candidates(ranks, micro_batches)
        if is_distinct(options) and is_legal(job, options)
    }


def candidates(ranks: int, micro_batches: tuple[int, ...]) -> Iterator[StrategyOptions]:
    """Yield every combination of degrees up to the ranks and of switches."""
    divisors = [d for d in range(1, ranks + 1) if ranks % d == 0]
    meshes = [m for m in itertools.product(divisors, repeat=6) if np.prod(m) == ranks]
    for dp, fsdp, tp, cp, pp, ep in meshes:
        for micro_batch, sharding, recompute, sequence_parallel, over_tensor in itertools.product(
            micro_batches,
            ("none", "zero1", "zero2", "zero3", "hybrid"),
            ("none", "full"),
            (False, True),
            (True, False),
        ):
            for (schedule, virtual), context in itertools.product(
                (("1f1b", 1), ("gpipe", 1), ("interleaved", 2)),
                ("ring", "gather", "ulysses") if cp > 1 else ("overlapped",),
            ):
                yield StrategyOptions(
                    dp=dp, fsdp=fsdp, tp=tp, cp=cp, pp=pp, ep=ep, micro_batch=micro_batch,
                    sharding=sharding, recompute=recompute, sequence_parallel=sequence_parallel,
                    expert_over_tensor=over_tensor, schedule=schedule, virtual_stages=virtual,
                    context=context,
                )  # fmt: skip


def is_distinct(options: StrategyOptions) -> bool:
    """Return whether no simpler strategy means the same."""
    copies = options.replicas * options.cp
    if options.tp == 1 and (
        options.parallelism.sequence_parallel or not options.parallelism.expert_over_tensor
    ):
        return False
    if options.pp == 1 and options.pipeline.schedule != "1f1b":
        return False
    if options.memory.sharding == "hybrid":
        return options.fsdp > 1 and copies > options.fsdp
    return options.fsdp == 1 and (options.memory.sharding == "none" or copies > 1)


def is_legal(job: Setting, options: StrategyOptions) -> bool:
    """Return whether the compiler would accept it."""
    data, cluster = job.job.data, job.job.cluster
    has_experts = any(
        operator.has_dim("expert")
        for block in job.model.blocks.values()
        for operator in block.operators
    )
    if not has_experts and (options.ep > 1 or not options.parallelism.expert_over_tensor):
        return False
    if data.global_batch % (options.replicas * options.pipeline.micro_batch):
        return False
    if options.cp > 1 and data.sequence_length % (2 * options.cp):
        return False
    strategy = strategy_of(options, model=job.model, global_batch=data.global_batch)
    return not misfits(
        job.model,
        strategy,
        cluster,
        global_batch=data.global_batch,
        sequence=data.sequence_length,
    )


@pytest.mark.parametrize(("model", "batch"), [("gpt2", 6), ("llama-3.2-1b", 4), (MIXTURE, 6)])
def test_the_space_is_what_brute_force_finds(model: str, batch: int) -> None:
    """Arrays and divisibility rules stand in for one check per strategy; none may be lost."""
    job = setting(model=model, batch=batch)
    limits = Limits(micro_batches=(1, 2), virtual_stages=(2,))

    listed = list(enumerate_space(job, ranks=(4,), limits=limits))

    assert len(listed) == len(set(listed))
    assert set(listed) == brute_force(job, 4, (1, 2))


def test_rules_of_a_space_are_those_of_one_strategy_for_tables_too() -> None:
    """Rows of tables are dealt out to any number of ranks, whoever asks."""
    job = setting(model="dlrm", nodes=4, batch=4096, sequence=1)
    data, differ = job.job.data, []
    degrees = itertools.product((1, 2, 4, 8, 32), (1, 2, 8), (1, 2), TABLES)
    for dp, tp, ep, tables in degrees:
        options = StrategyOptions(dp=dp, tp=tp, ep=ep, tables=tables)
        if 32 % (dp * tp * ep):
            continue
        strategy = strategy_of(options, model=job.model, global_batch=data.global_batch)
        alone = misfits(
            job.model,
            strategy,
            job.job.cluster,
            global_batch=data.global_batch,
            sequence=data.sequence_length,
        )
        axes = {axis: np.array([getattr(options, axis)]) for axis in AXES}
        rules = split_rules(job.model, options, data.sequence_length)
        if bool(alone) != any(broken[0] for _, broken in illegal_by_rule(rules, axes)):
            differ.append(options)

    assert differ == []


def test_tokens_per_expert_set_no_degree_of_context_parallelism() -> None:
    """Ranks share the positions of samples; how many of them an expert gets is a mean."""
    shape = TransformerShape(
        layers=2, hidden=64, heads=4, vocab=128, experts=48, top_k=5, expert_ffn=32
    )
    options = StrategyOptions(cp=8, ep=2)

    rules = split_rules(build_transformer(shape), options, 1024)

    assert [rule for rule in rules if "cp" in rule.axes and rule.units % 8] == []


@settings(max_examples=15)
@given(
    model=st.sampled_from(["gpt2", "llama-3.1-8b", MIXTURE]),
    nodes=st.sampled_from([1, 2, 3]),
    batch=st.integers(1, 48),
    seed=st.integers(0, 2**16),
)
def test_listed_strategies_pass_the_compilers_check(
    model: str, nodes: int, batch: int, seed: int
) -> None:
    """A strategy that is listed and cannot be compiled would end a search with an error."""
    job = setting(model=model, nodes=nodes, batch=batch)
    space = enumerate_space(job)
    listed = list(itertools.islice(space, 20_000))
    sample = random.Random(seed).sample(listed, min(20, len(listed)))

    assert all(is_legal(job, options) and options.ranks == 8 * nodes for options in sample)


@pytest.mark.parametrize("model", ["gpt2", MIXTURE])
def test_a_sample_of_the_space_can_be_simulated(model: str, *, soaking: bool) -> None:
    """Passing the check is not enough: schedules must not deadlock, costs must be numbers."""
    job = setting(model=model)
    listed = list(enumerate_space(job))
    sample = random.Random(7).sample(listed, 12 if soaking else 3)

    times = [predicted(job, options, detail=False).result.step_time_s for options in sample]

    assert all(np.isfinite(time_s) and time_s > 0 for time_s in times)


def test_a_mesh_that_no_strategy_can_use_is_counted_with_its_reason() -> None:
    """Twelve heads on eight ranks: people want to know why tp 8 is missing."""
    space = enumerate_space(setting(model="gpt2"))

    assert space.rejected == {"mesh: 12 heads do not divide over tp": 1}


def test_selective_recomputation_is_listed_only_where_scores_are_kept() -> None:
    """A fused kernel keeps no scores, so recomputing them would save nothing."""
    fused = {o.memory.recompute for o in enumerate_space(setting())}
    unfused = {o.memory.recompute for o in enumerate_space(setting(software="megatron-lm-2021"))}

    assert (fused, unfused) == ({"none", "full"}, {"none", "selective", "full"})


@given(
    nodes=st.integers(1, 24),
    node_devices=st.sampled_from([1, 4, 6, 8]),
    most=st.none() | st.integers(1, 200),
)
def test_device_counts_are_whole_nodes_or_parts_of_one(
    nodes: int, node_devices: int, most: int | None
) -> None:
    """They keep to the maximum; but for as many as are allowed, they divide all."""
    devices = nodes * node_devices

    counts = device_counts(devices, node_devices, max_devices=most)

    allowed = min(most or devices, devices)
    assert all(n % node_devices == 0 or n < node_devices for n in counts)
    assert {n for n in counts if devices % n} <= {counts[0]}
    assert counts[0] == (allowed // node_devices * node_devices or allowed)
    assert list(counts) == sorted(counts, reverse=True)
    assert counts[-1] == 1


def test_parts_of_a_torus_are_slices() -> None:
    """Where 6 of 8 chips would be as many as a batch of 12 splits over."""
    given = job(batch=12, node="tpu-v5e-host")

    assert cluster_counts(given.cluster, max_devices=7) == (4, 2, 1)
    assert cluster_counts_near([4], (8, 4, 2, 1), given) == ()
    assert cluster_counts_below(8, given, least=3.0) == (4,)
    assert cluster_counts_below(8, job(batch=12), least=3.0) == (6, 4)


@pytest.mark.parametrize(
    ("best", "near"),
    [
        # Of 1, 2, 4, 8 and 16 nodes none will do, nor parts of one.
        ([], (112, 96, 80, 56, 48, 40, 24, 72, 7, 6, 5, 3)),
        ([32], (56, 48, 40, 24)),
        ([128], (120, 112, 104, 96, 88, 80, 72)),
        ([2], (3,)),
        ([4], (3, 5, 6, 7)),
        ([128, 16], (120, 112, 104, 96, 88, 80, 72, 24)),
    ],
)
def test_more_counts_lie_near_the_best(best: list[int], near: tuple[int, ...]) -> None:
    """Up to the next counts tried; of many whole nodes those that suit the batch."""
    tried = device_counts(128, 8, max_devices=None)

    found = counts_near(best, tried, 8, batch=64)

    assert found == tuple(sorted(near, reverse=True))


def test_images_may_pass_all_at_once_and_sequences_may_not() -> None:
    """A loop over images steps once for each batch; 600 long sequences fit on no device."""

    def sizes(**changes: object) -> set[int]:
        space = enumerate_space(setting(**changes), ranks=(1,))
        return {options.pipeline.micro_batch for options in space}

    assert {15, 600} <= sizes(model="resnet-18", data={"global_batch": 600})
    assert {512, 1024} <= sizes(model="resnet-18", data={"global_batch": 1024})
    assert max(sizes(model="gpt2", batch=1024)) == 256
