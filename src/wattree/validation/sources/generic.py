"""Rows of any other source, if they say enough."""

from __future__ import annotations

from wattree.job import Job
from wattree.strategy import StrategyOptions
from wattree.validation.cells import Cells, RowDegrees
from wattree.validation.sources.registry import expert_split, row_job, row_strategy

#: Part of a printed software name, lower case → family; first match wins.
_FAMILIES = (
    ("megatron-deepspeed", "megatron-deepspeed"),
    ("nemo", "megatron-core"),
    ("megatron-core", "megatron-core"),
    ("megatron-bridge", "megatron-core"),
    ("megatron-lm", "megatron-lm-2021"),
    ("llm-foundry", "llm-foundry"),
    ("torchtitan", "torchtitan"),
    ("fms-fsdp", "pytorch-fsdp-compiled"),
    ("maxtext", "maxtext"),
)
_SHARDING = (
    ("hsdp", "hybrid"),
    ("fsdp", "zero3"),
    ("zero-3", "zero3"),
    ("zero-2", "zero2"),
    ("zero-1", "zero1"),
    ("zero-0", "none"),
    ("ddp", "none"),
)


def express(cells: Cells) -> Job:
    """Return a row as a job, with the habits of its software family.

    Raises:
        RowError: The software is of no known family, or the row does not say enough.
    """
    row = cells.row
    family = _first(_FAMILIES, row.software)
    if family is None:
        raise cells.refusal(f"software '{row.software}' belongs to no known family")
    if row.arch_type not in (None, "decoder", "moe"):
        raise cells.refusal(f"architecture '{row.arch_type}' has no expression")
    cells.need("micro_batch", "global_batch", "n_layers", "n_heads", "vocab")
    degrees = cells.degrees()
    strategy = _strategy(cells, degrees, family)
    return row_job(
        cells,
        strategy=strategy,
        software=family,
    )


def _strategy(cells: Cells, degrees: RowDegrees, family: str) -> StrategyOptions:
    dp, ep = expert_split(cells, degrees)
    sharding = _sharding(cells, family)
    shard = cells.whole("fsdp_shard") if sharding == "hybrid" else 1
    if dp % shard:
        raise cells.refusal(f"{dp} replicas do not divide into shards of {shard}")
    return row_strategy(
        cells,
        degrees,
        dp=dp // shard,
        fsdp=shard,
        ep=ep,
        sharding=sharding,
        sequence_parallel=cells.or_assume(
            "seq_parallel", degrees.tp > 1 and family in ("megatron-core", "torchtitan")
        ),
        recompute=_recompute(cells),
        schedule="interleaved" if degrees.vp > 1 else "1f1b",
        virtual_stages=degrees.vp,
    )


def _sharding(cells: Cells, family: str) -> str:
    printed = cells.row.sharding
    if printed is not None:
        found = _first(_SHARDING, printed)
        if found is None:
            raise cells.refusal(f"unknown sharding '{printed}'")
        return found
    software_defaults = {
        "megatron-core": "zero1",
        "megatron-deepspeed": "zero1",
        "megatron-lm-2021": "none",
    }
    software_default = software_defaults.get(family, "zero3")
    cells.assume(f"sharding not stated: {software_default}, the habit of {family}")
    return software_default


def _recompute(cells: Cells) -> str:
    printed = cells.row.recompute
    if printed is None:
        cells.assume("recomputation not stated: none")
        return "none"
    if printed in ("none", "full", "selective"):
        return printed
    raise cells.refusal(f"recompute '{printed}' has no expression")


def _first(table: tuple[tuple[str, str], ...], text: str) -> str | None:
    return next((value for part, value in table if part in text.lower()), None)
