"""Phantom layers in any model: converted from dense or new, merged, and exported to dense."""

from wattree.runtime.convert.convert import conversion_of, phantomize
from wattree.runtime.convert.files import load_shards, read_shards, write_shards
from wattree.runtime.convert.plan import Adjustment, ConversionPlan, ConversionRule, CutKind, Side
from wattree.runtime.convert.shards import (
    Shards,
    export_dense,
    gather_shards,
    merge,
    put_shard,
    split_model,
)

__all__ = [
    "Adjustment",
    "ConversionPlan",
    "ConversionRule",
    "CutKind",
    "Shards",
    "Side",
    "conversion_of",
    "export_dense",
    "gather_shards",
    "load_shards",
    "merge",
    "phantomize",
    "put_shard",
    "read_shards",
    "split_model",
    "write_shards",
]
