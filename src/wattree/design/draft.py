"""A cluster in the making: the base of a study, changed field by field, then read as files are.

Nothing is checked here that the readers of job and hardware files check: a changed file goes
through the same readers, and their messages are reported under the paths of the study.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from wattree.design.fields import number_at, scaled, value_at, with_value
from wattree.errors import HardwareError, JobError, UnitError, WattreeError, did_you_mean, nearest
from wattree.hardware import (
    Cluster,
    Description,
    Fabric,
    Node,
    Site,
    attached,
    describe,
    load_device,
    load_fabric,
    load_node,
    load_site,
)
from wattree.job.cluster import located, straggling
from wattree.job.cluster_schema import ClusterSpec
from wattree.job.idle import slow_ports
from wattree.job.problems import Problems
from wattree.units import SECONDS_PER_HOUR, parse_quantity

#: What the first word of a path names.
ROOTS = ("cluster", "node", "device", "fabric", "site", "capital", "job", "search")
#: Roots whose fields are those of a hardware file.
_FILES = ("node", "device", "fabric", "site")
#: Fields of `cluster`: those of a job file, and the number of devices in place of nodes.
CLUSTER = (*(n for n in ClusterSpec.model_fields if n != "pools"), "devices")
#: Fields of `capital`: what buying costs, and how long what was bought is used.
CAPITAL = ("device", "node", "cluster", "lifetime")
#: Words of a path below its root; no file has sections so deep.
_MOST_DEEP = 16
#: Path → paths that it stands for; only factors have a meaning for several at once.
ALIASES = {"device.flops": ("device.matrix_peak", "device.vector_peak")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Capital:
    """What the cluster costs to buy.

    Attributes:
        device_usd, node_usd, cluster_usd: Price of one device, of one node without its devices, of
            all parts that exist once; None where it is not given. [USD]
        lifetime_s: How long it is used; None where that is not given. [s]
    """

    device_usd: float | None = None
    node_usd: float | None = None
    cluster_usd: float | None = None
    lifetime_s: float | None = None

    @property
    def is_cost(self) -> bool:
        """Whether prices are paid off over a lifetime, which is then the cost."""
        return self.lifetime_s is not None and self._prices != (None, None, None)

    @property
    def _prices(self) -> tuple[float | None, float | None, float | None]:
        return self.device_usd, self.node_usd, self.cluster_usd

    def total_usd(self, cluster: Cluster) -> float | None:
        """Return the price of the cluster; None where nothing was set of prices. [USD]"""
        counts = cluster.devices, cluster.nodes, 1
        pairs = zip(counts, self._prices, strict=True)
        parts = [count * price for count, price in pairs if price is not None]
        return sum(parts) if parts else None


def check_path(path: str) -> str | None:
    """Return the problem of a path's first words; None if the fields check the rest."""
    root, *rest = path.split(".")
    if root not in ROOTS:
        hint = did_you_mean(root, ROOTS)
        return f"names no field: {hint}expected a path that begins with {', '.join(ROOTS)}"
    known = {"cluster": CLUSTER, "capital": CAPITAL}.get(root)
    if not rest or not all(rest):
        return "names no field: expected a dotted path, such as device.memory or cluster.nodes"
    if len(rest) > _MOST_DEEP:
        return f"names no field: found {len(rest) + 1} words, expected at most {_MOST_DEEP + 1}"
    if known is not None and rest[0] not in known:
        guess = nearest(rest[0], known)
        hint = f"did you mean '{root}.{guess}'? " if guess else ""
        return f"names no field: {hint}known: {', '.join(f'{root}.{name}' for name in known)}"
    return None


