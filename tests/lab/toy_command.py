"""The command line with the toy experiments only: `python toy_command.py reproduce toy --out DIR`.

It imports no torch, whose import would cost every process seconds; worker processes load this file first.
"""

from __future__ import annotations

from pathlib import Path

import typer
from toy_experiment import EXPERIMENT, FITS, TWIN

from bayescore_lab.commands import add_commands
from bayescore_lab.engine import plan, run_plans

TOYS = {toy.id: toy for toy in (EXPERIMENT, TWIN, FITS)}

app = typer.Typer()
add_commands(app, find=lambda: TOYS)


@app.command()
def record(profile: str, out: Path, toy: str = "toy") -> None:
    """Run a toy on two processes and draw nothing."""
    run_plans([plan(TOYS[toy], profile)], out, 2)


if __name__ == "__main__":
    app()
