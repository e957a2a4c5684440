"""Keeps what is loaded out of garbage collections, for processes that others are forked from.

A collection writes into every object that it visits, so that each process of PyTorch's size would
copy all memory that it shares with the one that it was forked from.
"""

from __future__ import annotations

import gc

gc.collect()
gc.freeze()
