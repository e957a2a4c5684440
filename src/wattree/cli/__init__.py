"""The command line: each command parses, calls one library function and shows the result."""

from wattree.cli.main import main

__all__ = ["main"]
