"""Measured rows: reading them, expressing them as jobs, scoring predictions, showing errors."""

from wattree.validation.express import Expressed, express
from wattree.validation.measurement import RowMeasurement, measurement
from wattree.validation.outcome import Validation
from wattree.validation.rows import (
    ROWS_FILE_LIMIT_BYTES,
    MeasuredRow,
    bundled_rows,
    read_rows,
)
from wattree.validation.score import ALL_SOURCES, Scored, Summary, summaries, summary_json, worst
from wattree.validation.table import (
    hold_out_markdown,
    skipped_table,
    summary_markdown,
    summary_table,
    worst_markdown,
    worst_table,
)
from wattree.validation.validate import validate

__all__ = [
    "ALL_SOURCES",
    "ROWS_FILE_LIMIT_BYTES",
    "Expressed",
    "MeasuredRow",
    "RowMeasurement",
    "Scored",
    "Summary",
    "Validation",
    "bundled_rows",
    "express",
    "hold_out_markdown",
    "measurement",
    "read_rows",
    "skipped_table",
    "summaries",
    "summary_json",
    "summary_markdown",
    "summary_table",
    "validate",
    "worst",
    "worst_markdown",
    "worst_table",
]
