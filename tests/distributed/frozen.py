"""What ranks need, loaded once by the process that they are forked from, and left alone.

PyTorch takes two seconds, and what its optimizers load when they are first used two more; commands
load what they need half a second each. A collection of garbage writes into every object that it
visits, so that each process would copy all memory that it shares with that one.
"""

from __future__ import annotations

import contextlib
import gc
import importlib

gc.disable()
for _name in (
    "torch.distributed.checkpoint",
    "torch.distributed.pipelining",
    "torch.distributed.run",
    "torch.distributed.tensor",
    "torch.nn.parallel",
    "torch._dynamo",
    "llvmlite.binding",
    "scipy.optimize",
    "scipy.stats",
    "rich.console",
    "rich.table",
    "ruamel.yaml",
    "wattree.cli.commands",
    "wattree.cli.launch",
    "wattree.cli.main",
    "wattree.cli.plan",
    "wattree.cli.simulate",
    "wattree.cli.train",
    "wattree.job.load",
    "wattree.runtime.checkpoint.resume",
    "wattree.runtime.launch.spawn",
    "wattree.report",
    "wattree.runtime.train.rank",
    "wattree.runtime.tune",
    "wattree.search.plan",
    "wattree.search.sizing",
):
    with contextlib.suppress(ImportError):
        importlib.import_module(_name)
from wattree.job import job_from_mapping
from wattree.predict import simulate

_TINY = {
    "model": {"ffn": {"width": 8, "depth": 2}},
    "data": {"global_batch": 2},
    "cluster": {"node": "2x-epyc-7742"},
    "precision": "fp32",
    "strategy": {"preset": "ddp", "dp": 2},
}
simulate(job_from_mapping(_TINY, "job"))
gc.freeze()
gc.set_threshold(50_000, 20, 20)  # as in `tests/conftest.py`
gc.enable()
