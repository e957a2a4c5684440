"""Sources whose publications state the network of their cluster outside the table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from wattree.job import Job
from wattree.validation.cells import Cells
from wattree.validation.clusters import Adapters, row_cluster
from wattree.validation.sources.generic import express
from wattree.validation.sources.registry import SOURCES

#: Source → accelerator as printed → adapters of a node.
_ADAPTERS: Mapping[str, Mapping[str, Adapters]] = {
    "llm-foundry": {
        "A100-SXM": Adapters(count=8, gbit_per_s=200, source="printed: 1600 Gbit/s RoCE per node")
    },
    "fms-fsdp": {
        "A100-SXM": Adapters(count=4, gbit_per_s=100, source="printed: 400 Gbit/s per node")
    },
    "torchtitan-2024-12": {
        "H100-SXM-96GB-500W": Adapters(
            count=8, gbit_per_s=400, source="printed: RDMA 400 Gbit/s per device"
        )
    },
}
#: Source → word in the precision of rows that its first table had already, and when that was: the
#: others were measured again (llm-foundry's pull request 543).
_FIRST: Mapping[str, tuple[str, str]] = {"llm-foundry": ("PURE", "2023-05")}


def _express(cells: Cells) -> Job:
    row = cells.row
    job = express(
        cells, cluster=row_cluster(cells, adapters=_ADAPTERS[row.source_id].get(row.accelerator))
    )
    word, released = _FIRST.get(row.source_id, ("", ""))
    return replace(job, released=released) if word and word in (row.precision or "") else job


for _source in _ADAPTERS:
    SOURCES.register(_source)(_express)
