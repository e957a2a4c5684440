"""Lists of numbers as a job file writes them."""

from __future__ import annotations

from collections.abc import Sequence


def ranges(numbers: Sequence[int]) -> str:
    """Return numbers as a file writes them: `0-7, 16-23`, with a step `0-14:2`."""
    parts: list[str] = []
    at = 0
    while at < len(numbers):
        end, step = at + 1, 1
        if end < len(numbers) and numbers[end] > numbers[at]:
            step = numbers[end] - numbers[at]
        while end < len(numbers) and numbers[end] - numbers[end - 1] == step:
            end += 1
        if step > 1 and end - at == 2:  # two numbers are no row
            end = at + 1
        text = str(numbers[at])
        if end - at > 1:
            text += f"-{numbers[end - 1]}" + (f":{step}" if step > 1 else "")
        parts.append(text)
        at = end
    return ", ".join(parts)
