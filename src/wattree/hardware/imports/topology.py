"""What an imported description of a node holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wattree.hardware.network import Link, Network


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedTopology:
    """One node as another tool describes it.

    Attributes:
        network: Between devices `d0`, …, adapters `nic0`, …, switches, and sockets `cpu0`, ….
        adapter_bytes_per_s: Adapter → its line rate, if the file has it; one direction. [B/s]
    """

    network: Network
    devices: int
    adapter_bytes_per_s: Mapping[str, float]

    @property
    def links(self) -> tuple[Link, ...]:
        """The links of the network."""
        return self.network.links
