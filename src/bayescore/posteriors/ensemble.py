"""A mixture of equally probable posteriors, such as a deep ensemble (Lakshminarayanan et al. 2017).

    p(y | x) = (1/M) sum_m p_m(y | x)                                                                      (1)
Members may be of any kind: plain networks make the deep ensemble, Gaussians a mixture of Gaussians.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bayescore.posteriors.base import Posterior, check_request, unpack_posterior
from bayescore.posteriors.likelihoods import Gaussian, HeteroscedasticGaussian
from bayescore.posteriors.prediction import ClassPrediction, ValuePrediction, mixture
from bayescore.posteriors.storage import PosteriorFile

__all__ = ["Ensemble"]


class Ensemble(Posterior):
    """Equally probable members; the draws of a prediction are split over them, rounded up.

    Arguments:
        members: posteriors with the same kind of likelihood; they may share one module.
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

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} members: {self.members[0]!r}, ...>"

    def __len__(self) -> int:
        return len(self.members)

    def predict(
        self,
        x: Any,
        draws: int = 30,
        *,
        seed: int = 0,
        batch_size: int | None = None,
        recalibrate: Iterable[Any] | None = None,
    ) -> Any:
        """As `Posterior.predict`; each of the M members makes draws / M draws, rounded up."""
        inputs = check_request(x, draws, batch_size, getattr(self.members[0], "model", None))
        share = -(-draws // len(self.members))
        batches = None if recalibrate is None else list(recalibrate)
        rows = [
            member.predict(inputs, share, seed=seed + number, batch_size=batch_size, recalibrate=batches)
            for number, member in enumerate(self.members)
        ]
        return mixture(_with_one_likelihood(rows))  # (1)

    @contextmanager
    def sample_(self, seed: int = 0) -> Iterator[nn.Module]:
        """The module of one member as one draw, for the length of the block; the seed chooses the member."""
        with self.members[seed % len(self.members)].sample_(seed) as module:
            yield module

    def pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        rows = [member.pack() for member in self.members]
        tensors = {f"{i}.{name}": value for i, (_, part) in enumerate(rows) for name, value in part.items()}
        return {"kind": self.kind, "members": [header for header, _ in rows]}, tensors

    @classmethod
    def unpack(cls, file: PosteriorFile, model: Any, likelihood: Any) -> Ensemble:
        """As `Posterior.unpack`; `model` is one module for all members, or a sequence with one for each."""
        with file.refusing_damage():
            headers = list(file.header["members"])
        models = [model] * len(headers) if isinstance(model, nn.Module) else list(model)
        if len(models) != len(headers):
            raise ValueError(f"{file.path} holds an ensemble of {len(headers)}; got {len(models)} models")
        parts = [
            PosteriorFile(file.path, header, file.tensors_under(str(i))) for i, header in enumerate(headers)
        ]
        members = [unpack_posterior(part, own, likelihood) for part, own in zip(parts, models, strict=True)]
        with file.refusing_damage():
            ensemble = cls(members)
            file.check_all_used({"kind": cls.kind, "members": headers}, ensemble.pack()[1])
            return ensemble


def _with_one_likelihood(rows: list[Any]) -> list[ClassPrediction] | list[ValuePrediction]:
    """The rows under one likelihood: noise levels that differ between members become additional outputs."""
    likelihoods = [row.likelihood for row in rows if isinstance(row, ValuePrediction)]
    if not likelihoods or not all(isinstance(like, Gaussian) for like in likelihoods):
        return rows
    if len({float(torch.as_tensor(like.log_noise)) for like in likelihoods}) == 1:
        return rows
    found = []
    for row in rows:
        noise = row.likelihood.log_noise.detach().to(row.outputs).expand_as(row.outputs)
        both = torch.cat([row.outputs, noise], -1)
        found.append(ValuePrediction(row.draws, both, HeteroscedasticGaussian()))
    return found
