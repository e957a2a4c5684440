"""Parts of the reduction that need no other process: batch rules, meetings, rooms."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from wattree.errors import CommunicationError, JobError, StrategyError, UnknownNameError
from wattree.job import Job, job_from_mapping
from wattree.runtime.colocation.batch import batch_share
from wattree.runtime.colocation.environment import BATCH_RULES
from wattree.runtime.colocation.training import colocated
from wattree.runtime.data.loader import batch_samples
from wattree.runtime.recipe import recipe_of
from wattree.runtime.reduce.backends import DeviceBuffers
from wattree.runtime.reduce.device import Hierarchical
from wattree.runtime.reduce.meeting import MemberMeeting, shared_file
from wattree.runtime.reduce.shared_buffers import HostBuffers, SharedBuffers


@given(st.integers(1, 200), st.integers(1, 16), st.sampled_from(BATCH_RULES))
def test_shares_make_up_the_batch_of_a_device(batch: int, processes: int, rule: str) -> None:
    """All of it, in parts of nearly one size."""
    if rule == "fixed-global" and batch < processes:
        with pytest.raises(JobError):
            batch_share(batch, processes, 0, rule)
        return
    shares = [batch_share(batch, processes, rank, rule) for rank in range(processes)]

    assert sum(share.samples for share in shares) == shares[0].of_device
    assert max(s.samples for s in shares) - min(s.samples for s in shares) <= 1
    assert shares[0].learning_rate_scale == shares[0].of_device / batch


def test_a_batch_of_fewer_samples_than_processes_is_refused() -> None:
    """With what helps."""
    with pytest.raises(JobError) as caught:
        batch_share(3, 4, 0, "fixed-global", source="DataLoader(batch_size=…)")

    assert str(caught.value) == (
        "DataLoader(batch_size=…): found 3 for a device, expected at least 4, one for each of its "
        "processes; use a larger batch, fewer processes, or --batch-rule fixed-per-process"
    )


def test_a_rule_that_is_none_is_refused() -> None:
    """With those that are."""
    with pytest.raises(UnknownNameError, match="known: fixed-global, fixed-per-process"):
        batch_share(8, 2, 0, "fixed")


@given(
    devices=st.integers(1, 4),
    processes=st.integers(1, 6),
    batches=st.integers(1, 5),
    samples=st.integers(60, 500),
    epoch=st.integers(0, 3),
)
def test_shards_of_a_distributed_sampler_are_the_batches_of_whole_devices(
    devices: int, processes: int, batches: int, samples: int, epoch: int
) -> None:
    """Steps of b / q of q N shards have the samples that steps of b of N shards have."""
    from torch.utils.data import DistributedSampler

    ranks = devices * processes
    batch = processes * batches
    whole = samples // (ranks * batches) * ranks * batches  # full batches; then the tail is padded
    if not whole:
        return

    def steps(replicas: int, size: int) -> list[set[int]]:
        shards = []
        for rank in range(replicas):
            sampler = DistributedSampler(range(whole), replicas, rank, seed=5)
            sampler.set_epoch(epoch)
            shards.append(list(sampler))
        return [
            {index for shard in shards for index in shard[begin : begin + size]}
            for begin in range(0, len(shards[0]), size)
        ]

    assert steps(ranks, batches) == steps(devices, batch)


def job_of(batch: int, micro_batch: int, **strategy: object) -> Job:
    """Return a job of two devices."""
    return job_from_mapping(
        {
            "model": {"ffn": {"width": 24, "depth": 3}},
            "cluster": {"node": "2x-epyc-7742", "nodes": 1},
            "strategy": {"preset": "ddp", "dp": 2, "micro_batch": micro_batch, **strategy},
            "data": {"global_batch": batch},
            "training": {"steps": 2},
        },
        "job",
    )


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 4), st.sampled_from(BATCH_RULES))
@settings(max_examples=40)
def test_colocated_replicas_take_all_samples_of_a_step(
    processes: int, micro_batch: int, micro_batches: int, rule: str
) -> None:
    """In micro-batches that are no larger than the job's."""
    job = job_of(2 * micro_batch * micro_batches * processes, micro_batch)
    recipe = recipe_of(job)

    changed, found = colocated(job, recipe, processes, rule)

    grown = 1 if rule == "fixed-global" else processes
    assert changed.data.global_batch == job.data.global_batch * grown
    micro_batch = found.options.pipeline.micro_batch
    assert found.options.dp * micro_batch * found.micro_batches == changed.data.global_batch
    assert micro_batch <= recipe.options.pipeline.micro_batch
    assert found.learning_rate_scale == grown


