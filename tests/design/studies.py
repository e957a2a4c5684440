"""Small studies for tests, as mappings with the keys of a study file."""

from __future__ import annotations

from typing import Any

__all__ = ["small_study"]


def small_study(**changes: Any) -> dict[str, Any]:
    """Return a study of eight points that take some milliseconds each."""
    study: dict[str, Any] = {
        "name": "small",
        "workloads": [
            {
                "name": "llama",
                "job": {
                    "model": "llama-3.2-1b",
                    "data": {"sequence_length": 1024, "global_batch": 16},
                },
                "target": {"steps": 10},
                "search": {
                    "pp": 1,
                    "cp": 1,
                    "fsdp": 1,
                    "sharding": "none",
                    "recompute": "none",
                    "micro_batch": 1,
                    "simulate": 1,
                },
            }
        ],
        "cluster": {"node": "dgx-a100", "site": "sweden"},
        "axes": {
            "memory": {"path": "device.memory", "values": ["1 GB", "80 GB"]},
            "bandwidth": {
                "path": "node.scale_up.bandwidth",
                "range": ["100 GB/s", "400 GB/s"],
                "points": 4,
                "spacing": "log",
            },
        },
        "objectives": ["time", "energy"],
    }
    return study | changes
