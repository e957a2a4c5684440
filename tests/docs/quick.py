"""The command `wattree` for pages: trials take a moment, and plans search a part of the space."""

from __future__ import annotations

import runpy
from importlib import import_module

from tests.search.jobs import FEWEST
from wattree.runtime.tune.measured import TrialOptions

TrialOptions.__init__.__kwdefaults__.update(seconds=0.1)
# Their place in the package has functions of these names.
for _name in ("plan", "sizing"):
    import_module(f"wattree.search.{_name}").Limits = lambda: FEWEST  # type: ignore[attr-defined]
runpy.run_module("wattree", run_name="__main__")
