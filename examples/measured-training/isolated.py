"""Each part of training alone, for fits: isolated.py loader|resident|collective OUT SIZE."""

import os
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from wattree.measure import Stages
from wattree.trace import Work

what, out, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
if "RANK" in os.environ:
    torch.distributed.init_process_group("gloo")
torch.set_num_threads(1)
images, labels = torch.randn(3200, 3, 32, 32), torch.randint(10, (3200,))

until_s = time.monotonic() + 5
if what == "loader":  # SIZE samples in a batch; nothing is done with them
    loader = DataLoader(TensorDataset(images, labels), batch_size=size, shuffle=True)
    loader = Stages(activity="loader", out=out).wrap(loader)
    while time.monotonic() < until_s:
        for _batch in loader:
            pass
elif what == "resident":  # SIZE samples in a batch that is there already
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 15 * 15, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Stages(model, optimizer, activity="resident", out=out, work=Work(samples=size)):
        while time.monotonic() < until_s:
            loss = nn.functional.cross_entropy(model(images[:size]), labels[:size])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
else:  # SIZE bytes in each all-reduce
    tensor = torch.zeros(size // 4)
    torch.distributed.all_reduce(tensor)  # the first one connects
    with Stages(activity="collective", out=out, skip_steps=5):
        for _ in range(max(60, min(20000, 4_000_000_000 // (size + 400_000)))):
            torch.distributed.all_reduce(tensor)
