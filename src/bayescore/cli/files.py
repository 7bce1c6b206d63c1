"""Where a fit goes: checked before it runs, written whole or not at all."""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from bayescore.cli.errors import UserError
from bayescore.inference.export import model_of
from bayescore.inference.result import Fit
from bayescore.io import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["check_output", "check_plot", "check_weights", "write_figure", "write_output", "write_plot"]

_OUTPUTS = {".nc": ("arviz", "arviz"), ".safetensors": ("safetensors", "")}
_PICTURES = dict.fromkeys((".png", ".pdf", ".svg"), ("matplotlib", "plot"))


def check_output(path: Path, draws: int | None, resample: bool = False) -> None:
    """Refuse an output that could not be written after the fit."""
    _check("--output", path, _OUTPUTS)
    if (draws is not None or resample) and path.suffix != ".nc":
        option = "--draws" if draws is not None else "--resample"
        raise UserError(
            f"{option} goes with an --output that ends in .nc; {path.name} keeps the whole density instead"
        )


def check_plot(path: Path) -> None:
    """Refuse a picture that could not be written after the fit."""
    _check("--plot", path, _PICTURES)


def check_weights(path: Path) -> None:
    """Refuse a file for a network's posterior that could not be written after training."""
    _check("--output", path, {".safetensors": ("safetensors", "")})


def write_output(fit: Fit, path: Path, draws: int | None, resample: bool = False) -> None:
    """ArviZ's NetCDF or the fit itself, by the suffix."""
    if path.suffix == ".safetensors":
        fit.save(path)
        return
    data = fit.to_arviz(draws=draws or 4000, seed=fit.seed, resample=resample)
    with replacing(path) as part:
        data.to_netcdf(str(part))


def write_plot(fit: Fit, path: Path) -> None:
    """The picture of a fit: its marginals by name where the model has names."""
    from bayescore.plotting.fits import plot_fit
    from bayescore.plotting.marginals import plot_marginals

    figure = plot_marginals(fit) if hasattr(model_of(fit.target), "to_posterior") else plot_fit(fit)
    write_figure(figure, path)


def write_figure(figure: Figure, path: Path) -> None:
    """Any picture."""
    with replacing(path) as part:
        figure.savefig(part, dpi=150)


def _check(option: str, path: Path, kinds: dict[str, tuple[str, str]]) -> None:
    if path.is_dir():
        raise UserError(f"{option} {path} is a folder; name a file in it")
    if path.suffix not in kinds:
        raise UserError(f"{option} must end in {' or '.join(kinds)}; got {path.name!r}")
    module, extra = kinds[path.suffix]
    if find_spec(module) is None:
        raise UserError(f"{option} {path.name} needs {module}: pip install 'bayescore[{extra}]'")
    if not path.parent.is_dir():
        raise UserError(f"{option} {path} cannot be written: there is no folder {path.parent}; make it first")
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".bayescore-"):
            pass
    except OSError as problem:
        raise UserError(f"{option} {path} cannot be written: {path.parent}: {problem.strerror}") from problem
