"""Rings and tori of any number of dimensions, with and without wraparound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, permutations
from math import prod

import numpy as np

from wattree.errors import HardwareError
from wattree.hardware.network import Network, cable


def torus(
    devices: Sequence[str],
    *,
    shape: Sequence[int],
    wraps: Sequence[bool],
    bandwidth_bytes_per_s: float,
    latency_s: float,
    kind: str = "ici",
) -> Network:
    """Return devices on a grid, joined to their neighbours along each axis.

    Args:
        devices: Names of the vertices, last axis fastest.
        shape: Devices along each axis.
        wraps: For each axis, whether its ends are joined (torus) or not (mesh). An axis of two
            has one cable either way.
        bandwidth_bytes_per_s: All links of an inner device together, one direction: two for each
            axis. An edge of a mesh leaves some of them unused. [B/s]
        latency_s: Of one cable. [s]

    Raises:
        HardwareError: The shape does not hold the devices.
    """
    if prod(shape) != len(devices) or len(wraps) != len(shape):
        raise HardwareError(
            f"torus of shape {'x'.join(map(str, shape))}: holds {prod(shape)} devices, found "
            f"{len(devices)}; give one length, and whether it wraps, for each axis"
        )
    rate = bandwidth_bytes_per_s / (2 * len(shape))
    links = [
        link
        for one, other in _neighbours(tuple(shape), tuple(wraps))
        for link in cable(devices[one], devices[other], rate, latency_s=latency_s, kind=kind)
    ]
    return Network(links=tuple(links))


def ring(
    devices: Sequence[str], *, bandwidth_bytes_per_s: float, latency_s: float, kind: str = "ring"
) -> Network:
    """Return a ring: half the rate of a device to each neighbour; two devices use one cable."""
    return torus(
        devices,
        shape=(len(devices),),
        wraps=(True,),
        bandwidth_bytes_per_s=bandwidth_bytes_per_s,
        latency_s=latency_s,
        kind=kind,
    )


def slice_shape(devices: int, largest: Sequence[int], unit: int = 1) -> tuple[int, ...]:
    """Return the shape of a part of a torus: the nearest to a cube that fits.

    Axes whose length is a multiple of `unit` are preferred, since those can wrap: 32 devices of
    a 3-D torus are 2 x 4 x 4, 64 are 4 x 4 x 4. A whole torus keeps the order of its axes.

    Args:
        devices: To place.
        largest: Lengths of the whole torus.
        unit: Length of whose multiples an axis wraps.

    Raises:
        HardwareError: No such box fits.
    """
    if prod(largest) == devices:
        return tuple(largest)
    limits = tuple(sorted(largest))
    boxes = [box for box in _boxes(devices, limits) if all(map(_fits, sorted(box), limits))]
    if not boxes:
        whole = "x".join(map(str, largest))
        raise HardwareError(f"{devices} devices form no box inside a torus of {whole}")
    # Few hops first; then axes that can wrap.
    return min(boxes, key=lambda box: (sum(box), sum(length % unit != 0 for length in box), box))


def axis_order(shape: Sequence[int], degrees: Sequence[int]) -> tuple[int, ...]:
    """Return the lengths of a torus's axes in the order in which ranks of a mesh fill them.

    As JAX assigns axes of a mesh to those of a torus [1]: each has axes whose lengths multiply to
    its degree, the innermost as many as it can. Where the torus does not divide so, most do, and
    what is split is a short axis.

    Args:
        shape: Devices along each axis.
        degrees: Of the mesh's axes, innermost first.

    Returns:
        Last axis fastest.

    References:
        [1] `create_device_mesh` of JAX 0.10 (jax/_src/mesh_utils.py).
    """
    ends = np.cumprod((1, *degrees)).tolist()

    def filled(order: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        cuts = np.cumprod((1, *reversed(order))).tolist()
        axes = tuple(
            cuts.index(last) - cuts.index(first) if {first, last} <= set(cuts) else 0
            for first, last in pairwise(ends)
        )
        return sum(count > 0 for count in axes), axes

    return max(sorted(set(permutations(shape)), reverse=True), key=filled)


def _fits(length: int, limit: int) -> bool:
    return length <= limit


def _boxes(devices: int, limits: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield the ascending factorizations of `devices` into as many lengths as there are limits."""
    if len(limits) == 1:
        yield (devices,)
        return
    for length in range(1, int(devices ** (1 / len(limits)) + 1e-9) + 1):
        if devices % length == 0:
            for rest in _boxes(devices // length, limits[1:]):
                if rest[0] >= length:
                    yield (length, *rest)


def _neighbours(shape: tuple[int, ...], wraps: tuple[bool, ...]) -> Iterator[tuple[int, int]]:
    index = np.arange(prod(shape)).reshape(shape)
    for axis, (length, wrap) in enumerate(zip(shape, wraps, strict=True)):
        following = np.roll(index, -1, axis=axis)
        # The last device of an axis goes back to the first only around a ring of three or more.
        whole = wrap and length > 2
        count = length if whole else length - 1
        ones, others = (np.take(part, range(count), axis=axis) for part in (index, following))
        yield from zip(ones.ravel().tolist(), others.ravel().tolist(), strict=True)
