"""The Laplace approximation of a trained network, through laplace-torch (Daxberger et al. 2021).

At the weights m of the trained network, with the Gauss-Newton matrix G summed over the training data:
    theta ~ N(m, (G + I / s0^2)^-1),   G last layer or all weights, full, Kronecker or diagonal            (1)
Predictions are those of the linearised network, whose logits at x are Gaussian (J the Jacobian there):
    f ~ N(f_m(x), V),   V = J (G + I / s0^2)^-1 J'                                                         (2)
    probs = softmax(f_m / sqrt(1 + (pi/8) diag V))   the probit approximation                              (3)
The mutual information takes the mean entropy over draws of (2); values are draws of (2). All rows share the
noise of a draw, so that predictions do not depend on the batch size.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bayescore.checks import check_number, unknown_name
from bayescore.operators import declare_vision_operators
from bayescore.posteriors.inputs import Inputs
from bayescore.posteriors.laplace_checks import check_network, in_words
from bayescore.posteriors.last_layer import last_layer_logits
from bayescore.posteriors.likelihoods import Categorical, Gaussian, Likelihood
from bayescore.posteriors.likelihoods import likelihood as as_likelihood
from bayescore.posteriors.posterior import check_request
from bayescore.posteriors.prediction import ClassPrediction, ValuePrediction, entropy
from bayescore.posteriors.selection import last_layer
from bayescore.posteriors.validation import nll, pair
from bayescore.posteriors.weights import WeightPosterior, Weights
from bayescore.posteriors.wrappers import bare, eager
from bayescore.rng import generator

__all__ = ["LaplacePosterior", "laplace"]

STRUCTURES = ("diag", "full", "kron")
SUBSETS = {"all": "all", "last": "last_layer"}
PASS_BYTES = 2**28  # of Jacobians or covariances in one forward pass, where no batch size is given
GRID_DRAWS = 10
GRID = (-4.0, 4.0, 21)  # prior precisions tried on validation data: log10 of the ends, and how many


def laplace(
    model: nn.Module,
    train_loader: Iterable[Any],
    likelihood: str | Likelihood = "categorical",
    *,
    weights: str = "last",
    structure: str = "kron",
    prior_sd: float | str = "marginal",
    validation: Iterable[Any] | None = None,
) -> LaplacePosterior:
    """The Laplace approximation of `model` as it has been trained.

    Arguments:
        model: a trained module; a copy of it is kept.
        train_loader: the training data (inputs, targets), without augmentation; its data set has a length.
        likelihood: "categorical" or Gaussian.
        weights: "last" for the last layer, which must be linear, or "all".
        structure: of the curvature, "kron", "diag" or "full".
        prior_sd: s0; "marginal" chooses it by the marginal likelihood, "validation" by the loss on
            `validation`.
    """
    if structure not in STRUCTURES:
        raise unknown_name("structure", structure, STRUCTURES)
    if weights not in SUBSETS:
        raise unknown_name("set of weights", weights, SUBSETS)
    if isinstance(prior_sd, str) and prior_sd not in ("marginal", "validation"):
        raise unknown_name("choice of prior_sd", prior_sd, ("marginal", "validation"))
    if (prior_sd == "validation") != (validation is not None):
        raise ValueError("prior_sd='validation' and validation= go together; give both or none")
    if not isinstance(prior_sd, str):
        check_number("prior_sd", prior_sd)
    like = as_likelihood(likelihood)
    found = _approximation(model, like, weights, structure)
    if not isinstance(prior_sd, str):
        found.prior_precision = float(prior_sd) ** -2
    with warnings.catch_warnings(), eager(), in_words(weights, structure):
        warnings.simplefilter("ignore")  # its reminders of defaults that are given here
        x, _ = pair(next(iter(train_loader)))
        check_network(found, _only(x)[:2].to(next(model.parameters()).device), weights, structure)
        found.fit(train_loader)
        if prior_sd == "marginal":
            found.optimize_prior_precision(pred_type="glm", method="marglik", prior_structure="scalar")
    posterior = LaplacePosterior(model, found, weights, structure, likelihood=like)
    if validation is not None:
        posterior.choose_prior(validation)
    return posterior


def _only(inputs: Inputs) -> Tensor:
    """The one tensor that goes into the module."""
    if inputs.named or len(inputs.args) > 1:
        raise ValueError("laplace-torch takes modules of one input; give it as a tensor, without a name")
    return inputs.args[0]


class LaplacePosterior(WeightPosterior):
    """A fitted approximation (1); `laplace` makes it.

    `sample_` gives the network itself, not the linearised one, with weights drawn from (1).
    """

    kind = "laplace"
    leading: ClassVar[dict[str, int]] = {"weights": 0}

    def __init__(
        self, model: nn.Module, approximation: Any, weights: str, structure: str, *, likelihood: Likelihood
    ) -> None:
        random = last_layer(model) if weights == "last" else _trainable(model)
        super().__init__(model, random, likelihood)
        self.approximation, self.weights, self.structure = approximation, weights, structure
        own = dict(model.named_parameters())
        self.mean = {name: own[name].detach().clone() for name in self.names}

    @property
    def prior_sd(self) -> float:
        """s0, as given or as chosen."""
        return float(self.approximation.prior_precision.flatten()[0]) ** -0.5

    def choose_prior(self, validation: Iterable[Any]) -> None:
        """Set s0 to the value of a grid whose predictions on the validation batches are the most probable."""
        batches, place = list(validation), next(iter(self.mean.values())).device
        losses = {}
        for precision in torch.logspace(*GRID).tolist():
            self.approximation.prior_precision = precision
            losses[precision] = nll(self, batches, place, draws=GRID_DRAWS)
        self.approximation.prior_precision = min(losses, key=lambda precision: losses[precision])

    def draw(self, seed: int, index: int) -> Weights:
        rng = generator((seed * 1_000_003 + index) % 2**63, next(iter(self.mean.values())).device)
        flat = self.approximation.sample(1, rng)[0]
        parts = flat.split([value.numel() for value in self.mean.values()])
        return {name: part.view_as(m) for part, (name, m) in zip(parts, self.mean.items(), strict=True)}

    def centre(self) -> Weights:
        return self.mean

    def predict(
        self,
        x: Any,
        samples: int = 30,
        *,
        seed: int = 0,
        batch_size: int | None = None,
        recalibrate: Iterable[Any] | None = None,
    ) -> Any:
        """As `Posterior.predict`, from the linearised network (2); `samples` draws of its outputs."""
        inputs = check_request(x, samples, batch_size)
        if recalibrate is not None:
            raise ValueError("a linearised network keeps its BatchNorm statistics; leave out recalibrate=")
        given = _only(inputs)
        place = next(iter(self.mean.values())).device
        fast = self.weights == "last" and self.structure != "full"
        count = self.approximation.n_outputs
        row = 4 * count * (count if fast else self.approximation.n_params)
        rows = []
        with torch.no_grad(), eager():
            for chunk in given.split(batch_size or max(1, PASS_BYTES // row)):
                if fast:
                    f, V = last_layer_logits(self.approximation, chunk.to(place), self.structure)
                else:
                    f, V = self.approximation._glm_predictive_distribution(chunk.to(place))
                rows.append((f, _root(V)))
        f, root = (torch.cat(part) for part in zip(*rows, strict=True))  # (2)
        rng = generator(seed, place, "laplace")
        noise = torch.randn(samples, f.shape[1], generator=rng, device=place, dtype=f.dtype)
        draws = (f + root @ e for e in noise)  # (n, K) each
        if isinstance(self.likelihood, Gaussian):
            return ValuePrediction(samples, torch.stack(list(draws)), self.likelihood)
        variance = root.square().sum(2)
        probs = (f / (1 + math.pi / 8 * variance).sqrt()).softmax(1)  # (3)
        doubt = torch.zeros_like(f[:, 0])
        for draw in draws:
            doubt += entropy(draw.softmax(1))
        return ClassPrediction(samples, probs, doubt / samples)

    # -- file ------------------------------------------------------------------------------------------

    def tensors(self) -> Weights:
        state = self.approximation.state_dict()
        curvature = state["H"]
        if isinstance(curvature, Tensor):
            factors = {"curvature.0.0": curvature}
        else:
            factors = {
                f"curvature.{i}.{j}": factor
                for i, row in enumerate(curvature)
                for j, factor in enumerate(row)
            }
        prior = {"prior.precision": state["prior_precision"]}
        return {f"weights.{name}": value for name, value in self.mean.items()} | factors | prior

    def config(self) -> dict[str, Any]:
        state = self.approximation.state_dict()
        kept = {key: state[key] for key in ("n_data", "n_outputs")}
        return {"weights": self.weights, "structure": self.structure, "loss": float(state["loss"]), **kept}

    @classmethod
    def rebuild(
        cls,
        model: nn.Module,
        parts: dict[str, Weights],
        likelihood: Likelihood,
        weights: str = "last",
        structure: str = "kron",
        **counts: Any,
    ) -> LaplacePosterior:
        own = dict(model.named_parameters())
        with torch.no_grad():
            for name, value in parts["weights"].items():
                own[name].copy_(value)
        found = _approximation(model, likelihood, weights, structure)
        rows: dict[int, list[Tensor]] = {}
        for key, factor in sorted(parts["curvature"].items()):
            rows.setdefault(int(key.split(".")[0]), []).append(factor)
        factors: Any = [rows[i] for i in sorted(rows)]
        kept = ("prior_mean", "sigma_noise", "likelihood", "temperature", "enable_backprop")
        blank = {
            **{name: getattr(found, name) for name in kept},
            "mean": torch.cat([v.detach().flatten() for name, v in own.items() if name in parts["weights"]]),
            "H": factors if structure == "kron" else factors[0][0],
            "prior_precision": parts["prior"]["precision"],
            "cls_name": type(found).__name__,
            "_last_layer_name": getattr(found, "_last_layer_name", None),
            "data": None,
        }
        found.load_state_dict({**blank, **counts})
        return cls(model, found, weights, structure, likelihood=likelihood)


def _approximation(model: nn.Module, like: Likelihood, weights: str, structure: str) -> Any:
    """laplace-torch's object, not fitted yet, on a copy of the model."""
    model = bare(model)
    declare_vision_operators()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a dependency of it scripts functions on import
        try:
            from laplace import Laplace
        except ModuleNotFoundError as missing:
            raise ImportError("Laplace needs laplace-torch: pip install 'bayescore[laplace]'") from missing
    options: dict[str, Any] = {}
    if isinstance(like, Categorical):
        kind = "classification"
    elif isinstance(like, Gaussian):
        kind, options["sigma_noise"] = "regression", float(like.log_noise.detach().exp())
    else:
        raise ValueError(f"Laplace serves the likelihoods categorical and gaussian; got {like.name}")
    if weights == "last":
        name = last_layer(model)[0].rpartition(".")[0]
        layer = model.get_submodule(name)
        if not name or not isinstance(layer, nn.Linear):
            kind = type(layer).__name__
            raise ValueError(
                f"the last layer must be nn.Linear inside a module; got {kind}: use weights='all'"
            )
        options["last_layer_name"] = name
    subset = SUBSETS[weights]
    return Laplace(
        copy.deepcopy(model), kind, subset_of_weights=subset, hessian_structure=structure, **options
    )


def _trainable(model: nn.Module) -> list[str]:
    return [name for name, p in model.named_parameters() if p.requires_grad]


def _root(V: Tensor) -> Tensor:
    """The symmetric R with R R = V, also where V is singular but for rounding."""
    values, vectors = torch.linalg.eigh(V)
    return (vectors * values.clamp_min(0).sqrt().unsqueeze(-2)) @ vectors.mT
