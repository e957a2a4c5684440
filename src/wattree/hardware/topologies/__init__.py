"""Builders of networks, one kind of topology in each file."""

from wattree.hardware.topologies.cluster_network import network_of
from wattree.hardware.topologies.cube_mesh import CUBE_MESH_LINKS, cube_mesh
from wattree.hardware.topologies.dragonfly import dragonfly
from wattree.hardware.topologies.fat_tree import fat_tree
from wattree.hardware.topologies.host_tree import adapter_of, host_tree
from wattree.hardware.topologies.join import check_connected, device_name, join, renamed
from wattree.hardware.topologies.memory_tier import with_memory_tier
from wattree.hardware.topologies.mesh import full_mesh
from wattree.hardware.topologies.node_network import node_network, scale_up_network
from wattree.hardware.topologies.switch import switch_fabric
from wattree.hardware.topologies.torus import ring, slice_shape, torus

__all__ = [
    "CUBE_MESH_LINKS",
    "adapter_of",
    "check_connected",
    "cube_mesh",
    "device_name",
    "dragonfly",
    "fat_tree",
    "full_mesh",
    "host_tree",
    "join",
    "network_of",
    "node_network",
    "renamed",
    "ring",
    "scale_up_network",
    "slice_shape",
    "switch_fabric",
    "torus",
    "with_memory_tier",
]
