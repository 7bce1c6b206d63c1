"""`BayesianClassifier` and `BayesianRegressor`: estimators for scikit-learn, with a posterior over weights.

Predictions average over draws of the weights with a fixed seed, so that they are repeatable. What a regressor
calls its standard deviation holds both parts: the noise of the values and what is not known of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import nn

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
except ImportError as missing:
    raise ImportError("the estimators need scikit-learn: pip install 'bayescore[sklearn]'") from missing

from bayescore.checks import KnownKeywords, check_count
from bayescore.posteriors.prediction import ClassPrediction, ValuePrediction
from bayescore.tables.rows import RowSettings, RowsModel, fit_rows

__all__ = ["BayesianClassifier", "BayesianRegressor"]

Floats = NDArray[np.float64]
Network = nn.Module | Callable[[int, int], nn.Module] | None


class _BayesianEstimator(KnownKeywords, BaseEstimator):  # type: ignore[misc]
    """What both estimators share: the arguments of the classifier, training and prediction."""

    model_: RowsModel
    n_features_in_: int

    def __init__(
        self,
        network: Network = None,
        *,
        method: str = "proximal",
        hidden: Sequence[int] = (64, 64),
        members: int = 8,
        lr: float | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        early_stopping: bool = True,
        validation_fraction: float = 0.15,
        patience: int | None = None,
        scale: bool = True,
        draws: int = 30,
        random_state: Any = None,
    ) -> None:
        self.network = network
        self.method = method
        self.hidden = hidden
        self.members = members
        self.lr = lr
        self.epochs = epochs
        self.batch_size = batch_size
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.scale = scale
        self.draws = draws
        self.random_state = random_state

    def _fit_rows(self, x: Floats, y: NDArray[Any], classes: int, weights: Any, noise: str) -> Self:
        check_count("draws", self.draws)
        if len(x) < 2:
            raise ValueError(f"training needs two rows or more; got n_samples={len(x)}")
        for name in ("early_stopping", "scale"):
            if not isinstance(getattr(self, name), bool | np.bool_):
                raise TypeError(f"{name} must be True or False; got {getattr(self, name)!r}")
        settings = RowSettings(
            method=self.method,
            network=self.network,
            hidden=_widths(self.hidden),
            members=_plain(self.members),
            noise=noise,
            epochs=_plain(self.epochs),
            batch_size=_plain(self.batch_size),
            early_stopping=bool(self.early_stopping),
            validation_fraction=_plain(self.validation_fraction),
            patience=_plain(self.patience),
            scale=bool(self.scale),
            seed=int(check_random_state(self.random_state).randint(2**31 - 1)),
            lr=_plain(self.lr),
        )
        self.model_ = fit_rows(x, y, classes, settings, weights=weights)
        self.status_ = self.model_.status
        self.history_ = self.model_.history
        self.n_iter_ = len(self.model_.history)
        return self

    def _numbers(self, X: Any, **options: Any) -> Any:
        """Rows of numbers, and y if it is given; columns of a frame that hold none are named."""
        kinds = getattr(X, "dtypes", None)
        if kinds is not None and hasattr(kinds, "items"):
            found = {str(name): getattr(kind, "kind", "O") for name, kind in kinds.items()}
            times = [name for name, kind in found.items() if kind in "Mm"]
            others = [name for name, kind in found.items() if kind in "OSU"]
            if times:
                raise ValueError(
                    f"the columns {', '.join(map(repr, times[:5]))} hold dates or times; make numbers of "
                    "them, such as frame['date'].dt.dayofyear or the days since the first"
                )
            if others:
                raise ValueError(
                    f"the columns {', '.join(map(repr, others[:5]))} hold no numbers; encode them in a "
                    "pipeline: make_pipeline(make_column_transformer((OneHotEncoder("
                    "handle_unknown='ignore'), columns), remainder='passthrough'), estimator)"
                )
        return validate_data(self, X, dtype=np.float64, **options)

    def _weights(self, sample_weight: Any, x: Floats) -> Floats | None:
        if sample_weight is None:
            return None
        found: Floats = _check_sample_weight(sample_weight, x, dtype=np.float64, ensure_non_negative=True)
        if not found.sum() > 0:
            raise ValueError("sample_weight must have a positive entry; all of them are zero")
        return found

    def predict_distribution(self, X: ArrayLike) -> Any:
        """The whole prediction: a `ClassPrediction`, or a `ValuePrediction` in units of the target.

        It has the parts of the uncertainty by name, and is what `bayescore.metrics.evaluate` and the plots
        take.
        """
        check_is_fitted(self)
        x = self._numbers(X, reset=False)
        return self.model_.predict(x, self.draws)


def _plain(value: Any) -> Any:
    """A number of numpy, as searches over settings give them, as one of Python."""
    return value.item() if isinstance(value, np.generic) else value


def _widths(hidden: Any) -> tuple[int, ...]:
    """The widths of the hidden layers; one number is one layer."""
    if isinstance(hidden, str) or not np.iterable(hidden):
        hidden = (hidden,)
    widths = tuple(_plain(width) for width in hidden)
    for width in widths:
        check_count("a width in hidden", width)
    return widths


class BayesianClassifier(ClassifierMixin, _BayesianEstimator):  # type: ignore[misc]
    """A Bayesian network for classes: calibrated probabilities from a posterior over its weights.

    Arguments:
        network: None for the default, small perceptrons side by side; a torch module (it is copied); or a
            function (inputs, outputs) -> module. A module returns logits, one for each class.
        method: of `bayescore.nn.fit`.
        hidden, members: of the default network: widths of its layers, and how many stand side by side.
        lr: learning rate; None: 0.005 for the default network and method, otherwise the method's own.
        epochs: passes over the data; None: as many as make about 600 steps.
        batch_size: rows per step; None: a twentieth of the rows, between 16 and 256.
        early_stopping: keep the epoch that is best on a held-out share of the rows (not below 30 rows).
        validation_fraction: that share.
        patience: epochs without improvement there before training stops; None: never.
        scale: standardise the inputs.
        draws: of the weights, for a prediction.
        random_state: of the split, the initial weights, the batches and the noise.

    After `fit` it has classes_, n_features_in_, feature_names_in_ (of a frame), n_iter_, history_ (one
    row per epoch), status_ (how training went, in a sentence) and model_ (the posterior in it).

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> BayesianClassifier(epochs=5, random_state=0).fit(X, y).predict_proba(X).shape
    (150, 3)
    """

    classes_: NDArray[Any]

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train on rows X (n, D) with labels y (n,); a row of weight 2 counts as two."""
        x, labels = self._numbers(X, y=y)
        check_classification_targets(labels)
        weights = self._weights(sample_weight, x)
        if weights is not None:
            x, labels, weights = x[weights > 0], labels[weights > 0], weights[weights > 0]
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"a classifier needs two classes or more; y has one class, {self.classes_[0]!r}")
        return self._fit_rows(x, numbers, len(self.classes_), weights, "learned")

    def predict_proba(self, X: ArrayLike) -> Floats:
        """Probabilities (n, K) of the classes in the order of `classes_`."""
        found: ClassPrediction = self.predict_distribution(X)
        probs: Floats = found.probs.double().cpu().numpy()
        return probs / probs.sum(1, keepdims=True)

    def predict_log_proba(self, X: ArrayLike) -> Floats:
        """The logarithm of `predict_proba`."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The most probable class of every row."""
        probs = self.predict_proba(X)
        found: NDArray[Any] = self.classes_[probs.argmax(1)]
        return found