def test_a_batch_that_does_not_split_over_processes_is_refused() -> None:
    """With the number that it has to be a multiple of."""
    job = job_of(10, 5)

    with pytest.raises(StrategyError) as caught:
        colocated(job, recipe_of(job), 3, "fixed-global")

    assert str(caught.value) == (
        "job: data.global_batch: 10 samples cannot be split over 2 devices of 3 processes; use a "
        "multiple of 6, another number of processes, or --batch-rule fixed-per-process"
    )


def test_ranks_that_share_a_model_do_not_share_a_device() -> None:
    """Processes of a device are replicas."""
    job = job_of(8, 4, preset="tensor", dp=1, tp=2)

    with pytest.raises(StrategyError) as caught:
        colocated(job, recipe_of(job), 2, "fixed-global")

    assert str(caught.value) == (
        "job: strategy.processes_per_device: found 2 with tp 2, expected tp 1: processes that "
        "share a device are replicas (ddp)"
    )


def test_batches_of_a_step_do_not_depend_on_replicas() -> None:
    """The order of samples is one of seed and step, so that processes divide the same batch."""
    order = batch_samples(step=3, batch=16, samples=64, seed=1)

    shares = [batch_share(8, 2, rank, "fixed-global") for rank in (0, 1)]
    found = [
        sample
        for device in (0, 1)
        for place, share in enumerate(shares)
        for sample in order[device * 8 + place * share.samples :][: share.samples].tolist()
    ]
    assert found == order.tolist()


def members(count: int, patience_s: float = 300.0) -> list[MemberMeeting]:
    """Return meetings of one device, all in this process."""
    file = shared_file("wattree-test")
    found = [
        MemberMeeting(os.dup(file), place, range(10, 10 + count), patience_s=patience_s)
        for place in range(count)
    ]
    for each in found:  # the kernel tells a process of the locks of others alone
        each._is_gone = lambda _member: False
    return found


def shared_rooms(count: int) -> list[tuple[SharedBuffers, SharedBuffers]]:
    """Return rooms in the host's memory, for each member."""
    even, odd = shared_file("wattree-even"), shared_file("wattree-odd")
    return [
        (HostBuffers(os.dup(even), count), HostBuffers(os.dup(odd), count)) for _ in range(count)
    ]


class OpenedByName:
    """Stands for CUDA IPC: memory of a process that others open by what it tells of it.

    Attributes:
        shared: Handle → memory.
        opened: Handles that were opened, by whoever.
    """

    def __init__(self, count: int) -> None:
        self.shared: dict[int, torch.Tensor] = {}
        self.opened: list[int] = []
        self._told: list[object] = [None] * count
        self._barrier = threading.Barrier(count)

    def share(self, tensor: torch.Tensor) -> tuple[Any, tuple[int]]:
        """Return what rebuilds a tensor elsewhere."""
        self.shared[id(tensor)] = tensor
        return self.open, (id(tensor),)

    def open(self, handle: int) -> torch.Tensor:
        """Return the memory of another."""
        self.opened.append(handle)
        return self.shared[handle]

    def exchange(self, place: int, mine: object) -> list[Any]:
        """Tell the others, and hear them."""
        self._told[place] = mine
        self._barrier.wait(300.0)
        found = list(self._told)
        self._barrier.wait(300.0)
        return found

    def buffers(self, place: int) -> DeviceBuffers:
        """Return the rooms of a member."""
        return DeviceBuffers(
            place,
            torch.device("cpu"),
            lambda mine: self.exchange(place, mine),
            share=self.share,
        )


