"""The command `bayescore`: fit a target, check its calibration, train a network, forecast, predict, list
names, check the machine, cite; run the lab.

A user's mistake is one sentence on standard error and exit code 2, never a traceback. The help, `list`,
`cite` and the shell completion import neither torch nor the lab: a command imports them when it runs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from bayescore.cli.calibrate import calibrate_command
from bayescore.cli.doctor import doctor_command
from bayescore.cli.fit import fit_command
from bayescore.cli.forecast import forecast_command
from bayescore.cli.listing import cite, show_list
from bayescore.cli.predict import predict_command
from bayescore.cli.terminal import MISUSED, UserError, complain
from bayescore.cli.train import train_command

__all__ = ["app", "main"]

#: the commands of the lab, a separate package: their line in the help, and the module that defines them
_LAB = {
    "reproduce": (
        "Make tables and figures of the paper again; what was stopped continues where it was.",
        "bayescore_lab.commands",
    ),
    "report": (
        "Put all that was drawn on one page of HTML, claims and verdicts first.",
        "bayescore_lab.commands",
    ),
    "bench": ("Measure speed, side by side with peers.", "bayescore_lab.commands"),
}


class _Commands(TyperGroup):
    """The commands; a command of the lab is imported when it is run, not when it is listed or completed."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in _LAB and not ctx.resilient_parsing:
            self.commands[args[0]] = _lab_command(args[0])
        return super().resolve_command(ctx, args)


def _lab_command(name: str) -> Any:
    try:
        import_module("bayescore_lab")
    except ModuleNotFoundError as problem:
        if problem.name != "bayescore_lab":
            raise
        raise UserError(
            f"`bayescore {name}` comes with the package bayescore-lab, which is not installed; "
            "in a checkout of bayescore: pip install ./lab"
        ) from None
    module = import_module(_LAB[name][1])
    lab = typer.Typer()
    lab.callback()(lambda: None)  # without it, typer would turn a single command into the whole app
    if hasattr(module, "add_commands"):
        module.add_commands(lab)
    else:
        lab.add_typer(module.app, name=name)
    group = typer.main.get_command(lab)
    assert isinstance(group, TyperGroup)
    return group.commands[name]


def _not_loaded() -> None:
    """A placeholder for a command of the lab in the help; `_Commands` replaces it before it runs."""
    raise AssertionError("a command of the lab ran before it was loaded")


app = typer.Typer(
    cls=_Commands,
    help="Score-based variational inference: fit any posterior whose log density you can differentiate.",
    pretty_exceptions_enable=False,
)
app.command("fit")(fit_command)
app.command("calibrate")(calibrate_command)
app.command("train")(train_command)
app.command("forecast")(forecast_command)
app.command("predict")(predict_command)
app.command("list")(show_list)
app.command("doctor")(doctor_command)
app.command()(cite)
for _name, (_line, _) in _LAB.items():
    app.command(_name, help=_line)(_not_loaded)


def _show_version(wanted: bool) -> None:
    if wanted:
        from bayescore import __version__

        typer.echo(f"bayescore {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Options of the whole command."""


def _value_given(sentence: str, words: Sequence[str]) -> str:
    """The invalid value of an option, if the error message does not contain it."""
    for option in re.findall(r"Invalid value for '(--[a-z-]+)'", sentence):
        for word, following in zip(words, [*words[1:], ""], strict=True):
            name, _, value = word.partition("=")
            given = value or following
            if name == option and given and repr(given) not in sentence:
                return f"; got {given!r}"
    return ""


def _meant(problem: Any) -> list[str]:
    """The option whose name is nearest to one that does not exist, also if it is another word for it."""
    from bayescore.checks import nearest

    options = {
        word.lstrip("-").replace("-", "_"): word for p in problem.ctx.command.params for word in p.opts
    }
    found = nearest(problem.option_name.lstrip("-").replace("-", "_"), options)
    return [options[found]] if found else []


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
        if getattr(problem, "option_name", None) and hasattr(problem, "possibilities"):
            problem.possibilities = _meant(problem)
        place = getattr(getattr(problem, "ctx", None), "command_path", "bayescore")
        sentence = problem.format_message().removeprefix("Invalid value: ").rstrip(".")
        if sentence:  # a group without a command has shown its help instead
            complain(f"{sentence}{_value_given(sentence, words)} ({place} --help explains)")
        sys.exit(getattr(problem, "exit_code", MISUSED))
    sys.exit(code or 0)
