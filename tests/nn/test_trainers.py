"""Training frameworks: one that hands a closure to the optimizer, and one that calls backward by itself.

Imitations of both run everywhere; Lightning and the Hugging Face Trainer themselves, by the recipes of the
reference on networks, where they are installed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_networks import NETWORKS, OPTIMIZERS, Case, same_state
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from bayescore.operators import declare_vision_operators
from bayescore.optim import ProximalScore
from bayescore.optim.base import BayesianOptimizer
from toy_problem import loader, rings

CASE = NETWORKS["mlp"]
PAGE = (Path(__file__).parents[2] / "docs" / "networks-reference.md").read_text()


class ClosureTrainer:
    """The way of Lightning: zero_grad, forward and backward happen in a closure that the step calls."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, case: Case) -> None:
        self.model, self.optimizer, self.case = model, optimizer, case
        self.losses: list[Tensor] = []

    def fit(self, steps: int) -> None:
        self.model.train()
        for i in range(steps):
            batch = self.case.batch(seed=i)

            def closure(batch: tuple[Tensor, Tensor] = batch) -> Tensor:
                loss = self.case.loss(self.model, *batch)
                self.optimizer.zero_grad()
                loss.backward()
                return loss

            self.losses.append(self.optimizer.step(closure))  # type: ignore[arg-type]


class BackwardTrainer:
    """The way of the Hugging Face Trainer: `training_step` runs forward and backward, then comes the step."""

    def __init__(self, model: nn.Module, optimizer: Any, case: Case) -> None:
        self.model, self.optimizer, self.case = model, optimizer, case

    def training_step(self, x: Tensor, y: Tensor) -> None:
        self.case.loss(self.model, x, y).backward()

    def fit(self, steps: int) -> None:
        self.model.train()
        for i in range(steps):
            self.training_step(*self.case.batch(seed=i))
            self.optimizer.step()
            self.model.zero_grad()


class SamplingTrainer(BackwardTrainer):
    """The two lines that make it Bayesian."""

    def training_step(self, x: Tensor, y: Tensor) -> None:
        with self.optimizer.sample():
            super().training_step(x, y)


def by_hand(make: Callable[..., BayesianOptimizer], steps: int, draws: int) -> BayesianOptimizer:
    model = CASE.module()
    opt = make(model.parameters(), 50)
    for i in range(steps):
        for _ in range(draws):
            with opt.sample():
                CASE.loss(model, *CASE.batch(seed=i)).backward()
        opt.step()
        opt.zero_grad()
    return opt


@pytest.mark.parametrize("shell", OPTIMIZERS)
def test_a_trainer_with_closures_takes_the_same_steps_as_a_loop(shell: str) -> None:
    draws = 2 if shell in ("proximal", "bam", "published-bam") else 1
    model = CASE.module()
    opt = OPTIMIZERS[shell](model.parameters(), 50, draws=draws)
    trainer = ClosureTrainer(model, opt, CASE)
    trainer.fit(4)
    hand = by_hand(lambda p, n: OPTIMIZERS[shell](p, n, draws=draws), 4, draws)
    assert same_state(opt, hand)
    assert all(torch.isfinite(loss) for loss in trainer.losses)


def test_a_trainer_that_calls_backward_needs_one_block_around_it() -> None:
    model = CASE.module()
    opt = OPTIMIZERS["proximal"](model.parameters(), 50)
    SamplingTrainer(model, opt, CASE).fit(4)
    assert same_state(opt, by_hand(OPTIMIZERS["proximal"], 4, 1))


def test_a_trainer_without_the_block_is_told_so() -> None:
    model = CASE.module()
    with pytest.raises(RuntimeError, match=r"with opt\.sample\(\)"):
        BackwardTrainer(model, OPTIMIZERS["proximal"](model.parameters(), 50), CASE).fit(1)


def test_an_exception_in_a_closure_leaves_the_mean_in_the_module() -> None:
    model = CASE.module()
    opt = OPTIMIZERS["proximal"](model.parameters(), 50)
    before = [p.detach().clone() for p in model.parameters()]

    def closure() -> Tensor:
        raise KeyError

    with pytest.raises(KeyError):
        opt.step(closure)
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))


# -- the frameworks themselves -----------------------------------------------------------------------------


@pytest.fixture
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """Runs the page's recipes that hold a word; returns the names they leave."""
    monkeypatch.chdir(tmp_path)

    def run(word: str) -> dict[str, Any]:
        names = {"__name__": "recipes", "torch": torch, "nn": nn, "F": F, "ProximalScore": ProximalScore}
        names["loader"] = loader(256, 0)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            for code in re.findall(r"^```py\n(.*?)^```", PAGE, re.M | re.S):
                if word in code:
                    exec(compile(code, "networks-reference.md", "exec"), names)
        return names

    return run


