"""JSON schema of files of constants, as `calibration_file` reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wattree.cost.calibration import RESIDUAL_NAMES
from wattree.cost.calibration_file import EVIDENCE, MOST, MOST_SPREAD, SHIPPED_BASE
from wattree.cost.observations import Observation
from wattree.trace.plain import plain_schema


def calibration_schema() -> dict[str, Any]:
    """Return the JSON schema of a file of constants (draft 2020-12)."""
    spread = {"type": "number", "minimum": 0, "exclusiveMaximum": MOST_SPREAD}
    text = {"type": "string"}
    constant = _closed(
        {
            "value": {"type": "number", "minimum": 0, "exclusiveMaximum": MOST},
            "spread": {**spread, "description": "standard deviation of the logarithm"},
            "evidence": {"enum": list(EVIDENCE), "default": "fitted"},
            "source": text,
        },
        required=["value"],
    )
    observation = plain_schema(Observation)
    parts = observation.pop("$defs", {})
    residuals = {
        "command": text,
        "spreads": _closed(dict.fromkeys(RESIDUAL_NAMES, spread)),
        "rows": _mapping({"type": "array"}),
    }
    keys = {
        "base": {"const": SHIPPED_BASE, "description": "the file holds only what differs"},
        "constants": {
            **_mapping(constant),
            "description": "dotted names such as device.a100-sxm-80gb.matmul.bf16, with values",
        },
        "residuals": {**_closed(residuals), "description": "what predictions of classes err by"},
        "observations": {
            "type": "array",
            "items": observation,
            "description": "times that runs of one's own took",
        },
        "profile": {"type": "object", "description": "what was measured, and when; not read"},
        "left_out": {
            **_mapping(_mapping({})),
            "description": "errors of predictions for what the fit never saw",
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Calibration file",
        **_closed(keys, required=["constants"]),
        "$defs": parts,
    }


def _closed(keys: Mapping[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    found = {"type": "object", "properties": dict(keys), "additionalProperties": False}
    return found | ({"required": required} if required else {})


def _mapping(value: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": dict(value)}
