"""Builders of networks, one kind of topology in each file."""

from wattree.hardware.topologies.cluster_network import network_of, node_network, scale_up_network
from wattree.hardware.topologies.dragonfly import dragonfly
from wattree.hardware.topologies.host_tree import adapter_of
from wattree.hardware.topologies.join import device_name, join
from wattree.hardware.topologies.torus import axis_order, ring, slice_shape, torus

__all__ = [
    "adapter_of",
    "axis_order",
    "device_name",
    "dragonfly",
    "join",
    "network_of",
    "node_network",
    "ring",
    "scale_up_network",
    "slice_shape",
    "torus",
]
