"""The XML that NCCL (and RCCL) writes to the file named by NCCL_TOPO_DUMP_FILE.

    <system> <cpu numaid …> <pci busid link_speed link_width> … <gpu dev sm> <nvlink target count>
                                                              <nic> <net name dev speed>

Elements and attributes are those of NCCL's src/graph/xml.cc and topo.cc; others are passed over.
"""

from __future__ import annotations

import re
from pathlib import Path

from wattree.errors import JobError
from wattree.hardware.imports.rates import (
    MOST_NVLINKS,
    PCIE_TRANSFERS,
    nvlink_bytes_per_s,
    pcie_bytes_per_s,
    socket_bytes_per_s,
    xgmi_bytes_per_s,
)
from wattree.hardware.imports.topology import ImportedTopology
from wattree.hardware.imports.xml_tree import Element, read_xml
from wattree.hardware.network import Link, cable
from wattree.hardware.topologies.join import device_name, join, without_forwarding
from wattree.units import whole_number

_SPEED = re.compile(r"\s*(\d+(?:\.\d+)?)\s*GT/s", re.ASCII)
#: What the kernel writes where it does not know the speed of a slot.
_NO_SPEED = re.compile(r"\s*(unknown.*)?", re.IGNORECASE)
#: PCI classes: a bridge that is an NVSwitch, and the start of those of displays and accelerators.
_SWITCH_CLASS = "0x068000"
_DEVICE_CLASSES = ("0x03", "0x12")
_MBIT_PER_S = 1e6 / 8
_MB_PER_S = 1e6
#: No fact, only the bound of what can be meant; that of a node file's own rates. [B/s]
_MOST_BYTES_PER_S = 1e13


def from_nccl_xml(path: str | Path) -> ImportedTopology:
    """Return the node that an NCCL topology file describes.

    GPUs are numbered by their `dev`, adapters by that of their `net`. The chips of an NVSwitch
    count as one, `nvswitch0`. Rates are nominal: PCIe by speed and width, NVLink by count and
    compute capability, sockets by what NCCL assumes of their make. A slot without a speed, or with
    a width of 0, is one that the system tells nothing of: NCCL's own assumption holds. The file has
    no latencies, so they are 0.

    Raises:
        JobError: The file cannot be read or is not such XML; all problems are listed.
    """
    root = read_xml(path)
    reader = _Reader(root)
    if reader.problems:
        raise JobError(str(path), reader.problems)
    return reader.topology()


