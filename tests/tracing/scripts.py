"""A training script as a user would write one."""

TRAINING = """
import argparse
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--device", default="cuda")
options = parser.parse_args()
model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 10))
model.to(options.device)
adamw = torch.optim.AdamW(model.parameters())
for step in range(1000):
    x = torch.randn(options.batch, 512, device=options.device)
    classes = torch.zeros(options.batch, dtype=torch.long, device=options.device)
    loss = torch.nn.functional.cross_entropy(model(x), classes)
    loss.backward()
    adamw.step()
    adamw.zero_grad()
    print(f"step {step}: {loss.item():.3f}")
"""
