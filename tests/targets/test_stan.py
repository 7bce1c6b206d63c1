"""Stan programs as targets, on one small program that is compiled once and kept in the cache."""

from __future__ import annotations

import importlib.util
import json
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Cauchy, Dirichlet, Normal

import bayescore as bs
from bayescore.targets.constraints import Interval, Ordered, Positive, Real, Simplex, Upper
from bayescore.targets.model import TorchModel
from bayescore.targets.propriety import improper_coordinates
from bayescore.targets.stan import Stan

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("httpstan") is None, reason="httpstan is not installed"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not on the PATH"),
]

PROGRAM = Path(__file__).parent / "stan" / "everything.stan"
Y = torch.tensor([1.2, 0.7, 2.9], dtype=torch.float64)


def stan(mood: int = 0, **options: Any) -> Stan:
    return Stan(PROGRAM, {"N": 3, "y": Y, "mood": mood}, **options)


@pytest.fixture(scope="module")
def target() -> Stan:
    return stan()


def twin() -> TorchModel:
    """The same model in torch; its matrix is written transposed, as Stan stores it."""
    concentration = torch.tensor([2.0, 3.0, 4.0], dtype=torch.float64)

    def log_density(**p: Tensor) -> Tensor:
        scalars = Normal(0, 10).log_prob(p["mu"]) + Cauchy(0, 2.5).log_prob(p["sigma"])
        vectors = Normal(0, 1).log_prob(p["cuts"]).sum() + Dirichlet(concentration).log_prob(p["w"])
        rows = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
        arrays = Normal(rows, 1).log_prob(p["a"]).sum() + Normal(0, 1).log_prob(p["M"]).sum()
        data = Normal(p["mu"], p["sigma"]).log_prob(Y).sum()
        return scalars + vectors + arrays + data + Normal(0, 1).log_prob(p["below"])

    parameters = {
        "mu": Real(),
        "sigma": Positive(),
        "share": Interval(-1, 2),
        "below": Upper(3),
        "cuts": Ordered(3),
        "w": Simplex(3),
        "a": Real((2, 3)),
        "M": Real((3, 2)),
    }
    return TorchModel(parameters, log_density)


