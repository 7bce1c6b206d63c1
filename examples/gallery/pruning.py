"""How many weights a network needs

Weights that the posterior cannot tell from zero are set to zero, the least certain first. The loss on new
points hardly moves until half of them are gone.
"""

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bayescore.nn as bnn


def circle(count: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 2)
    return x, (x.square().sum(1) + 0.5 * torch.randn(count) > 1.4).long()


torch.manual_seed(0)
loader = DataLoader(TensorDataset(*circle(500)), batch_size=50, shuffle=True)
model = nn.Sequential(nn.Linear(2, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 2))
posterior = bnn.fit(model, loader, epochs=40, lr=1e-2, progress=False).posterior
assert isinstance(posterior, bnn.GaussianPosterior)
x, y = circle(2000)
shares = [0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
losses = [float(-bnn.pruned(posterior, share).predict(x).log_prob(y).mean()) for share in shares]
figure = Figure(figsize=(5.2, 3.0), layout="constrained")
axes = figure.subplots()
axes.plot([100 * share for share in shares], losses, "o-", color="#0072B2")
axes.set(xlabel="weights set to zero, %", ylabel="NLL on 2,000 new points")
print(", ".join(f"{100 * share:.0f} %: {loss:.3f}" for share, loss in zip(shares, losses, strict=True)))
