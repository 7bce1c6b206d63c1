"""Predictions of a perceptron without draws of its weights: moments go through the layers, once.

For a layer y = W h + b with independent W_ij ~ N(M_ij, S_ij^2), b_i ~ N(c_i, t_i^2), and inputs with mean m
and covariance C,
    E y = M m + c,    Cov y = M C M^T + diag(S^2 (m^2 + diag C) + t^2)                                  (1)
which is exact. For an activation f of units a_k taken as N(m_k, v_k), with s_k = sqrt(v_k) and z ~ N(0, 1),
    E f_k = E f(m_k + s_k z),    Var f_k = E f(m_k + s_k z)^2 - (E f_k)^2                               (2)
    Cov(f_k, f_l) = g_k g_l Cov(a_k, a_l),    g_k = E f'(a_k) = E z f(m_k + s_k z) / s_k                (3)
where (3) is the first term of the expansion in the correlation of the two units. With F and p the normal
distribution and density at r = m / s, ReLU has E f = m F + s p, E f^2 = (m^2 + v) F + m s p, g = F    (4)
and other activations are integrated by Gauss-Hermite quadrature.

With one hidden layer, (1) to (3) are exact: its units are independent, and normal. Behind it they are
neither. Without the covariances (C diagonal), standard deviations come out too small from two hidden layers
on, so they are kept, at the price of a (width, width) matrix for every row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bayescore.posteriors.base import check_request, instead
from bayescore.posteriors.gaussian import GaussianPosterior
from bayescore.posteriors.inputs import explained
from bayescore.posteriors.prediction import prediction_from_outputs
from bayescore.posteriors.wrappers import bare
from bayescore.rng import generator

__all__ = ["propagate"]

NODES = 32  # of the quadrature
OUTPUTS = 256  # drawn from the Gaussian of the outputs, which costs no pass through the network
AT_ONCE = 2**24  # numbers in the covariances of the rows that are computed together

SMOOTH = (nn.GELU, nn.Sigmoid, nn.SiLU, nn.Softplus, nn.Tanh)
NOTHING = (nn.Dropout, nn.Identity)  # at the time of prediction


def propagate(posterior: GaussianPosterior, x: Any) -> Any:
    """The prediction that `posterior.predict(x, draws)` tends to with many draws, from one pass.

    Arguments:
        posterior: a Gaussian one of a perceptron: an `nn.Sequential` of Linear, ReLU, Tanh, Sigmoid, GELU,
            SiLU, Softplus, Dropout, Identity, and Flatten before the first layer.
        x: inputs, as in `Posterior.predict`.

    The outputs are taken as jointly Gaussian, and the prediction has as many of them as it needs, with
    exactly their mean and covariance. It is exact in mean and variance of the outputs for one hidden layer,
    and costs about as much as 2 * width draws with more of them.

    >>> net = nn.Linear(2, 1)
    >>> mean = {"weight": torch.tensor([[1.0, 2.0]]), "bias": torch.tensor([0.5])}
    >>> sd = {"weight": torch.tensor([[0.3, 0.4]]), "bias": torch.tensor([0.0])}
    >>> found = propagate(GaussianPosterior(net, mean, sd, likelihood="gaussian"), torch.ones(1, 2))
    >>> f"{found.mean.item():.4f} {found.epistemic_std.item():.4f}"
    '3.5000 0.5000'
    """
    if not isinstance(posterior, GaussianPosterior):
        raise TypeError(f"moments are propagated for a Gaussian posterior; got {instead(posterior)}")
    layers = list(_layers(bare(posterior.model)))
    inputs = check_request(x, 1, None, posterior.model)
    if len(inputs.args) != 1 or inputs.named:
        raise TypeError("moments are propagated for a network of one input")
    found = []
    with torch.no_grad(), explained(bare(posterior.model), inputs):
        weights = _weights(posterior)
        width = max(mean.shape[0] for mean, *_ in weights.values())
        for rows in inputs.args[0].split(max(1, AT_ONCE // width**2)):
            found.append(_outputs(*_propagated(layers, weights, rows)))
    outputs = torch.cat(found, 1)
    return prediction_from_outputs(
        outputs.to(next(iter(posterior.mean.values())).dtype), posterior.likelihood
    )


def _layers(model: nn.Module) -> Iterator[nn.Module]:
    """The layers of a perceptron in their order; raises for any other module."""
    if isinstance(model, nn.Sequential):
        for inner in model:
            yield from _layers(inner)
    elif type(model) in (nn.Linear, nn.ReLU, nn.Flatten, *SMOOTH, *NOTHING):
        yield model
    else:
        raise TypeError(
            f"moments go through Sequential, Linear, ReLU, GELU, Sigmoid, SiLU, Softplus, Tanh, Dropout and "
            f"Flatten only, and the network has a {type(model).__name__}: use posterior.predict(x, draws)"
        )


def _weights(posterior: GaussianPosterior) -> dict[nn.Module, tuple[Tensor, Tensor, Tensor, Tensor]]:
    """By linear layer: M, S^2, c and t^2 of (1), in float64; what is not random has no variance."""
    names = {parameter: name for name, parameter in posterior.model.named_parameters()}

    def moments(parameter: Tensor | None, width: int) -> tuple[Tensor, Tensor]:
        if parameter is None:
            return torch.zeros(width, dtype=torch.float64), torch.zeros(width, dtype=torch.float64)
        name = names[parameter]  # type: ignore[index]
        if name in posterior.mean:
            return posterior.mean[name].double(), posterior.sd[name].double().square()
        fixed = posterior.fixed[name].double()
        return fixed, torch.zeros_like(fixed)

    return {
        layer: (*moments(layer.weight, layer.out_features), *moments(layer.bias, layer.out_features))
        for layer in bare(posterior.model).modules()
        if isinstance(layer, nn.Linear)
    }


def _propagated(layers: list[nn.Module], weights: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (n, K) and covariance (n, K, K) of the outputs."""
    mean: Tensor = x
    cov: Tensor | None = None  # of the inputs
    for layer in layers:
        if isinstance(layer, nn.Linear):
            mean, cov = _linear(weights[layer], mean.double(), cov)
        elif isinstance(layer, NOTHING):
            continue
        elif cov is None or isinstance(layer, nn.Flatten):
            mean = layer(mean)
        else:
            mean, cov = _activation(layer, mean, cov)
    assert cov is not None  # a posterior has weights
    return mean, cov