def points(*lead: int, seed: int = 0, dim: int = 21) -> Tensor:
    return torch.randn(*lead, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# -- density -------------------------------------------------------------------------------------


def test_stan_and_the_same_model_in_torch_agree_in_value_score_and_hessian(target: Stan) -> None:
    x, other = points(100), twin()
    value, score = target.log_prob_and_score(x)
    torch.testing.assert_close(value, other.log_prob(x), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(score, other.score(x), rtol=1e-9, atol=1e-9)
    v = points(100, seed=1)
    v[0] = 0.0
    torch.testing.assert_close(
        target.hessian_product(x, v), other.hessian_product(x, v), rtol=1e-5, atol=1e-5
    )


def test_propto_drops_a_constant_and_jacobian_a_log_determinant(target: Stan) -> None:
    x = points(20)
    dropped = target.log_prob(x) - stan(propto=True).log_prob(x)
    torch.testing.assert_close(dropped, dropped[:1].expand(20))
    assert dropped.abs().min() > 1
    torch.testing.assert_close(stan(propto=True).score(x), target.score(x))
    difference = target.log_prob(x) - stan(jacobian=False).log_prob(x)
    torch.testing.assert_close(difference, twin().log_jacobian(x))


def test_points_may_have_any_leading_shape_and_layout(target: Stan) -> None:
    x = points(3, 4)
    value, score = target.log_prob_and_score(x)
    assert value.shape == (3, 4)
    assert score.shape == x.shape
    torch.testing.assert_close(target.log_prob(x[1, 2]), value[1, 2], rtol=0, atol=0)
    torch.testing.assert_close(target.score(x.transpose(0, 1)), score.transpose(0, 1), rtol=0, atol=0)
    assert target.log_prob(x[:0]).shape == (0, 4)


def test_threads_change_no_bit() -> None:
    x = points(4000)
    one, many = stan(threads=1), stan(threads=3)
    assert torch.equal(one.score(x), many.score(x))
    assert torch.equal(one.log_prob(x), many.log_prob(x))
    first, second = (t.to_posterior(x, seed=5)["posterior_predictive"]["y_rep"] for t in (one, many))
    assert torch.equal(first, second)


def test_python_threads_share_a_target(target: Stan) -> None:
    x = points(8, 200)
    expected = target.score(x)
    with ThreadPoolExecutor(4) as pool:
        assert torch.equal(torch.stack(list(pool.map(target.score, x))), expected)


def test_log_prob_can_be_differentiated_through(target: Stan) -> None:
    x = points(5).requires_grad_()
    (grad,) = torch.autograd.grad((target.log_prob(x) * torch.arange(5)).sum(), x)
    torch.testing.assert_close(grad, torch.arange(5)[:, None] * target.score(x.detach()))


def test_points_of_another_shape_or_kind_are_refused(target: Stan) -> None:
    with pytest.raises(ValueError, match=r"shape \(\.\.\., 21\); got \(2, 20\)"):
        target.score(points(2, dim=20))
    with pytest.raises(TypeError, match=r"torch\.float64 on the CPU; got torch\.float32"):
        target.score(points(2).float())


def test_a_pickled_target_is_made_again(target: Stan) -> None:
    x = points(3)
    for original in (target, stan(3, propto=True, threads=1)):
        copy = pickle.loads(pickle.dumps(original))
        torch.testing.assert_close(copy.log_prob(x), original.log_prob(x), rtol=0, atol=0)


# -- draws that go wrong -------------------------------------------------------------------------


@pytest.mark.parametrize("mood", [3, 4])
def test_a_rejected_draw_does_not_touch_its_neighbours(mood: int, target: Stan) -> None:
    x, bad = points(40), stan(mood, threads=2)
    value, score = bad.log_prob_and_score(x)
    out = x[:, 0] > 0
    assert (value[out] == -torch.inf).all()
    assert score[out].isnan().all()
    assert torch.equal(bad.log_prob(x), value)
    torch.testing.assert_close(value[~out], target.log_prob(x[~out]))
    torch.testing.assert_close(score[~out], target.score(x[~out]))
    if mood == 3:
        assert bad.last_rejection is not None
        assert "mu must not be positive; it is" in bad.last_rejection


def test_a_point_that_is_not_finite_is_rejected_too(target: Stan) -> None:
    x = points(2)
    x[0] = torch.nan
    value, score = target.log_prob_and_score(x)
    assert value[0] == -torch.inf
    assert score[0].isnan().all()
    assert score[1].isfinite().all()


def test_a_density_that_is_infinite_at_the_start_ends_in_a_sentence() -> None:
    bad = stan(2)
    with pytest.raises(ValueError, match="not finite at any of 20 draws from the start"):
        bs.fit(bad, bs.families.DiagonalGaussian.init(bad.dim), bs.methods.ADVI(), steps=5)


def test_an_improper_model_is_found_by_name(target: Stan) -> None:
    assert improper_coordinates(stan(1), points(20)) == ["mu"]
    assert improper_coordinates(target, points(20)) == []


# -- variables -----------------------------------------------------------------------------------


def test_a_coordinate_is_called_after_the_number_that_it_moves(target: Stan) -> None:
    """Also for arrays of vectors, which Stan itself lists in another order than it stores them."""
    x = points()
    values = target.constrain(x)
    assert len(set(target.names)) == target.dim
    for i in range(2):
        for j in range(3):
            assert x[target.names.index(f"a[{i + 1},{j + 1}]")] == values["a"][i, j]
            assert x[target.names.index(f"M[{i + 1},{j + 1}]")] == values["M"][i, j]
    assert target.names[:6] == ["mu", "sigma", "share", "below", "cuts[1]", "cuts[2]"]


def test_variables_have_the_shapes_of_the_program(target: Stan) -> None:
    values = target.constrain(points(2, 5), everything=True)
    assert {name: tuple(value.shape[2:]) for name, value in values.items()} == {
        "mu": (),
        "sigma": (),
        "share": (),
        "below": (),
        "cuts": (3,),
        "w": (3,),
        "a": (2, 3),
        "M": (2, 3),
        "precision": (),
        "log_lik": (3,),
        "y_rep": (3,),
        "table": (2, 2),
        "twice": (),
    }
    assert torch.equal(values["table"][0, 0], torch.tensor([[11.0, 12.0], [21.0, 22.0]], dtype=torch.float64))
    torch.testing.assert_close(values["precision"], values["sigma"] ** -2)
    mu, sigma = values["mu"].unsqueeze(-1), values["sigma"].unsqueeze(-1)
    torch.testing.assert_close(values["log_lik"], Normal(mu, sigma).log_prob(Y))
    assert len(target.constrained_names) == 22 + 1 + 3 + 3 + 4 + 1


def test_constrain_agrees_with_our_transforms_and_unconstrain_inverts_it(target: Stan) -> None:
    x = points(4, 3)
    values, expected = target.constrain(x), twin().constrain(x)
    expected["M"] = expected["M"].mT
    assert set(values) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(values[name], value)
    torch.testing.assert_close(target.unconstrain(values), x)
    assert (target.unconstrain({**values, "mu": 0.25})[..., 0] == 0.25).all()


def test_unconstrain_names_what_does_not_fit(target: Stan) -> None:
    values = target.constrain(points())
    with pytest.raises(ValueError, match="1 of 1 draws are outside the support of everything"):
        target.unconstrain({**values, "sigma": -1.0})
    with pytest.raises(ValueError, match=r"a must have the shape \(\.\.\., 2, 3\); got \(3, 2\)"):
        target.unconstrain({**values, "a": values["a"].T})
    del values["w"]
    with pytest.raises(ValueError, match="'w' is missing"):
        target.unconstrain(values)


def test_posterior_groups_are_those_of_arviz(target: Stan) -> None:
    groups = target.to_posterior(points(1, 50), seed=1)
    assert set(groups) == {"posterior", "log_likelihood", "posterior_predictive"}
    assert set(groups["log_likelihood"]) == {"log_lik"}
    assert set(groups["posterior_predictive"]) == {"y_rep"}
    assert {"precision", "table", "twice", "w"} <= set(groups["posterior"])
    arviz = pytest.importorskip("arviz")
    arrays = {kind: {name: value.numpy() for name, value in each.items()} for kind, each in groups.items()}
    data = arviz.from_dict(**arrays)
    assert data.posterior["a"].shape == (1, 50, 2, 3)
    assert data.log_likelihood["log_lik"].shape == (1, 50, 3)


def test_generated_quantities_depend_on_the_seed_and_the_row_alone(target: Stan) -> None:
    x = points(6)
    first = target.constrain(x, everything=True, seed=1)["y_rep"]
    assert torch.equal(first, target.constrain(x, everything=True, seed=1)["y_rep"])
    assert not torch.equal(first, target.constrain(x, everything=True, seed=2)["y_rep"])
    assert torch.equal(first[:3], target.constrain(x[:3], everything=True, seed=1)["y_rep"])
    same = target.constrain(x[:1].expand(6, -1), everything=True)["y_rep"]
    assert len(same.unique()) == same.numel()


def test_rejected_generated_quantities_leave_the_parameters(caplog: pytest.LogCaptureFixture) -> None:
    x = points(2)
    x[:, 0] = torch.tensor([-6.0, -1.0])
    values = stan(3).constrain(x, everything=True)
    assert values["y_rep"][0].isnan().all()
    assert values["mu"][0] == -6.0
    assert values["precision"][0].isfinite()
    assert values["y_rep"][1].isfinite().all()
    assert "1 of 2 draws" in caplog.text
    assert "no generated quantities below -5" in caplog.text


# -- data ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, "variable does not exist; processing stage=data initialization; variable name=N"),
        ({"N": 3, "mood": 0}, "missing: y"),
        ({"N": 4, "y": Y, "mood": 0}, "mismatch in dimension"),
        ({"N": 3, "y": Y, "mood": 7}, "mood is 7, but must be less than or equal to 4"),
        ({"N": 3, "y": Y, "mood": 0.5}, "int variable contained non-int values"),
        ({"N": 3, "y": [[1.0], [2.0], [3.0]], "mood": 0}, "mismatch in number dimensions"),
    ],
)
def test_data_that_do_not_match_end_in_stans_own_words(data: Any, words: str) -> None:
    with pytest.raises(ValueError, match=r"everything\.stan does not take these data") as caught:
        Stan(PROGRAM, data)
    assert words in str(caught.value)


