"""Report of a conversion, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from wattree.runtime.convert.blocks import Blocks
from wattree.runtime.convert.cuts import LayerCut


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerReport:
    """Report of one layer.

    Attributes:
        cut: How it lies on the ranks.
        error: `|W - Ŵ| / |W|` (Frobenius), Ŵ the equivalent weight; None if it began anew.
        off_diagonal_error: The same of the blocks off the diagonal alone; None if there are none,
            or they are zero.
        weighted_error: `sqrt(E|(W - Ŵ) x|² / E|W x|²)` over the calibration inputs, x without its
            mean if there is a bias, which takes it up; None without calibration.
        parameters: Of all ranks together.
    """

    cut: LayerCut
    error: float | None = None
    off_diagonal_error: float | None = None
    weighted_error: float | None = None
    parameters: int = 0
    dense_parameters: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionReport:
    """Report of a module.

    Attributes:
        layers: In the order of the module.
    """

    size: int
    layers: tuple[LayerReport, ...]

    def table(self) -> str:
        """Return a line for each layer; errors in percent."""
        head = ("layer", "becomes", "shape", "ghosts", "parameters", "error", "off-diagonal")
        weighted = any(layer.weighted_error is not None for layer in self.layers)
        lines = [(*head, *(("weighted",) if weighted else ()))]
        for layer in self.layers:
            cut = layer.cut
            share = layer.parameters / layer.dense_parameters
            errors = [layer.error, layer.off_diagonal_error]
            errors += [layer.weighted_error] if weighted else []
            lines.append(
                (
                    cut.name,
                    str(cut.kind),
                    f"{cut.out_features} x {cut.in_features}",
                    str(cut.ghosts) if cut.ghosts else "-",
                    f"{100 * share:.1f} %",
                    *("-" if error is None else f"{100 * error:.2f} %" for error in errors),
                )
            )
        widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if place < 2 else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        )


def report_of(
    cut: LayerCut, weight: Tensor | None, blocks: Blocks | None, second: Tensor | None
) -> LayerReport:
    """Return the report of a layer.

    Args:
        weight: In the order of outputs of the ranks; None if it begins anew.
        blocks: What stands for it; None if it is exact, or begins anew.
        second: Second moment of its inputs, `(in, in)`.
    """
    found: dict[str, float | None] = {}
    if weight is not None:
        found = {"error": 0.0, "off_diagonal_error": None, "weighted_error": None}
    if weight is not None and blocks is not None:
        missing = weight - blocks.dense()
        found["error"] = _ratio(missing.square().sum(), weight.square().sum())
        outside = weight.clone()
        for rows, columns in _own(cut):
            outside[rows, columns] = 0
            missing[rows, columns] = 0
        found["off_diagonal_error"] = _ratio(missing.square().sum(), outside.square().sum())
        if second is not None:
            missing = weight - blocks.dense()
            found["weighted_error"] = _ratio(
                ((missing @ second) * missing).sum(), ((weight @ second) * weight).sum()
            )
    return LayerReport(
        cut=cut,
        parameters=parameters_of(cut),
        dense_parameters=cut.in_features * cut.out_features + cut.bias * cut.out_features,
        **found,
    )


def parameters_of(cut: LayerCut) -> int:
    """Return the parameters of all ranks together; copies of a row layer's bias count once."""
    biases = cut.bias * cut.out_features
    if cut.kind != "phantom":
        return cut.in_features * cut.out_features + biases
    own = sum(a * b for a, b in zip(cut.in_widths, cut.out_widths, strict=True))
    if cut.size == 1:
        return own + biases
    sources = cut.size - 1 if cut.variant == "pair" else 1
    return own + biases + cut.ghosts * (cut.in_features + sources * cut.out_features)


def _own(cut: LayerCut) -> list[tuple[slice, slice]]:
    found, row, column = [], 0, 0
    for rows, columns in zip(cut.out_widths, cut.in_widths, strict=True):
        found.append((slice(row, row + rows), slice(column, column + columns)))
        row, column = row + rows, column + columns
    return found


def _ratio(part: Tensor, whole: Tensor) -> float | None:
    return float((part.clamp(min=0) / whole).sqrt()) if float(whole) > 0 else None
