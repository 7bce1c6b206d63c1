"""The pages on networks: their code runs as it stands, their tables name what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from bayescore.metrics import evaluate
from bayescore.nn.memory import MEMORY_METHODS
from bayescore.nn.methods import BAYESIAN
from bayescore.optim.options import COMMON
from bayescore.posteriors.likelihoods import KINDS

DOCS = Path(__file__).parents[2] / "docs"
REFERENCE = (DOCS / "networks-reference.md").read_text()


def section(title: str) -> str:
    """A section of the reference, without those that follow."""
    return REFERENCE.split(f"\n## {title}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize("page", ["networks.md", "networks-reference.md"])
def test_the_code_of_the_page_runs_from_top_to_bottom(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": page}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for code in re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.M | re.S):
            exec(compile(code, page, "exec"), names)
    assert "updates" in capsys.readouterr().out


def test_the_reference_names_every_optimizer_and_option() -> None:
    text = section("Optimizers")
    for name, optimizer in BAYESIAN.items():
        assert f'`{optimizer.__name__}`, `"{name}"`' in text
        (row,) = re.findall(rf"^\| `{optimizer.__name__}` \| (.*)", text, re.M)
        own = set(optimizer.options()) - set(COMMON) - {"params", "num_data"}
        assert {option for option in own if f"`{option}`" not in row} == set()
    assert {option for option in COMMON if f"`{option}`" not in text} == set()


def test_the_reference_names_every_likelihood_and_every_method_of_the_memory_estimate() -> None:
    assert all(f"`{kind.__name__}" in section("Likelihoods") for kind in KINDS.values())
    assert all(f'`"{name}"`' in section("Likelihoods") for name in KINDS)
    assert all(f'`"{name}"`' in section("Large networks") for name in MEMORY_METHODS)


def test_the_page_names_every_score() -> None:
    probs = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
    table = section("Metrics").replace("..._floor95", "all_class_ece_floor95")
    assert all(f"`{name}`" in table for name in evaluate(probs, torch.tensor([0, 1])))
