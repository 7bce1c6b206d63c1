"""The estimators are scikit-learn's in every gesture, and their uncertainty is what they say."""

from __future__ import annotations

import inspect
import io
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_iris, make_classification, make_regression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils.estimator_checks import check_estimator
from torch import nn

from bayescore.metrics import evaluate
from bayescore.sklearn import BayesianClassifier, BayesianRegressor

SMALL: dict[str, Any] = {"hidden": (16,), "members": 2, "draws": 4, "random_state": 0}
#: a weighted epoch takes other batches than one of repeated rows: the posteriors agree, their digits do not
EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": "mini-batches of a weighted epoch are other batches",
    "check_sample_weight_equivalence_on_sparse_data": "mini-batches of a weighted epoch are other batches",
}


@pytest.mark.parametrize("kind", [BayesianClassifier, BayesianRegressor])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.EstimatorCheckFailedWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_scikit_learns_own_checks_pass(kind: Any) -> None:
    estimator = kind(epochs=8, lr=0.03, batch_size=64, **SMALL)
    results = check_estimator(estimator, expected_failed_checks=EXPECTED)
    assert {r["check_name"] for r in results if r["status"] == "xfail"} <= set(EXPECTED)
    assert sum(r["status"] == "passed" for r in results) > 50


def curve(rows: int, noise: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (rows, 1))
    return x, 50 + 10 * (np.sin(2 * x[:, 0]) + noise * rng.standard_normal(rows))


@pytest.fixture(scope="module")
def regressor() -> BayesianRegressor:
    x, y = curve(400)
    return BayesianRegressor(members=4, hidden=(32,), random_state=0, epochs=30, lr=0.02).fit(x, y)


def test_a_regressor_learns_its_noise_in_units_of_the_target(regressor: BayesianRegressor) -> None:
    assert regressor.noise_ == pytest.approx(3.0, rel=0.2)
    x, y = curve(2000)
    mean = regressor.predict(x[400:])
    assert np.sqrt(np.mean((mean - y[400:]) ** 2)) == pytest.approx(3.0, rel=0.15)
    low, high = regressor.predict_interval(x[400:], 0.9)
    assert 0.85 < np.mean((low <= y[400:]) & (y[400:] <= high)) < 0.96


def test_the_standard_deviation_is_made_of_its_two_parts(regressor: BayesianRegressor) -> None:
    x = np.array([[0.0], [1.0], [30.0]])
    _, std = regressor.predict(x, return_std=True)
    found = regressor.predict_distribution(x)
    parts = np.hypot(found.epistemic_std.numpy(), found.aleatoric_std.numpy())[:, 0]
    np.testing.assert_allclose(std, parts, rtol=1e-6)
    np.testing.assert_allclose(found.aleatoric_std.numpy(), regressor.noise_, rtol=1e-5)
    assert found.epistemic_std[2, 0] > 3 * found.epistemic_std[0, 0]  # far from all data


def test_quantiles_and_intervals_are_the_same_numbers(regressor: BayesianRegressor) -> None:
    x = np.linspace(-2, 2, 5)[:, None]
    several = regressor.predict_quantiles(x, [0.05, 0.5, 0.95])
    low, high = regressor.predict_interval(x, 0.9)
    np.testing.assert_allclose(several[:, 0], low)
    np.testing.assert_allclose(several[:, 2], high)
    np.testing.assert_allclose(regressor.predict_quantiles(x, 0.5), several[:, 1])
    with pytest.raises(ValueError, match="level must lie"):
        regressor.predict_interval(x, 90)
    with pytest.raises(ValueError, match=r"q must be a number in \(0, 1\), or several; got 'median'"):
        regressor.predict_quantiles(x, "median")


def test_what_it_predicts_can_be_evaluated(regressor: BayesianRegressor) -> None:
    x, y = curve(300)
    scores = evaluate(regressor.predict_distribution(x), y)
    assert scores["rmse"] == pytest.approx(np.sqrt(np.mean((regressor.predict(x) - y) ** 2)), rel=1e-5)
    assert 0 < scores["crps"] < scores["rmse"]


