"""A density that bends

Give a function; `bs.fit` finds a start, a family and a method, and says how far to trust what it found. A
Gaussian cannot bend: a coupling flow around it was fitted and kept.
"""

import bayescore as bs
from bayescore.plotting import plot_fit

banana = bs.targets.LogDensity(
    lambda x: -0.5 * (x[:, 0] ** 2 / 4 + (x[:, 1] - 0.5 * x[:, 0] ** 2) ** 2), dim=2
)
fit = bs.fit(banana, seed=0)
print(fit.verdict)
figure = plot_fit(fit)
