"""Hardware as data: devices, nodes, fabrics, clusters, and the catalog of real ones."""

from wattree.hardware.cluster import Cluster, Fabric, Pool, Site
from wattree.hardware.description import Description
from wattree.hardware.device import Device, Precision
from wattree.hardware.load import describe, load_device, load_fabric, load_node, load_site
from wattree.hardware.names import canonical_name, is_path, node_names, site_names
from wattree.hardware.network import Link, Network
from wattree.hardware.node import Host, Node, ScaleUp
from wattree.hardware.ports import attached, port_share

__all__ = [
    "Cluster",
    "Description",
    "Device",
    "Fabric",
    "Host",
    "Link",
    "Network",
    "Node",
    "Pool",
    "Precision",
    "ScaleUp",
    "Site",
    "attached",
    "canonical_name",
    "describe",
    "is_path",
    "load_device",
    "load_fabric",
    "load_node",
    "load_site",
    "node_names",
    "port_share",
    "site_names",
]
