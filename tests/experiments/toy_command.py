"""The command line with the toy experiments only: `python toy_command.py reproduce toy --out DIR`."""

from __future__ import annotations

import typer
from toy_experiment import EXPERIMENT, TWIN

from bayescore.experiments.commands import add_commands

app = typer.Typer()
add_commands(app, find=lambda: {"toy": EXPERIMENT, "toy-twin": TWIN})

if __name__ == "__main__":
    app()
