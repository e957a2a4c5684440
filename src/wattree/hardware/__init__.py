"""Hardware as data: devices, nodes, fabrics, clusters, and the catalog of real ones."""

from wattree.hardware.cluster import Cluster, Fabric, Pool, Site, attached
from wattree.hardware.description import Description
from wattree.hardware.device import Device, Precision
from wattree.hardware.load import (
    canonical_name,
    default_fabric_name,
    describe,
    device_names,
    fabric_names,
    is_path,
    load_device,
    load_fabric,
    load_node,
    load_site,
    node_names,
    site_names,
)
from wattree.hardware.network import Link, Network, cable
from wattree.hardware.node import ACCESS, Host, HostPart, MemoryTier, Node, ScaleUp

__all__ = [
    "ACCESS",
    "Cluster",
    "Description",
    "Device",
    "Fabric",
    "Host",
    "HostPart",
    "Link",
    "MemoryTier",
    "Network",
    "Node",
    "Pool",
    "Precision",
    "ScaleUp",
    "Site",
    "attached",
    "cable",
    "canonical_name",
    "default_fabric_name",
    "describe",
    "device_names",
    "fabric_names",
    "is_path",
    "load_device",
    "load_fabric",
    "load_node",
    "load_site",
    "node_names",
    "site_names",
]
