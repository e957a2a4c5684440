"""SimuMax: Megatron-LM with Transformer Engine on eight B200, models cut to a few layers."""

from __future__ import annotations

from wattree.job import Job
from wattree.validation.cells import Cells
from wattree.validation.sources.registry import SOURCES, row_job, row_strategy


@SOURCES.register("simumax-b200")
def express(cells: Cells) -> Job:
    """Return a row of the measured tables as a job."""
    degrees = cells.degrees()
    cells.assume("no recomputation (confirmed by the memory rows)")
    cells.assume("distributed optimizer; gradients accumulated and reduced in fp32")
    if degrees.tp > 1:
        cells.assume("sequence parallel with tensor parallel; its communication not overlapped")
    return row_job(
        cells,
        strategy=row_strategy(
            cells,
            degrees,
            sharding="zero1",
            sequence_parallel=degrees.tp > 1,
        ),
        software="megatron-te",
    )