def _linear(weights: tuple[Tensor, ...], mean: Tensor, cov: Tensor | None) -> tuple[Tensor, Tensor]:
    """(1); the inputs of the first layer have no covariance."""
    M, S2, c, t2 = weights
    square = mean.square() if cov is None else mean.square() + cov.diagonal(dim1=1, dim2=2)
    out = torch.diag_embed(square @ S2.T + t2)  # (n, K, K)
    return mean @ M.T + c, out if cov is None else out + M @ cov @ M.T


def _activation(f: nn.Module, m: Tensor, cov: Tensor) -> tuple[Tensor, Tensor]:
    """(2) and (3)."""
    s = cov.diagonal(dim1=1, dim2=2).clamp_min(torch.finfo(m.dtype).tiny).sqrt()  # (n, H)
    if isinstance(f, nn.ReLU):
        mean, square, gain = _relu(m, s)  # (4)
    else:
        mean, square, gain = torch.zeros_like(m), torch.zeros_like(m), torch.zeros_like(m)
        for z, weight in zip(*_quadrature(), strict=True):
            value = f(m + s * z)
            mean += weight * value
            square += weight * value.square()
            gain += weight * z * value / s
    variance = (square - mean.square()).clamp_min(0)
    out = gain.unsqueeze(2) * cov * gain.unsqueeze(1)
    return mean, out.diagonal_scatter(variance, dim1=1, dim2=2)


def _relu(m: Tensor, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r = m / s
    F = torch.special.ndtr(r)
    p = torch.exp(-r.square() / 2) / math.sqrt(2 * math.pi)
    return m * F + s * p, (m.square() + s.square()) * F + m * s * p, F


def _quadrature() -> tuple[list[float], list[float]]:
    """Nodes and weights for the mean of a function of z ~ N(0, 1)."""
    z, weights = np.polynomial.hermite_e.hermegauss(NODES)
    return z.tolist(), (weights / weights.sum()).tolist()


def _outputs(mean: Tensor, cov: Tensor) -> Tensor:
    """Outputs (S, n, K) whose mean and covariance over S are the given ones."""
    size = mean.shape[1]
    z = torch.randn(
        max(OUTPUTS, 4 * size) // 2, size, dtype=mean.dtype, generator=generator(0, purpose="outputs")
    )
    z = torch.cat([z, -z])
    root = torch.linalg.cholesky(z.T @ z / len(z))
    z = torch.linalg.solve_triangular(root, z.T, upper=False).T.to(mean.device)  # (S, K), Cov z = 1
    values, vectors = torch.linalg.eigh(cov)
    half = vectors * values.clamp_min(0).sqrt().unsqueeze(1)  # (n, K, K)
    return mean + torch.einsum("nkj,sj->snk", half, z)
