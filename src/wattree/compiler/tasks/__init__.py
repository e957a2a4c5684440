"""Tasks of a step of one rank, before folding: blocks, chunks, micro-batches, stages."""