def test_noise_by_row_finds_where_the_values_are_noisy() -> None:
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, (600, 1))
    y = np.where(x[:, 0] > 0, 2.0, 0.2) * rng.standard_normal(600)
    found = BayesianRegressor(noise="by row", members=2, hidden=(16,), epochs=30, lr=0.02, random_state=0)
    std = found.fit(x, y).predict(np.array([[-0.5], [0.5]]), return_std=True)[1]
    assert std[1] > 4 * std[0]
    assert found.noise_ is None


def test_several_outputs_are_predicted_together() -> None:
    x, y = make_regression(60, 4, n_targets=2, random_state=0)
    found = BayesianRegressor(epochs=3, **SMALL).fit(x, y)
    mean, std = found.predict(x, return_std=True)
    assert mean.shape == std.shape == y.shape
    assert found.noise_.shape == (2,)
    assert found.predict_quantiles(x, [0.1, 0.9]).shape == (60, 2, 2)


def test_a_weight_of_zero_removes_a_row_and_weights_move_the_prediction() -> None:
    x, y = curve(60)
    zero = np.r_[np.ones(40), np.zeros(20)]
    options = {"epochs": 3, "early_stopping": False, **SMALL}
    with_zeros = BayesianRegressor(**options).fit(x, y, sample_weight=zero)
    without = BayesianRegressor(**options).fit(x[:40], y[:40])
    np.testing.assert_allclose(with_zeros.predict(x), without.predict(x))
    labels = np.r_[np.zeros(50, int), np.ones(50, int)]
    blind = np.zeros((100, 1))  # nothing to tell the classes by: the share of the weights is all there is
    heavy = np.where(labels == 1, 3.0, 1.0)
    found = BayesianClassifier(epochs=40, lr=0.05, early_stopping=False, **SMALL)
    assert found.fit(blind, labels, sample_weight=heavy).predict_proba(blind)[0, 1] == pytest.approx(
        0.75, abs=0.05
    )


def test_a_module_is_copied_and_a_function_of_two_sizes_makes_one() -> None:
    x, y = make_classification(80, 5, random_state=0)
    net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
    before = [p.detach().clone() for p in net.parameters()]
    found = BayesianClassifier(net, epochs=5, random_state=0).fit(x, y)
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    again = clone(found).fit(x, y)
    np.testing.assert_array_equal(found.predict_proba(x), again.predict_proba(x))
    made = BayesianRegressor(nn.Linear, epochs=5, random_state=0).fit(x, y.astype(float))
    assert made.predict(x).shape == (80,)
    with pytest.raises(TypeError, match="network must be a module"):
        BayesianClassifier("mlp").fit(x, y)


def test_a_module_of_the_wrong_width_is_named_in_a_sentence() -> None:
    x, y = make_classification(80, 5, random_state=0)
    with pytest.raises(ValueError, match=r"first layer takes 4 columns"):
        BayesianClassifier(nn.Linear(4, 2), epochs=1).fit(x, y)


def test_pipelines_searches_and_cross_validation() -> None:
    x, y = make_classification(80, 5, random_state=0)
    frame = pd.DataFrame(x, columns=list("abcde")).assign(colour=np.where(y == 1, "red", "blue"))
    encode = make_column_transformer((OneHotEncoder(), ["colour"]), remainder="passthrough")
    pipe = make_pipeline(encode, BayesianClassifier(epochs=5, lr=0.02, **SMALL))
    assert cross_val_score(pipe, frame, y, cv=2, scoring="neg_log_loss").min() > -0.6
    search = GridSearchCV(BayesianClassifier(epochs=2, **SMALL), {"hidden": [(4,), (8, 8)]}, cv=2)
    assert search.fit(x, y).best_params_["hidden"] in [(4,), (8, 8)]


def test_a_search_may_give_numbers_of_numpy_and_one_width_alone() -> None:
    x, y = curve(60)
    grid = {"epochs": np.arange(1, 3), "members": np.array([2]), "lr": np.logspace(-3, -2, 2)}
    search = GridSearchCV(
        BayesianRegressor(hidden=8, draws=4, random_state=0), grid, cv=2, error_score="raise"
    )
    assert search.fit(x, y).best_params_["epochs"] in (1, 2)
    layers = search.best_estimator_.model_.posterior.model.weights
    assert [tuple(w.shape[-2:]) for w in layers] == [(1, 8), (8, 1)]


