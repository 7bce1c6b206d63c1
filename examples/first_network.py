"""README's first network on held-out data: the code as it stands, and the same code with AdamW.

    python examples/first_network.py        # 10 seeds, prints the mean loss of both

A seed decides the data, the initial weights and the order of the batches, which are the same for both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from bayescore.nn import PointPosterior

__all__ = ["compare", "main", "readme_code", "with_adamw"]

README = Path(__file__).parents[1] / "README.md"
TEST, DRAWS = 2000, 30
#: what AdamW's user writes instead
CHANGES = {
    "from bayescore.optim import ProximalScore\n": "",
    "ProximalScore(model.parameters(), num_data=len(train_set), ": "torch.optim.AdamW(model.parameters(), ",
    "with opt.sample():": "if True:",
}


def readme_code() -> str:
    """The first Python block of the README."""
    found = re.search(r"^```python\n(.*?)^```", README.read_text(), re.M | re.S)
    assert found is not None
    return found[1]


def with_adamw(code: str) -> str:
    """The same code with AdamW; its last lines, which ask the posterior, are left out."""
    code = code[: code.index("prediction = ")]
    for ours, plain in CHANGES.items():
        if code.count(ours) != 1:
            raise ValueError(f"README's first network should have {ours!r} once")
        code = code.replace(ours, plain)
    return code


def compare(seeds: Iterable[int]) -> torch.Tensor:
    """Loss and accuracy on held-out data, for each seed of the plain network and of ours: (seeds, 2, 2)."""
    ours = readme_code()
    return torch.tensor([[_score(code, seed) for code in (with_adamw(ours), ours)] for seed in seeds])


def _score(code: str, seed: int) -> tuple[float, float]:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        names: dict[str, Any] = {}
        exec(compile(code, "README.md", "exec"), names)
        x, y = names["circle"](TEST)
    model, opt = names["model"], names["opt"]
    posterior = opt.posterior(model) if hasattr(opt, "posterior") else PointPosterior(model)
    found = posterior.predict(x, DRAWS)
    return -float(found.log_prob(y).mean()), float((found.classes == y).float().mean())


def main() -> None:
    """Print both means over ten seeds."""
    torch.set_num_threads(1)  # of no use to networks this small
    scores = compare(range(10))
    for name, (nll, right) in zip(("AdamW", "ProximalScore"), scores.mean(0).tolist(), strict=True):
        print(f"{name}: NLL {nll:.3f}, {100 * right:.1f} % right")
    wins = int((scores[:, 1, 0] < scores[:, 0, 0]).sum())
    print(f"the NLL of ProximalScore is lower on {wins} of {len(scores)} seeds")


if __name__ == "__main__":
    main()
