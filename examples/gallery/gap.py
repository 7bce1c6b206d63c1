"""Where there are no data

One posterior stays near one curve and is hardly less certain in a gap. A mixture of short runs from
different starts costs as many steps, and says where it does not know.
"""

import torch
from matplotlib.figure import Figure
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayescore.nn as bnn

torch.manual_seed(0)
x = torch.rand(120, 1) * 2 + 1
x = torch.where(torch.rand(120, 1) < 0.5, -x, x)
y = torch.sin(1.5 * x) + 0.1 * torch.randn(120, 1)
loader = DataLoader(TensorDataset(x, y), batch_size=20, shuffle=True)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 1))


points = torch.linspace(-5, 5, 201).unsqueeze(1)
figure = Figure(figsize=(8.4, 3.2), layout="constrained")
for axes, members in zip(figure.subplots(1, 2, sharey=True), (1, 5), strict=True):
    likelihood = bnn.likelihoods.Gaussian("learned")
    fit = bnn.fit_ensemble(
        network, loader, likelihood, members=members, epochs=200 // members, progress=False
    )
    found = fit.predict(points, draws=100)
    mean, sd = found.mean.flatten(), found.epistemic_std.flatten()
    axes.fill_between(
        points.flatten(), mean - 2 * sd, mean + 2 * sd, color="#0072B2", alpha=0.25, linewidth=0
    )
    axes.plot(points, mean, color="#0072B2")
    axes.plot(points, torch.sin(1.5 * points), color="#888888", linestyle="--")
    axes.plot(x, y, "k.", markersize=2.5)
    axes.set_title("one posterior" if members == 1 else f"{members} short ones")
    axes.set(xlabel="input", ylim=(-3, 3))
    print(f"{members}: two standard deviations of the curve at 0 are {2 * sd[100]:.2f}")
