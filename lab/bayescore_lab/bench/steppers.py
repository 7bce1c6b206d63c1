"""One training step of every method, phase by phase: torch's optimizers, ours, and the peers'.

A stepper is made from a `Workload` (a network, a mini-batch, its loss) and makes one step when it is asked
to. The peers' loops are those of their documentation. The authors' ADVI is our own writing of their
description (arXiv 2309.12928): a network m of means, a network s of standard deviations and a network m0 of
prior means beside the one that is run, S = 1 draw theta = m + s eps per batch, the loss
mean CE + (kappa/N) KL(q || N(m0, s0^2)),  and gradients by hand,
    grad m = g + (kappa/N) (m - m0)/s0^2                                                                (1)
    grad s = g (theta - m)/s + (kappa/N) (s/s0^2 - 1/s)                                                 (2)
with g the gradient of the mean loss at theta, for SGD with momentum 0.5.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from importlib import import_module
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from bayescore.checks import unknown_name
from bayescore_lab.bench.choices import METHODS, SCALING_METHODS, StepMethod
from bayescore_lab.bench.networks import Workload
from bayescore_lab.bench.timing import StepClock
from bayescore_lab.methods import network_optimizer

__all__ = ["AuthorsADVI", "OurOptimizer", "Stepper", "make_stepper", "step_method"]

KAPPA = 1e-6  # the authors' discount of the KL
LEAST_SD = 1e-8
START_SD = 1e-6


class Stepper(Protocol):
    """A method that trains a network."""

    def step(self, clock: StepClock) -> None:
        """One step, its phases on the clock."""


class TorchOptimizer:
    """An optimizer of torch.optim."""

    def __init__(self, work: Workload, optimizer: torch.optim.Optimizer) -> None:
        self.work, self.optimizer = work, optimizer

    def step(self, clock: StepClock) -> None:
        self.work.gradient(clock)
        with clock("update"):
            self.optimizer.step()
            self.optimizer.zero_grad()


class OurOptimizer:
    """An optimizer of ours: the noise is what entering and leaving `sample()` takes."""

    def __init__(self, work: Workload, optimizer: Any, draws: int = 1) -> None:
        self.work, self.optimizer, self.draws = work, optimizer, draws

    def step(self, clock: StepClock) -> None:
        for _ in range(self.draws):
            block = self.optimizer.sample()
            with clock("noise"):
                block.__enter__()
            try:
                self.work.gradient(clock)
            except BaseException as problem:
                block.__exit__(type(problem), problem, problem.__traceback__)
                raise
            with clock("noise"):
                block.__exit__(None, None, None)
        with clock("update"):
            self.optimizer.step()
            self.optimizer.zero_grad()


class Copy:
    """`copy_` of as many numbers as the network has: the speed of the machine's memory."""

    def __init__(self, work: Workload) -> None:
        self.source = torch.cat([p.detach().flatten() for p in work.model.parameters()])
        self.target = torch.zeros_like(self.source)

    def step(self, clock: StepClock) -> None:
        with clock("update"):
            self.target.copy_(self.source)


class AuthorsADVI:
    """ADVI with a network of means and a network of standard deviations."""

    def __init__(self, work: Workload) -> None:
        self.work = work
        self.mean, self.prior, self.sd = (copy.deepcopy(work.model) for _ in range(3))
        for p in self.sd.parameters():
            nn.init.constant_(p, START_SD)
        for p in self.prior.parameters():
            p.requires_grad_(False)
        trained = [*self.mean.parameters(), *self.sd.parameters()]
        self.optimizer = torch.optim.SGD(trained, lr=1e-4, momentum=0.5)

    def _rows(self) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        nets = (self.work.model, self.mean, self.sd, self.prior)
        return zip(*(net.parameters() for net in nets), strict=True)

    def step(self, clock: StepClock) -> None:
        with clock("noise"), torch.no_grad():
            for theta, m, s, _ in self._rows():
                theta.copy_(m + s.clamp_min(LEAST_SD) * torch.randn_like(m))
        self.work.gradient(clock)
        with clock("update"):
            self._update()

    @torch.no_grad()
    def _update(self) -> None:
        weight, kl = KAPPA / self.work.num_data, torch.zeros(())
        for theta, m, raw, m0 in self._rows():
            s, g = raw.clamp_min(LEAST_SD), theta.grad
            assert g is not None
            kl = kl + (0.5 * ((m - m0).square() + s.square() - 1) - s.log()).sum()
            m.grad = g + weight * (m - m0)  # (1), s0 = 1
            raw.grad = g * (theta - m) / s + weight * (s - 1 / s)  # (2)
        self.kl = kl
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.work.model.zero_grad()


