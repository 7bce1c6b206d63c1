"""Training frameworks: one that hands a closure to the optimizer, and one that calls backward by itself.

Imitations of both run everywhere; Lightning and the Hugging Face Trainer themselves where they are installed,
as in `make test-slow`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_networks import NETWORKS, OPTIMIZERS, Case, same_state
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from bayescore.lightning import BayesianCallback, _with_lightning
from bayescore.nn import Posterior
from bayescore.nn.held_block import HeldBlock, check_accumulating
from bayescore.operators import declare_vision_operators
from bayescore.optim import ProximalScore
from bayescore.optim.base import BayesianOptimizer
from bayescore.transformers import TrainerMixin
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


def accumulated(opt: BayesianOptimizer, model: nn.Module, groups: list[list[tuple[Tensor, Tensor]]]) -> None:
    """One step per group of batches: the mean of their losses under one draw."""
    for group in groups:
        with opt.sample():
            for batch in group:
                (CASE.loss(model, *batch) / len(group)).backward()
        opt.step()
        opt.zero_grad()


def same_posterior(found: Any, hand: BayesianOptimizer, model: nn.Module) -> None:
    """Mean and sd, to float precision."""
    own = hand.posterior(model)
    for kind in ("mean", "sd"):
        one, two = getattr(found, kind).values(), getattr(own, kind).values()
        for a, b in zip(one, two, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


@pytest.fixture
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """Runs the page's examples that hold a word; returns the names they leave."""
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


def test_a_held_block_averages_its_batches_under_one_draw() -> None:
    batches = [CASE.batch(seed=i) for i in range(4)]
    model, other = CASE.module(), CASE.module()
    opt, hand = (ProximalScore(m.parameters(), 50) for m in (model, other))
    held = HeldBlock()
    for batch in batches:
        held.begin_batch(opt)
        (CASE.loss(model, *batch) / 4).backward()
    held.close()
    opt.step()
    accumulated(hand, other, [batches])
    assert same_state(opt, hand)


def test_a_held_block_that_fails_leaves_the_mean() -> None:
    model = CASE.module()
    before = [p.detach().clone() for p in model.parameters()]
    opt, held = ProximalScore(model.parameters(), 50), HeldBlock()
    held.begin_batch(opt)
    held.close(ValueError("bad batch"))
    assert not held.is_open
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize(("option", "value"), [("accumulate", 2), ("draws", 2)])
def test_options_that_accumulation_contradicts_are_refused(option: str, value: int) -> None:
    opt = ProximalScore(CASE.module().parameters(), 50, **{option: value})
    with pytest.raises(ValueError, match=rf"gradient_accumulation_steps.*{option}={value}"):
        check_accumulating(opt, "gradient_accumulation_steps")


def test_a_framework_that_is_missing_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightning.pytorch.callbacks", None)
    _with_lightning.cache_clear()
    with pytest.raises(ImportError, match=r"pip install 'bayescore\[lightning\]'"):
        BayesianCallback()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
