"""Every score is counted once per point and evaluation, and so are Hessian products and densities."""

from __future__ import annotations

import pytest
import torch

import bayescore as bs
from bayescore.targets import Gaussian, MiniBatchPosterior, NoisyScore, Target
from cases import RUNS, family, scores_only

STEPS = 6


class Watched(Target):
    """A Gaussian that counts what it is asked."""

    name = "watched"

    def __init__(self) -> None:
        self.inner, self.dim = Gaussian.random(3, seed=8), 3
        self.scores = self.products = self.densities = 0

    def log_prob(self, x):
        self.densities += x[..., 0].numel()
        return self.inner.log_prob(x)

    def score(self, x, streams=None):
        self.scores += x[..., 0].numel()
        return self.inner.score(x)

    def log_prob_and_score(self, x):
        return self.inner.log_prob(x), self.score(x)

    def hessian_product(self, x, v):
        self.products += x[..., 0].numel()
        return self.inner.hessian_product(x, v)


#: scores per step
PER_STEP = {
    "whitened full": 1,
    "whitened diagonal": 2,
    "descent full": 1,
    "descent clip": 3,
    "descent planar": 1,
    "ridge": 1,
    "advi full": 1,
    "advi stick": 2,
    "advi gumbel": 1,
    "advi stratified": 3,
    "gsm": 2,
    "bam full": 2,
    "bam wide": 5,
    "bam low-rank": 3,
    "curvature": 10,
    "advi coupling": 1,
    "fisher": 1,
    "score": 2,
}


@pytest.mark.parametrize("name", PER_STEP)
def test_score_calls_are_exactly_what_the_target_was_asked(name: str) -> None:
    method, kind = RUNS[name]
    target = Watched()
    fit = bs.fit(target, family(kind), method, steps=STEPS, check=False)
    assert fit.score_calls == fit.counts.score_calls == target.scores == STEPS * PER_STEP[name]
    assert fit.counts.hessian_products == target.products
    assert target.products == (STEPS * PER_STEP[name] if name in ("fisher", "score") else 0)
    assert fit.history["score_calls"][-1] == fit.score_calls
    assert fit.counts.density_evaluations == target.densities


@pytest.mark.parametrize("name", ["gsm", "fisher", "whitened full", "descent full"])
def test_every_fit_of_a_batch_counts_its_own_calls_alone(name: str) -> None:
    method, kind = RUNS[name]
    target = Watched()
    fits = bs.fit_many(target, family(kind), method, steps=STEPS, seeds=[0, 1, 2], check=False)
    assert [fit.score_calls for fit in fits] == [STEPS * PER_STEP[name]] * 3
    assert sum(fit.score_calls for fit in fits) == target.scores
    assert sum(fit.counts.hessian_products for fit in fits) == target.products
    assert sum(fit.counts.density_evaluations for fit in fits) == target.densities


@pytest.mark.parametrize("kind", ["density", "scores", "noisy"])
def test_calls_of_the_check_are_counted_apart(kind: str) -> None:
    watched = Watched()
    target = {"density": watched, "scores": scores_only(watched), "noisy": NoisyScore(watched, 0.1)}[kind]
    fit = bs.fit(target, family("full"), bs.methods.GSM(), steps=STEPS)
    assert fit.score_calls == 2 * STEPS
    assert fit.counts.check_calls > 0
    assert watched.scores == fit.score_calls + fit.counts.check_calls
    assert bs.fit(target, family("full"), bs.methods.GSM(), steps=STEPS, check=False).counts.check_calls == 0


def test_calls_grow_along_the_history_by_those_of_the_steps_between() -> None:
    fit = bs.fit(Watched(), family("full"), bs.methods.BaM(draws=3), steps=10, record_every=4)
    assert fit.history["step"].tolist() == [0, 4, 8, 10]
    assert fit.history["score_calls"].tolist() == [0, 12, 24, 30]


def test_the_diagnosis_takes_no_scores() -> None:
    target = Watched()
    fit = bs.fit(target, family("full"), bs.methods.GSM(), steps=STEPS, check=False)
    before = target.scores
    assert fit.elbo is not None
    assert fit.khat is not None
    assert target.scores == before


def test_a_minibatch_score_is_one_call() -> None:
    target = MiniBatchPosterior(
        lambda t, y: -(y - t[:, :1]).square(),
        torch.zeros(10, dtype=torch.float64),
        lambda t: -t.square().sum(-1),
        3,
        batch_size=2,
    )
    fit = bs.fit(target, family("full"), bs.methods.GSM(draws=4), steps=STEPS)
    assert fit.score_calls == 4 * STEPS
