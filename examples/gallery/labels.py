"""Which points to label next

Eight points have labels. `bnn.acquire` asks for the ten of a pool whose labels would say most about the
weights, and not for ten that would say the same.
"""

import torch
from matplotlib.figure import Figure
from sklearn.datasets import make_moons
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayescore.nn as bnn

inputs, classes = make_moons(300, noise=0.15, random_state=0)
pool, y = torch.tensor(inputs).float(), torch.tensor(classes)
known = torch.cat([torch.where(y == label)[0][:4] for label in (0, 1)])
loader = DataLoader(TensorDataset(pool[known], y[known]), batch_size=8, shuffle=True)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 2))


torch.manual_seed(0)
fit = bnn.fit_ensemble(network, loader, members=5, epochs=150, lr=1e-2, progress=False)
asked = bnn.acquire(fit.posterior, pool, 10)
across, up = torch.meshgrid(torch.linspace(-1.6, 2.6, 80), torch.linspace(-1.2, 1.7, 60), indexing="xy")
information = fit.predict(torch.stack([across, up], -1).reshape(-1, 2)).mutual_information
figure = Figure(figsize=(6.4, 3.6), layout="constrained")
axes = figure.subplots()
shown = axes.contourf(across, up, information.reshape(across.shape), levels=12, cmap="Greys")
figure.colorbar(shown, label="mutual information, nats")
axes.plot(*pool.T, ".", color="#999999", markersize=3, label="pool")
axes.plot(*pool[known].T, "o", color="#0072B2", label="labelled")
axes.plot(*pool[asked].T, "*", color="#D55E00", markersize=11, label="to label next")
axes.legend(loc="lower left")
print("rows to label next:", asked.tolist())