def close(one: BayesianOptimizer, two: BayesianOptimizer) -> bool:
    """Whether two optimizers have the same posterior up to rounding."""
    a, b = one.state_dict()["state"], two.state_dict()["state"]
    return all(torch.allclose(a[k][n], b[k][n], rtol=1e-4, atol=1e-6) for k in a for n in a[k])


@pytest.mark.filterwarnings("ignore")
class TestLightning:
    @pytest.fixture(autouse=True)
    def installed(self) -> Any:
        declare_vision_operators()
        return pytest.importorskip("lightning", reason="needs lightning")

    @staticmethod
    def fitted(module: Any, batches: Any, **options: Any) -> Any:
        import lightning

        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        trainer = lightning.Trainer(accelerator="cpu", **quiet, **options)  # type: ignore[arg-type]
        trainer.fit(module, batches)
        return trainer

    def test_the_recipe_learns_and_predicts(self, recipes: Callable[[str], dict[str, Any]]) -> None:
        x, y = rings(256, 0)
        prediction = recipes("Classifier")["posterior"].predict(x)
        assert (prediction.classes == y).float().mean() > 0.75
        assert (prediction.mutual_information > 0).all()

    @pytest.mark.parametrize("draws", [1, 2])
    def test_automatic_optimization_takes_the_steps_of_a_loop(self, draws: int) -> None:
        import lightning

        class Module(lightning.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.net = CASE.module()

            def training_step(self, batch: Any, index: int) -> Tensor:
                return CASE.loss(self.net, *batch)

            def configure_optimizers(self) -> Any:
                return ProximalScore(self.parameters(), 50, draws=draws)

        batches: Any = [CASE.batch(seed=i) for i in range(4)]
        trainer = self.fitted(Module(), DataLoader(batches, batch_size=None), max_epochs=1)
        hand = by_hand(lambda p, n: ProximalScore(p, n, draws=draws), 4, draws)
        assert same_state(trainer.optimizers[0], hand)

    def test_batches_in_parts_take_the_steps_of_whole_batches(
        self, recipes: Callable[[str], dict[str, Any]]
    ) -> None:
        names = recipes("Classifier")
        start = names["Classifier"]().state_dict()
        found = []
        for kind in ("Classifier", "InParts"):
            module = names[kind]()
            module.load_state_dict(start)
            found.append(self.fitted(module, loader(256, 0), max_epochs=2))
        assert [trainer.global_step for trainer in found] == [16, 16]
        assert close(*(trainer.optimizers[0] for trainer in found))


@pytest.mark.filterwarnings("ignore")
class TestHuggingFace:
    @pytest.fixture(autouse=True)
    def installed(self) -> Any:
        declare_vision_operators()
        pytest.importorskip("accelerate", reason="needs accelerate")
        return pytest.importorskip("transformers", reason="needs transformers")

    def test_the_recipe_learns_and_predicts(self, recipes: Callable[[str], dict[str, Any]]) -> None:
        names = recipes("BayesianTrainer")
        labels = (names["words"][:, 0] > 10).long()
        assert (names["prediction"].classes == labels).float().mean() > 0.9
        assert "320 updates" in names["opt"].status

    def test_the_trainer_takes_the_steps_of_a_loop_whole_or_in_parts(
        self, recipes: Callable[[str], dict[str, Any]]
    ) -> None:
        """One batch holds all data, so that their order does not count."""
        names = recipes("(Trainer):")
        from transformers import Trainer, TrainingArguments

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.net = CASE.module()

            def forward(self, x: Tensor, labels: Tensor) -> Any:
                return {"loss": CASE.loss(self.net, x, labels)}

        x, y = CASE.batch()
        options: dict[str, Any] = {"max_steps": 4, "lr_scheduler_type": "constant", "max_grad_norm": 0}
        quiet: dict[str, Any] = {
            "use_cpu": True,
            "report_to": [],
            "save_strategy": "no",
            "disable_tqdm": True,
        }
        arguments = TrainingArguments("run", per_device_train_batch_size=8, **options, **quiet)
        data = [{"x": row, "labels": label} for row, label in zip(x, y, strict=True)]
        module = Net()
        hand = ProximalScore(module.parameters(), 50)
        for _ in range(4):
            with hand.sample():
                module(x, y)["loss"].backward()
            hand.step()
            hand.zero_grad()
        for trainer, accumulate in (("BayesianTrainer", 1), ("InPartsTrainer", 4)):
            module = Net()
            opt = ProximalScore(module.parameters(), 50, accumulate=accumulate)
            names[trainer](module, arguments, train_dataset=data, optimizers=(opt, None)).train()
            assert close(opt, hand)
        with pytest.raises(RuntimeError, match=r"with opt\.sample\(\)"):
            Trainer(Net(), arguments, train_dataset=data, optimizers=(opt, None)).train()
