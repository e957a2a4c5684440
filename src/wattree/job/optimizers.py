"""Optimizers by name, and the state that each stores per trained parameter."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

#: Bytes of state per trained parameter, without master weights.
OPTIMIZER_STATE_BYTES: Mapping[str, float] = MappingProxyType(
    {
        "adagrad": 4.0,  # one fp32 sum of squares
        "adam": 8.0,  # two fp32 moments
        "adamw": 8.0,
        "adamw8bit": 2.0,  # two 8-bit moments (Dettmers et al., 2022); block scales neglected
        "adafactor": 0.0,  # row and column sums only
        "lamb": 8.0,  # Adam's; the passes for norms of each layer are neglected
        "lars": 4.0,  # the momentum; the passes for norms of each layer are neglected
        "lion": 4.0,  # one fp32 moment
        "momentum": 4.0,
        "muon": 4.0,  # the momentum of a matrix of a hidden layer
        "rmsprop": 4.0,  # second moment; PyTorch's default is no momentum
        "rmsprop_momentum": 8.0,
        "sgd": 0.0,
    }
)

#: Those whose state has a width of its own → the same in 32 bits.
QUANTIZED_OPTIMIZERS: Mapping[str, str] = {"adamw8bit": "adamw"}

#: Those of matrices of hidden layers alone → that of embeddings, heads, norms and biases, and the
#: Newton-Schulz iterations of an update (default of `torch.optim.Muon` and of Megatron-LM).
MATRIX_OPTIMIZERS: Mapping[str, tuple[str, int]] = MappingProxyType({"muon": ("adamw", 5)})

#: Those that may keep a running mean of gradients → the same with it.
WITH_MOMENTUM: Mapping[str, str] = {"sgd": "momentum", "rmsprop": "rmsprop_momentum"}

#: Those that divide by a square root of their state → results as large as the parameters, such as
#: that root, which PyTorch computes for all of them at once (`foreach`, its default on GPUs).
ROOT_OPTIMIZERS: Mapping[str, int] = MappingProxyType(
    {"adagrad": 2, "adam": 1, "adamw": 1, "rmsprop": 1, "rmsprop_momentum": 1}
)

#: Those that refuse sparse gradients in `torch.optim` ("Adam does not support sparse gradients").
DENSE_OPTIMIZERS = frozenset({"adafactor", "adam", "adamw", "muon", "rmsprop", "rmsprop_momentum"})

#: Their names, as a job file may give them.
OPTIMIZERS = tuple(OPTIMIZER_STATE_BYTES)

#: Other names of some: those of the Trainer's `optim` (transformers 5.23, `OptimizerNames` of
#: src/transformers/training_args.py). Pages wait in host memory only where the device's is full.
OTHER_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "adamw_8bit": "adamw8bit",
        "adamw_apex_fused": "adamw",
        "adamw_bnb_8bit": "adamw8bit",
        "adamw_hf": "adamw",
        "adamw_torch": "adamw",
        "adamw_torch_8bit": "adamw8bit",
        "adamw_torch_fused": "adamw",
        "lion_32bit": "lion",
        "paged_adamw_32bit": "adamw",
        "paged_adamw_8bit": "adamw8bit",
        "paged_lion_32bit": "lion",
    }
)
