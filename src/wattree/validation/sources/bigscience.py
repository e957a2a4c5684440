"""BigScience: Megatron-DeepSpeed on Jean Zay, BLOOM prequels (A100) and 1.3B models (V100)."""

from __future__ import annotations

from wattree.job import Job, ModelSource
from wattree.validation.cells import Cells, RowDegrees
from wattree.validation.clusters import Adapters, row_cluster
from wattree.validation.shapes import padded_vocabulary, row_model
from wattree.validation.sources.generic import express
from wattree.validation.sources.registry import SOURCES

#: "8 GPUs per node Using NVLink 4 inter-gpu connects, 4 OmniPath links".
_JEAN_ZAY = Adapters(
    count=4,
    gbit_per_s=100,
    source="github:bigscience-workshop/bigscience train/tr11-176B-ml/README.md: 4 Omni-Path links",
)
#: Tokens and rows of the embedding in the same README.
_VOCAB, _PADDED_VOCAB = 250_680, 250_880


@SOURCES.register("bigscience-tr11-prequel")
def express_tr11(cells: Cells) -> Job:
    """Return a row of the tr11 prequel chronicles as a job."""
    degrees = cells.degrees()
    vocab = cells.or_assume("vocab", _VOCAB, "the tokenizer of the final model")
    cells.assume(f"vocabulary padded to {_PADDED_VOCAB}")
    cells.assume("single iteration; CUDA launches may have been blocking")
    model = row_model(
        cells,
        layers=cells.row.n_layers or _layers(cells, degrees),
        heads=cells.row.n_heads or _heads(cells),
        vocab=vocab,
        padded_vocab=_PADDED_VOCAB,
    )
    return _job(cells, model)


@SOURCES.register("bigscience-1b3-v100")
def express_1b3(cells: Cells) -> Job:
    """Return a row of the tr3 experiments (1.3B on V100) as a job."""
    degrees = cells.degrees()
    padded = padded_vocabulary(cells.whole("vocab"), tp=degrees.tp)
    cells.assume(f"vocabulary padded to {padded}, a multiple of 128 x tp")
    # 15 GB of 32 with 8 samples; with 16, and with 8 on 16 GB, the same stages run out of memory.
    # Only the last one, on the other node, grows that fast, by its logits.
    cells.of_first_stage = True
    cells.assume("memory of the first node, which has the first stage")
    return _job(cells, row_model(cells, padded_vocab=padded))


def _job(cells: Cells, model: ModelSource) -> Job:
    cells.assume("unfused attention; 1F1B without virtual stages; no sequence parallel")
    return express(cells, model=model, cluster=row_cluster(cells, adapters=_JEAN_ZAY))


def _layers(cells: Cells, degrees: RowDegrees) -> int:
    """Return whole layers per stage that come nearest to the printed parameter count.

    `pp round((N - V h) / 12 h^2 / pp)`; the table fits layers to stages and does not print them.
    """
    cells.need("n_params_b", "hidden")
    hidden = cells.whole("hidden")
    matrices = (cells.row.n_params_b or 0.0) * 1e9 - _PADDED_VOCAB * hidden
    layers = degrees.pp * max(1, round(matrices / (12 * hidden**2) / degrees.pp))
    cells.assume(f"layers not stated: {layers}, from the parameter count and {degrees.pp} stages")
    return layers


def _heads(cells: Cells) -> int:
    """Return the heads of the same width elsewhere in the chronicles.

    Its 200B model of hidden size 14400 has 96 heads; its section "Final round comparison" says
    of the others: "all NHEADS=64 (above too)".
    """
    heads = 96 if cells.whole("hidden") == 14400 else 64
    cells.assume(f"heads not stated: {heads}, as other rows of this width")
    return heads
