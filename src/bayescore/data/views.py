"""What a network sees of a picture: the middle of it, or a random part, turned and mirrored; standardised.

    x = (pixel/255 - mean) / sd                                                                           (1)

In training (`augment`) a random rectangle of 8 to 100 % of the area and a ratio of sides of 3/4 to 4/3 is
brought to the size of the network, mirrored with probability 1/2 and turned by up to 30 degrees, as in the
paper's code. The three are one affine map of the output's points to the picture's,
    u = centre + R(angle) diag(+-w, h) v,        v in [-1, 1]^2                                           (2)
and one bilinear interpolation per batch. So what a turn brings into the corners is the picture around the
rectangle, where there is one, and black otherwise.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["View"]

AREA, RATIO, ANGLE = (0.08, 1.0), (3 / 4, 4 / 3), 30.0
#: of the pictures of ImageNet
MEAN, SD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class View:
    """From pictures (n, C, s, s) in bytes to the inputs (n, C, size, size) of a network.

    Arguments:
        size: side of the network's input.
        stored: side to which pictures are decoded, at least `size`; the middle is seen when predicting.
        mean, sd: of (1), one number per channel.
    """

    size: int
    stored: int
    mean: tuple[float, ...] = MEAN
    sd: tuple[float, ...] = SD

    @property
    def channels(self) -> int:
        return len(self.mean)

    def config(self) -> dict[str, Any]:
        """The arguments, as JSON types."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}

    @classmethod
    def of(cls, config: dict[str, Any]) -> View:
        """The view with these arguments."""
        return cls(config["size"], config["stored"], tuple(config["mean"]), tuple(config["sd"]))

    def __call__(self, pixels: Tensor) -> Tensor:
        """The middle of every picture."""
        edge = (pixels.shape[-1] - self.size) // 2
        if edge < 0:
            pixels = F.interpolate(pixels.float(), (self.size, self.size), mode="bilinear", antialias=True)
            edge = 0
        return self._standardised(pixels[..., edge : edge + self.size, edge : edge + self.size].float())

    def augment(self, pixels: Tensor, rng: torch.Generator) -> Tensor:
        """A random part of every picture (2)."""
        n = len(pixels)
        u = torch.rand((6, n), generator=rng)
        area = AREA[0] + (AREA[1] - AREA[0]) * u[0]
        ratio = torch.exp(math.log(RATIO[0]) + (math.log(RATIO[1]) - math.log(RATIO[0])) * u[1])
        w, h = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
        x, y = (2 * u[2] - 1) * (1 - w), (2 * u[3] - 1) * (1 - h)
        mirror = torch.where(u[4] < 0.5, -1.0, 1.0)
        angle = torch.deg2rad((2 * u[5] - 1) * ANGLE)
        cos, sin = angle.cos(), angle.sin()
        # the turn is of the output, whose sides are equal; then the rectangle stretches it
        rows = [[mirror * w * cos, -mirror * w * sin, x], [h * sin, h * cos, y]]
        theta = torch.stack([torch.stack(row, -1) for row in rows], -2).to(pixels.device)  # (n, 2, 3)
        grid = F.affine_grid(theta, [n, pixels.shape[1], self.size, self.size], align_corners=False)
        return self._standardised(F.grid_sample(pixels.float(), grid, align_corners=False))

    def _standardised(self, x: Tensor) -> Tensor:
        mean, sd = (torch.tensor(v, device=x.device)[:, None, None] for v in (self.mean, self.sd))
        return (x / 255 - mean) / sd  # (1)
