"""The files of a fit: checked before it runs, written atomically."""

from __future__ import annotations

import csv
import io
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from bayescore.cli.terminal import FAILED, UserError, console, errors_as_sentences
from bayescore.inference.export import model_of
from bayescore.inference.result import Fit
from bayescore.io import replacing, write_bytes
from bayescore.plotting import plot_fit, plot_marginals

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "check_fit_files",
    "check_folder",
    "check_plot",
    "check_table",
    "check_weights",
    "report_written",
    "write_figure",
    "write_fit_files",
    "write_table",
]

_OUTPUTS = {".nc": ("arviz", "arviz"), ".safetensors": ("safetensors", "")}
_FIGURES = dict.fromkeys((".png", ".pdf", ".svg"), ("matplotlib", "plot"))
_DRAWS = 4000


def check_fit_files(output: Path | None, plot: Path | None, draws: int | None, resample: bool) -> None:
    """Refuse files that could not be written after the fit, and options on draws without a file for draws."""
    if output is not None:
        _check("--output", output, _OUTPUTS)
        if (draws is not None or resample) and output.suffix != ".nc":
            option = "--output-draws" if draws is not None else "--resample"
            raise UserError(
                f"{option} goes with an --output that ends in .nc; {output.name} keeps the whole density "
                "instead"
            )
    elif draws is not None or resample:
        option = "--output-draws says how many" if draws is not None else "--resample says which"
        raise UserError(f"{option} draws the output holds; name it with --output fit.nc")
    if plot is not None:
        check_plot(plot)


def check_plot(path: Path, option: str = "--plot") -> None:
    """Refuse a picture that could not be written after the fit."""
    _check(option, path, _FIGURES)


def check_folder(option: str, path: Path) -> None:
    """Refuse a folder that could not be made or written after the fit."""
    try:
        if path.exists() and not path.is_dir():
            raise UserError(f"{option} {path} is a file, and a model is a folder; name another")
        near = next(place for place in (path, *path.absolute().parents) if place.is_dir())
        with tempfile.TemporaryDirectory(dir=near, prefix=".bayescore-"):
            pass
    except OSError as problem:
        name = str(path)[-100:]
        raise UserError(f"{option} {name} cannot be written: {problem.strerror}") from problem


def check_weights(option: str, path: Path) -> None:
    """Refuse a file for a network's posterior or checkpoint that could not be written."""
    _check(option, path, {".safetensors": ("safetensors", "")})


def check_table(path: Path, option: str = "--output") -> None:
    """Refuse a table that could not be written after the predictions."""
    _check(option, path, {".csv": ("csv", "")})


def write_fit_files(
    fit: Fit, output: Path | None, plot: Path | None, draws: int | None, resample: bool
) -> None:
    """Write ArviZ's NetCDF or the fit itself, by the suffix, and the picture."""
    if output is None and plot is None:
        return
    if not fit.family.flat().isfinite().all():
        raise UserError("nothing was written: the parameters of the fit are not finite", FAILED)
    with errors_as_sentences():
        if output is not None and output.suffix == ".safetensors":
            fit.save(output)
        elif output is not None:
            data = fit.to_arviz(draws=draws or _DRAWS, seed=fit.seed, resample=resample)
            with replacing(output) as part:
                data.to_netcdf(str(part))
        if plot is not None:
            # a model's quantities have names, and a panel each
            named = hasattr(model_of(fit.target), "to_posterior")
            write_figure(plot_marginals(fit) if named else plot_fit(fit), plot)


def write_figure(figure: Figure, path: Path) -> None:
    """Write a picture."""
    with replacing(path) as part:
        figure.savefig(part, dpi=150)


def write_table(rows: Sequence[Mapping[str, object]], path: Path) -> None:
    """Write rows as CSV; the keys of the first are the columns."""
    text = io.StringIO()
    table = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write_bytes(path, text.getvalue().encode())


def report_written(*paths: Path | None) -> None:
    """Say which files were written."""
    for path in paths:
        if path is not None:
            console().print(f"wrote {path}", soft_wrap=True, highlight=False, markup=False)


def _check(option: str, path: Path, kinds: dict[str, tuple[str, str]]) -> None:
    try:
        if path.is_dir():
            raise UserError(f"{option} {path} is a folder; name a file in it")
        if path.suffix not in kinds:
            raise UserError(f"{option} must end in {' or '.join(kinds)}; got {path.name[-100:]!r}")
        module, extra = kinds[path.suffix]
        if find_spec(module) is None:
            raise UserError(f"{option} {path.name} needs {module}: pip install 'bayescore[{extra}]'")
        if not path.parent.is_dir():
            raise UserError(
                f"{option} {path} cannot be written: there is no folder {path.parent}; make it first"
            )
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".bayescore-"):
            pass
    except OSError as problem:
        name = str(path)[-100:]
        raise UserError(f"{option} {name} cannot be written: {problem.strerror}") from problem