class _Reader:
    """One pass over the elements, and what it found."""

    def __init__(self, root: Element) -> None:
        self.problems: list[str] = []
        self._gpus: dict[int, tuple[Element, Element, str]] = {}  # dev → gpu, its pci, its cpu
        self._adapters: dict[int, tuple[Element, float]] = {}  # number → net, line rate
        self._links: list[Link] = []
        self._bus_ids: dict[str, str] = {}  # of GPUs, to their vertex
        self._switches = 0
        if root.tag != "system":
            self._note(root, "is the root, expected <system> as NCCL_TOPO_DUMP_FILE writes it")
            return
        self._cpus = list(root.named("cpu"))
        for number, cpu in enumerate(self._cpus):
            for child in cpu.children:
                self._walk(child, parent=f"cpu{number}", cpu=f"cpu{number}")
        self._join_sockets()
        if not self._gpus and not self.problems:
            self._note(root, "holds no <gpu>; expected the dump of a run that used the devices")
        if sorted(self._gpus) != list(range(len(self._gpus))):
            self._note(root, f"has GPUs of dev {sorted(self._gpus)}, expected 0, 1, … without gaps")
        fast: list[Link] = []
        for device in sorted(self._gpus):
            fast += self._fast_links(device)
        self._check_reverse_links(fast)
        self._links = fast + self._links  # fast links win among equal routes

    def topology(self) -> ImportedTopology:
        devices = [device_name(device) for device in sorted(self._gpus)]
        direct = [link for link in self._links if {link.source, link.target} <= set(devices)]
        host = without_forwarding(self._links, () if direct else devices)
        return ImportedTopology(
            network=join([host]),
            devices=len(devices),
            adapter_bytes_per_s={
                f"nic{number}": rate for number, (_, rate) in sorted(self._adapters.items())
            },
        )

    def _walk(self, element: Element, *, parent: str, cpu: str) -> None:
        if element.tag == "nic":
            for net in element.named("net"):
                self._read_net(net, parent=parent, slot_bytes_per_s=None)
        if element.tag != "pci":
            return
        rate = self._slot_rate(element)
        for nic in element.named("nic"):
            for net in nic.named("net"):
                self._read_net(net, parent=parent, slot_bytes_per_s=rate)
        for gpu in element.named("gpu"):
            self._read_gpu(gpu, element, parent=parent, cpu=cpu, slot_bytes_per_s=rate)
        below = list(element.named("pci"))
        if below:
            switch = f"pcie{self._switches}"
            self._switches += 1
            self._links += cable(switch, parent, rate, kind="pcie")
            for child in below:
                self._walk(child, parent=switch, cpu=cpu)

    def _read_gpu(
        self, gpu: Element, pci: Element, *, parent: str, cpu: str, slot_bytes_per_s: float
    ) -> None:
        device = self._number(gpu, "dev")
        if device in self._gpus:
            first = self._gpus[device][0].line
            self._note(gpu, f"has dev {device} as line {first} has; expected the dump of one node")
            return
        name, bus_id = device_name(device), pci.attributes.get("busid", "")
        if bus_id.lower() in self._bus_ids:
            other = self._bus_ids[bus_id.lower()]
            self._note(pci, f"has the busid '{bus_id[:40]}' of {other}, expected one of its own")
            return
        self._gpus[device] = (gpu, pci, cpu)
        self._bus_ids[bus_id.lower()] = name
        self._links += cable(name, parent, slot_bytes_per_s, kind="pcie")

    def _read_net(self, net: Element, *, parent: str, slot_bytes_per_s: float | None) -> None:
        number = self._number(net, "dev")
        speed = self._number(net, "speed") * _MBIT_PER_S
        if number in self._adapters:
            self._check_same_net(net, self._adapters[number][0])
            return
        if not 0 < speed <= _MOST_BYTES_PER_S:
            self._note(
                net,
                f"has the speed {net.attributes.get('speed', '')[:40]!r}, expected Mbit/s above 0 "
                f"and up to {_MOST_BYTES_PER_S / _MBIT_PER_S:.0f}",
            )
            return
        name = f"nic{number}"
        self._adapters[number] = (net, speed)
        self._links += cable(name, parent, slot_bytes_per_s or speed, kind="pcie")

    def _check_same_net(self, net: Element, first: Element) -> None:
        """NCCL lists an adapter of the host once under each socket; all else has its own `dev`."""
        for key in ("name", "speed", "guid"):
            if net.attributes.get(key) != first.attributes.get(key):
                dev = net.attributes.get("dev", "")
                self._note(
                    net,
                    f"has dev {dev} as line {first.line} has, with another {key}; expected "
                    "a dev of its own",
                )
                return

    def _fast_links(self, device: int) -> list[Link]:
        gpu, _, cpu = self._gpus[device]
        name = device_name(device)
        rates: dict[str, float] = {}
        seen: dict[str, int] = {}
        together = 0
        for link in gpu.named("nvlink", "xgmi"):
            each, target, count = self._link_rate(gpu, link), self._target(link), self._count(link)
            together += count
            self._check_target(link, name, target, seen)
            if each is not None and target is not None:
                rates[target] = rates.get(target, 0.0) + each * count
        if together > MOST_NVLINKS:
            self._note(gpu, f"has {together} links, expected at most {MOST_NVLINKS} of one device")
        for link in gpu.named("c2c"):
            each = self._number(link, "bw") * _MB_PER_S
            rates[cpu] = rates.get(cpu, 0.0) + each * self._count(link)
            if not 0 < rates[cpu] <= _MOST_BYTES_PER_S:
                found = f"{rates[cpu] / _MB_PER_S:.0f} MB/s"
                self._note(
                    link, f"carries {found}, expected above 0 and up to {_MOST_BYTES_PER_S / 1e6:g}"
                )
        links = []
        for target, rate in rates.items():
            if rate <= 0:
                continue  # noted where its count was read
            links.append(
                Link(source=name, target=target, bandwidth_bytes_per_s=rate, kind="nvlink")
            )
            if not target.startswith("d"):  # a device lists its own way back
                links.append(
                    Link(source=target, target=name, bandwidth_bytes_per_s=rate, kind="nvlink")
                )
        return links

    def _check_target(
        self, link: Element, name: str, target: str | None, seen: dict[str, int]
    ) -> None:
        """Refuse a link to the device itself, and a second element for the same bus id."""
        bus_id = link.attributes.get("target", "").lower()
        if target == name:
            self._note(link, f"leads to '{bus_id[:40]}', the GPU that it is in; expected another")
        elif bus_id in seen:
            self._note(
                link,
                f"leads to '{bus_id[:40]}' as line {seen[bus_id]} does; expected each target once, "
                "with its count",
            )
        seen.setdefault(bus_id, link.line)

    def _check_reverse_links(self, fast: list[Link]) -> None:
        """Each of two devices lists the links between them."""
        rates = {(link.source, link.target): link.bandwidth_bytes_per_s for link in fast}
        for device, (gpu, _, _) in sorted(self._gpus.items()):
            name = device_name(device)
            for (source, target), rate in rates.items():
                back = rates.get((target, source), 0.0)
                if source == name and back != rate:
                    found = f"{back / 1e9:g} GB/s" if back else "none"
                    self._note(
                        gpu,
                        f"has links of {rate / 1e9:g} GB/s to {target}, which has {found} "
                        "back; expected the same both ways",
                    )

    def _link_rate(self, gpu: Element, link: Element) -> float | None:
        if link.tag == "nvlink":
            capability = self._number(gpu, "sm")
            rate = nvlink_bytes_per_s(capability)
            wrong = f"has sm {capability}, which has no NVLink"
        else:
            architecture = gpu.attributes.get("gcn", "")
            rate = xgmi_bytes_per_s(architecture)
            wrong = f"has gcn '{architecture}', whose xGMI rate is not known"
        if rate is None:
            self._note(gpu, f"{wrong}; write the node's links under `links` instead")
        return rate

    def _target(self, link: Element) -> str | None:
        target = link.attributes.get("target", "").lower()
        kind = link.attributes.get("tclass", "")
        if target in self._bus_ids:
            return self._bus_ids[target]
        if kind == _SWITCH_CLASS:
            return "nvswitch0"
        if kind.startswith(_DEVICE_CLASSES):
            # NCCL lists links to GPUs that the job did not use; they carry nothing of it.
            return None
        found = f"'{target[:40]}' of class '{kind[:40]}'"
        self._note(link, f"leads to {found}, expected a GPU or an NVSwitch")
        return None

    def _slot_rate(self, pci: Element) -> float:
        width = self._number(pci, "link_width") if "link_width" in pci.attributes else None
        if width is not None and width > 64:
            self._note(pci, f"has link_width {width}, expected 1 to 64 lanes")
        text = pci.attributes.get("link_speed", "")
        if _NO_SPEED.fullmatch(text):
            return pcie_bytes_per_s(None, width)
        speed = _SPEED.match(text)
        if speed is None or float(speed[1]) not in PCIE_TRANSFERS:
            known = ", ".join(f"{transfers:g}" for transfers in PCIE_TRANSFERS)
            self._note(pci, f"has link_speed '{text[:40]}', expected one of {known} GT/s")
            return pcie_bytes_per_s(None, width)
        return pcie_bytes_per_s(float(speed[1]), width)

    def _join_sockets(self) -> None:
        for one, cpu in enumerate(self._cpus):
            rate = socket_bytes_per_s(
                cpu.attributes.get("vendor", ""),
                cpu.attributes.get("arch", ""),
                self._number(cpu, "familyid") if "familyid" in cpu.attributes else 0,
                self._number(cpu, "modelid") if "modelid" in cpu.attributes else 0,
            )
            for other in range(one + 1, len(self._cpus)):
                self._links += cable(f"cpu{one}", f"cpu{other}", rate, kind="sockets")

    def _count(self, link: Element) -> int:
        count = self._number(link, "count")
        if count == 0 and link.attributes.get("count", "").isdigit():
            self._note(link, "has count 0, expected 1 or more")
        return count

    def _number(self, element: Element, key: str) -> int:
        text = element.attributes.get(key, "")
        if (number := whole_number(text)) is not None:
            return number
        found = f"'{text[:40]}'" if key in element.attributes else "nothing"
        self._note(element, f"has {found} as {key}, expected a whole number")
        return 0

    def _note(self, element: Element, problem: str) -> None:
        text = f"line {element.line}: <{element.tag}> {problem}"
        if text not in self.problems:
            self.problems.append(text)