def average(
    buffers: Sequence[tuple[SharedBuffers, SharedBuffers]],
    elements: int,
    *,
    rounds: int,
    compressed: bool,
) -> list[list[float]]:
    """Return averages of several buckets in threads that stand for processes."""
    count = len(buffers)
    meetings = members(count)
    found: list[list[float]] = [[] for _ in range(count)]

    def run(place: int) -> None:
        way = Hierarchical(meetings[place], buffers[place], None, devices=1, ranks=count)
        way.compressed = compressed
        for number in range(rounds):
            bucket = contribution(place, number, elements + 7 * number)
            way.average_(bucket, number)
            found[place] += bucket.tolist()

    threads = [threading.Thread(target=run, args=(place,)) for place in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300.0)
    return found


def contribution(place: int, number: int, elements: int) -> torch.Tensor:
    """Return whole numbers, which add up exactly in any order."""
    generator = torch.Generator().manual_seed(100 * place + number)
    return torch.randint(-8, 8, (elements,), generator=generator).double()


@given(st.integers(2, 5), st.integers(0, 300), st.booleans())
@settings(max_examples=25, deadline=None)
def test_averages_are_those_of_a_plain_sum(
    count: int,
    elements: int,
    compressed: bool,  # noqa: FBT001 - hypothesis passes it by place
) -> None:
    """Of any size, also smaller than there are processes, and growing from bucket to bucket."""
    found = average(shared_rooms(count), elements, rounds=3, compressed=compressed)

    assert found == [plain_means(count, elements, 3)] * count


@given(st.integers(2, 4), st.integers(0, 100))
@settings(max_examples=10, deadline=None)
def test_rooms_of_a_device_are_opened_by_all_and_grow(count: int, elements: int) -> None:
    """Each opens those of the others, again when they grow, and never its own."""
    even, odd = OpenedByName(count), OpenedByName(count)
    buffers = [(even.buffers(place), odd.buffers(place)) for place in range(count)]

    found = average(buffers, elements, rounds=4, compressed=False)

    assert found == [plain_means(count, elements, 4)] * count
    for stand_in in (even, odd):
        assert len(stand_in.shared) % count == 0
        assert len(stand_in.opened) == len(stand_in.shared) * (count - 1)


def plain_means(count: int, elements: int, rounds: int) -> list[float]:
    """Return the means of what `average` averages."""
    found: list[float] = []
    for number in range(rounds):
        size = elements + 7 * number
        total = sum(contribution(place, number, size) for place in range(count))
        found += (total / count).tolist()
    return found


def test_one_that_does_not_come_is_named() -> None:
    """And those that wait for the one that noticed hear who it is."""
    first, *_ = members(2, patience_s=0.2)
    begin_s = time.monotonic()

    with pytest.raises(CommunicationError) as caught:
        first.meet("averaging")

    assert time.monotonic() - begin_s < 300.0  # of a machine with other work
    assert str(caught.value) == (
        "rank 10, averaging: rank 11, on the same device, has not come in 0.2 s: it hangs, or runs "
        "another number of backward passes"
    )


def test_phases_may_pass_the_largest_word() -> None:
    """Words have 32 bits; a long run comes to their end."""
    both = members(2)
    for each in both:
        each._phase = 2**31 - 2
        each._words[each.place].value = each._phase

    done = []

    def run(each: MemberMeeting) -> None:
        for _ in range(5):
            each.meet("averaging")
        done.append(each.place)

    threads = [threading.Thread(target=run, args=(each,)) for each in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300.0)
    assert sorted(done) == [0, 1]


def test_the_first_failure_is_the_one_that_others_hear_of() -> None:
    """Those that fail of it say so as well, later."""
    first, second, _ = members(3)
    second.fail(12)
    second.fail(11)

    with pytest.raises(CommunicationError) as caught:
        first.meet("averaging")

    assert str(caught.value) == (
        "rank 10, averaging: rank 12 has ended or failed; see its own message"
    )
