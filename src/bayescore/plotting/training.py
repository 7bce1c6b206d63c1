"""Pictures of training: the loss on training and validation data, epoch by epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bayescore.nn.history import TrainingHistory
from bayescore.nn.training import NetworkFit
from bayescore.plotting.style import figure_style, looks, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_training"]


def plot_training(fit: NetworkFit | TrainingHistory) -> Figure:
    """The losses of every epoch, and a line at the epoch whose posterior was kept.

    The training loss is under drawn weights, and validation of the averaged predictions. A history alone,
    such as an estimator's `history_`, has no such line.
    """
    history = fit if isinstance(fit, TrainingHistory) else getattr(fit, "history", None)
    if not isinstance(history, TrainingHistory):
        raise TypeError(
            f"plot_training draws what bnn.fit returns, or its history; got a {type(fit).__name__} "
            "(plot_fit draws the fit of a density)"
        )
    if not history:
        raise ValueError("there is nothing to draw: no epoch was finished")
    epochs = [row["epoch"] for row in history]
    names = [name for name in history[0] if name not in ("epoch", "seconds")]
    with figure_style():
        from matplotlib.ticker import MaxNLocator

        figure = new_figure(4.6, 2.8)
        axes = figure.subplots()
        for name, look in looks(names).items():
            values = [row.get(name, float("nan")) for row in history]
            axes.plot(epochs, values, color=look.colour, linestyle=look.line, label=name.replace("_", " "))
        if len(names) > 1 and isinstance(fit, NetworkFit):
            axes.axvline(fit.best_epoch, color="#888888", linewidth=1, label=f"kept: epoch {fit.best_epoch}")
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend()
    return figure
