"""Exports to training frameworks as text for people."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from wattree.frameworks import ExportedRecipe


def show_exported_recipe(done: ExportedRecipe, console: Console) -> None:
    """Print what an export wrote, and what is left to do."""
    console.print(Text(f"{done.folder}: {', '.join(done.files)}"), soft_wrap=True)
    console.print(Text(f"for {done.versions}"), soft_wrap=True)
    for title, lines in (("Fill in", done.fill_in), ("Assumed", done.assumed)):
        if lines:
            console.print(Text(f"\n{title}", style="bold"))
        for line in lines:
            console.print(Padding(Text(f"- {line}"), (0, 0, 0, 2)))
