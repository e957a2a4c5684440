"""The model of a row of vision or recommendation training: a built-in one, by the printed name."""

from __future__ import annotations

from collections.abc import Mapping

from wattree.errors import RowError
from wattree.job import ModelSource
from wattree.validation.cells import Cells

#: Printed names that are no alias of their built-in model.
_NAMES: Mapping[str, str] = {
    "DLRM large": "dlrm-large",
    "DLRM small": "dlrm-small",
    "NCF (NeuMF)": "ncf",
    "ViT-B/16": "vit-b-16",
}
_USUAL_SIZE = 224
#: Built-in models whose images are of another size: printed name → size [pixels] → name.
_OF_SIZE: Mapping[str, Mapping[int, str]] = {
    "efficientnet-b4": {380: "efficientnet-b4"},
    "efficientnet-widese-b4": {380: "efficientnet-widese-b4"},
    "efficientnet_b1": {224: "efficientnet-b1-224"},
    "efficientnet_b2": {256: "efficientnet-b2-256"},
    "efficientnet_b3": {288: "efficientnet-b3-288"},
    "efficientnet_b4": {320: "efficientnet-b4-320", 380: "efficientnet-b4"},
    "efficientnet_b5": {456: "efficientnet-b5"},
    "ssd": {300: "ssd300-resnet50"},
    "vit_base_patch16_384": {384: "vit-b-16-384"},
}
_WITHOUT_IMAGES = ("dlrm", "recsys")


def row_network(cells: Cells, *, size: int | None = None) -> ModelSource:
    """Return the model of a row, for images of the row's size.

    Args:
        cells: The row.
        size: Side of the images that the source trains with where its rows leave it out. [pixels]

    Raises:
        RowError: Neither name nor size is stated, or no built-in model takes such images.
    """
    cells.need("model_name")
    printed = str(cells.row.model_name)
    name = _NAMES.get(printed, printed)
    if cells.row.arch_type in _WITHOUT_IMAGES:
        return ModelSource(name=name)
    if cells.row.image_size is None and size is not None:
        cells.assume(f"image_size not stated: {size}")
        stated = str(size)
    else:
        cells.need("image_size")
        stated = str(cells.row.image_size)
    names = {str(side): n for side, n in _OF_SIZE.get(printed, {_USUAL_SIZE: name}).items()}
    if stated not in names:
        found = f"row {cells.row.row_id}: found images of {stated} pixels"
        raise RowError(f"{found}, expected {' or '.join(names)} for the built-in '{printed}'")
    return ModelSource(name=names[stated])
