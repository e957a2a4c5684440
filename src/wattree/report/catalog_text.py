"""Tables of the catalog: an overview of each kind, and details of one entry with sources."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any

from rich.markup import escape  # `float32[batch, 3]` is no markup
from rich.table import Table
from rich.text import Text

from wattree.cost.families import SOFTWARE, software_family
from wattree.cost.other_software import family_named, other_software
from wattree.cost.software import Software
from wattree.dotted import dotted
from wattree.hardware import Device, Fabric, Link, Node, Site
from wattree.hardware.load import load_device, load_fabric, load_node, load_site
from wattree.hardware.names import device_names, fabric_names, node_names, site_names
from wattree.job.offers import Offer, offer_of
from wattree.report.parts import headed_table
from wattree.report.words import NOT_APPLICABLE, column, count, quantity, significant
from wattree.units import JOULES_PER_KWH, SECONDS_PER_HOUR, format_bytes, format_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of the catalog.

    Attributes:
        summary: Column → value in SI, for the overview.
        sources: Dotted field → where its value comes from.
        citations: Where everything comes from, if not field by field.
        unsaid: Dotted fields that have their default.
        words: Field → its value for people, where that is no plain number or text.
        verbatim: Fields have their names of a job file, and `sources` has meanings too.
    """

    summary: Mapping[str, Any]
    details: Mapping[str, Any]
    sources: Mapping[str, str] = field(default_factory=dict)
    citations: tuple[str, ...] = ()
    unsaid: frozenset[str] = frozenset()
    words: Mapping[str, str] = field(default_factory=dict)
    verbatim: bool = False

    def as_json(self, *, brief: bool = False) -> dict[str, Any]:
        """Return the fields (or only those of the overview) and the sources of the numbers."""
        shown = self.summary if brief else self.details
        return {**shown, "sources": list(self.citations) or dict(self.sources)}


def entries_of(kind: str, name: str | None) -> list[Entry]:
    """Return the entries of one kind, such as `devices`: all of them, or the one of a name.

    Raises:
        UnknownNameError: There is nothing of that name.
    """
    names, entry = _KINDS[kind]
    return [entry(each) for each in ([name] if name is not None else names())]


