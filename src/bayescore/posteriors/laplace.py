"""The Laplace approximation of a trained network, through laplace-torch (Daxberger et al. 2021).

At the weights m of the trained network, with the Gauss-Newton matrix G summed over the training data:
    theta ~ N(m, (G + I / s0^2)^-1),   G last layer or all weights, full, Kronecker or diagonal            (1)
Predictions are those of the linearised network, whose logits at x are Gaussian (J the Jacobian there):
    f ~ N(f_m(x), V),   V = J (G + I / s0^2)^-1 J'                                                         (2)
    probs = softmax(f_m / sqrt(1 + (pi/8) diag V))   the probit approximation                              (3)
The mutual information uses the mean entropy over draws of (2); values are predicted by draws of (2). All rows
share the noise of a draw, so that predictions do not depend on the batch size.

With a random last layer, V needs no Jacobian. The logits are W phi + b, where phi are the features of a row.
With the Kronecker precision (U L U') x (Q M Q') + I/s0^2 of W, the covariance of W and b gives
    V = U diag_i(sum_j (Q' phi)_j^2 / (L_i M_j + 1/s0^2)) U' + Cov b                                       (4)
and with a diagonal precision
    V = diag_i(sum_j phi_j^2 Var W_ij + Var b_i)                                                           (5)
laplace-torch builds J = I x phi' for every row, which takes K times the memory and time for K outputs.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bayescore.checks import check_count, check_number, unknown_name
from bayescore.operators import declare_vision_operators
from bayescore.posteriors.base import WeightPosterior, Weights, check_request, draw_generator
from bayescore.posteriors.inputs import Inputs, inputs_and_targets
from bayescore.posteriors.likelihoods import Categorical, Gaussian, Likelihood, as_likelihood
from bayescore.posteriors.prediction import ClassPrediction, ValuePrediction, entropy
from bayescore.posteriors.selection import last_layer_names
from bayescore.posteriors.validation import nll
from bayescore.posteriors.wrappers import bare, eager
from bayescore.rng import generator

__all__ = ["LaplacePosterior", "fit_laplace"]

STRUCTURES = ("diag", "full", "kron")
SUBSETS = {"all": "all", "last": "last_layer"}
BYTES_AT_ONCE = 2**28  # of Jacobians or covariances in one forward pass, if no batch size is given
GRID_DRAWS = 10
GRID = (-4.0, 4.0, 21)  # prior precisions tried on validation data: log10 of first and last, and their number
ALTERNATIVE = "use weights='all', structure='diag'"


def fit_laplace(
    model: nn.Module,
    train_loader: Iterable[Any],
    likelihood: str | Likelihood = "categorical",
    *,
    weights: str = "last",
    structure: str = "kron",
    prior_sd: float | str = "marginal",
    validation: Iterable[Any] | None = None,
) -> LaplacePosterior:
    """The Laplace approximation of a trained `model`.

    Arguments:
        model: the module; a copy of it is kept.
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
    with warnings.catch_warnings(), eager(), _explaining_unsupported_layers(weights, structure):
        warnings.simplefilter("ignore")  # laplace-torch advises defaults that are set here
        x, _ = inputs_and_targets(next(iter(train_loader)))
        _check_network(found, _single_input(x)[:2].to(next(model.parameters()).device), weights, structure)
        found.fit(train_loader)
        if prior_sd == "marginal":
            found.optimize_prior_precision(pred_type="glm", method="marglik", prior_structure="scalar")
    posterior = LaplacePosterior(model, found, weights, structure, likelihood=like)
    if validation is not None:
        posterior.choose_prior(validation)
    return posterior


def _single_input(inputs: Inputs) -> Tensor:
    """The only tensor that goes into the module."""
    if inputs.named or len(inputs.args) > 1:
        raise ValueError("laplace-torch takes modules of one input; give it as a tensor, without a name")
    return inputs.args[0]