@dataclass(slots=True, kw_only=True)
class Draft:
    """A cluster in the making.

    Attributes:
        source: What messages call it.
        folder: Where relative paths start.
        hardware: What files hold, by kind and name; read ones are added.
        section: Keys of a job file's `cluster`.
        files: Root → what its file holds, changes made.
        job, search: What points set of every workload, by path below the root.
        capital: Field → amount as written.
        touched: Paths that were set.
        notes: What readers must know of the cluster, once it was made.
    """

    source: str
    folder: Path
    hardware: MutableMapping[str, Description]
    section: dict[str, Any]
    files: dict[str, Description] = field(default_factory=dict)
    job: dict[str, Any] = field(default_factory=dict)
    search: dict[str, Any] = field(default_factory=dict)
    capital: dict[str, Any] = field(default_factory=dict)
    touched: set[str] = field(default_factory=set)
    notes: tuple[str, ...] = ()

    def open(self) -> None:
        """Look up the files that the section names; afterward their fields can be set."""
        node = self.section.get("node")
        if not isinstance(node, str):
            raise JobError(self.source, ["cluster.node: is missing, expected the name of a node"])
        self.files["node"] = self._described("node", node, self.folder)
        site = self.section.get("site", ClusterSpec.model_fields["site"].default)
        self.files["site"] = self._described("site", str(site), self.folder)
        if isinstance(fabric := self.section.get("fabric"), str):
            self.files["fabric"] = self._described("fabric", fabric, self.folder)

    def set(self, path: str, value: Any, source: str) -> None:
        """Set the field at `path` to a value as a file writes it."""
        self.touched.add(path)
        root, _, rest = path.partition(".")
        if root in _FILES:
            file = self._file(root)
            mapping = with_value(file.mapping, rest.split("."), value, source)
            self.files[root] = replace(file, mapping=mapping)
        elif root == "cluster":
            self.section[rest] = value
        else:
            {"job": self.job, "search": self.search, "capital": self.capital}[root][rest] = value

    def scale(self, path: str, factor: float, source: str) -> None:
        """Multiply the field at `path`, or all below it, by `factor`.

        Raises:
            UnitError: There is no number.
        """
        for each in ALIASES.get(path, (path,)):
            self.touched.add(each)
            root, _, rest = each.partition(".")
            if root not in _FILES:
                raise UnitError(f"{path} has no value of its own to scale; give values")
            file = self._file(root)
            mapping = scaled(file.mapping, rest.split("."), factor, source)
            self.files[root] = replace(file, mapping=mapping)

    def number(self, path: str, factor: float) -> float | None:
        """Return the value at `path` in units of `factor`; None where there is none."""
        root, _, rest = path.partition(".")
        if root in _FILES:
            return number_at(self._file(root).mapping, rest.split("."), factor)
        held = {"cluster": self.section, "capital": self.capital}.get(root, {})
        return number_at(held, [rest], factor)

    def cluster(self) -> Cluster:
        """Return the cluster.

        Raises:
            JobError: It cannot be; each problem begins with the path of a field.
        """
        node = self._node()
        fabric: Fabric = self._read("fabric", load_fabric)
        port, rate = fabric.port_bytes_per_s, node.nic_bandwidth_bytes_per_s
        is_open = (
            "node.nic_bandwidth" in self.touched and "fabric.port_bandwidth" not in self.touched
        )
        if is_open and port is not None and rate > port:
            # Whoever asks for faster adapters asks for ports that keep up with them.
            fabric = replace(fabric, port_bytes_per_s=None)
        # A study that sets the PUE sets that of any node.
        there = () if "site.pue" in self.touched else (node,)
        site: Site = self._read("site", lambda file: load_site(file, nodes=there))
        problems = Problems(self.source)
        given = dict(self.section)
        if (devices := given.pop("devices", None)) is not None:
            given["nodes"] = _nodes(devices, node, problems)
        spec = problems.read(ClusterSpec, given, "cluster")
        problems.check()
        assert spec is not None
        self.notes = slow_ports(node, fabric) if spec.nodes > 1 else ()
        found = None
        with problems.at("cluster"):
            slowdown, slow_links = straggling(spec, spec.nodes * node.devices, problems=problems)
            found = Cluster(
                node=attached(node, fabric),
                nodes=spec.nodes,
                fabric=fabric,
                site=site,
                slowdown=slowdown,
                slow_links=slow_links,
                power_limit_w=spec.power_limit,
                is_owned=True,
            )
        problems.check()
        assert found is not None
        return self._owned(found)

    def bought(self) -> Capital:
        """Return what the cluster costs to buy.

        Raises:
            JobError: An amount is none.
        """
        problems, found = Problems(self.source), {}
        for key, value in self.capital.items():
            is_time = key == "lifetime"
            dimension = "s" if is_time else "usd"
            try:
                found[f"{key}_{dimension}"] = parse_quantity(value, dimension, positive=is_time)
            except UnitError as error:
                problems.add(f"capital.{key}", str(error))
        problems.check()
        return Capital(**found)

    def _owned(self, cluster: Cluster) -> Cluster:
        """Return the cluster with what was bought in place of rent, where its lifetime is given.

        Owners pay for energy besides.
        """
        capital = self.bought()
        total = capital.total_usd(cluster)
        if total is None or capital.lifetime_s is None:
            return cluster
        rent = total / cluster.nodes / capital.lifetime_s
        pool = replace(cluster.pool, node=replace(cluster.node, price_usd_per_s=rent))
        site = replace(cluster.site, bills_energy=True)
        return replace(cluster, pools=(pool,), site=site)

    def _node(self) -> Node:
        self._follow()
        device = self._read("device", load_device)
        node: Node = self._read("node", lambda file: load_node(file, device=device))
        return node

    def _follow(self) -> None:
        """Set what a changed field of the node implies, where no one set it.

        A domain of all devices of a node stays that of all, and the rent of a node is for its
        devices; a host at rest draws no more than a busy one.
        """
        old, new = self._described("node", self.section["node"], self.folder), self._file("node")
        domain, devices = ["scale_up", "domain_devices"], value_at(new.mapping, ["devices"])
        implied: list[tuple[list[str], Any]] = []
        if value_at(old.mapping, domain) == value_at(old.mapping, ["devices"]) != devices:
            implied.append((domain, devices))
        rent = number_at(old.mapping, ["price"], 1.0 / SECONDS_PER_HOUR)
        before, now = (number_at(each.mapping, ["devices"], 1.0) for each in (old, new))
        if rent is not None and before and now is not None and now != before:
            implied.append((["price"], f"{rent * now / before!r} USD/h"))
        idle, busy = (number_at(new.mapping, ["host", key], 1.0) for key in ("idle", "busy"))
        if "node.host.busy" in self.touched and idle and busy and idle > busy:
            implied.append((["host", "idle"], value_at(new.mapping, ["host", "busy"])))
        for keys, value in implied:
            if ".".join(("node", *keys)) not in self.touched:
                mapping = with_value(new.mapping, keys, value, "as the study changes the node")
                new = replace(new, mapping=mapping)
        self.files["node"] = new

    def _read(self, root: str, load: Any) -> Any:
        """Return what the changed file of `root` describes; problems begin with its paths."""
        try:
            return load(self._file(root))
        except JobError as error:
            problems = [f"{root}.{line.replace('.value: ', ': ', 1)}" for line in error.problems]
            raise JobError(self.source, problems) from error
        except HardwareError as error:
            raise JobError(self.source, [f"{root}.{line}" for line in error.lines]) from error

    def _file(self, root: str) -> Description:
        """Return what the file of `root` holds; a device and a fabric are named by their node."""
        if root not in self.files:
            node = self.files["node"]
            name = node.mapping.get(root)
            if not isinstance(name, str):
                raise JobError(self.source, [f"node.{root}: is missing, expected a name"])
            self.files[root] = self._described(root, name, node.path.parent)
        return self.files[root]

    def _described(self, kind: str, name: str, folder: Path) -> Description:
        where = located(name, folder)
        key = f"{kind}:{where}"
        if key not in self.hardware:
            try:
                self.hardware[key] = describe(kind, where)
            except WattreeError as error:
                place = f"cluster.{kind}" if kind != "device" else "node.device"
                raise JobError(self.source, [f"{place}: {error}"]) from error
        return self.hardware[key]


def _nodes(devices: object, node: Node, problems: Problems) -> int:
    """Return how many nodes hold so many devices, or 1 after noting why none do."""
    if isinstance(devices, bool) or not isinstance(devices, int | float) or devices < 1:
        problems.add("cluster.devices", f"found {devices!r}, expected a whole number from 1")
        return 1
    nodes, rest = divmod(devices, node.devices)
    if rest:
        problems.add(
            "cluster.devices",
            f"found {devices:g}, expected a multiple of {node.devices}, as {node.name} holds",
        )
    return max(int(nodes), 1)
