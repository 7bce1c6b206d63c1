"""Where the rows of a training run go: TensorBoard, an object with `log(dict)`, or a function."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

__all__ = ["Log", "TensorBoard", "logs"]

Row = dict[str, float]
Log = Callable[[Row], object]


class TensorBoard:
    """Writes the rows of a run as TensorBoard's scalars; `tensorboard --logdir folder` shows them.

    Arguments:
        folder: one folder for each run, so that the runs are told apart.

    It needs tensorboard: `pip install 'bayescore[tensorboard]'`.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError:
            raise ImportError("TensorBoard is missing: pip install 'bayescore[tensorboard]'") from None
        self.folder = os.fspath(folder)
        self._make_writer = SummaryWriter
        self._writer: Any = None  # a run that is refused leaves no file

    def log(self, row: Row) -> None:
        """Write the numbers of an epoch, and flush them."""
        if self._writer is None:
            self._writer = self._make_writer(self.folder)
        for name, value in row.items():
            if name != "epoch":
                self._writer.add_scalar(name, value, int(row["epoch"]))
        self._writer.flush()


def logs(callbacks: Any) -> list[Log]:
    """What is called with a copy of every row, from one callback or several.

    >>> rows = []
    >>> [log({"epoch": 1.0}) for log in logs(rows.append)]
    [None]
    """
    if callbacks is None:
        return []
    several = callbacks if isinstance(callbacks, list | tuple) else [callbacks]
    return [_log(each) for each in several]


def _log(callback: Any) -> Log:
    named = getattr(callback, "log", None)
    if isinstance(callback, type) or not callable(named or callback):
        got = f"the class {callback.__name__}" if isinstance(callback, type) else repr(callback)
        raise TypeError(
            "a callback must be a function of a row of the history or an object with log(dict), such as "
            f"bnn.TensorBoard('logs') or a run of wandb; got {got}"
        )
    return named if callable(named) else callback
