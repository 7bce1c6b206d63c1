"""`bayescore list` and `bayescore cite`: what there is, in one line each, and how to cite it."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from bayescore.checks import unknown_name
from bayescore.cli.names import kinds
from bayescore.cli.terminal import UserError, console

__all__ = ["bibtex", "cite", "show_list"]

_OWN = (
    "or model.stan, a Stan program with --data data.json; posteriordb:NAME, a posterior of PosteriorDB; "
    "path/to/file.py:function, a torch log density of your own. In brackets the dimension without --dim"
)

_PAPER = """\
@article{kim2026score,
  title         = {Large-scale Score-based Variational Posterior Inference for {Bayesian} Deep Neural
                   Networks},
  author        = {Kim, Minyoung},
  year          = {2026},
  journal       = {arXiv preprint arXiv:2602.05873},
  eprint        = {2602.05873},
  archiveprefix = {arXiv},
  doi           = {10.48550/arXiv.2602.05873}
}
"""
_SOFTWARE = """\
@software{bayescore,
  title   = {{bayescore}: score-based variational inference in {PyTorch}},
  author  = {{The bayescore authors}},
  version = {%s},
  license = {Apache-2.0},
  note    = {Implements the method of arXiv:2602.05873}
}
"""


def show_list(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="targets, families or methods; all three unless given.",
            autocompletion=lambda: ["targets", "families", "methods"],
        ),
    ] = None,
) -> None:
    """List the targets, families and methods, one line each."""
    known = kinds()
    if kind is not None and kind not in known:
        raise UserError(str(unknown_name("list", kind, known)))
    out = console()
    for title in [kind] if kind is not None else known:
        table = Table(box=SIMPLE_HEAD, show_edge=False)
        table.add_column(title, no_wrap=True, style="bold")
        table.add_column("")
        for name, line in known[title].items():
            table.add_row(Text(name), Text(line))
        out.print(table)
        if title == "targets":
            out.print(Text(f" {_OWN}", "dim"), soft_wrap=True)
        if kind is None:
            out.print()


def bibtex() -> str:
    """BibTeX of the paper and of this version of the software."""
    return f"{_PAPER}\n{_SOFTWARE % version('bayescore')}"


def cite() -> None:
    """Print BibTeX entries of the paper and of this software."""
    typer.echo(bibtex(), nl=False)
