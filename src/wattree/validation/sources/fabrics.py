"""Sources whose publications state the network of their cluster outside the table."""

from __future__ import annotations

from collections.abc import Mapping

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


def _express(cells: Cells) -> Job:
    adapters = _ADAPTERS[cells.row.source_id].get(cells.row.accelerator)
    return express(cells, cluster=row_cluster(cells, adapters=adapters))


for _source in _ADAPTERS:
    SOURCES.register(_source)(_express)