def overview_table(kind: str, entries: Sequence[Entry]) -> Table:
    """Return one row per entry; each column has one unit, named in its head."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    columns = []
    has_units = kind != "models"
    # Without the layers, which the table of one model has, every row is a line of 80 columns.
    for head in (each for entry in entries[:1] for each in entry.summary if each != "layers"):
        unit, texts = _column(head, [entry.summary[head] for entry in entries])
        is_text = isinstance(entries[0].summary[head], str)
        table.add_column(
            f"{_title(head)}\n{unit}" if has_units else _title(head),
            justify="left" if is_text else "right",
            no_wrap=head in ("name", "field") or not is_text,
            overflow="fold",
        )
        columns.append(texts)
    for row in zip(*columns, strict=True):
        table.add_row(*map(escape, row))
    words = f"wattree catalog {kind} NAME shows one with its sources."
    table.caption = Text(f"{len(entries)} {_PLURAL.get(kind, kind)}; {words}", "dim")
    table.caption_justify = "left"
    return table


def _column(head: str, values: Sequence[Any]) -> tuple[str, list[str]]:
    for ending, unit in (
        ("_flop_per_s", "FLOP/s"),
        ("_bytes_per_s", "B/s"),
        ("_bytes", "B"),
        ("_w", "W"),
    ):
        if head.endswith(ending):
            return column(values, unit, binary=unit == "B", aligned=False)
    for ending, (unit, factor) in _PER.items():
        if head.endswith(ending):
            return unit, [
                significant(None if value is None else value * factor) for value in values
            ]
    return "", [_worded(head, value) for value in values]


def detail_table(entry: Entry) -> Table:
    """Return one row per field that is set, with its source."""
    table = headed_table()
    table.add_column("field", no_wrap=True)
    table.add_column("value")
    table.add_column("meaning" if entry.verbatim else "source", overflow="fold")
    for name, value in dotted(entry.details):
        source = entry.sources.get(name, "")
        if source or name not in entry.unsaid:
            words = entry.words.get(name) or _worded(name, value)
            title = name if entry.verbatim else _title(name)
            table.add_row(title, escape(words), escape(source))
    if entry.citations:
        table.add_row("sources", escape("; ".join(entry.citations)), "")
    return table


# ---------------------------------------------------------------- what each kind shows


def _device(name: str) -> Entry:
    device = load_device(name)
    peaks = {str(precision): peak for precision, peak in device.peak_flop_per_s.items()}
    summary = {
        "name": device.name,
        "memory_bytes": device.memory_bytes,
        "memory_bandwidth_bytes_per_s": device.memory_bandwidth_bytes_per_s,
        "peak_16_bit_flop_per_s": peaks.get("bf16", peaks.get("fp16")),
        "tdp_w": device.tdp_w,
    }
    details = {**_fields(device), "peak_flop_per_s": peaks}
    return Entry(
        summary=summary, details=details, sources=device.sources, unsaid=_unset_fields(device)
    )


def _node(name: str) -> Entry:
    node = load_node(name)
    summary = {
        "name": node.name,
        "devices": f"{node.devices} × {node.device.name}",
        "scale_up_bytes_per_s": node.scale_up.bandwidth_bytes_per_s,
        "network_bytes_per_s": node.nics * node.nic_bandwidth_bytes_per_s,
        "price_usd_per_s": node.price_usd_per_s,
    }
    details = {**_fields(node), "device": node.device.name}
    return Entry(
        summary=summary,
        details=details,
        sources=node.sources,
        unsaid=_unset_fields(node),
        words={"links": _links_in_words(node.links)},
    )


def _model(name: str) -> Entry:
    from wattree.capture import catalog_entry, model_figures

    entry = catalog_entry(name)
    figures = model_figures(entry.name)
    summary = {
        "name": entry.name,
        "field": entry.field,
        "parameters": figures.parameters,
        "layers": figures.layers,
        "forward_flop": figures.forward_flop,
        "input": figures.first_input,
    }
    details = {
        **summary,
        "inputs": figures.inputs,
        "architecture": figures.architecture,
        "vocabulary": figures.vocabulary,
        "sequence": figures.max_sequence_length,
        "blocks": figures.blocks,
        "remark": entry.remark or None,
    }
    del details["input"]
    unsaid = frozenset(key for key in details if details[key] is None)
    return Entry(summary=summary, details=details, citations=(entry.source,), unsaid=unsaid)


def _fabric(name: str) -> Entry:
    fabric = load_fabric(name)
    summary = {
        "name": fabric.name,
        "kind": fabric.kind,
        "oversubscription": fabric.oversubscription,
        "leaf_nodes": fabric.leaf_nodes,
        "switch_w_per_nic": fabric.switch_w_per_nic,
        "port_bytes_per_s": fabric.port_bytes_per_s,
    }
    return Entry(
        summary=summary,
        details=_fields(fabric),
        sources=fabric.sources,
        unsaid=_unset_fields(fabric),
    )


def _site(name: str) -> Entry:
    site = load_site(name)
    details = _fields(site)
    return Entry(summary=details, details=details, sources=site.sources)


def _software(name: str) -> Entry:
    """Return a software family: its features, and its traits with their meanings."""
    name = family_named(name)
    family, offer = software_family(name), offer_of(name)
    traits = asdict(family)
    summary = {"name": traits.pop("name"), "title": traits.pop("title")}
    others = {f"also {other}": why for other, why in other_software().get(name, {}).items()}
    runs: dict[str, Any] = {}
    sources = dict(_trait_meanings())
    if offer is not None:
        runs = {"version": offer.version, "devices": offer.devices, "axes": offer.axes}
        runs |= {**offer.choices, "stages": offer.stages}
        runs |= {f"schedule {name}": needs for name, needs in offer.pipelines.items()}
        runs |= {f"{axis} not for": f"{', '.join(of)}" for axis, of in offer.missing.items()}
        runs |= {f"with {axis}": "no other of tp, cp, pp, ep" for axis in offer.alone}
        runs |= {
            f"with {axis}{given}{' or' * number}": keys
            for given, together in _conditional(offer)
            for axis, ways in together.items()
            for number, keys in enumerate(ways)
        }
        sources["version"] = offer.source
    return Entry(
        summary=summary,
        details={**summary, **others, **runs, **traits},
        sources=sources,
        verbatim=True,
    )


def _conditional(offer: Offer) -> Iterator[tuple[str, Mapping[str, Sequence[Mapping[str, Any]]]]]:
    """Yield the combinations that a software has, and under which condition, in words."""
    yield "", offer.together
    for condition, together in offer.under.items():
        yield f", {condition}", together


def _model_names() -> Iterable[str]:
    from wattree.capture import model_names

    return model_names()


_KINDS: Mapping[str, tuple[Callable[[], Iterable[str]], Callable[[str], Entry]]] = {
    "models": (_model_names, _model),
    "devices": (device_names, _device),
    "nodes": (node_names, _node),
    "fabrics": (fabric_names, _fabric),
    "sites": (site_names, _site),
    "software": (lambda: SOFTWARE, _software),
}


#: Kinds whose name is not the plural of one entry.
_PLURAL: Mapping[str, str] = {"software": "software families"}


# ---------------------------------------------------------------- fields as words


def _fields(thing: Device | Node | Fabric | Site) -> dict[str, Any]:
    details = asdict(thing)
    del details["sources"]
    return details


def _unset_fields(thing: Any, above: str = "") -> frozenset[str]:
    """Return the dotted fields that have their default, those of parts included."""
    found: set[str] = set()
    for each in fields(thing):
        name, value = f"{above}{each.name}", getattr(thing, each.name)
        if each.default is not MISSING and value == each.default:
            found.add(name)
        elif is_dataclass(value):
            found |= _unset_fields(value, f"{name}.")
    return frozenset(found)


def _links_in_words(links: Sequence[Link]) -> str:
    """Return links as `d0-d1 200 GB/s`; `d0>d1` where the way back is another."""
    rest = list(links)
    lines = []
    while rest:
        link = rest.pop(0)
        back = replace(link, source=link.target, target=link.source)
        joint = "-" if back in rest else ">"
        if back in rest:
            rest.remove(back)
        latency = f", {format_time(link.latency_s)}" if link.latency_s else ""
        rate = quantity(link.bandwidth_bytes_per_s, "B/s")
        lines.append(f"{link.source}{joint}{link.target} {rate}{latency}")
    return "\n".join(lines)


#: Ending of a field's name → the unit that people use, and how many of it are one in SI.
_PER: Mapping[str, tuple[str, float]] = {
    "_usd_per_s": ("$/h", SECONDS_PER_HOUR),
    "_usd_per_j": ("$/kWh", JOULES_PER_KWH),
    "_gco2e_per_j": ("g CO2e/kWh", JOULES_PER_KWH),
    "_w_per_nic": ("W/NIC", 1.0),
}

#: Ending of a field's name → its value in words; `_bytes_per_s` stands before `_s`, its ending.
_UNITS: tuple[tuple[str, Callable[[float], str]], ...] = (
    ("_flop_per_s", lambda value: quantity(value, "FLOP/s")),
    ("_bytes_per_s", lambda value: quantity(value, "B/s")),
    *(
        (ending, lambda value, unit=unit, factor=factor: f"{significant(value * factor)} {unit}")
        for ending, (unit, factor) in _PER.items()
    ),
    ("_bytes", format_bytes),
    ("_flop", lambda value: quantity(value, "FLOP")),
    ("_w", lambda value: quantity(value, "W")),
    ("_s", format_time),
)


def _worded(name: str, value: Any) -> str:
    if value is None:
        return NOT_APPLICABLE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return "; ".join(map(str, value))
    if not isinstance(value, int | float):
        return str(value)
    for part in reversed(name.split(".")):  # `peak_flop_per_s.bf16` has its unit in the middle
        for ending, words in _UNITS:
            if part.endswith(ending):
                return words(value)
    return count(value)


def _title(name: str) -> str:
    name = name.replace("memory_bytes_per_s", "memory_bandwidth")  # `memory_bytes` is its size
    for ending, _ in _UNITS:
        name = name.replace(f"{ending}.", ".").removesuffix(ending)
    return name.replace("_", " ")


def _trait_meanings() -> Mapping[str, str]:
    """Return trait → its description in the attributes of `Software`."""
    listed = inspect.cleandoc(Software.__doc__ or "").partition("Attributes:\n")[2]
    entries = re.findall(r"^    (\w[\w, ]*): (.*(?:\n     +.*)*)", listed, re.MULTILINE)
    return {
        trait: " ".join(words.split()) for names, words in entries for trait in names.split(", ")
    }
