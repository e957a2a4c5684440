"""Runs a program whose Accelerate takes two CPU processes for GPUs: it has FSDP2 on GPUs only.

Collectives are gloo's and tensors stay on the CPU (`ACCELERATE_TORCH_DEVICE=cpu`); all else is as
on GPUs.
"""

import runpy
import sys

from accelerate import state
from accelerate.utils import DistributedType

state.PartialState._prepare_backend = lambda *_, **__: ("gloo", DistributedType.MULTI_GPU)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