def test_a_seed_that_stan_cannot_take_is_refused(target: Stan) -> None:
    with pytest.raises(ValueError, match="seeds below"):
        target.to_posterior(points(2), seed=2**32)
    with pytest.raises(ValueError, match="seed must be at least 0; got -1"):
        stan(seed=-1)


def test_data_may_come_from_a_file(tmp_path: Path, target: Stan) -> None:
    file = tmp_path / "data.json"
    file.write_text(json.dumps({"N": 3, "y": Y.tolist(), "mood": 0}))
    assert torch.equal(Stan(str(PROGRAM), str(file)).log_prob(points()), target.log_prob(points()))
    file.write_text('{"N": 3, "y": [1, 2')
    with pytest.raises(ValueError, match=r"data\.json is not readable JSON: .*line 1 column 20"):
        Stan(PROGRAM, file)


@pytest.mark.parametrize(
    ("N", "y"),
    [
        ("NaN", "[1, 2, 3]"),
        ("-Infinity", "[1, 2, 3]"),
        ("99999999999999999999", "[1, 2, 3]"),
        ("3", "[1, 2, 1" + "0" * 400 + "]"),
        ("3", '["a", 2, 3]'),
        ("3", "null"),
        ("true", "[1]"),
        ("3", '{"a": 1}'),
        ("3", "[" * 700 + "]" * 700),
        ("3", "[[1], [2, 3], 4]"),
        ("-1", "[]"),
        ("1.5", "[1]"),
    ],
)
@pytest.mark.filterwarnings("ignore:the data N hold NaN")
def test_words_and_kinds_that_stan_does_not_take_end_in_a_sentence(tmp_path: Path, N: str, y: str) -> None:
    file = tmp_path / "data.json"
    file.write_text(f'{{"N": {N}, "y": {y}, "mood": 0}}')
    with pytest.raises(ValueError, match=r"everything\.stan does not take these data"):
        Stan(PROGRAM, file)


def test_data_of_a_wrong_kind_are_named() -> None:
    with pytest.raises(TypeError, match="'y' must be numbers, lists, arrays or tensors; got set"):
        Stan(PROGRAM, {"N": 3, "y": {1.0, 2.0}, "mood": 0})
    with pytest.raises(TypeError, match="data must be a dict, the path of a JSON file or None; got int"):
        Stan(PROGRAM, 3)
    with pytest.raises(FileNotFoundError, match=r"no data file at nowhere\.json"):
        Stan(PROGRAM, "nowhere.json")


def test_numpy_numbers_and_truth_values_are_data(target: Stan) -> None:
    import numpy as np

    data = {"N": np.int64(3), "y": Y.numpy(), "mood": False}
    assert torch.equal(Stan(PROGRAM, data).log_prob(points()), target.log_prob(points()))


# -- fits ----------------------------------------------------------------------------------------


def test_a_fit_runs_on_a_stan_target(target: Stan) -> None:
    start = bs.families.FullGaussian.init(target.dim)
    fit = bs.fit(target, start, bs.methods.BaM(draws=8), steps=60, progress=False)
    assert fit.elbo is not None
    assert fit.elbo.value > fit.history["elbo"][0] + 10
