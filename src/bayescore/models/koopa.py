"""Koopa: a forecasting network that advances learned features of a series by linear (Koopman) maps.

Reference: Liu, Li, Wang and Long, "Koopa: Learning Non-stationary Time Series Dynamics with Koopman
Predictors" (NeurIPS 2023, arXiv 2305.18803).

A window x (L, C) of L steps and C channels becomes a forecast y (S, C). Per window and channel, over time:
    m = mean x,   s = sqrt(var x + 1e-5),   r_1 = (x - m)/s       m and s carry no gradient            (1)
With G, the frequencies that are strongest in the training windows, a Fourier filter splits a residual r:
    r = inv + var,   var = irfft(rfft(r) with the frequencies of G set to zero)                           (2)
G holds the int(alpha (L//2 + 1)) largest of mean |rfft(x)| over training windows and channels. With the
cosines and sines of G as orthonormal columns of U (a sine that is zero is a column of zeros), (2) is
    c = U' r,   inv = U c,   var = r - inv                                                                (2')
Block b adds the forecasts of its two parts and passes on what the second did not explain:
    y <- y + I_b(inv) + V(var),   r_{b+1} = r_b - backcast of V(var)                                      (3)
Time-invariant part, per channel, with a d x d matrix K_b that is orthogonal at first:
    I_b(inv) = decoder(K_b encoder(inv)),   encoder: L -> d,   decoder: d -> S                            (4)
Between the last activation h of the encoder and the first of the decoder all is linear: with the last layer
of the encoder (E, e) and the first of the decoder (D, f), the product in whatever order is cheapest of
    D K_b E h + D K_b e + f                                                                               (4')
Time-variant part: F = ceil(L/seg) segments of seg steps are encoded as z_1, ..., z_F in R^d, and the map
from each to the next is found by least squares for this window alone. With X = (z_1, ..., z_{F-1}) and
Y = (z_2, ..., z_F) as rows:
    K = X^+ Y   (minimum norm),   backcast: decoder(z_1, X K),   forecast: decoder(z_F K, z_F K^2, ...)   (5)
    X^+ = X' (X X' + delta I)^-1 = (X' X + delta I)^-1 X',   delta = 10 eps mean(diagonal)      (6)
with eps the rounding of a number, so that features of rank less than F-1 have a finite K.
Two segments need no solver:
    z_2 K = (z_1 . z_2)/|z_1|^2 z_2,   backcast: decoder(z_1, z_2)                                        (7)
All blocks share encoders and decoders, so that the last layer of a decoder runs once for the forecasts of all
blocks, on the sum of its inputs. At the end the window's level and scale return: y <- s y + m.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bayescore.checks import check_count, check_number, unknown_name

__all__ = ["Koopa"]

MOST_LAYERS = 1000
LEVEL_GUARD = 1e-5  # in (1), for windows in which a channel does not move
ROUNDINGS, LEAST_DELTA = 10, 1e-12  # in (6); the second is for segments whose features are all zero

#: channels, context, horizon, dynamic_dim, hidden, layers, blocks, as the authors train the benchmarks
_DATASETS = {
    "ECL": (321, 96, 48, 256, 512, 3, 3),
    "ETTh2": (7, 96, 48, 64, 512, 2, 4),
    "Exchange": (8, 96, 48, 128, 256, 3, 4),
    "ILI": (7, 48, 24, 128, 512, 2, 4),
    "Traffic": (862, 96, 48, 512, 256, 3, 1),
    "Weather": (21, 96, 48, 128, 64, 2, 4),
}


class Koopa(nn.Module):
    """The network of equations (1) to (7), from windows (B, context, channels) to (B, horizon, channels).

    Give it the training windows once before training (`learn_frequencies`); until then G holds the lowest
    frequencies.

    Arguments:
        channels: series that are forecast together, C.
        context: steps that the network sees, L.
        horizon: steps that it forecasts, S.
        dynamic_dim: features that are advanced linearly, d.
        hidden: width of the encoders' and decoders' hidden layers.
        layers: linear layers of an encoder or decoder, at least two.
        blocks: how often (3) is repeated.
        segment: steps of a segment, seg; by default the horizon, or half of the context if that is less.
        alpha: share of the frequencies that are time-invariant.
        dropout: probability after every hidden layer, in training only.
    """

    kept: Tensor

    def __init__(
        self,
        channels: int,
        context: int = 96,
        horizon: int = 48,
        *,
        dynamic_dim: int = 128,
        hidden: int = 64,
        layers: int = 2,
        blocks: int = 3,
        segment: int | None = None,
        alpha: float = 0.2,
        dropout: float = 0.05,
    ) -> None:
        super().__init__()
        counts = {"channels": channels, "context": context, "horizon": horizon, "dynamic_dim": dynamic_dim}
        for name, value in {**counts, "hidden": hidden}.items():
            check_count(name, value)
        check_count("blocks", blocks, most=MOST_LAYERS)
        segment = min(horizon, max(1, context // 2)) if segment is None else segment
        check_count("segment", segment)
        check_count("layers", layers, least=2, most=MOST_LAYERS)
        check_number("alpha", alpha)
        if alpha > 1:
            raise ValueError(f"alpha is a share of the frequencies, at most 1; got {alpha}")
        check_number("dropout", dropout, "be a probability below 1", zero=True)
        if dropout >= 1:
            raise ValueError(f"dropout must be a probability below 1; got {dropout}")
        if context <= segment:
            raise ValueError(
                f"context must hold two segments to learn a map from one to the next, so more than "
                f"segment={segment} steps; got {context}"
            )
        self.channels, self.context, self.horizon, self.segment = channels, context, horizon, segment
        frequencies = context // 2 + 1
        self.kept_count = int(alpha * frequencies)
        kept = torch.arange(frequencies) < self.kept_count
        self.register_buffer("kept", kept)  # (L//2 + 1,): G as a mask
        sizes = (hidden, layers, dropout)
        self.invariant_encoder = _perceptron(context, dynamic_dim, nn.ReLU, *sizes)
        self.invariant_decoder = _perceptron(dynamic_dim, horizon, nn.ReLU, *sizes)
        self.variant_encoder = _perceptron(segment * channels, dynamic_dim, nn.Tanh, *sizes)
        self.variant_decoder = _perceptron(dynamic_dim, segment * channels, nn.Tanh, *sizes)
        maps = [nn.Linear(dynamic_dim, dynamic_dim, bias=False) for _ in range(blocks)]
        for layer in maps:
            nn.init.orthogonal_(layer.weight)
        self.maps = nn.ModuleList(maps)

    @classmethod
    def for_dataset(cls, name: str, **changes: Any) -> Koopa:
        """The network with the sizes of a benchmark data set: ECL, ETTh2, Exchange, ILI, Traffic or Weather.

        `changes` are arguments of the constructor that shall differ.
        """
        if name not in _DATASETS:
            raise unknown_name("forecasting data set", name, _DATASETS)
        names = ("channels", "context", "horizon", "dynamic_dim", "hidden", "layers", "blocks")
        return cls(**{**dict(zip(names, _DATASETS[name], strict=True)), **changes})

    @torch.no_grad()
    def learn_frequencies(self, windows: Iterable[Tensor | Sequence[Tensor]]) -> None:
        """Take as G the frequencies that are strongest in the training windows.

        Arguments:
            windows: batches of windows (B, context, channels), or pairs that begin with one, as a loader of
                training data gives them.
        """
        total, count = torch.zeros(self.kept.shape, dtype=torch.float64), 0
        for batch in windows:
            x = batch if isinstance(batch, Tensor) else batch[0]
            self._check(x)
            strength = torch.fft.rfft(x.detach().double(), dim=1).abs()  # (B, L//2 + 1, C)
            total += strength.mean(2).sum(0).cpu()
            count += len(x)
        if not count:
            raise ValueError("learn_frequencies needs at least one window; got none")
        if not bool(total.isfinite().all()):
            raise ValueError(
                "the windows hold numbers that are not finite; fill or leave out what is missing"
            )
        kept = torch.zeros(self.kept.shape, dtype=torch.bool)
        kept[total.topk(self.kept_count).indices] = True
        self.kept.copy_(kept)

    def forward(self, x: Tensor) -> Tensor:
        """Forecasts (B, horizon, channels) of windows (B, context, channels)."""
        self._check(x)
        with torch.no_grad():
            level = x.mean(1, keepdim=True)  # (B, 1, C)
            scale = ((x - level).square().mean(1, keepdim=True) + LEVEL_GUARD).sqrt()
            waves = self._waves(x.dtype)  # (L, 2 |G|)
        r = (x - level) / scale  # (1)
        (first, last), (begin, end) = _ends(self.invariant_encoder), _ends(self.invariant_decoder)
        filtered = first.weight @ waves  # the first layer for c instead of inv
        invariant = variant = torch.zeros((), dtype=x.dtype, device=x.device)
        for block, layer in enumerate(self.maps):
            assert isinstance(layer, nn.Linear)
            c = r.transpose(1, 2) @ waves  # (2'), (B, C, 2 |G|)
            var = r - (c @ waves.T).transpose(1, 2)
            h = _between(self.invariant_encoder, functional.linear(c, filtered, first.bias))
            h = _composed(h, last, layer, begin)  # (4')
            invariant = invariant + _between(self.invariant_decoder, h)  # (B, C, hidden)
            backcast, ahead = self._variant(var, backcast=block + 1 < len(self.maps))
            variant = variant + ahead
            if backcast is not None:
                r = r - backcast  # (3)
        forecast = _summed(end, invariant, len(self.maps)).transpose(1, 2)  # (B, S, C)
        steps = _summed(_ends(self.variant_decoder)[1], variant, len(self.maps))
        forecast = forecast + steps.reshape(len(x), -1, self.channels)[:, : self.horizon]
        return forecast * scale + level

    def _check(self, x: Tensor) -> None:
        if x.dim() != 3 or x.shape[1:] != (self.context, self.channels):
            raise ValueError(
                f"windows must have the shape (B, context={self.context}, channels={self.channels}); "
                f"got {tuple(x.shape)}"
            )

    def _waves(self, dtype: torch.dtype) -> Tensor:
        """U of (2'), (L, 2 |G|)."""
        length = self.context
        frequency = self.kept.to(torch.uint8).topk(self.kept_count).indices  # (|G|,)
        t = torch.arange(length, device=frequency.device)
        angle = (t[:, None] * frequency % length).to(dtype) * (2 * math.pi / length)
        single = (2 * frequency % length) == 0  # frequency 0, and the last of an even length, have no sine
        size = (2 / length) ** 0.5
        cosine = (angle.cos() * size).where(~single, angle.cos() * length**-0.5)
        return torch.cat((cosine, (angle.sin() * size).masked_fill(single, 0)), 1)

    def _variant(self, var: Tensor, *, backcast: bool) -> tuple[Tensor | None, Tensor]:
        """Backcast (if it is asked for) and, before the last layer, forecast of the time-variant part (5)."""
        batch, segments = len(var), math.ceil(self.context / self.segment)
        missing = segments * self.segment - self.context
        if missing:  # whole segments: the last steps are repeated in front
            var = torch.cat((var[:, -missing:], var), 1)
        z = self.variant_encoder(var.reshape(batch, segments, self.segment * self.channels))  # (B, F, d)
        rebuilt, ahead = advance(z, math.ceil(self.horizon / self.segment), rebuild=backcast)
        decoder = self.variant_decoder
        hidden = _between(decoder, decoder[0](ahead))
        if rebuilt is None:
            return None, hidden
        past = decoder(rebuilt).reshape(batch, -1, self.channels)
        return past[:, missing:], hidden


def _ends(layers: nn.Sequential) -> tuple[nn.Linear, nn.Linear]:
    """The first and the last layer of an encoder or decoder."""
    first, last = layers[0], layers[-1]
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    return first, last


def _between(layers: nn.Sequential, h: Tensor) -> Tensor:
    """All but the first and the last of some layers."""
    for part in itertools.islice(layers, 1, len(layers) - 1):
        h = part(h)
    return h


def _composed(h: Tensor, *layers: nn.Linear) -> Tensor:
    """Linear layers one after the other (4'), (B, C, outputs)."""
    product = torch.linalg.multi_dot([h.flatten(0, 1), *(layer.weight.T for layer in layers)])
    offset = layers[0].bias
    for layer in layers[1:]:
        offset = layer(offset)
    return (product + offset).unflatten(0, h.shape[:2])


def _summed(layer: nn.Linear, total: Tensor, count: int) -> Tensor:
    """The sum of a linear layer's outputs for `count` inputs, of which `total` is the sum."""
    return functional.linear(total, layer.weight, count * layer.bias)


def advance(z: Tensor, steps: int, *, rebuild: bool = True) -> tuple[Tensor | None, Tensor]:
    """Features of segments (B, F, d), rebuilt (B, F, d) and continued (B, steps, d) by their own map (5).

    The rebuilt features are None unless they are asked for.
    """
    x, y = z[:, :-1], z[:, 1:]  # (B, F-1, d)
    pairs, dim = x.shape[1:]
    if pairs == 1:
        # (7): every further step is a multiple of z_2
        factor = (x * y).sum(2, keepdim=True) / ((x * x).sum(2, keepdim=True) + LEAST_DELTA)  # (B, 1, 1)
        powers = torch.arange(1, steps + 1, dtype=z.dtype, device=z.device).view(1, -1, 1)
        # z_2 K = f z_2, so that z_2 K^i = f^i z_2
        return (z if rebuild else None), factor**powers * y
    short = pairs <= dim  # (6) through the smaller of the two Gram matrices
    gram = x @ x.transpose(1, 2) if short else x.transpose(1, 2) @ x
    mean = gram.diagonal(dim1=1, dim2=2).mean(1)[:, None, None].detach()
    delta = ROUNDINGS * torch.finfo(z.dtype).eps * mean + LEAST_DELTA
    gram = gram + delta * torch.eye(gram.shape[1], dtype=z.dtype, device=z.device)
    right = torch.linalg.solve(gram, y if short else x.transpose(1, 2) @ y)

    def image(rows: Tensor) -> Tensor:
        """rows K"""
        return (rows @ x.transpose(1, 2) if short else rows) @ right

    rebuilt = torch.cat((z[:, :1], image(x)), 1) if rebuild else None
    ahead, last = [], z[:, -1:]
    for _ in range(steps):
        last = image(last)
        ahead.append(last)
    return rebuilt, torch.cat(ahead, 1)


def _perceptron(
    inputs: int, outputs: int, activation: type[nn.Module], hidden: int, layers: int, dropout: float
) -> nn.Sequential:
    """Linear layers with an activation and dropout between them; `layers` counts the linear layers."""
    widths = [inputs, *[hidden] * (layers - 1)]
    parts: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        parts += [nn.Linear(before, after), activation(), nn.Dropout(dropout)]
    return nn.Sequential(*parts, nn.Linear(hidden, outputs))
