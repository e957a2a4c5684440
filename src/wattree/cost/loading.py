"""Cost of loading training data: time of each part of an input pipeline per step.

A pipeline reads stored samples, decodes and augments them on cores of the host (or decodes them on
the device), and copies the tensors to the device. Its parts work at the same time on different
batches, so in steady state it makes a step's samples in the time of its slowest part; the step
takes that long or longer. That holds where batches made ahead suffice to keep all parts busy:
`batches_ahead` is their number.

The bounds are those of a closed queueing network (Denning and Buzen, ACM Computing Surveys 10(3),
1978): customers over their whole way, and each server alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from wattree.arrays import Floats
from wattree.hardware import Node

#: Parts of a pipeline, in the order of a sample's way.
PARTS = ("storage", "workers", "cores", "copies", "decoder")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """Input pipeline of the devices that hold the first layers of the model.

    Attributes:
        workers: Processes (or threads) that read, decode and augment, of each rank that loads; 0:
            the rank's own process does, before it computes.
        decode_s, augment_s: Time of one core for one sample. [s]
        sample_bytes: What storage holds of a sample. [B]
        tensor_bytes: What the device gets of it. [B]
        prefetch: Batches that each worker makes ahead, the one in the making included.
        storage_bytes_per_s: Read rate of the storage; None: that of the node. [B/s]
        storage_shared: One storage for the whole cluster, not one in each node.
        storage_latency_s: A worker waits so long for each sample besides. [s]
        pinned: Copies run alongside the computation, out of page-locked memory.
        staging_bytes_per_s: Rate at which a thread of the host fills the driver's pinned buffer,
            through which copies out of pageable memory go; a constant of the calibration. [B/s]
        cores: Cores of a node that workers have; None for all.
        device_decode_s: Time of the device's own decoder for one sample; None where cores decode.
            [s]
        decoder_vendor: Whose devices have that decoder; empty for any GPU's.
        processes: That share a device and each have such a loader, so that a node has so many times
            as many loaders.
        assumed: Which of these sizes no one gave: those of token ids, until `of_inputs` has better.
    """

    workers: int
    decode_s: float = 0.0
    augment_s: float = 0.0
    sample_bytes: float = 0.0
    tensor_bytes: float = 0.0
    prefetch: int = 2
    storage_bytes_per_s: float | None = None
    storage_shared: bool = False
    storage_latency_s: float = 0.0
    pinned: bool = True
    staging_bytes_per_s: float = math.inf
    cores: int | None = None
    device_decode_s: float | None = None
    decoder_vendor: str = ""
    processes: int = 1
    assumed: tuple[str, ...] = field(default=(), compare=False)

    def of_inputs(self, size_bytes: float) -> Loader:
        """Return the loader, with missing sizes taken from the model.

        Args:
            size_bytes: Of what the model is given of one sample. [B]
        """
        sizes: dict[str, Any] = dict.fromkeys(self.assumed, size_bytes)
        return replace(self, assumed=(), **sizes)

    def shared(self, processes: int) -> Loader:
        """Return the loader of one of several processes on a device, which divide its workers."""
        workers = min(self.workers, max(self.workers // processes, 1))
        return replace(self, processes=processes, workers=workers)

    @property
    def core_s(self) -> float:
        """Core time of one sample. [s]"""
        return self.augment_s + (self.decode_s if self.device_decode_s is None else 0.0)

    @property
    def copied_bytes(self) -> float:
        """Bytes of one sample over the host link: encoded if the device decodes. [B]"""
        return self.tensor_bytes if self.device_decode_s is None else self.sample_bytes

    @property
    def copies_ahead(self) -> bool:
        """Whether copies run alongside the computation."""
        return self.pinned and self.workers > 0

    @property
    def held_bytes(self) -> float:
        """Host memory of one prepared sample. [B]"""
        return self.copied_bytes

    @property
    def batches_ahead(self) -> int:
        """Number of micro-batches of a rank that are ready or being prepared."""
        return self.workers * self.prefetch

    def cores_of(self, node: Node) -> int:
        """Return the number of cores of a node that its workers share."""
        return node.host.cpu_cores if self.cores is None else self.cores


def storage_bytes_per_s(loader: Loader, node: Node) -> float:
    """Return the storage bandwidth, per node or (if shared) of all nodes. [B/s]"""
    given = loader.storage_bytes_per_s
    return node.host.storage_read_bytes_per_s if given is None else given


def copy_bytes_per_s(loader: Loader, node: Node) -> float:
    """Return the bandwidth of copies to one device while no other rank copies. [B/s]

    Out of pageable memory each byte is first copied to a pinned buffer, then over the link:
    `1 / (1 / staging + 1 / link)`. Coherent links need no such buffer: on a GH200 both kinds of
    memory are copied at 100 GB/s (vortex-data/vortex, pull request 7815, 2026).
    """
    link, memory = node.device.host_link_bytes_per_s, node.host.memory_bytes_per_s
    if not (loader.pinned or node.device.has_coherent_link):
        link = 1 / (1 / loader.staging_bytes_per_s + 1 / link)
    return link if memory is None else min(link, memory)


def part_times_s(
    loader: Loader,
    node: Node,
    samples: Floats,
    *,
    on_node: Floats,
    everywhere: Floats,
    serves: Floats,
) -> Mapping[str, Floats]:
    """Return the time of each part for one step's samples of each loader: part → `(n,)`. [s]

    With `s` samples of a loader, `k` loaders on a node, `W` workers each, `C` cores, core time `t`
    and reading time `r` of a sample: workers take `s (r + t) / W`, cores `s t k / C`, storage
    `s k bytes / bandwidth`, and copies `s bytes / rate` times the loaders that share it.

    Args:
        loader: The pipeline.
        node: What its ranks sit on.
        samples: Of one loader and step. `(n,)`
        on_node: Loaders of a node, those of one process on each device. `(n,)`
        everywhere: Loaders of the job, likewise. `(n,)`
        serves: Ranks that get their data from one loader, its own included. `(n,)`
    """
    on_node, everywhere = on_node * loader.processes, everywhere * loader.processes
    storage = storage_bytes_per_s(loader, node)
    readers = everywhere if loader.storage_shared else on_node
    core_s = samples * loader.core_s
    times = {
        "storage": samples * readers * loader.sample_bytes / storage,
        "workers": (samples * _read_s(loader, node) + core_s) / max(loader.workers, 1),
        "cores": core_s * on_node / loader.cores_of(node),
        "copies": samples * loader.copied_bytes / _shared_copy(loader, node, on_node, serves),
    }
    if loader.device_decode_s is not None:
        times["decoder"] = samples * loader.processes * loader.device_decode_s
    return times


def split_times_s(loader: Loader, times_s: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the slowest part that works beside the computation, and what that waits for. [s]

    Args:
        loader: The pipeline.
        times_s: Part → its time, as `part_times_s` returns them.
    """
    ahead = dict(times_s)
    waited = 0.0 if loader.copies_ahead else ahead.pop("copies")
    if not loader.workers:
        waited = waited + np.maximum(ahead.pop("workers"), ahead.pop("cores"))
    return np.max(np.broadcast_arrays(*ahead.values()), axis=0), waited