class BayesianRegressor(RegressorMixin, _BayesianEstimator):  # type: ignore[misc]
    """A Bayesian network for values: a mean, a standard deviation, intervals and quantiles.

    Arguments:
        noise: "learned", one standard deviation of the noise for all rows, or "by row", where the network
            has a second output for every value, the logarithm of it.
        others: as in `BayesianClassifier`; a module of one's own returns the values (n, outputs), followed
            by as many log standard deviations if the noise is "by row".

    After `fit` it has n_features_in_, feature_names_in_ (of a frame), noise_ (the learned noise in units
    of y; a number, or one for each of several outputs; None if it is by row), n_iter_, history_, status_ and
    model_.

    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> mean, std = BayesianRegressor(epochs=5, random_state=0).fit(X, y).predict(X, return_std=True)
    >>> mean.shape, bool((std > 0).all())
    ((442,), True)
    """

    def __init__(
        self,
        network: Network = None,
        *,
        method: str = "proximal",
        noise: str = "learned",
        hidden: Sequence[int] = (64, 64),
        members: int = 8,
        lr: float | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        early_stopping: bool = True,
        validation_fraction: float = 0.15,
        patience: int | None = None,
        scale: bool = True,
        draws: int = 30,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            network,
            method=method,
            hidden=hidden,
            members=members,
            lr=lr,
            epochs=epochs,
            batch_size=batch_size,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            patience=patience,
            scale=scale,
            draws=draws,
            random_state=random_state,
        )
        self.noise = noise

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train on rows X (n, D) with values y (n,) or (n, outputs); a row of weight 2 counts as two."""
        x, values = self._numbers(X, y=y, multi_output=True, y_numeric=True)
        weights = self._weights(sample_weight, x)
        self._one_output = values.ndim == 1
        values = np.asarray(values, dtype=np.float64).reshape(len(x), -1)
        self._fit_rows(x, values, 0, weights, self.noise)
        self.noise_ = self._noise()
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _noise(self) -> float | Floats | None:
        sd = self.model_.noise_sd
        return float(sd[0]) if sd is not None and self._one_output else sd

    def predict(self, X: ArrayLike, return_std: bool = False) -> Floats | tuple[Floats, Floats]:
        """The mean of every row; with `return_std` also the standard deviation, noise and weights together.

        `predict_distribution(X)` has the two parts apart, as epistemic_std and aleatoric_std.
        """
        found: ValuePrediction = self.predict_distribution(X)
        mean = self._plain(found.mean)
        return (mean, self._plain(found.std)) if return_std else mean

    def predict_quantiles(self, X: ArrayLike, q: float | Sequence[float] = (0.05, 0.5, 0.95)) -> Floats:
        """Quantiles of every row: (n,) for one q, (n, len(q)) for several; a last dimension for outputs."""
        found: ValuePrediction = self.predict_distribution(X)
        shares = np.asarray(q)
        if shares.dtype.kind not in "fiu" or not shares.size:
            raise ValueError(f"q must be a number in (0, 1), or several; got {q!r}")
        if shares.ndim == 0:
            return self._plain(found.quantile(float(shares)))
        return np.stack([self._plain(found.quantile(float(one))) for one in shares.ravel()], 1)

    def predict_interval(self, X: ArrayLike, level: float = 0.9) -> tuple[Floats, Floats]:
        """The lower and upper ends of central intervals that hold the value with probability `level`."""
        found: ValuePrediction = self.predict_distribution(X)
        low, high = found.interval(level)
        return self._plain(low), self._plain(high)

    def _plain(self, values: Any) -> Floats:
        found: Floats = values.double().cpu().numpy()
        return found[:, 0] if self._one_output else found
