"""Converts a trained model to phantom layers: loss and accuracy before, after, and tuned.

    torchrun --nproc-per-node 4 examples/phantom_convert/convert.py

A dense network learns to read the bundled digits. Its three linear layers become phantom layers
over the ranks, with k ghosts of each; then they learn on for a few steps, still over the ranks.
"""

from __future__ import annotations

import argparse
import copy
import os
import sys

from wattree.errors import MissingExtraError

try:
    import torch
    import torch.distributed as dist
    from torch import Tensor, nn
    from torch.nn.functional import cross_entropy
except ModuleNotFoundError:
    missing = MissingExtraError(needed_for="phantom_convert", package="torch", extra="torch")
    sys.exit(f"error: {missing}")

from wattree.runtime import conversion_of, phantomize
from wattree.runtime.data import Wanted, WantedKind, sample_set


def learn(model: nn.Module, x: Tensor, y: Tensor, steps: int) -> None:
    """Take steps of Adam on batches of 128, the same on every rank."""
    optimizer, stream = torch.optim.Adam(model.parameters(), 1e-3), torch.Generator().manual_seed(1)
    for _ in range(steps):
        chosen = torch.randint(len(x), (128,), generator=stream)
        optimizer.zero_grad()
        cross_entropy(model(x[chosen]), y[chosen]).backward()
        optimizer.step()


def judged(model: nn.Module, x: Tensor, y: Tensor) -> str:
    """Return loss and accuracy on digits that were not learned."""
    with torch.no_grad():
        out = model(x)
    right = (out.argmax(1) == y).double().mean()
    return f"{cross_entropy(out, y):7.3f} {100 * right:6.1f} %"


def main() -> None:
    """Print a line for the dense model and each number of ghosts."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ghosts", type=int, nargs="*", default=[0, 1, 2, 4, 8, 16])
    parser.add_argument("--variant", default="pair", choices=["pair", "shared"])
    parser.add_argument("--steps", type=int, default=300, help="of the dense model")
    parser.add_argument("--tune", type=int, default=30, help="steps of the converted ones")
    asked = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("needs its ranks: start it by torchrun --nproc-per-node 4")
    dist.init_process_group("gloo")
    say = print if dist.get_rank() == 0 else lambda *_: None
    torch.manual_seed(0)
    wanted = Wanted(kind=WantedKind.VECTORS, width=64, outputs=10, batch=128)
    digits = sample_set("digits", wanted, seed=0)
    order = torch.randperm(digits.samples)
    x, y = digits.inputs[0][order], digits.targets[order]
    (x, y), unseen = (x[:1400], y[:1400]), (x[1400:], y[1400:])

    dense = nn.Sequential(
        *(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    )
    learn(dense, x, y, asked.steps)
    say(f"dense, {asked.steps} steps: loss, accuracy {judged(dense, *unseen)}")
    say(f"{dist.get_world_size()} ranks, {asked.variant}; in brackets errors of weights, by layer")
    say("ghosts  weights   converted         calibrated        anew, tuned       tuned")
    for k in asked.ghosts:
        told = {"ghosts": k, "plan": "ffn", "variant": asked.variant}
        model = phantomize(copy.deepcopy(dense), **told)
        before, layers = judged(model, *unseen), conversion_of(model).layers
        # Each rank looks at other digits; their moments are put together.
        own = [x[dist.get_rank() :: dist.get_world_size()]]
        calibrated = judged(phantomize(copy.deepcopy(dense), calibration=own, **told), *unseen)
        anew = phantomize(copy.deepcopy(dense), from_dense=False, **told)
        for each in (anew, model):
            learn(each, x, y, asked.tune)
        share = sum(e.parameters for e in layers) / sum(e.dense_parameters for e in layers)
        results = "  ".join((before, calibrated, judged(anew, *unseen), judged(model, *unseen)))
        errors = " ".join(f"{100 * layer.error:.0f}%" for layer in layers)
        say(f"{k:6}  {100 * share:5.1f} %  {results}  ({errors})")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
