"""What training recorded: one row for every epoch, and the same as a data frame."""

from __future__ import annotations

from typing import Any

__all__ = ["TrainingHistory"]


class TrainingHistory(list[dict[str, float]]):
    """Rows of epochs: epoch, loss, validation_nll or validation_mse if there is validation, seconds.

    >>> history = TrainingHistory([{"epoch": 1.0, "loss": 0.7, "seconds": 2.0}])
    >>> history.frame().loc[1, "loss"]
    np.float64(0.7)
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(
            f"a {type(self).__name__} has no {name}; it is a list of rows, one for every epoch; frame() "
            "makes a data frame of them, and bayescore.plotting.plot_training(fit) draws it"
        )

    def frame(self) -> Any:
        """A pandas data frame with one row for every epoch; `frame().plot()` draws it."""
        try:
            import pandas
        except ImportError:
            raise ImportError("a data frame needs pandas: pip install pandas") from None
        found = pandas.DataFrame(list(self))
        found["epoch"] = found["epoch"].astype(int)
        return found.set_index("epoch")
