"""The kinds of `fit`'s arguments: what is easily taken for another is refused with what to write instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.utils.data import Dataset

from bayescore.checks import unknown_name

__all__ = ["check_batches", "check_likelihood", "check_method", "check_model", "unknown_option"]

LOADER = "DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)"
#: words of other libraries for what is said elsewhere here
ELSEWHERE = {
    "batch_size": "the loader decides how many rows a batch has: DataLoader(..., batch_size=32)",
    "device": "a network is trained where it is: model.to('cuda')",
    "loss": "likelihood= says what the outputs mean, and the loss follows from it",
    "loss_fn": "likelihood= says what the outputs mean, and the loss follows from it",
    "metrics": "bayescore.metrics.evaluate(fit.predict(x), y) has them all",
    "optimizer": "method= names it, such as 'proximal', and its options are keywords",
    "shuffle": "the loader shuffles: DataLoader(..., shuffle=True)",
    "validation_split": "split the data yourself, by torch.utils.data.random_split, and pass validation=",
}


def check_model(model: Any) -> None:
    """Raise unless `model` is a module with parameters."""
    if isinstance(model, type):
        raise TypeError(f"model must be a module, not the class {model.__name__}; call it to make one")
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model must be a torch.nn.Module; got a {type(model).__name__}: the order is fit(model, loader)"
        )
    if not any(True for _ in model.parameters()):
        raise ValueError(
            f"the module has no parameters to train ({type(model).__name__}); pass one with weights"
        )


def check_batches(name: str, batches: Any) -> None:
    """Raise unless `batches` can be gone through, batch by batch."""
    if isinstance(batches, Dataset):
        raise TypeError(f"{name}: got a data set where batches are needed; wrap it in a DataLoader")
    pair = isinstance(batches, tuple | list) and any(_is_array(part) for part in batches)
    if _is_array(batches) or pair or isinstance(batches, str | Mapping) or not _is_iterable(batches):
        what = "a pair of arrays" if pair else f"a {type(batches).__name__}"
        share = ", after torch.utils.data.random_split" if isinstance(batches, int | float) else ""
        raise TypeError(f"{name} must be batches (inputs, targets); got {what}: make them by {LOADER}{share}")


def _is_array(value: Any) -> bool:
    return isinstance(value, Tensor) or (hasattr(value, "shape") and hasattr(value, "dtype"))


def _is_iterable(value: Any) -> bool:
    return isinstance(value, Iterable) or hasattr(value, "__getitem__")


def check_likelihood(likelihood: Any) -> None:
    """Raise if batches or targets have been given where the likelihood belongs."""
    if _is_array(likelihood) or (_is_iterable(likelihood) and not isinstance(likelihood, str | nn.Module)):
        raise TypeError(
            f"likelihood must be a name, a Likelihood or a callable; got a {type(likelihood).__name__}: "
            f"targets come with their inputs, in batches, {LOADER}, and held-out batches are validation="
        )


def check_method(method: Any, names: Mapping[str, type[Any]]) -> None:
    """Raise unless `method` is a text; the optimizers have names."""
    if isinstance(method, str):
        return
    kind = method if isinstance(method, type) else type(method)
    name = next((name for name, known in names.items() if kind.__name__ == known.__name__), None)
    got = f"the class {kind.__name__}" if isinstance(method, type) else f"a {kind.__name__}"
    remedy = f"method={name!r}, and its options as keywords" if name else f"one of {', '.join(names)}"
    raise TypeError(
        f"method must be a name; got {got}: write {remedy} (an optimizer of your own needs a loop)"
    )


def unknown_option(kind: str, word: str, options: Iterable[str], others: Iterable[str]) -> ValueError:
    """The error for a keyword that neither the method nor `fit` has."""
    if word in ELSEWHERE:
        return ValueError(f"there is no option called {word!r}; {ELSEWHERE[word]}")
    return unknown_name(f"option of {kind}", word, options, others)
