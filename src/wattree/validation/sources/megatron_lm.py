"""Megatron-LM papers: SC'21 Table 1 and Korthikanti et al. 2022 Table 5, both on DGX A100."""

from __future__ import annotations

from wattree.job import Job
from wattree.validation.cells import Cells
from wattree.validation.sources.registry import SOURCES, row_job, row_strategy


@SOURCES.register("megatron-sc21-table1")
def express_sc21(cells: Cells) -> Job:
    """Return a row of Table 1 as a job; its step time comes from the printed TFLOP/s."""
    cells.assume("step time derived from the printed hardware TFLOP/s by the paper's formula")
    cells.assume("tensor parallel all-reduces exposed")
    return _job(cells, recompute="full", sequence_parallel=False)


@SOURCES.register("korthikanti2022")
def express_korthikanti(cells: Cells) -> Job:
    """Return a row of Table 5 as a job.

    The baseline recomputes whole layers without sequence parallelism; the paper's method
    recomputes the attention core only, with it.
    """
    row = cells.row
    cells.need("recompute", "seq_parallel")
    if row.recompute == "selective":
        cells.assume("selective recomputation: QK^T, softmax and their product with V only")
    elif row.recompute not in ("none", "full"):
        raise cells.refusal(f"unknown recompute '{row.recompute}'")
    return _job(cells, recompute=str(row.recompute), sequence_parallel=bool(row.seq_parallel))


def _job(cells: Cells, *, recompute: str, sequence_parallel: bool) -> Job:
    degrees = cells.degrees()
    cells.assume("unfused attention; gradients reduced in fp16 after the last micro-batch")
    cells.assume("plain data parallelism: optimizer state not sharded")
    return row_job(
        cells,
        strategy=row_strategy(
            cells,
            degrees,
            sharding="none",
            sequence_parallel=sequence_parallel,
            recompute=recompute,
        ),
        software="megatron-lm-2021",
    )