class LaplacePosterior(WeightPosterior):
    """A fitted approximation (1), made by `fit_laplace`.

    `sample_` gives the network itself, not the linearised one, with weights drawn from (1).
    """

    kind = "laplace"
    leading: ClassVar[dict[str, int]] = {"weights": 0}

    def __init__(
        self, model: nn.Module, approximation: Any, weights: str, structure: str, *, likelihood: Likelihood
    ) -> None:
        random = last_layer_names(model) if weights == "last" else _trainable(model)
        super().__init__(model, random, likelihood)
        self.approximation, self.weights, self.structure = approximation, weights, structure
        own = dict(model.named_parameters())
        self.mean = {name: own[name].detach().clone() for name in self.names}

    @property
    def prior_sd(self) -> float:
        """s0, as given or as chosen."""
        return float(self.approximation.prior_precision.flatten()[0]) ** -0.5

    def choose_prior(self, validation: Iterable[Any]) -> None:
        """Set s0 to the value of a grid with the smallest loss on the validation batches."""
        batches, device = list(validation), next(iter(self.mean.values())).device
        losses = {}
        for precision in torch.logspace(*GRID).tolist():
            self.approximation.prior_precision = precision
            losses[precision] = nll(self, batches, device, draws=GRID_DRAWS)
        self.approximation.prior_precision = min(losses, key=lambda precision: losses[precision])

    def draw(self, seed: int, index: int) -> Weights:
        rng = draw_generator(seed, index, next(iter(self.mean.values())).device)
        flat = self.approximation.sample(1, rng)[0]
        parts = flat.split([value.numel() for value in self.mean.values()])
        return {name: part.view_as(m) for part, (name, m) in zip(parts, self.mean.items(), strict=True)}

    def centre(self) -> Weights:
        return self.mean

    def predict(
        self,
        x: Any,
        draws: int = 30,
        *,
        seed: int = 0,
        batch_size: int | None = None,
        recalibrate: Iterable[Any] | None = None,
    ) -> Any:
        """As `Posterior.predict`, with draws of the outputs of the linearised network (2)."""
        inputs = check_request(x, draws, batch_size, self.model)
        if recalibrate is not None:
            raise ValueError("a linearised network keeps its BatchNorm statistics; leave out recalibrate=")
        x = _single_input(inputs)
        device = next(iter(self.mean.values())).device
        no_jacobian = self.weights == "last" and self.structure != "full"
        K = self.approximation.n_outputs
        bytes_per_row = 4 * K * (K if no_jacobian else self.approximation.n_params)
        rows = []
        with torch.no_grad(), eager():
            for chunk in x.split(batch_size or max(1, BYTES_AT_ONCE // bytes_per_row)):
                if no_jacobian:
                    f, V = last_layer_logits(self.approximation, chunk.to(device), self.structure)
                else:
                    f, V = self.approximation._glm_predictive_distribution(chunk.to(device))
                rows.append((f, _root(V)))
        f, root = (torch.cat(part) for part in zip(*rows, strict=True))  # (2)
        rng = generator(seed, device, "laplace")
        noise = torch.randn(draws, f.shape[1], generator=rng, device=device, dtype=f.dtype)
        outputs = (f + root @ e for e in noise)  # (n, K) each
        if isinstance(self.likelihood, Gaussian):
            return ValuePrediction(draws, torch.stack(list(outputs)), self.likelihood)
        variance = root.square().sum(2)
        probs = (f / (1 + math.pi / 8 * variance).sqrt()).softmax(1)  # (3)
        entropy_sum = torch.zeros_like(f[:, 0])
        for out in outputs:
            entropy_sum += entropy(out.softmax(1))
        return ClassPrediction(draws, probs, entropy_sum / draws)

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
        loss: float = 0.0,
        n_data: int = 0,
        n_outputs: int = 0,
    ) -> LaplacePosterior:
        check_number("loss", abs(loss), zero=True)  # a Gaussian's may be negative
        check_count("n_data", n_data)
        check_count("n_outputs", n_outputs)
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
        state = {
            **{name: getattr(found, name) for name in kept},
            "mean": torch.cat([v.detach().flatten() for name, v in own.items() if name in parts["weights"]]),
            "H": factors if structure == "kron" else factors[0][0],
            "prior_precision": parts["prior"]["precision"],
            "cls_name": type(found).__name__,
            "_last_layer_name": getattr(found, "_last_layer_name", None),
            "data": None,
        }
        found.load_state_dict({**state, "loss": loss, "n_data": n_data, "n_outputs": n_outputs})
        return cls(model, found, weights, structure, likelihood=likelihood)


def _approximation(model: nn.Module, like: Likelihood, weights: str, structure: str) -> Any:
    """laplace-torch's object on a copy of the model, before it is fitted."""
    model = bare(model)
    declare_vision_operators()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # one of its dependencies scripts functions
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
        name = last_layer_names(model)[0].rpartition(".")[0]
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
    """The symmetric R with R R = V, also if V is singular up to rounding."""
    values, vectors = torch.linalg.eigh(V)
    return (vectors * values.clamp_min(0).sqrt().unsqueeze(-2)) @ vectors.mT


def last_layer_logits(approximation: Any, x: Tensor, structure: str) -> tuple[Tensor, Tensor]:
    """Mean (n, K) and covariance (n, K, K) of the logits, (4) for "kron" and (5) for "diag"."""
    f, phi = approximation.model.forward_with_features(x)
    if structure == "diag":
        variance = approximation.posterior_variance
        K, d = f.shape[1], phi.shape[1]
        V = phi.square() @ variance[: K * d].view(K, d).T  # (5)
        if len(variance) > K * d:
            V = V + variance[K * d :]
        return f, torch.diag_embed(V)
    precision = approximation.posterior_precision
    (L, M), (U, Q) = precision.eigenvalues[0], precision.eigenvectors[0]
    spread = (phi @ Q).square() @ (torch.outer(L, M) + precision.deltas[0]).reciprocal().T  # (n, K)
    V = (U * spread.unsqueeze(1)) @ U.T  # (4)
    if len(precision.eigenvalues) > 1:
        (values,), (B,) = precision.eigenvalues[1], precision.eigenvectors[1]
        V = V + (B / (values + precision.deltas[1])) @ B.T
    return f, V


def _check_network(approximation: Any, x: Tensor, weights: str, structure: str) -> None:
    """Refuse a network that laplace-torch cannot handle, after running it on the rows `x`.

    laplace-torch assumes that the last layer's output is the network's, and its Kronecker factors assume that
    every weight is used once. For other networks it fails with an obscure message, or returns a curvature
    that is several times off.
    """
    last = weights == "last"
    whole = approximation.model.eval()  # for "last", a wrapper that also gives the last layer's inputs
    model: nn.Module = whole.model if last else whole
    own = set((whole.last_layer if last else model).parameters())
    chosen = {name: p for name, p in model.named_parameters() if p in own and p.requires_grad}
    if last or structure == "kron":
        with torch.enable_grad():
            uses = _count_uses(model(x))
        for name, p in chosen.items():
            if uses[p] > 1:
                raise ValueError(
                    f"{name} is used {uses[p]} times in a pass, and weights={weights!r}, structure="
                    f"{structure!r} counts one; {ALTERNATIVE}"
                )
    if last:
        with torch.no_grad():
            f, phi = whole.forward_with_features(x)
            end = whole.last_layer(phi)
        if end.shape != f.shape or not torch.allclose(end, f, rtol=1e-3, atol=1e-3):
            raise ValueError(
                "the network does more after its last layer, and weights='last' needs that layer's output; "
                f"leave out what follows it, or {ALTERNATIVE}"
            )
    elif structure == "kron":
        for name, module in model.named_modules():
            if len({p.requires_grad for p in module.parameters(recurse=False)}) > 1:
                raise ValueError(
                    f"a part of {name or 'the module'} is frozen, and structure='kron' takes whole layers; "
                    "use structure='diag'"
                )
    elif structure == "full":
        for name, p in model.named_parameters(remove_duplicate=False):
            if p.requires_grad and name not in chosen:
                raise ValueError(
                    f"{name} is the second name of a parameter, which structure='full' cannot serve; "
                    "use structure='diag'"
                )


@contextmanager
def _explaining_unsupported_layers(weights: str, structure: str) -> Iterator[None]:
    """Turn the error for a layer that laplace-torch or its backends do not support into a sentence."""
    try:
        yield
    except NotImplementedError as error:
        raise ValueError(
            f"weights={weights!r}, structure={structure!r} is not implemented for a layer of this network "
            f"({str(error).splitlines()[0].rstrip('.')}); use structure='diag', or weights='last'"
        ) from error


def _count_uses(outputs: Tensor) -> Counter[Tensor]:
    """How often every parameter enters the outputs: its edges in autograd's graph."""
    found: Counter[Tensor] = Counter()
    nodes: list[Any] = [outputs.grad_fn]
    seen = {None, *nodes}
    while nodes:
        node = nodes.pop()
        for other, _ in node.next_functions if node is not None else ():
            if hasattr(other, "variable"):
                found[other.variable] += 1
            elif other not in seen:
                seen.add(other)
                nodes.append(other)
    return found
