"""A script of Accelerate as its users write it; the batch is the first argument."""

import sys

import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
loader = torch.utils.data.DataLoader(data, batch_size=int(sys.argv[1]))
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for inputs, targets in loader:
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    accelerator.backward(loss)
    optimizer.step()
weights = accelerator.unwrap_model(model).weight.sum().item()
if accelerator.is_main_process:
    print(f"{accelerator.num_processes} ranks, {len(loader)} steps, {weights:.6f}")
