"""Mean loss, number of data, temperature, prior, accumulation, draws, scalers: they mean what they say."""

from __future__ import annotations

import math

import pytest
import torch
from small_networks import NETWORKS, OPTIMIZERS, same_state, train
from torch import nn
from torch.nn import functional as F

from bayescore.optim import ADVI, SGLD, PairedBaM, ProximalScore
from bayescore.posteriors.gaussian import GaussianPosterior

MLP = NETWORKS["mlp"]


def close(one, two) -> None:  # type: ignore[no-untyped-def]
    for a, b in zip(one.state.values(), two.state.values(), strict=True):
        torch.testing.assert_close(a["mean"], b["mean"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shell", OPTIMIZERS)
def test_accumulated_parts_equal_the_whole_batch(shell: str) -> None:
    runs = []
    for parts in (1, 4):
        model = MLP.module(torch.float64)
        opt = OPTIMIZERS[shell](model.parameters(), 50, accumulate=parts)
        train(opt, MLP, model, 3, parts=parts, dtype=torch.float64)
        runs.append(opt)
    for a, b in zip(runs[0].state.values(), runs[1].state.values(), strict=True):
        torch.testing.assert_close(a["mean"], b["mean"], rtol=1e-9, atol=1e-12)


def test_a_last_short_accumulation_is_a_mean_too() -> None:
    """Fewer backward calls than accumulate= says are averaged over those there were."""
    runs = []
    for parts, said in ((1, 1), (2, 4), (4, 8)):
        model = MLP.module(torch.float64)
        opt = ProximalScore(model.parameters(), 50, accumulate=said)
        train(opt, MLP, model, 2, parts=parts, dtype=torch.float64)
        runs.append(opt)
    for other in runs[1:]:
        for a, b in zip(runs[0].state.values(), other.state.values(), strict=True):
            torch.testing.assert_close(a["mean"], b["mean"], rtol=1e-9, atol=1e-12)


def test_two_losses_of_a_part_are_added_not_averaged() -> None:
    runs = []
    for apart in (False, True):
        model = MLP.module(torch.float64)
        opt = ProximalScore(model.parameters(), 50, accumulate=2)
        with opt.sample():
            for part in (0, 1):
                one, two = (
                    MLP.loss(model, *MLP.batch(dtype=torch.float64, seed=part + 2 * k)) for k in (0, 1)
                )
                if apart:
                    one.backward()
                    two.backward()
                else:
                    (one + two).backward()
        opt.step()
        runs.append(opt)
    for a, b in zip(runs[0].state.values(), runs[1].state.values(), strict=True):
        torch.testing.assert_close(a["mean"], b["mean"], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("draws", [1, 2])
def test_a_closure_whose_loss_is_a_sum_is_refused(draws: int) -> None:
    model = MLP.module()
    opt = ProximalScore(model.parameters(), 50, draws=draws)
    before = [p.detach().clone() for p in model.parameters()]
    x, y = MLP.batch()

    def closure() -> torch.Tensor:
        loss = torch.nn.functional.cross_entropy(model(x), y, reduction="sum")
        loss.backward()
        return loss

    with pytest.raises(ValueError, match="sum over the batch"):
        opt.step(closure)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("shell", OPTIMIZERS)
def test_a_closure_is_the_same_as_blocks(shell: str) -> None:
    model, twin = MLP.module(), MLP.module()
    opt = OPTIMIZERS[shell](model.parameters(), 50, draws=2)
    other = OPTIMIZERS[shell](twin.parameters(), 50, draws=2)
    train(opt, MLP, model, 2, draws=2)
    for i in range(2):

        def closure(i: int = i) -> torch.Tensor:
            other.zero_grad()
            loss = MLP.loss(twin, *MLP.batch(seed=i))
            loss.backward()
            return loss

        assert isinstance(other.step(closure), torch.Tensor)
    assert same_state(opt, other)


@pytest.mark.parametrize("shell", ["calibrated", "proximal"])
def test_more_data_at_a_higher_temperature_is_the_same_posterior(
    shell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The temperature of ProximalScore is that of the widths' prior too, which must be as much narrower."""
    monkeypatch.setattr("bayescore.rules.proximal.LOOSE", 1e18)  # no prior of the means, which it is not
    runs = []
    for data, temperature in ((100, 1.0), (1000, 10.0)):
        options = {"prior_scale": temperature**-0.5} if shell == "proximal" else {}
        model = MLP.module(torch.float64)
        opt = OPTIMIZERS[shell](model.parameters(), data, temperature=temperature, **options)
        train(opt, MLP, model, 30, dtype=torch.float64)
        posterior = opt.posterior(model)
        assert isinstance(posterior, GaussianPosterior)
        runs.append(posterior)
    for name in runs[0].mean:
        torch.testing.assert_close(runs[0].mean[name], runs[1].mean[name], rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(runs[0].sd[name], runs[1].sd[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("shell", OPTIMIZERS)
@pytest.mark.parametrize(("data", "temperature"), [(60, 1.0), (10**7, 1e-6)])
def test_every_scale_stays_in_range(shell: str, data: int, temperature: float) -> None:
    model = MLP.module()
    opt = OPTIMIZERS[shell](model.parameters(), data, temperature=temperature)
    train(opt, MLP, model, 20, draws=2)
    for state in opt.state.values():
        assert all(torch.isfinite(v).all() for v in state.values())
        if "sd" in state:
            assert (state["sd"] > 0).all()
            assert (state["sd"] <= 1).all()


@pytest.mark.parametrize("draws", [1, 2])
@pytest.mark.parametrize("shell", OPTIMIZERS)
def test_a_grad_scaler_changes_nothing(shell: str, draws: int) -> None:
    model, twin = MLP.module(), MLP.module()
    opt, other = (OPTIMIZERS[shell](m.parameters(), 50) for m in (model, twin))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    train(opt, MLP, model, 3, draws=draws)
    for i in range(3):
        for _ in range(max(draws, other.least_draws)):
            with other.sample():
                scaler.scale(MLP.loss(twin, *MLP.batch(seed=i))).backward()
        scaler.step(other)
        scaler.update()
        other.zero_grad()
    close(opt, other)


def test_a_grad_scaler_that_overflows_skips_the_update() -> None:
    model = MLP.module()
    opt = ProximalScore(model.parameters(), 50)
    scaler = torch.amp.GradScaler("cpu", init_scale=1e38)
    with opt.sample():
        scaler.scale(1e10 * MLP.loss(model, *MLP.batch())).backward()
    with pytest.warns(RuntimeWarning, match="not finite"):
        scaler.step(opt)
    scaler.update()
    assert opt.param_groups[0]["updates"] == 0
    assert scaler.get_scale() < 1e38


def test_unscaling_one_of_several_draws_is_refused() -> None:
    model = MLP.module()
    opt = ProximalScore(model.parameters(), 50)
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(2):
        with opt.sample():
            scaler.scale(MLP.loss(model, *MLP.batch())).backward()
    scaler.unscale_(opt)
    with pytest.raises(RuntimeError, match="last of several draws"):
        scaler.step(opt)


def test_clipping_between_block_and_step_clips() -> None:
    sizes = []
    for limit in (1e9, 1e-3):
        model = MLP.module()
        before = [p.detach().clone() for p in model.parameters()]
        opt = ADVI(model.parameters(), 50, prior_sd=math.inf)
        with opt.sample():
            MLP.loss(model, *MLP.batch()).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), limit)
        assert norm > 1e-3
        opt.step()
        sizes.append(sum(float((opt.state[p]["first_m"]).square().sum()) for p in model.parameters()))
        assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert sizes[1] < 1e-3 * sizes[0]


def test_schedulers_drive_the_learning_rate() -> None:
    model = MLP.module()
    opt = ProximalScore(model.parameters(), 50, lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.5)
    train(opt, MLP, model, 1)
    schedule.step()
    assert opt.param_groups[0]["lr"] == 0.05


@pytest.mark.parametrize("shell", ["calibrated", "descent", "advi", "bam"])
def test_without_data_the_posterior_is_pulled_to_the_prior(shell: str) -> None:
    """With a zero loss the score is the prior's alone: means move to the prior mean, sds towards its sd."""
    p = torch.nn.Parameter(torch.full((5,), 1.0))
    own = {
        "calibrated": {"lr": 0.5, "damping": 10.0},
        "descent": {"lr": 0.01, "sd_rate": 1.0},
        "advi": {"lr": 0.02},
        "bam": {"lr": 0.5, "damping": 10.0},
    }[shell]
    opt = OPTIMIZERS[shell]([p], 10, prior_mean=2.0, prior_sd=0.5, init_sd=0.3, **own)
    for _ in range(600):
        for _ in range(2):
            with opt.sample():
                p.grad = torch.zeros_like(p)
        opt.step()
    torch.testing.assert_close(p.detach(), torch.full((5,), 2.0), rtol=0.03, atol=0)
    torch.testing.assert_close(opt.state[p]["sd"], torch.full((5,), 0.5), rtol=0.2, atol=0)


def test_without_data_the_widths_are_the_priors_and_the_decay_moves_the_mean() -> None:
    """Of ProximalScore, whose prior is about the widths, and whose decay is about the mean."""
    p = torch.nn.Parameter(torch.tensor([[3.0, -4.0]]))
    model = nn.ParameterDict({"p": p})
    opt = ProximalScore([p], 10, lr=0.05, prior_mean=2.0, prior_scale=0.2, weight_decay=1.0)
    for _ in range(300):
        with opt.sample():
            p.grad = torch.zeros_like(p)
        opt.step()
    torch.testing.assert_close(p.detach(), torch.full((1, 2), 2.0), rtol=1e-4, atol=0)
    sd = opt.posterior(model).sd["p"]  # type: ignore[attr-defined]
    torch.testing.assert_close(sd, torch.full((1, 2), 0.2 * 12.5**0.5), rtol=1e-4, atol=0)
    assert "at temperature 1" in opt.status


def test_prior_means_come_from_a_state_dict_and_are_zero_where_it_is_silent() -> None:
    model = MLP.module()
    pretrained = {k: v + 1 for k, v in model.state_dict().items() if k.startswith("0.")}
    opt = ProximalScore(model.named_parameters(), 50, prior_mean=pretrained)
    train(opt, MLP, model, 1)
    assert torch.equal(opt.state[model[0].weight]["prior_mean"], pretrained["0.weight"])
    assert not opt.state[model[2].weight]["prior_mean"].any()
    with pytest.raises(ValueError, match=r"0.weight.*has the shape"):
        train(
            ProximalScore(model.named_parameters(), 50, prior_mean={"0.weight": torch.zeros(2)}),
            MLP,
            model,
            1,
        )


def test_langevin_noise_has_the_temperature_of_the_posterior() -> None:
    """On a quadratic loss the chain's variance is that of the posterior, c/(h + delta)."""
    p = torch.nn.Parameter(torch.zeros(4000))
    opt = SGLD([p], 100, lr=0.05, prior_sd=1.0, burn_in=0, thin=1, keep=2)
    for _ in range(400):
        with opt.sample():
            p.grad = p.detach().clone()  # loss |p|^2/2: h = 1
        opt.step()
    expected = 0.01 / 1.01 / (1 - 0.05 * 1.01 / 2)  # with the step's own error
    assert abs(float(p.detach().var()) / expected - 1) < 0.1


def test_compiled_models_and_activation_checkpointing_see_the_drawn_weights() -> None:
    model = MLP.module()
    x, y = MLP.batch()
    plain, opt = MLP.module(), ProximalScore(model.parameters(), 50)
    other = ProximalScore(plain.parameters(), 50)
    for _ in range(2):
        with opt.sample():
            out = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)
            F.cross_entropy(out, y).backward()
        with other.sample():
            F.cross_entropy(torch.compile(plain, backend="eager")(x), y).backward()
        opt.step()
        other.step()
    close(opt, other)


def test_bam_needs_its_draws_from_one_batch_for_the_variance_only() -> None:
    p = torch.nn.Parameter(torch.zeros(3))
    opt = PairedBaM([p], 10, lr=0.5, init_sd=0.1)
    for _ in range(2):
        with opt.sample():
            p.grad = 5 * torch.ones(
                3
            )  # a constant gradient has no spread: it moves the mean, not the sd by much
    opt.step()
    assert (p < 0).all()


def test_a_chain_keeps_at_most_the_given_number_of_states() -> None:
    p = torch.nn.Parameter(torch.zeros(3))
    opt = SGLD([p], 100, lr=0.01, burn_in=10, thin=2, keep=6)
    sizes = []
    for _ in range(40):
        with opt.sample():
            p.square().sum().backward()
        opt.step()
        sizes.append(opt.param_groups[0]["kept"])
        assert len(opt.state[p]["path"]) == 6
        assert int(opt.state[p]["path"].any(1).sum()) == sizes[-1]
    assert max(sizes) == 6
    assert sizes[10 + 2 * 6 - 1] == 6  # full, and nothing was dropped
    assert sizes[10 + 2 * 7 - 1] == 3  # the seventh state thins the path
