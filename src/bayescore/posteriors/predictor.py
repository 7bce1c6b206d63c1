"""A posterior as an ordinary module, for torch.export and for serving without this library.

It holds S draws of the weights, fixed when it is made, and averages as prediction.py does: (1) for classes,
(2) for values.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bayescore.checks import check_count
from bayescore.posteriors.base import WeightPosterior, Weights, instead
from bayescore.posteriors.likelihoods import frozen
from bayescore.posteriors.prediction import ClassPrediction, prediction_from_outputs
from bayescore.posteriors.wrappers import without_parallel

__all__ = ["Predictor"]


class Predictor(nn.Module):
    """The average over draws of a posterior; it returns what `posterior.predict(x, draws, seed=seed)` has.

    Arguments:
        posterior: of weights; the module is copied.
        draws, seed: as in `predict`. The module holds as many copies of the random weights.

    Returns probabilities for classes, mean and standard deviation for values.

    >>> from bayescore.posteriors.gaussian import GaussianPosterior
    >>> net = nn.Linear(2, 3)
    >>> mean = {name: p.detach() for name, p in net.named_parameters()}
    >>> posterior = GaussianPosterior(net, mean, {name: 0.1 + 0 * p for name, p in mean.items()})
    >>> program = torch.export.export(Predictor(posterior, draws=5), (torch.zeros(4, 2),))
    >>> program.module()(torch.zeros(4, 2)).shape
    torch.Size([4, 3])
    """

    def __init__(self, posterior: WeightPosterior, draws: int = 30, seed: int = 0) -> None:
        super().__init__()
        if not isinstance(posterior, WeightPosterior) or not posterior.weights_only:
            raise TypeError(f"a Predictor holds draws of a posterior of weights; got {instead(posterior)}")
        check_count("draws", draws)
        with posterior.mean_() as model:
            self.model = copy.deepcopy(without_parallel(model)).requires_grad_(False)
        self.likelihood = copy.deepcopy(frozen(posterior.likelihood))
        self.names = list(posterior.names)
        drawn = [posterior.draw(seed, i) for i in range(draws)]
        for i, name in enumerate(self.names):
            self.register_buffer(f"draws_{i}", torch.stack([each[name] for each in drawn]))
        self.eval()

    def forward(self, *args: Tensor, **named: Tensor) -> Any:
        stacked = {name: self.get_buffer(f"draws_{i}") for i, name in enumerate(self.names)}
        found = prediction_from_outputs(self._outputs(stacked, args, named), self.likelihood)
        return found.probs if isinstance(found, ClassPrediction) else (found.mean, found.std)

    def _outputs(self, stacked: Weights, args: Any, named: Any) -> Iterator[Tensor]:
        """The outputs of one draw after the other."""
        for s in range(len(next(iter(stacked.values())))):
            out = functional_call(
                self.model, {name: draws[s] for name, draws in stacked.items()}, args, named
            )
            yield out if isinstance(out, Tensor) else out.logits
