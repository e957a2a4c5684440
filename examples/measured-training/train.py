"""A training loop whose stages are labeled: python train.py, or torchrun --nproc-per-node 2."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from wattree.measure import Stages

if "RANK" in os.environ:
    torch.distributed.init_process_group("gloo")
torch.set_num_threads(1)
images, labels = torch.randn(3200, 3, 32, 32), torch.randint(10, (3200,))
loader = DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True)
model = nn.Sequential(
    nn.Conv2d(3, 32, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 15 * 15, 10)
)
if "RANK" in os.environ:
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

loader = Stages(model, optimizer, out="run.json").wrap(loader)

for _ in range(20):
    for inputs, targets in loader:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
