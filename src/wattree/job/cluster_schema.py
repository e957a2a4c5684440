"""The sections `cluster`, `place` and `neighbours` of a job file. As in `schema`."""

from __future__ import annotations

from pydantic import Field

from wattree.job.section import Section, key
from wattree.job.values import (
    Degree,
    DeviceList,
    Index,
    Offset,
    Power,
    Seed,
    Slowdown,
    Spread,
)


class StragglersSpec(Section):
    """Devices that differ by chance."""

    spread: Spread = Field(
        description="the standard deviation of the logarithm of a device's compute time, such as "
        "0.02"
    )
    seed: Seed = key("a whole number that fixes the draw", 0)


class PoolSpec(Section):
    """Equal nodes of a cluster that mixes nodes."""

    node: str = Field(description="a node of the catalog (wattree catalog nodes) or a YAML file")
    nodes: Degree = key("a whole number, how many nodes", 1)
    power_limit: Power | None = key(
        "a power with its unit, such as '400 W', enforced on every device of it"
    )


class ClusterSpec(Section):
    """The hardware."""

    node: str | None = key("a node of the catalog (wattree catalog nodes) or a YAML file")
    nodes: Degree = key("a whole number, how many nodes", 1)
    pools: list[PoolSpec] | None = key(
        "a list of mappings with node and nodes in the order of their devices, such as [{node: "
        "dgx-h100, nodes: 2}, {node: dgx-a100, nodes: 2}], in place of node and nodes"
    )
    fabric: str | None = key("a fabric of the catalog or a YAML file; by default the node's own")
    site: str = key("a site of the catalog or a YAML file", "world-average")
    power_limit: Power | None = key(
        "a power with its unit, such as '400 W', enforced on every device"
    )
    slowdown: Slowdown | None = key(
        'device indices → factor on their compute time, such as {"3": 1.2, "8-11": 1.1}'
    )
    stragglers: StragglersSpec | None = key("a draw of factors for all devices: spread and seed")
    slow_links: Slowdown | None = key(
        'device indices → factor by which their share of the network is slower, such as {"3": 4}'
    )


class PlaceSpec(Section):
    """Which devices of the cluster, by one of the first three keys, and in which order."""

    first_device: Index | None = key(
        "a whole number from 0, the device of the first rank; the others follow"
    )
    devices: DeviceList | None = key(
        "device indices in the order of ranks, such as '0-63' or '0-3, 8-11'"
    )
    nodes: DeviceList | None = key("node indices in the order of ranks, such as '8-15' or '0-14:2'")
    order: list[str] | None = key(
        "mesh axes, outermost first, in whose order ranks take the devices, such as [tp, dp]"
    )


class NeighbourSpec(PlaceSpec):
    """Another job on the same fabric, and its devices."""

    job: str = Field(description="the path of another job's file")
    offset: Offset | None = key(
        "a time with its unit, such as '0.3 s', by which its step begins earlier"
    )
