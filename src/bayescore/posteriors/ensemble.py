"""A mixture of posteriors with equal weights: the deep ensemble (Lakshminarayanan et al. 2017), and more.

    p(y | x) = (1/M) sum_m p_m(y | x)                                                                      (1)
Members may be of any kind: plain networks make the deep ensemble, Gaussians a mixture of Gaussians.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from bayescore.posteriors.likelihoods import Gaussian, HeteroscedasticGaussian
from bayescore.posteriors.posterior import Posterior, check_request
from bayescore.posteriors.prediction import ClassPrediction, ValuePrediction, mixed

__all__ = ["Ensemble"]


class Ensemble(Posterior):
    """Members with equal weights; the draws of a prediction are split over them, rounded up.

    Arguments:
        members: posteriors with one kind of likelihood; they may share one module.
    """

    kind = "ensemble"

    def __init__(self, members: Sequence[Posterior]) -> None:
        self.members = list(members)
        if not self.members:
            raise ValueError("an ensemble needs at least one member; got none")
        for member in self.members:
            if not isinstance(member, Posterior):
                raise TypeError(f"members must be posteriors; got {type(member).__name__}")
        names = {member.likelihood.name for member in self.members}
        if len(names) > 1:
            raise ValueError(f"all members must have one likelihood; got {', '.join(sorted(names))}")
        self.likelihood = self.members[0].likelihood

    def __len__(self) -> int:
        return len(self.members)

    def predict(
        self,
        x: Any,
        samples: int = 30,
        *,
        seed: int = 0,
        batch_size: int | None = None,
        recalibrate: Iterable[Any] | None = None,
    ) -> Any:
        """As `Posterior.predict`, each of the M members with samples / M draws, rounded up."""
        check_request(x, samples, batch_size)
        share = -(-samples // len(self.members))
        batches = None if recalibrate is None else list(recalibrate)
        rows = [
            member.predict(x, share, seed=seed + number, batch_size=batch_size, recalibrate=batches)
            for number, member in enumerate(self.members)
        ]
        return mixed(_alike(rows))  # (1)

    @contextmanager
    def sample_(self, seed: int = 0) -> Iterator[nn.Module]:
        """The module of one member as one draw, for the length of the block; the seed chooses the member."""
        with self.members[seed % len(self.members)].sample_(seed) as module:
            yield module


def _alike(rows: list[Any]) -> list[ClassPrediction] | list[ValuePrediction]:
    """Members with noise levels of their own get them as an output, so that one likelihood fits all."""
    likes = [row.likelihood for row in rows if isinstance(row, ValuePrediction)]
    if not likes or not all(isinstance(like, Gaussian) for like in likes):
        return rows
    if len({float(torch.as_tensor(like.log_noise)) for like in likes}) == 1:
        return rows
    told = []
    for row in rows:
        noise = row.likelihood.log_noise.detach().to(row.outputs).expand_as(row.outputs)
        both = torch.cat([row.outputs, noise], -1)
        told.append(ValuePrediction(row.samples, both, HeteroscedasticGaussian()))
    return told
