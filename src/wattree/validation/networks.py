"""The model of a row of vision or recommendation training: a built-in one, by the printed name."""

from __future__ import annotations

import re
from collections.abc import Mapping

from wattree.errors import RowError
from wattree.job import ModelSource
from wattree.validation.cells import Cells

__all__ = ["row_network"]

#: Printed names, lower case with `-` for `_`, whose built-in model has another name.
_NAMES: Mapping[str, str] = {
    "dlrm large": "dlrm-large",
    "dlrm small": "dlrm-small",
    "mobilenetv2-100": "mobilenet-v2",
    "mobilenetv3-large-100": "mobilenet-v3-large",
    "ncf (neumf)": "ncf",
    "seresnet50": "se-resnet50",
    "ssd": "ssd300-resnet50",
    "vit-b/16": "vit-base-patch16-224",
}
_SIZE = re.compile(r"[1-9][0-9]{1,3}")


def row_network(cells: Cells, *, size: int | None = None) -> ModelSource:
    """Return the model of a row, at the row's image size.

    Args:
        cells: The row.
        size: Side of the images that the source trains with where its rows leave it out. [pixels]

    Raises:
        RowError: Neither name nor size is stated.
    """
    cells.need("model_name")
    printed = str(cells.row.model_name).lower().replace("_", "-")
    name = _NAMES.get(printed, printed)
    if cells.row.arch_type in ("dlrm", "recsys"):
        return ModelSource(name=name)
    if cells.row.image_size is None and size is not None:
        cells.assume(f"image_size not stated: {size}")
    else:
        cells.need("image_size")
        size = _pixels(cells)
    return ModelSource(name=name, arguments={"image_size": size})


def _pixels(cells: Cells) -> int:
    row = cells.row
    if not _SIZE.fullmatch(str(row.image_size)):
        found = f"row {row.row_id}, column 'image_size': found '{row.image_size}'"
        raise RowError(f"{found}, expected the pixels of a side")
    return int(str(row.image_size))
