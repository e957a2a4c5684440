"""Rows of any source as jobs: the words of their cells in those of job files, and nothing else.

What a row leaves open stays open in its job, and the software's users decide it
(`wattree.job.usual`), as it is for a job that somebody writes. Files of single sources add what
their publications state besides the table.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from wattree.cost.families import SOFTWARE
from wattree.cost.other_software import family_within
from wattree.hardware import Cluster
from wattree.job import Job, ModelSource
from wattree.job.usual import left_open
from wattree.strategy import StrategyOptions
from wattree.validation.cells import Cells, RowDegrees
from wattree.validation.clusters import row_cluster
from wattree.validation.shapes import row_model
from wattree.validation.sources.registry import expert_split, row_job
from wattree.validation.sources.replicas import is_mixed, replicas_job

#: Families that train networks other than language models.
_OF_NETWORKS = ("tensorflow-xla", "paddle", "jax", "mxnet", "pytorch-ngc", "pytorch")
#: Where no family is known.
_OTHER, _OTHER_NETWORK = "generic", "pytorch"
#: Family → the one of its releases up to a year, which publications do not name apart.
_EARLIER = {"megatron-lm": ("megatron-lm-2021", "2022")}
#: Part of a printed sharding, lower case → that of a job; what is said not to be stated is open.
_SHARDING = (
    ("not stated", None),
    ("hsdp", "hybrid"),
    ("fsdp", "zero3"),
    ("zero-3", "zero3"),
    ("zero-2", "zero2"),
    ("zero-1", "zero1"),
    ("zero-0", "none"),
    ("ddp", "none"),
)
_RECOMPUTE = (
    (r"^none", "none"),
    (r"^full", "full"),
    (r"selective.*op", "selective_operator"),
    (r"selective.*layer", "block_2"),
    (r"^selective", "selective"),
)
_LANGUAGE = (None, "decoder", "moe")


def express(
    cells: Cells, *, model: ModelSource | None = None, cluster: Cluster | None = None
) -> Job:
    """Return a row as a job.

    Args:
        cells: The row.
        model, cluster: None: what the row's own cells say.

    Raises:
        RowError: The row does not say enough, or contradicts itself.
    """
    row = cells.row
    if row.arch_type not in _LANGUAGE and row.hidden is None:
        return _network(cells)
    if row.arch_type not in _LANGUAGE:
        raise cells.refusal(f"architecture '{row.arch_type}' has no expression")
    family = _family(cells, SOFTWARE, _OTHER)
    degrees = cells.degrees()
    keys = _strategy_keys(cells, degrees)
    return row_job(
        cells,
        model=model or row_model(cells),
        cluster=cluster or row_cluster(cells),
        strategy=StrategyOptions(**keys),
        software=family,
        traits=_traits(cells),
        left_open=left_open(keys, family),
    )


def _strategy_keys(cells: Cells, degrees: RowDegrees) -> dict[str, Any]:
    """Return the keys of the strategy that a row states."""
    row = cells.row
    dp, ep = expert_split(cells, degrees)
    keys: dict[str, Any] = {
        **{axis: getattr(degrees, axis) for axis in ("tp", "pp", "cp")},
        "ep": ep,
        "micro_batch": cells.or_assume("micro_batch", 1),
    }
    sharding = _sharding(cells)
    shard = 1
    if row.fsdp_shard is not None and sharding == "zero3" and 1 < row.fsdp_shard < dp:
        sharding = "hybrid"
    if sharding == "hybrid":
        shard = row.fsdp_shard or min(cells.row.accel_per_node or 8, dp)
        if dp % shard:
            raise cells.refusal(f"{dp} replicas do not divide into shards of {shard}")
    keys |= {"dp": dp // shard, "fsdp": shard}
    if sharding is not None:
        keys["sharding"] = sharding
    if row.seq_parallel is not None and degrees.tp > 1:
        keys["sequence_parallel"] = row.seq_parallel
    if (recompute := _recompute(cells)) is not None:
        keys["recompute"] = recompute
    if degrees.pp > 1 and row.vp is not None:
        keys["schedule"] = "interleaved" if degrees.vp > 1 else "1f1b"
        keys["virtual_stages"] = degrees.vp
    if "async tp" in (row.overlap_fusion or "").lower():
        keys["overlap_tensor"] = True
    return keys


def _sharding(cells: Cells) -> str | None:
    printed = (cells.row.sharding or "not stated").lower()
    for part, sharding in _SHARDING:
        if part in printed:
            return sharding
    cells.assume(f"sharding '{cells.row.sharding}' not understood: as not stated")
    return None


def _recompute(cells: Cells) -> str | None:
    printed = cells.row.recompute
    if printed is None:
        return None
    for pattern, way in _RECOMPUTE:
        if re.search(pattern, printed.lower()):
            return way
    cells.assume(f"recompute '{printed}' not understood: as not stated")
    return None


def _traits(cells: Cells) -> dict[str, Any]:
    """Return what a row says of its software besides its name and date."""
    said = f"{cells.row.precision or ''} {cells.row.overlap_fusion or ''}".lower()
    traits: dict[str, Any] = {}
    if "torch.compile" in said:
        traits["compiled"] = True
    if re.search(r"fp32 grad", said):
        traits |= {"gradient_bytes": 4.0, "reduce_bytes": 4.0}
    return traits


def _network(cells: Cells) -> Job:
    """Return a row of images or clicks as a job: every device is a replica."""
    family = _family(cells, _OF_NETWORKS, _OTHER_NETWORK)
    return replicas_job(
        cells,
        software=family,
        optimizer=cells.optimizer(default="momentum"),
        traits={"channels_last": is_mixed(cells)} if family.startswith("pytorch") else {},
    )


def _family(cells: Cells, known: Collection[str], other: str) -> str:
    """Return the software family of a row."""
    printed = cells.row.software or ""
    if (family := family_within(printed, known)) is None:
        named = f"software '{printed}'" if printed else "software not stated"
        cells.assume(f"{named}: {other}")
        return other
    earlier, until = _EARLIER.get(family, (family, ""))
    return earlier if (cells.row.source_date or "no year")[:4] <= until else family