def _read_s(loader: Loader, node: Node) -> float:
    """Return the time for a worker to read one sample while no other worker reads. [s]"""
    if loader.sample_bytes == 0:
        return loader.storage_latency_s
    return loader.storage_latency_s + loader.sample_bytes / storage_bytes_per_s(loader, node)


def first_batch_s(loader: Loader, node: Node, samples: float, *, on_node: int) -> float:
    """Return the time until the first micro-batch of a job is ready. [s]

    All workers begin at once, each with a micro-batch of its own, and share the cores.

    Args:
        loader: The pipeline.
        node: What its ranks sit on.
        samples: Of the micro-batch.
        on_node: Loaders of a node.
    """
    on_node *= loader.processes
    crowd = max(on_node * loader.workers / loader.cores_of(node), 1.0)
    reading_s = loader.storage_latency_s
    if loader.sample_bytes:
        readers = on_node * max(loader.workers, 1)
        reading_s += loader.sample_bytes * readers / storage_bytes_per_s(loader, node)
    of_one_s = reading_s + loader.core_s * crowd + (loader.device_decode_s or 0.0)
    copying_s = loader.copied_bytes / copy_bytes_per_s(loader, node)
    return samples * (of_one_s + copying_s)


def _shared_copy(loader: Loader, node: Node, on_node: Floats, serves: Floats) -> Floats:
    """Return the bandwidth of one loader's copies while all of a node copy. [B/s]"""
    # Ranks that one loader serves are neighbours, and share switches with each other; processes of
    # one device share its link.
    devices = on_node * serves / loader.processes
    behind = np.minimum(devices, float(node.scale_up.devices_per_switch)) / serves
    behind = behind * loader.processes
    link = node.device.host_link_bytes_per_s / np.maximum(behind, 1.0)
    rate = np.minimum(link, copy_bytes_per_s(loader, node))
    if node.host.memory_bytes_per_s is not None:
        rate = np.minimum(rate, node.host.memory_bytes_per_s / on_node)
    return np.asarray(rate)
