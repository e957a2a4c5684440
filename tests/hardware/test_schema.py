"""The schemas of hardware files say what the loader says."""

import copy

import jsonschema
import pytest

from wattree.errors import JobError
from wattree.hardware import load
from wattree.hardware.description import Description
from wattree.hardware.schema import hardware_schema

_LOADED = {
    "device": (load.load_device, "a100-sxm-80gb"),
    "node": (load.load_node, "dgx-h100"),
    "fabric": (load.load_fabric, "infiniband-ndr-fat-tree"),
    "site": (load.load_site, "france"),
}


@pytest.mark.parametrize("kind", _LOADED)
def test_what_the_schema_requires_is_what_the_loader_misses(kind: str) -> None:
    """Key by key, sections too; and both refuse a key that there is not."""
    loaded, name = _LOADED[kind]
    described = load.describe(kind, name)
    if kind == "fabric":
        port = hardware_schema(kind)["properties"]["port_bandwidth"]["description"]
        assert "Gbit/s" in port, "units that the loader takes are listed"
    checker = jsonschema.Draft202012Validator(hardware_schema(kind))
    places = [(), *((key,) for key, value in described.mapping.items() if isinstance(value, dict))]
    for place in places:
        inner = described.mapping[place[0]] if place else described.mapping
        for key in [*inner, "nonsense"]:
            changed = copy.deepcopy(dict(described.mapping))
            section = changed[place[0]] if place else changed
            if key == "nonsense":
                section[key] = 1
            else:
                del section[key]
            if place == ("sources",) or key == "sources":
                continue  # which citations are used is no matter of keys
            try:
                loaded(Description(path=described.path, mapping=changed))
                is_refused = False
            except JobError:
                is_refused = True
            assert checker.is_valid(changed) is not is_refused, (*place, key)
