"""Wrong uses are noticed, each with one warning and its remedy; ordinary uses are not."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_networks import NETWORKS, OPTIMIZERS, Attention, Convolutional, same_state, train
from torch import Tensor, nn
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Normal, Poisson
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

import bayescore.optim.usage as watch
from bayescore.nn import likelihoods
from bayescore.optim import CalibratedScore, ProximalScore
from bayescore.optim.base import BayesianOptimizer

Batches = Callable[[], Iterator[tuple[Tensor, Tensor]]]
LossFunction = Callable[[nn.Module, Tensor, Tensor], Tensor]


def rows(n: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(seed))


def labels(n: int, classes: int = 3, *shape: int) -> Tensor:
    return torch.randint(classes, (n, *shape), generator=torch.Generator().manual_seed(1))


def mlp(inputs: int = 4, outputs: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 6), nn.Tanh(), nn.Linear(6, outputs))


def loader(x: Tensor, y: Tensor, size: int = 16, **options: Any) -> DataLoader[Any]:
    rng = torch.Generator().manual_seed(0)
    return DataLoader(TensorDataset(x, y), size, generator=rng, **{"shuffle": True, **options})


def said(run: Callable[[], Any]) -> list[str]:
    """The warnings of a run."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        run()
    return [str(w.message) for w in found]


