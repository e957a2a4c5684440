"""Labels for the classes of the library that compute a loss of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

#: Further labels, one a sample, without which BERT and its kin compute no loss.
_BESIDE: Final = ("next_sentence_label", "sentence_order_label")
#: End of a class's name → what one sample's labels are. Classes with other losses get none: those
#: of detection match boxes on the host, and that of CTC looks into its labels.
_SAMPLE_LABELS: Final = (
    ("SequenceClassification", "class"),
    ("ImageClassification", "class"),
    ("AudioClassification", "class"),
    ("VideoClassification", "class"),
    ("MultipleChoice", "class"),
    ("NextSentencePrediction", "class"),
    ("SemanticSegmentation", "pixel"),
    ("CausalLM", "token"),
    ("MaskedLM", "token"),
    ("PreTraining", "token"),
    ("LMHeadModel", "token"),
    ("TokenClassification", "token"),
    ("ConditionalGeneration", "token"),
    ("QuestionAnswering", "span"),
)


def labels_of(
    model: type, taken: Mapping[str, Any], config: Any, given: Mapping[str, torch.Tensor]
) -> dict[str, Any]:
    """Return the arguments that make `model` compute its loss; none if it has no plain one.

    Args:
        model: The class.
        taken: What its `forward` takes.
        config: Its configuration, whose `problem_type` is settled here.
        given: The inputs so far.
    """
    if "return_loss" in taken:
        return {"return_loss": True}
    kind = next((kind for end, kind in _SAMPLE_LABELS if model.__name__.endswith(end)), "none")
    samples = next(iter(given.values())).shape[0]
    if kind == "span":
        zeros = torch.zeros(samples, dtype=torch.long)
        return {"start_positions": zeros, "end_positions": zeros}
    tokens = given.get("decoder_input_ids", given.get("input_ids"))
    if "labels" not in taken or kind == "none" or (kind == "token" and tokens is None):
        return {}
    if kind == "class" and config.num_labels == 1:
        config.problem_type = "regression"
        return {"labels": torch.zeros(samples)}
    if kind == "class" and not model.__name__.endswith("MultipleChoice"):
        config.problem_type = "single_label_classification"
    shape = (samples,)
    if kind == "pixel":
        shape = (samples, *next(iter(given.values())).shape[-2:])
    elif kind == "token":
        shape = tokens.shape
    beside = {name: torch.zeros(samples, dtype=torch.long) for name in _BESIDE if name in taken}
    return {"labels": torch.zeros(shape, dtype=torch.long), **beside}
