"""The command `bayescore`: fit from a shell, list what there is, cite it; benchmarks and experiments.

A user's mistake is one sentence on standard error and exit code 2, never a traceback. Commands that belong
to the benchmarks and the experiments are imported when they are asked for.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from bayescore.cli.errors import MISUSED, UserError, complain
from bayescore.cli.fit import fit_command
from bayescore.cli.listing import cite, show_list

__all__ = ["app", "main"]

#: commands that come from elsewhere, by the module that adds them
_LATER = {
    "bench": "bayescore_lab.commands",
    "reproduce": "bayescore_lab.commands",
    "report": "bayescore_lab.commands",
    "train": "bayescore.cli.train",
}


class _Commands(TyperGroup):
    """The commands of this package, and those of `_LATER` once they are asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *_LATER]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in _LATER and cmd_name not in self.commands:
            self.commands[cmd_name] = _later(cmd_name)
        return super().get_command(ctx, cmd_name)


def _later(name: str) -> Any:
    """A command of another package: an app of its own, or a function `add_commands` that fills one."""
    module = import_module(_LATER[name])
    outer = typer.Typer()
    if hasattr(module, "add_commands"):
        module.add_commands(outer)
    else:
        outer.add_typer(module.app, name=name)
        outer.callback()(lambda: None)  # without it, a single group would stand for the whole
    group = typer.main.get_command(outer)
    assert isinstance(group, TyperGroup)
    return group.commands[name]


app = typer.Typer(
    cls=_Commands,
    help="Score-based variational inference: fit any posterior whose log density you can differentiate.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("fit")(fit_command)
app.command("list")(show_list)
app.command()(cite)


def _show_version(wanted: bool) -> None:
    if wanted:
        from bayescore import __version__

        typer.echo(f"bayescore {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and leave."),
    ] = False,
) -> None:
    """Options of the whole command."""


def _value_given(sentence: str, words: Sequence[str]) -> str:
    """The word that an option could not take, where the sentence about it does not say it."""
    for option in re.findall(r"Invalid value for '(--[a-z-]+)'", sentence):
        for word, following in zip(words, [*words[1:], ""], strict=True):
            name, _, value = word.partition("=")
            given = value or following
            if name == option and given and repr(given) not in sentence:
                return f"; got {given!r}"
    return ""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; a mistake in its use becomes one sentence and exit code 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = app(words or ["--help"], prog_name="bayescore", standalone_mode=False)
    except UserError as problem:
        complain(str(problem), verbatim=problem.verbatim)
        sys.exit(problem.code)
    except Exception as problem:
        # what typer raises for a wrong option or argument, whichever click it is built on
        if not hasattr(problem, "format_message"):
            raise
        place = getattr(getattr(problem, "ctx", None), "command_path", "bayescore")
        sentence = problem.format_message().removeprefix("Invalid value: ").rstrip(".")
        if sentence:  # a group without a command has shown its help instead
            complain(f"{sentence}{_value_given(sentence, words)} ({place} --help explains)")
        sys.exit(getattr(problem, "exit_code", MISUSED))
    sys.exit(code or 0)