class TestLightning:
    @pytest.fixture(autouse=True)
    def installed(self) -> Any:
        declare_vision_operators()
        return pytest.importorskip("lightning", reason="needs lightning")

    @staticmethod
    def fitted(batches: Any, *, callbacks: Any = (), draws: int = 1, **options: Any) -> Any:
        import lightning

        class Module(lightning.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.net = CASE.module()

            def forward(self, x: Tensor) -> Tensor:
                return self.net(x)

            def training_step(self, batch: Any, index: int) -> Tensor:
                return CASE.loss(self.net, *batch)

            def validation_step(self, batch: Any, index: int) -> None:
                pass

            def configure_optimizers(self) -> Any:
                return ProximalScore(self.parameters(), 50, draws=draws)

        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        validation = options.pop("validation", None)
        trainer = lightning.Trainer(accelerator="cpu", callbacks=list(callbacks), **quiet, **options)
        trainer.fit(Module(), DataLoader(batches, batch_size=None), validation)
        return trainer

    def test_the_example_learns_and_predicts(self, recipes: Callable[[str], dict[str, Any]]) -> None:
        x, y = rings(256, 0)
        prediction = recipes("Classifier")["bayes"].posterior.predict(x)
        assert (prediction.classes == y).float().mean() > 0.75
        assert (prediction.mutual_information > 0).all()

    @pytest.mark.parametrize("draws", [1, 2])
    def test_automatic_optimization_takes_the_steps_of_a_loop(self, draws: int) -> None:
        batches: Any = [CASE.batch(seed=i) for i in range(4)]
        bayes = BayesianCallback()
        trainer = self.fitted(batches, callbacks=[bayes], draws=draws, max_epochs=1)
        hand = by_hand(lambda p, n: ProximalScore(p, n, draws=draws), 4, draws)
        assert same_state(trainer.optimizers[0], hand)

    @pytest.mark.parametrize("clip", [None, 0.01])
    def test_accumulated_batches_have_the_posterior_of_the_plain_loop(self, clip: float | None) -> None:
        """Seven batches in steps of three, for two epochs: the last step of an epoch has one."""
        batches: Any = [CASE.batch(seed=i) for i in range(7)]
        bayes = BayesianCallback()
        options: dict[str, Any] = {"accumulate_grad_batches": 3, "max_epochs": 2, "gradient_clip_val": clip}
        trainer = self.fitted(batches, callbacks=[bayes], **options)
        model = CASE.module()
        hand = ProximalScore(model.parameters(), 50)
        for _ in range(2):
            for group in (batches[:3], batches[3:6], batches[6:]):
                with hand.sample():
                    for batch in group:
                        (CASE.loss(model, *batch) / len(group)).backward()
                if clip is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                hand.step()
                hand.zero_grad()
        assert trainer.global_step == 6
        same_posterior(bayes.posterior, hand, model)

    def test_two_processes_have_the_posterior_of_one(self, tmp_path: Path) -> None:
        run = subprocess.run(
            [sys.executable, str(Path(__file__).parent / "lightning_ddp.py"), str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert run.returncode == 0, run.stderr[-2000:]
        model = CASE.module()
        hand = ProximalScore(model.parameters(), 50)
        accumulated(
            hand, model, [[CASE.batch(seed=i) for i in range(4)], [CASE.batch(seed=i) for i in range(4, 8)]]
        )
        saved = Posterior.load(tmp_path / "ddp.safetensors", CASE.module())
        same_posterior(saved, hand, model)

    def test_bfloat16_batches_are_accumulated_as_in_the_plain_loop(self) -> None:
        batches: Any = [CASE.batch(seed=i) for i in range(4)]
        bayes = BayesianCallback()
        options: dict[str, Any] = {"accumulate_grad_batches": 2, "max_epochs": 1, "precision": "bf16-mixed"}
        self.fitted(batches, callbacks=[bayes], **options)
        model = CASE.module()
        hand = ProximalScore(model.parameters(), 50)
        for group in (batches[:2], batches[2:]):
            with hand.sample():
                for batch in group:
                    with torch.autocast("cpu", torch.bfloat16):
                        loss = CASE.loss(model, *batch) / 2
                    loss.backward()
            hand.step()
            hand.zero_grad()
        same_posterior(bayes.posterior, hand, model)

    def test_validation_within_a_step_is_refused(self) -> None:
        batches: Any = [CASE.batch(seed=i) for i in range(4)]
        options: dict[str, Any] = {"accumulate_grad_batches": 2, "max_epochs": 1, "val_check_interval": 3}
        with pytest.raises(
            ValueError, match="make val_check_interval a multiple of accumulate_grad_batches=2"
        ):
            self.fitted(
                batches,
                callbacks=[BayesianCallback()],
                validation=DataLoader(batches, batch_size=None),
                num_sanity_val_steps=0,
                **options,
            )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
class TestHuggingFace:
    @pytest.fixture(autouse=True)
    def installed(self) -> Any:
        declare_vision_operators()
        pytest.importorskip("accelerate", reason="needs accelerate")
        return pytest.importorskip("transformers", reason="needs transformers")

    def test_the_example_learns_and_predicts(self, recipes: Callable[[str], dict[str, Any]]) -> None:
        names = recipes("BayesianTrainer")
        labels = (names["words"][:, 0] > 10).long()
        assert (names["prediction"].classes == labels).float().mean() > 0.9
        assert "320 updates" in names["opt"].status

    @staticmethod
    def trained(folder: Path, rows: int, batch: int, accumulate: int, draws: int = 1, **options: Any) -> Any:
        """A trainer that goes through `rows` rows in their order, twice."""
        from torch.utils.data import SequentialSampler
        from transformers import Trainer, TrainingArguments

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.net = CASE.module()

            def forward(self, x: Tensor, labels: Tensor) -> Any:
                return {"loss": CASE.loss(self.net, x, labels)}

        class InOrder(TrainerMixin, Trainer):
            def _get_train_sampler(self, data: Any = None) -> Any:
                return SequentialSampler(self.train_dataset)

        x, y = (torch.cat(parts) for parts in zip(*(CASE.batch(seed=i) for i in range(4)), strict=True))
        quiet: dict[str, Any] = {
            "use_cpu": True,
            "report_to": [],
            "save_strategy": "no",
            "disable_tqdm": True,
            "max_grad_norm": 0,
            "lr_scheduler_type": "constant",
        }
        arguments = TrainingArguments(
            str(folder),
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=accumulate,
            num_train_epochs=2,
            **quiet,
            **options,
        )
        data = [{"x": row, "labels": label} for row, label in zip(x[:rows], y[:rows], strict=True)]
        net = Net()
        opt = ProximalScore(net.parameters(), 50, draws=draws)
        trainer = InOrder(net, arguments, train_dataset=data, optimizers=(opt, None))
        trainer.train()
        batches = [(x[i : i + batch], y[i : i + batch]) for i in range(0, rows, batch)]
        return trainer, batches

    @pytest.mark.parametrize("draws", [1, 2])
    def test_the_trainer_takes_the_steps_of_a_loop(self, tmp_path: Path, draws: int) -> None:
        trainer, batches = self.trained(tmp_path, 12, 4, 1, draws)
        model = CASE.module()
        hand = ProximalScore(model.parameters(), 50, draws=draws)
        for batch in [*batches, *batches]:
            for _ in range(draws):
                with hand.sample():
                    CASE.loss(model, *batch).backward()
            hand.step()
            hand.zero_grad()
        same_posterior(trainer.posterior(), hand, model)

    def test_accumulated_batches_have_the_posterior_of_the_plain_loop(self, tmp_path: Path) -> None:
        """Five batches in steps of two, for two epochs: the last step of an epoch has one."""
        trainer, batches = self.trained(tmp_path, 20, 4, 2)
        model = CASE.module()
        hand = ProximalScore(model.parameters(), 50)
        groups = [batches[:2], batches[2:4], batches[4:]]
        accumulated(hand, model, [*groups, *groups])
        assert trainer.state.global_step == 6
        same_posterior(trainer.posterior(), hand, model)

    def test_another_optimizer_is_named(self, tmp_path: Path) -> None:
        class Bare(TrainerMixin):
            optimizer = torch.optim.SGD(CASE.module().parameters())

        with pytest.raises(TypeError, match=r"optimizers=\(opt, None\); the Trainer has SGD"):
            Bare().posterior()
