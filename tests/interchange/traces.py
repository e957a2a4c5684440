"""Small jobs to export, and traces written by hand, message by message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wattree.interchange.files import encoded_length
from wattree.interchange.schema import CollectiveType, NodeType, add_attribute, messages
from wattree.job import Job, job_from_mapping

__all__ = [
    "collective",
    "compute",
    "job",
    "node",
    "receive",
    "send",
    "written",
]

SHAPE = {"layers": 4, "hidden": 512, "heads": 8, "kv_heads": 4, "ffn": 1024, "vocab": 1000}


def job(strategy: Mapping[str, object], *, nodes: int = 1, **shape: object) -> Job:
    """Return a small Llama-like job on DGX H100."""
    return job_from_mapping(
        {
            "model": {"transformer": {**SHAPE, **shape}},
            "data": {"sequence_length": 1024, "global_batch": 8},
            "precision": "bf16",
            "optimizer": "adamw",
            "cluster": {"node": "dgx-h100", "nodes": nodes},
            "strategy": {"micro_batch": 1, **strategy},
        },
        "job.yaml",
        folder=Path(),
    )


def node(
    number: int,
    kind: NodeType,
    *,
    us: int = 0,
    after: Sequence[int] = (),
    order: Sequence[int] = (),
    **attributes: object,
) -> Any:
    """Return a node. Attributes come as `name=value`, or `name=(field of the schema, value)`."""
    made = messages().node(id=number, name=f"n{number}", type=int(kind), duration_micros=us)
    made.data_deps.extend(after)
    made.ctrl_deps.extend(order)
    for name, value in attributes.items():
        kinds = {bool: "bool_val", int: "int64_val", str: "string_val"}
        field, content = value if isinstance(value, tuple) else (kinds[type(value)], value)
        add_attribute(made, name, field, content)
    return made


def compute(number: int, us: int = 0, **options: Any) -> Any:
    """Return a computation."""
    return node(number, NodeType.COMP_NODE, us=us, **options)


def collective(
    number: int, size: int, *, kind: CollectiveType = CollectiveType.ALL_REDUCE, **options: Any
) -> Any:
    """Return a collective."""
    return node(number, NodeType.COMM_COLL_NODE, comm_type=int(kind), comm_size=size, **options)


def send(number: int, to: int, size: int = 1000, *, tag: int = 0, **options: Any) -> Any:
    """Return a send."""
    return node(
        number, NodeType.COMM_SEND_NODE, comm_dst=to, comm_size=size, comm_tag=tag, **options
    )


def receive(number: int, source: int, size: int = 1000, *, tag: int = 0, **options: Any) -> Any:
    """Return a receive."""
    return node(
        number, NodeType.COMM_RECV_NODE, comm_src=source, comm_size=size, comm_tag=tag, **options
    )


def written(folder: Path, *ranks: Sequence[Any], prefix: str = "t") -> Path:
    """Write one file per rank and return the folder."""
    folder.mkdir(exist_ok=True)
    for rank, nodes in enumerate(ranks):
        content = b""
        for message in (messages().metadata(version="0.0.4"), *nodes):
            raw = message.SerializeToString()
            content += encoded_length(len(raw)) + raw
        (folder / f"{prefix}.{rank}.et").write_bytes(content)
    return folder
