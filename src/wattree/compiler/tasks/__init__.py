"""Tasks of a step: blocks, chunks, micro-batches, stages. Of one rank, before folding."""