class Ivon:
    """IVON (ivon-opt) with the settings of its documentation."""

    def __init__(self, work: Workload) -> None:
        self.work = work
        kind = import_module("ivon").IVON
        self.optimizer = kind(work.model.parameters(), lr=0.1, ess=work.num_data)

    def step(self, clock: StepClock) -> None:
        block = self.optimizer.sampled_params(train=True)
        with clock("noise"):
            block.__enter__()
        self.work.gradient(clock)
        with clock("noise"):
            block.__exit__(None, None, None)
        with clock("update"):
            self.optimizer.step()
            self.optimizer.zero_grad()


class Posteriors:
    """Diagonal VI of posteriors with torchopt's Adam; its one call is split at the functions it is given."""

    def __init__(self, work: Workload) -> None:
        posteriors, torchopt = import_module("posteriors"), import_module("torchopt")
        self.work = work
        self.model = posteriors.model_to_function(work.model)
        adam = torchopt.adam(lr=1e-3)
        self.adam_update = adam.update
        self.transform = posteriors.vi.diag.build(
            self._log_posterior, adam._replace(update=self._adam), temperature=1 / work.num_data
        )
        self.diag_normal = posteriors.diag_normal_log_prob
        self.state = self.transform.init(dict(work.model.named_parameters()))
        self.clock, self.mark = StepClock(), 0.0

    def _log_posterior(self, params: Any, batch: Any) -> tuple[Tensor, Tensor]:
        x, _ = batch
        self._add_to("noise")
        outputs = self.model(params, x)
        value = -self.work.loss(outputs) + self.diag_normal(params) / self.work.num_data
        self._add_to("forward")
        return value, outputs

    def _adam(self, *args: Any, **kwargs: Any) -> Any:
        self._add_to("backward")
        return self.adam_update(*args, **kwargs)

    def _add_to(self, phase: str) -> None:
        """The time since the last mark belonged to `phase`."""
        now = self.clock.now()
        self.clock.add(phase, now - self.mark)
        self.mark = now

    def step(self, clock: StepClock) -> None:
        self.clock, self.mark = clock, clock.now()
        self.state, _ = self.transform.update(self.state, (self.work.x, self.work.y))
        self._add_to("update")


class BayesianTorch:
    """bayesian-torch: linear and convolutional layers are replaced; noise is drawn inside the forward."""

    def __init__(self, work: Workload, layers: str) -> None:
        module = import_module("bayesian_torch.models.dnn_to_bnn")
        self.work, self.kl = work, module.get_kl_loss
        prior = {
            "prior_mu": 0.0,
            "prior_sigma": 1.0,
            "posterior_mu_init": 0.0,
            "posterior_rho_init": -3.0,
            "type": layers,
            "moped_enable": False,
            "moped_delta": 0.5,
        }
        module.dnn_to_bnn(work.model, prior)
        self.optimizer = torch.optim.Adam(work.model.parameters(), lr=1e-3)

    def step(self, clock: StepClock) -> None:
        work = self.work
        with clock("forward"):
            outputs = work.model(work.x)
            loss = work.loss(outputs) + self.kl(work.model) / work.num_data
        with clock("backward"):
            loss.backward()
        with clock("update"):
            self.optimizer.step()
            self.optimizer.zero_grad()


def step_method(name: str) -> StepMethod:
    """A method by name."""
    found = METHODS.get(name) or SCALING_METHODS.get(name)
    if found is None:
        raise unknown_name("method", name, METHODS)
    return found


def make_stepper(method: StepMethod, work: Workload) -> Stepper:
    """A method on a network; what an optimizer refuses is an error with its own words."""
    params = work.model.parameters()
    if method.source == "torch":
        return TorchOptimizer(work, getattr(torch.optim, method.optimizer)(params, **method.options))
    if method.source == "bayescore":
        optimizer = network_optimizer(method.optimizer, params, work.num_data, **method.options)
        return OurOptimizer(work, optimizer, method.draws)
    if method.source == "bayesian-torch":
        return BayesianTorch(work, method.optimizer)
    if method.source == "authors":
        return AuthorsADVI(work)
    if method.source == "ivon":
        return Ivon(work)
    if method.source == "posteriors":
        return Posteriors(work)
    return Copy(work)