def plain_loop(
    opt: BayesianOptimizer,
    model: nn.Module,
    batches: Any,
    loss: LossFunction,
    epochs: int = 4,
    blocks: int = 1,
) -> None:
    for _ in range(epochs):
        for x, y in batches:
            for _ in range(blocks):
                with opt.sample():
                    loss(model, x, y).backward()
            opt.step()
            opt.zero_grad()


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def squares(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(model(x), y)


class Tokens(nn.Module):
    """A language model: token and position embeddings, attention, logits of every token."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(11, 4), nn.Embedding(8, 4)
        self.block = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.head = nn.Linear(4, 11)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.tokens(x) + self.positions(torch.arange(x.shape[1]))))


def token_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


def sentences(n: int) -> tuple[Tensor, Tensor]:
    x = labels(n, 11, 8)
    return x, x.roll(-1, 1)


# -- wrong uses ------------------------------------------------------------------------------------------


X, Y = rows(240, 4), labels(240)
WRONG: dict[str, tuple[str, str, Callable[[], Any]]] = {}


def wrong(part: str, remedy: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    def keep(run: Callable[[], Any]) -> Callable[[], Any]:
        WRONG[run.__name__] = (part, remedy, run)
        return run

    return keep


def train_classes(loss: LossFunction, num_data: int = 240, blocks: int = 1, **options: Any) -> None:
    model, kind = mlp(), CalibratedScore if "batch_size" in options else ProximalScore
    plain_loop(kind(model.parameters(), num_data, **options), model, loader(X, Y), loss, 4, blocks)


def train_values(loss: LossFunction, num_data: int = 240) -> None:
    model = mlp(4, 1)
    plain_loop(ProximalScore(model.parameters(), num_data), model, loader(X, X[:, :1].sin()), loss)


@wrong("a sum over the batch", "give the mean")
def reduction_sum() -> None:
    train_classes(lambda m, x, y: F.cross_entropy(m(x), y, reduction="sum"))


@wrong("a sum over the batch", "give the mean")
def sum_of_the_losses() -> None:
    train_classes(lambda m, x, y: F.cross_entropy(m(x), y, reduction="none").sum())


@wrong("a sum over the batch (a mean, times 16)", "give the mean")
def mean_times_rows() -> None:
    train_classes(lambda m, x, y: F.cross_entropy(m(x), y) * len(x))


@wrong("a sum over the batch", "give the mean")
def sum_of_squares() -> None:
    model = mlp(4, 1)
    opt = ProximalScore(model.parameters(), 240)
    plain_loop(opt, model, loader(X, X[:, :1]), lambda m, x, y: (m(x) - y).square().sum())


@wrong("a sum over the batch (a mean, times 240)", "give the mean")
def mean_times_num_data() -> None:
    train_classes(lambda m, x, y: F.cross_entropy(m(x), y) * 240)


@wrong("a sum over the batch", "give the mean")
def sum_of_half_squares() -> None:
    train_values(lambda m, x, y: 0.5 * (m(x) - y).square().sum())


@wrong("a sum over the batch", "give the mean")
def sum_of_sizes() -> None:
    train_values(lambda m, x, y: F.l1_loss(m(x), y, reduction="sum"))


@wrong("a sum over the batch", "give the mean")
def sum_of_gaussian_losses() -> None:
    train_values(lambda m, x, y: F.gaussian_nll_loss(m(x), y, torch.ones_like(y), reduction="sum"))


@wrong("a sum over the batch", "give the mean")
def sum_of_log_probabilities() -> None:
    train_values(lambda m, x, y: -Poisson(m(x).exp()).log_prob(y.abs().round()).sum())


@wrong("a sum over the batch", "give the mean")
def sum_of_log_probabilities_of_classes() -> None:
    train_classes(lambda m, x, y: -TorchCategorical(logits=m(x)).log_prob(y).sum())


@wrong("a sum over the batch (a mean, times 16)", "give the mean")
def mean_of_log_probabilities_times_rows() -> None:
    train_values(lambda m, x, y: -Normal(m(x), 0.1).log_prob(y).mean() * len(x))


@wrong("num_data is 15, and one batch has 16", "len(dataset)")
def num_data_below_a_batch_of_a_loss_by_hand() -> None:
    train_values(lambda m, x, y: -Normal(m(x), 0.1).log_prob(y).mean(), 15)


@wrong("num_data is 15, and one batch has 16", "len(dataset)")
def num_data_below_a_batch() -> None:
    train_classes(cross_entropy, 15)


@wrong("num_data is 40, and an epoch has about", "not the number of batches, len(loader)")
def num_data_is_the_number_of_batches() -> None:
    model = mlp()
    batches = loader(rows(1280, 4), labels(1280), 32)
    plain_loop(ProximalScore(model.parameters(), 40), model, batches, cross_entropy)


@wrong("num_data is 40, and an epoch has about 1280;", "len(dataset)")
def num_data_is_the_number_of_batches_without_shuffling() -> None:
    model = mlp()
    batches = loader(rows(1280, 4), labels(1280), 32, shuffle=False)
    plain_loop(ProximalScore(model.parameters(), 40), model, batches, cross_entropy)


@wrong("num_data is 100000, and an epoch has about", "len(dataset)")
def num_data_is_far_too_large() -> None:
    train_classes(cross_entropy, 100_000)


@wrong("batch_size is 240, and the loss of a step is a mean over 16 data", "give batch_size=16")
def batch_size_is_the_size_of_the_data() -> None:
    train_classes(cross_entropy, batch_size=240)


@wrong("num_data is 64, and one batch has 1024 numbers over which the loss is a mean", "all pixels or tokens")
def loss_per_pixel() -> None:
    model = nn.Conv2d(1, 2, 3, padding=1)
    images = rows(64, 1, 8, 8)
    opt = ProximalScore(model.parameters(), 64)
    plain_loop(opt, model, loader(images, (images[:, 0] > 0).long()), cross_entropy)


@wrong("num_data is 240, and an epoch has about", "all pixels or tokens")
def loss_per_token() -> None:
    model = Tokens()
    plain_loop(ProximalScore(model.parameters(), 240), model, loader(*sentences(240)), token_loss)


@wrong("the targets have the mean 5", "standardise the targets")
def targets_with_a_large_mean() -> None:
    model = mlp(4, 1)
    plain_loop(ProximalScore(model.parameters(), 240), model, loader(X, 500 + X[:, :1]), squares)


@wrong("and the sd 0.00", "standardise the targets")
def targets_with_a_small_sd() -> None:
    model = mlp(4, 1)
    plain_loop(ProximalScore(model.parameters(), 240), model, loader(X, 1e-3 * X[:, :1]), squares)


@wrong("the residuals are about", "standardise the targets")
def unscaled_targets_of_a_likelihood() -> None:
    model, like = mlp(4, 1), likelihoods.Gaussian("learned")
    batches = loader(X, 300 * X[:, :1])
    plain_loop(ProximalScore(model.parameters(), 240), model, batches, lambda m, x, y: like(m(x), y))


@wrong("the residuals are about", "standardise the targets")
def unscaled_targets_of_a_gaussian_loss() -> None:
    model = mlp(4, 1)
    loss: LossFunction = lambda m, x, y: F.gaussian_nll_loss(m(x), y, torch.ones_like(y))  # noqa: E731
    plain_loop(ProximalScore(model.parameters(), 240), model, loader(X, 300 * X[:, :1]), loss)


@wrong("the residuals are about", "standardise the targets")
def unscaled_targets_of_absolute_errors() -> None:
    model = mlp(4, 1)
    batches = loader(X, 300 * X[:, :1])
    plain_loop(ProximalScore(model.parameters(), 240), model, batches, lambda m, x, y: F.l1_loss(m(x), y))


@wrong("must be 0 or 1, or between; they run from -1 to 1", "number the two outcomes 0 and 1")
def outcomes_of_minus_one_and_one() -> None:
    model = mlp(4, 1)
    opt, batches = ProximalScore(model.parameters(), 240), loader(X, X[:, :1].sign())
    plain_loop(opt, model, batches, lambda m, x, y: F.binary_cross_entropy_with_logits(m(x), y))


@wrong("inputs of cross_entropy are probabilities", "before softmax")
def softmax_before_cross_entropy() -> None:
    train_classes(lambda m, x, y: F.cross_entropy(m(x).softmax(1), y))


@wrong("binary_cross_entropy_with_logits are probabilities", "before sigmoid")
def sigmoid_before_logits() -> None:
    model = mlp(4, 1)
    opt = ProximalScore(model.parameters(), 240)
    batches = loader(X, (X[:, :1] > 0).float())
    plain_loop(opt, model, batches, lambda m, x, y: F.binary_cross_entropy_with_logits(m(x).sigmoid(), y))


@wrong("divided by 2 in each of the 2 sample() blocks", "accumulate=2")
def loss_halved_in_two_blocks() -> None:
    train_classes(lambda m, x, y: F.cross_entropy(m(x), y) / 2, blocks=2)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_use_has_exactly_one_warning_with_its_remedy(name: str) -> None:
    torch.manual_seed(0)
    part, remedy, run = WRONG[name]
    found = said(run)
    assert len(found) == 1, found
    assert part in found[0]
    assert remedy in found[0]


@pytest.mark.parametrize("least", [0, 1, -3])
def test_labels_that_are_no_class_are_a_sentence(least: int) -> None:
    model = mlp()
    opt = ProximalScore(model.parameters(), 240)
    before = [p.detach().clone() for p in model.parameters()]
    y = Y + least if least else 2 * Y
    sentence = rf"from 0 to 2, .* run from {least or 0} to {int(y.max())}"
    with pytest.raises(ValueError, match=sentence), opt.sample():
        F.cross_entropy(model(X), y).backward()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_another_index_error_is_left_as_it_is() -> None:
    model = mlp()
    opt = ProximalScore(model.parameters(), 240)
    with pytest.raises(IndexError, match="list index"), opt.sample():
        [][0]


# -- the length of an epoch ------------------------------------------------------------------------------


def epochs(size: int, batch: int, kind: str, rng: random.Random) -> Iterator[list[int]]:
    """The rows of batch after batch, as numbers; a row that is shown in several forms has several numbers."""
    forms = {"flipped": 2, "moved": 162}.get(kind, 1)
    while True:
        rows = list(range(size))
        if kind == "with replacement":
            rows = rng.choices(rows, k=size)
        elif kind == "weighted":
            rows = rng.choices(rows, weights=[50 if i < size // 10 else 1 for i in rows], k=size)
        elif kind != "in order":
            rng.shuffle(rows)
        if kind == "duplicates":
            rows = [i % (size // 4) for i in rows]
        for i in range(0, size, batch):
            yield [forms * row + rng.randrange(forms) for row in rows[i : i + batch]]


def found_length(size: int, batch: int, kind: str, seed: int) -> tuple[float, float] | None:
    search = watch.Epoch()
    for step, rows in enumerate(epochs(size, batch, kind, random.Random(seed))):
        if search.is_compared(step):
            search.compare(rows, step)
        if not search.open:
            return search.steps
    raise AssertionError


@pytest.fixture
def _rows_are_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "find_data", lambda root: ([], root))
    monkeypatch.setattr(watch, "follow", lambda root, way: root)
    monkeypatch.setattr(watch, "fingerprints", lambda data: data)


SIZES = [(240, 16), (250, 16), (200, 4), (1280, 32), (6000, 128), (60_000, 32), (20_000, 512)]


@pytest.mark.usefixtures("_rows_are_numbers")
@pytest.mark.parametrize(("size", "batch"), SIZES)
@pytest.mark.parametrize("kind", ["shuffled", "in order"])
def test_the_length_of_an_epoch_is_found(size: int, batch: int, kind: str) -> None:
    for seed in range(5):
        found = found_length(size, batch, kind, seed)
        assert found is not None
        assert found[0] <= -(-size // batch) <= found[1]


@pytest.mark.usefixtures("_rows_are_numbers")
@pytest.mark.parametrize(("size", "batch"), SIZES[:-1])
@pytest.mark.parametrize("kind", ["flipped", "moved", "with replacement", "weighted", "duplicates"])
def test_other_epochs_are_not_taken_for_longer_or_shorter_ones(size: int, batch: int, kind: str) -> None:
    for seed in range(5):
        found = found_length(size, batch, kind, seed)
        assert found is None or (found[0] <= 3 * size / batch and 10 * found[1] >= size / batch)


# -- ordinary uses ---------------------------------------------------------------------------------------

FINE: dict[str, Callable[[], Any]] = {}


def fine(run: Callable[[], Any]) -> Callable[[], Any]:
    FINE[run.__name__] = run
    return run


def fit_by_hand(model: nn.Module, batches: Any, loss: LossFunction, num_data: int, **options: Any) -> None:
    blocks = options.pop("blocks", 1)
    epochs = options.pop("epochs", 6)
    kind = CalibratedScore if "batch_size" in options else ProximalScore
    plain_loop(kind(model.parameters(), num_data, **options), model, batches, loss, epochs, blocks)


@fine
def small_table() -> None:
    fit_by_hand(mlp(), loader(X, Y), cross_entropy, 240)


@fine
def full_batches() -> None:
    fit_by_hand(mlp(), [(X, Y)], cross_entropy, 240, epochs=40)


@fine
def one_batch_overfitted_as_a_check() -> None:
    fit_by_hand(mlp(), [(X[:16], Y[:16])], cross_entropy, 240, epochs=40)


@fine
def last_batch_smaller_and_batch_size_given() -> None:
    fit_by_hand(mlp(), loader(X[:231], Y[:231]), cross_entropy, 231, batch_size=16)


@fine
def incomplete_batch_dropped() -> None:
    fit_by_hand(mlp(), loader(X[:231], Y[:231], drop_last=True), cross_entropy, 231)


@fine
def weighted_sampler() -> None:
    weights = torch.where(Y == 0, 50.0, 1.0)
    sampler = WeightedRandomSampler(weights.tolist(), 240, generator=torch.Generator().manual_seed(0))
    fit_by_hand(mlp(), loader(X, Y, shuffle=False, sampler=sampler), cross_entropy, 240)


@fine
def images_with_batch_norm() -> None:
    fit_by_hand(Convolutional(), loader(rows(240, 1, 5, 5), Y), cross_entropy, 240)


@fine
def images_augmented() -> None:
    class Augmented(DataLoader[Any]):
        def __iter__(self) -> Any:
            for x, y in super().__iter__():
                flip = torch.rand(len(x), 1, 1, 1) < 0.5
                yield torch.where(flip, x.flip(3), x), y

    data = TensorDataset(rows(64, 1, 5, 5), Y[:64])
    fit_by_hand(Convolutional(), Augmented(data, 16, shuffle=True), cross_entropy, 64, epochs=80)


@fine
def images_moved_at_random() -> None:
    class Moved(DataLoader[Any]):
        def __iter__(self) -> Any:
            for x, y in super().__iter__():
                yield torch.stack([row.roll(tuple(torch.randint(5, (2,)).tolist()), (1, 2)) for row in x]), y

    data = TensorDataset(rows(64, 1, 5, 5), Y[:64])
    fit_by_hand(Convolutional(), Moved(data, 16, shuffle=True), cross_entropy, 64, epochs=80)


@fine
def duplicates_in_the_data() -> None:
    x = torch.cat([X[:60]] * 4)
    fit_by_hand(mlp(), loader(x, Y), cross_entropy, 240)


@fine
def discrete_table() -> None:
    fit_by_hand(mlp(), loader(X.sign(), Y), cross_entropy, 240)


@fine
def pretrained_with_a_frozen_body_and_a_new_head() -> None:
    model = Convolutional()
    model.conv.requires_grad_(False)
    nn.init.zeros_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    trained = [p for p in model.parameters() if p.requires_grad]
    opt = ProximalScore(trained, 240, prior_mean="current")
    plain_loop(opt, model, loader(rows(240, 1, 5, 5), Y), cross_entropy)


@fine
def attention_over_sequences() -> None:
    fit_by_hand(Attention(), loader(rows(240, 3, 4), Y), cross_entropy, 240)


@fine
def language_model_that_counts_tokens() -> None:
    fit_by_hand(Tokens(), loader(*sentences(240)), token_loss, 240 * 8)


@fine
def padded_tokens() -> None:
    x, y = sentences(240)
    y[:, 5:] = -100
    fit_by_hand(Tokens(), loader(x, y), token_loss, 240 * 5)


@fine
def pixels_that_are_counted() -> None:
    images = rows(64, 1, 8, 8)
    fit_by_hand(
        nn.Conv2d(1, 2, 3, padding=1), loader(images, (images[:, 0] > 0).long()), cross_entropy, 64 * 64
    )


@fine
def pixels_that_are_summed() -> None:
    images, like = rows(64, 1, 8, 8), likelihoods.Categorical()
    fit_by_hand(
        nn.Conv2d(1, 2, 3, padding=1),
        loader(images, (images[:, 0] > 0).long()),
        lambda m, x, y: like(m(x), y),
        64,
    )


@fine
def sum_divided_by_rows() -> None:
    loss: LossFunction = lambda m, x, y: F.cross_entropy(m(x), y, reduction="sum") / len(x)  # noqa: E731
    fit_by_hand(mlp(), loader(X, Y), loss, 240)


@fine
def parts_of_a_sum_divided_by_all_rows() -> None:
    model = mlp()
    opt = ProximalScore(model.parameters(), 1000)
    for _ in range(4):
        for x, y in loader(rows(1000, 4), labels(1000), 32):
            with opt.sample():
                for xs, ys in zip(x.chunk(4), y.chunk(4), strict=True):
                    (F.cross_entropy(model(xs), ys, reduction="sum") / len(x)).backward()
            opt.step()
            opt.zero_grad()


@fine
def weights_that_sum_to_one() -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        weights = torch.full((len(x),), 1 / len(x))
        return (F.cross_entropy(model(x), y, reduction="none") * weights).sum()

    fit_by_hand(mlp(), loader(X, Y), loss, 240)


@fine
def sum_of_shares() -> None:
    loss: LossFunction = lambda m, x, y: (-Normal(m(x), 0.1).log_prob(x[:, :1]) / len(x)).sum()  # noqa: E731
    fit_by_hand(mlp(4, 1), loader(X, Y), loss, 240)


@fine
def as_many_outputs_as_rows() -> None:
    loss: LossFunction = lambda m, x, y: (m(x) - y).abs().mean(0).sum()  # noqa: E731
    fit_by_hand(mlp(4, 16), loader(X, rows(240, 16)), loss, 240)


@fine
def a_small_noise_that_is_known() -> None:
    like = likelihoods.Gaussian(0.02)
    fit_by_hand(mlp(4, 1), loader(X, X[:, :1].sin()), lambda m, x, y: like(m(x), y), 240)


@fine
def outcomes_that_a_weight_leaves_out() -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(model(x), y, (y >= 0).float())

    fit_by_hand(mlp(4, 4), loader(X, X.sign()), loss, 240)


@fine
def masked_mean() -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        mask = x[:, 0] > -1
        return (F.cross_entropy(model(x), y, reduction="none") * mask).sum() / mask.sum()

    fit_by_hand(mlp(), loader(X, Y), loss, 240)


@fine
def regression_with_standardised_targets() -> None:
    fit_by_hand(mlp(4, 1), loader(X, X[:, :1].sin()), squares, 240)


@fine
def half_squares_in_two_draws() -> None:
    fit_by_hand(mlp(4, 1), loader(X, X[:, :1]), lambda m, x, y: 0.5 * squares(m, x, y), 240, blocks=2)


@fine
def gaussian_nll() -> None:
    loss: LossFunction = lambda m, x, y: F.gaussian_nll_loss(m(x), y, torch.ones_like(y))  # noqa: E731
    fit_by_hand(mlp(4, 1), loader(X, X[:, :1]), loss, 240)


@fine
def two_draws_per_step() -> None:
    fit_by_hand(mlp(), loader(X, Y), cross_entropy, 240, blocks=2)


@fine
def several_losses_added() -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        out = model(x)
        weights = torch.cat([p.flatten() for p in model.parameters()])
        penalty = 1e-3 * weights.square().sum() + 0.1 * F.mse_loss(out, torch.zeros_like(out))
        return F.cross_entropy(out, y) + penalty + 10 * F.mse_loss(out[:, 0], 100 * x[:, 0])

    fit_by_hand(mlp(), loader(X, Y), loss, 240)


@fine
def losses_summed_from_a_list() -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        out = model(x)
        return torch.stack([F.cross_entropy(out, y), out.square().mean()]).sum()

    fit_by_hand(mlp(), loader(X, Y), loss, 240)


@fine
def custom_loss_and_label_smoothing() -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        out = model(x)
        return F.cross_entropy(out, y, label_smoothing=0.1) - out.log_softmax(1)[range(len(y)), y].mean()

    fit_by_hand(mlp(), loader(X, Y), loss, 240)


@fine
def soft_labels_and_class_weights() -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        soft = F.one_hot(y, 3).float() * 0.8 + 0.2 / 3
        return F.cross_entropy(model(x), soft) + F.cross_entropy(model(x), y, torch.tensor([1.0, 2.0, 3.0]))

    fit_by_hand(mlp(), loader(X, Y), loss, 240)


@fine
def parts_accumulated() -> None:
    model = mlp()
    opt = CalibratedScore(model.parameters(), 240, batch_size=16, accumulate=4)
    for _ in range(6):
        for x, y in loader(X, Y):
            with opt.sample():
                for xs, ys in zip(x.chunk(4), y.chunk(4), strict=True):
                    F.cross_entropy(model(xs), ys).backward()
            opt.step()
            opt.zero_grad()


@fine
def parts_divided_in_one_block() -> None:
    model = mlp()
    opt = ProximalScore(model.parameters(), 240)
    for _ in range(6):
        for x, y in loader(X, Y):
            with opt.sample():
                for xs, ys in zip(x.chunk(2), y.chunk(2), strict=True):
                    (F.cross_entropy(model(xs), ys) / 2).backward()
            opt.step()
            opt.zero_grad()


@fine
def autoencoder() -> None:
    fit_by_hand(mlp(4, 4), loader(X, X), lambda m, x, y: (m(x) - y).square().sum(1).mean(), 240)


@fine
def several_outputs() -> None:
    fit_by_hand(mlp(4, 4), loader(X, X), squares, 240)


@fine
def several_labels() -> None:
    loss: LossFunction = lambda m, x, y: F.binary_cross_entropy_with_logits(m(x), y)  # noqa: E731
    fit_by_hand(mlp(4, 4), loader(X, (X > 0).float()), loss, 240)


@fine
def binary_outcomes() -> None:
    fit_by_hand(
        mlp(4, 1),
        loader(X, (X[:, :1] > 0).float()),
        lambda m, x, y: F.binary_cross_entropy_with_logits(m(x), y),
        240,
    )


@fine
def grad_scaler() -> None:
    model, scaler = mlp(), torch.amp.GradScaler("cpu", init_scale=16.0)
    opt = ProximalScore(model.parameters(), 240)
    for _ in range(3):
        for x, y in loader(X, Y):
            with opt.sample():
                scaler.scale(F.cross_entropy(model(x), y)).backward()
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
    assert max(opt.param_groups[0]["losses"]) < 3  # the scale is taken out


@fine
def autocast() -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(model(x), y)

    fit_by_hand(mlp(), loader(X, Y), loss, 240)


@fine
def gradients_by_torch_func() -> None:
    model = mlp()
    opt = ProximalScore(model.parameters(), 240)

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(model, weights, (x,)), y)

    for _ in range(3):
        for x, y in loader(X, Y):
            with opt.sample():
                weights = {name: p.detach() for name, p in model.named_parameters()}
                found = torch.func.grad(loss)(weights, x, y)
                for name, p in model.named_parameters():
                    p.grad = found[name]
            opt.step()
            opt.zero_grad()
    assert opt.mean_status == ""


@pytest.mark.parametrize("name", FINE)
def test_an_ordinary_use_has_no_warning(name: str) -> None:
    torch.manual_seed(0)
    assert said(FINE[name]) == []


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_parts_are_neither_read_nor_computed_again(reentrant: bool) -> None:
    class Counting(nn.Module):
        calls = 0

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return self.layer(x)

    model = Counting()
    x = X.clone().requires_grad_()
    opt = ProximalScore(model.parameters(), 240)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        whole = lambda x: F.cross_entropy(model(x), y)  # noqa: E731
        return checkpoint(whole, x, use_reentrant=reentrant)

    plain_loop(opt, model, [(x, Y)], loss, 5)
    assert model.calls == 10  # forward, and again in backward
    assert len(opt.param_groups[0]["losses"]) == 5


# -- the watch costs little and breaks nothing -----------------------------------------------------------


def test_the_watch_is_off_in_most_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    entered = []
    original = watch.seeing_backward
    monkeypatch.setattr(watch, "seeing_backward", lambda look: entered.append(1) or original(look))
    model = mlp()
    opt = ProximalScore(model.parameters(), 240)
    plain_loop(opt, model, loader(X, Y), cross_entropy, 4)
    early = len(entered)
    assert early == 60
    plain_loop(opt, model, loader(X, Y), cross_entropy, 200)
    assert len(entered) < 0.3 * 3060  # 255 losses of a run are kept
    before = len(entered)
    plain_loop(opt, model, loader(X, Y), cross_entropy, 50)
    assert len(entered) - before < 0.1 * 750
    assert torch.autograd.backward.__module__ == "torch.autograd"
    assert not hasattr(torch.autograd.backward, "__wrapped__")


def test_a_compiled_module_is_compiled_once() -> None:
    """In a process of its own: what other tests have compiled must not count."""
    folders = [str(Path(__file__).parent), *sys.path]
    code = f"import sys; sys.path[:0] = {folders!r}; import test_usage; test_usage.compiled_once()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr


def compiled_once() -> None:
    import torch._dynamo as dynamo

    model = mlp()
    compiled = torch.compile(model, backend="aot_eager")
    opt = ProximalScore(model.parameters(), 240)
    plain_loop(opt, compiled, loader(X, Y), cross_entropy, 10)
    assert dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert not dynamo.utils.counters["graph_break"]
    assert len(opt.param_groups[0]["losses"]) > 60


def test_a_wrong_use_of_a_compiled_module_is_noticed_at_its_loss() -> None:
    import torch._dynamo as dynamo

    model = mlp()
    compiled = torch.compile(model, backend="aot_eager")
    opt = ProximalScore(model.parameters(), 240)
    loss: LossFunction = lambda m, x, y: F.cross_entropy(m(x), y, reduction="sum")  # noqa: E731
    found = said(lambda: plain_loop(opt, compiled, loader(X, Y), loss, 1))
    assert [text for text in found if "a sum over the batch" in text] == found
    assert len(found) == 1
    dynamo.reset()


def test_what_fails_in_the_watch_does_not_reach_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(root: Any) -> Any:
        raise RuntimeError("of the watch")

    monkeypatch.setattr(watch, "read", broken)
    model = mlp()
    opt = ProximalScore(model.parameters(), 240)
    assert said(lambda: plain_loop(opt, model, loader(X, Y), cross_entropy, 2)) == []
    assert opt.param_groups[0]["updates"] == 30


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_watching_changes_no_number(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for over in (False, True):
        case = NETWORKS["mlp"]
        model = case.module()
        opt = OPTIMIZERS[name](model.parameters(), 64)
        opt.usage._over = over
        train(opt, case, model, 30)
        for group in opt.param_groups:
            group.update(watch_off := {"losses": (), "loss_lrs": ()})
        assert watch_off
        found.append(opt)
    assert same_state(*found)


@pytest.mark.parametrize("at", [3, 130, 300])
def test_the_losses_of_a_resumed_run_are_those_of_an_uninterrupted_one(at: int) -> None:
    case = NETWORKS["mlp"]
    whole, part, rest = (case.module() for _ in range(3))
    one, two, three = (ProximalScore(m.parameters(), 64) for m in (whole, part, rest))
    train(one, case, whole, 320)
    train(two, case, part, at)
    saved = two.state_dict()
    three.load_state_dict(saved)
    train(three, case, rest, 320 - at, first=at)
    assert same_state(one, three)
    assert one.status == three.status
    assert one.mean_status


def test_optimizers_in_several_threads_and_in_one_another_see_their_own_losses() -> None:
    def run(found: list[Any]) -> None:
        model = mlp()
        opt = ProximalScore(model.parameters(), 240)
        plain_loop(opt, model, loader(X, Y), cross_entropy, 4)
        found.append(opt.param_groups[0]["losses"])

    found: list[Any] = []
    torch.manual_seed(0)
    threads = [threading.Thread(target=run, args=(found,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(losses) for losses in found] == [60, 60, 60]
    assert not hasattr(torch.autograd.backward, "__wrapped__")

    one, two = mlp(), mlp()
    first, second = ProximalScore(one.parameters(), 240), ProximalScore(two.parameters(), 240)
    for _ in range(5):
        with first.sample(), second.sample():
            (F.cross_entropy(one(X) + two(X), Y)).backward()
        first.step()
        second.step()
    assert len(first.param_groups[0]["losses"]) == len(second.param_groups[0]["losses"]) == 5
    assert not hasattr(torch.autograd.backward, "__wrapped__")


def test_a_step_that_is_not_watched_costs_microseconds() -> None:
    usage, group = watch.Usage(), {"step": 4_001, "loss_stride": 64}
    usage._epoch.open = False
    times = []
    for _ in range(20):
        began = time.perf_counter()
        for _ in range(100):
            with usage.block(group):
                pass
        times.append((time.perf_counter() - began) / 100)
    assert min(times) < 50e-6
