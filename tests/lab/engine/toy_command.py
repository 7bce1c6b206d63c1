"""The command line with the toy experiments only: `python toy_command.py reproduce toy --out DIR`.

The engine is loaded without the library around it, whose imports would cost every process seconds; worker
processes load this file first and so do the same.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

if "bayescore" not in sys.modules:
    bare = ModuleType("bayescore")
    bare.__path__ = list(find_spec("bayescore").submodule_search_locations)
    sys.modules["bayescore"] = bare

import typer
from toy_experiment import EXPERIMENT, TWIN

from bayescore_lab.engine import plan, run_plans
from bayescore_lab.engine.commands import add_commands

app = typer.Typer()
add_commands(app, find=lambda: {"toy": EXPERIMENT, "toy-twin": TWIN})


@app.command()
def record(profile: str, out: Path) -> None:
    """Run the toy on two processes and draw nothing."""
    run_plans([plan(EXPERIMENT, profile)], out, 2)


if __name__ == "__main__":
    app()
