"""`python -m wattree`, the same as the command `wattree`."""

from wattree.cli import main

main()
