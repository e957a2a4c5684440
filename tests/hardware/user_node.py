"""The end of a user's node file, the same in every test: its host and its price."""

from __future__ import annotations

__all__ = ["HOST"]

HOST = """\
host:
  cpu_cores: {value: 32, source: sheet}
  memory: {value: "256 GB", source: sheet}
  storage_read: {value: "3 GB/s", source: sheet}
  idle: {value: "100 W", source: sheet}
  busy: {value: "300 W", source: sheet}
price: null
"""