def test_a_column_of_texts_is_refused_with_a_remedy() -> None:
    frame = pd.DataFrame({"size": [1.0, 2.0, 3.0, 4.0], "colour": ["red", "blue", "red", "blue"]})
    with pytest.raises(ValueError, match="OneHotEncoder"):
        BayesianClassifier(epochs=1).fit(frame, [0, 1, 0, 1])
    frame["colour"] = frame["colour"].astype("category")
    with pytest.raises(ValueError, match="'colour'"):
        BayesianClassifier(epochs=1).fit(frame, [0, 1, 0, 1])
    frame["colour"] = pd.date_range("2024", periods=4)
    with pytest.raises(ValueError, match=r"'colour' hold dates or times; .*dayofyear"):
        BayesianClassifier(epochs=1).fit(frame, [0, 1, 0, 1])


def test_joblib_brings_back_the_same_estimator() -> None:
    x, y = load_iris(return_X_y=True, as_frame=True)
    found = BayesianClassifier(epochs=3, **SMALL).fit(x, y.map({0: "a", 1: "b", 2: "c"}))
    assert list(found.feature_names_in_) == list(x.columns)
    assert found.predict(x)[0] in ("a", "b", "c")
    file = io.BytesIO()
    joblib.dump(found, file)
    file.seek(0)
    np.testing.assert_array_equal(joblib.load(file).predict_proba(x), found.predict_proba(x))


def test_the_best_epoch_is_chosen_on_held_out_rows_unless_there_are_few() -> None:
    x, y = curve(60)
    assert "validation_mse" in BayesianRegressor(epochs=3, **SMALL).fit(x, y).history_[0]
    assert "validation_mse" not in BayesianRegressor(epochs=3, **SMALL).fit(x[:25], y[:25]).history_[0]
    alone = BayesianRegressor(epochs=3, early_stopping=False, **SMALL).fit(x, y)
    assert "validation_mse" not in alone.history_[0]
    assert alone.n_iter_ == 3
    stopped = BayesianRegressor(epochs=60, patience=2, lr=0.1, **SMALL).fit(x, y)
    assert stopped.n_iter_ < 60


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"method": "proximl"}, "did you mean 'proximal'"),
        ({"noise": "none"}, "there is no noise called 'none'"),
        ({"validation_fraction": 1.5}, "strictly between 0 and 1"),
        ({"lr": -1.0}, "lr must be positive"),
        ({"draws": 0}, "draws must be at least 1"),
        ({"members": 0}, "members must be at least 1"),
        ({"method": None}, "there is no method called 'None'"),
        ({"hidden": "64,64"}, "a width in hidden must be a whole number; got '64,64'"),
        ({"scale": "minmax"}, "scale must be True or False; got 'minmax'"),
        (
            {"network": lambda inputs: nn.Linear(inputs, 1)},
            "network must take the numbers of inputs and outputs",
        ),
    ],
)
def test_a_wrong_setting_ends_in_a_sentence(options: dict[str, Any], sentence: str) -> None:
    x, y = curve(40)
    with pytest.raises((TypeError, ValueError), match=sentence):
        BayesianRegressor(**options).fit(x, y)


def test_a_module_in_double_is_trained_in_double() -> None:
    x, y = curve(40)
    found = BayesianRegressor(nn.Linear(1, 1).double(), epochs=2, random_state=0).fit(x, y)
    assert found.predict_distribution(x).outputs.dtype == torch.float64
    assert next(found.model_.posterior.model.parameters()).dtype == torch.float64


@pytest.mark.parametrize(("word", "meant"), [("learning_rate", "lr"), ("max_epochs", "epochs")])
def test_an_argument_of_another_library_is_answered_with_the_one_here(word: str, meant: str) -> None:
    with pytest.raises(
        TypeError, match=rf"argument of BayesianRegressor called '{word}'; did you mean '{meant}'\?"
    ):
        BayesianRegressor(**{word: 1})
    assert meant in inspect.signature(BayesianRegressor).parameters  # what a notebook shows


def test_the_noise_in_the_status_is_that_of_the_target() -> None:
    x, y = curve(60)
    for early_stopping in (True, False):
        found = BayesianRegressor(epochs=2, early_stopping=early_stopping, **SMALL).fit(x, y)
        assert f"noise {found.noise_:.3g};" in found.status_
