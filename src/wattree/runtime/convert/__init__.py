"""Phantom layers in any model: converted from dense or new, and exported to dense."""

from wattree.runtime.convert.convert import conversion_of, export_dense, phantomize
from wattree.runtime.convert.plan import Adjustment, ConversionPlan, ConversionRule, CutKind, Side

__all__ = [
    "Adjustment",
    "ConversionPlan",
    "ConversionRule",
    "CutKind",
    "Side",
    "conversion_of",
    "export_dense",
    "phantomize",
]
