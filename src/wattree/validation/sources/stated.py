"""Sources of replicas whose publications say the same of all their rows: `stated.yaml`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wattree.files import read_yaml
from wattree.job import Job
from wattree.validation.cells import Cells
from wattree.validation.clusters import row_cluster
from wattree.validation.networks import row_network
from wattree.validation.sources.registry import SOURCES
from wattree.validation.sources.replicas import is_mixed, replicas_job

_STATED = read_yaml(Path(__file__).with_suffix(".yaml"))


def _express(cells: Cells) -> Job:
    row, stated = cells.row, _STATED[cells.row.source_id]
    samples = None
    if "micro_batch" in stated:
        samples = cells.or_assume("micro_batch", *stated["micro_batch"])
    parts = [stated]
    if "in_16_bits" in stated and is_mixed(cells):
        parts.append(stated["in_16_bits"])
    printed = stated.get("printed", {}).items()
    parts += [part for word, part in printed if word in str(row.precision)]
    traits: dict[str, Any] = {}
    for part in parts:
        traits |= part.get("traits", {})
        for sentence in part.get("assumed", ()):
            cells.assume(sentence)
    return replicas_job(
        cells,
        software=stated["software"],
        optimizer=stated["optimizer"],
        model=row_network(cells, size=stated.get("image_size", {}).get(row.model_name)),
        cluster=row_cluster(cells, through_host=stated.get("through_host", False)),
        micro_batch=samples,
        options=stated.get("several") if (row.n_accel or 1) > 1 else None,
        traits=traits,
    )


for _source in _STATED:
    SOURCES.register(_source)(_express)
