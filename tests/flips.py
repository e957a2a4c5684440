"""Seeded damage to files: one bit at a place that a generator draws."""

from __future__ import annotations

import random
from pathlib import Path


def flip_a_bit(path: Path, chance: random.Random) -> str:
    """Flip one bit of a file and return which, for messages."""
    content = bytearray(path.read_bytes())
    place, bit = chance.randrange(len(content)), chance.randrange(8)
    content[place] ^= 1 << bit
    path.write_bytes(bytes(content))
    return f"{path.name}: byte {place} of {len(content)}, bit {bit}"
