"""Every command with a mistake or two."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
from pathlib import Path

from bayescore.cli import main as command
from fuzzing.judging import REFUSED, VALID, Attempt, Wrong, expect
from toy_series import hourly, write_csv

__all__ = ["check_command", "commands", "words_of_a_command", "write_files_of_a_command"]

WORDS = [
    "", " ", "-", "--", "---", "0", "-1", "-0", "1.5", "1e400", "nan", "inf", "-inf", "None", "true", "x",
    "[]", "{}", "9" * 30, "9" * 5000, "-" + "9" * 30, "99999999999", "1e-300", "0x10", "1_0", "٣", "💥", "é",
    "\ud800", "x" * 5000, "a=b", "=", "a=", "lr=[]", "lr={}", "lr=nan", "lr=1e400", "draws=1e3",
    "prior_sd=" + "[" * 5000, "../..", "/", "/dev/null", "/dev/full", "/proc/self/mem", "x.safetensors",
    "no/such/folder/x.safetensors", "x.png", "x.nc", "%s%n", "$(id)", "[red]x[/red]", "[/]", "\x1b[31m",
    "a\nb", ".", "..", ",", ",,", "10,,10",
]  # fmt: skip

#: options of each command with values that are valid and quick; the first words name the command
SMALL_FIT = {"--steps": ["3"], "--method": ["descent", "bam", "advi", "auto"], "--seed": ["0"]}
GRAMMAR: dict[tuple[str, ...], dict[str, list[str]]] = {
    ("fit",): {
        **SMALL_FIT,
        "--dim": ["2"],
        "--family": ["full", "diagonal", "mixture", "low-rank", "spiked", "planar", "coupling", "zuko"],
        "--draws": ["2"],
        "--lr": ["0.01"],
        "--components": ["2"],
        "--rank": ["1"],
        "--layers": ["2"],
        "--scale": ["0.5"],
        "--noise": ["0.1"],
        "--target-seed": ["1"],
        "--set": ["clip=2", "inner_steps=2"],
        "--data": ["data.json"],
        "--data-folder": ["folder"],
        "--program": ["model.stan"],
        "--output": ["fit.safetensors"],
        "--output-draws": ["5"],
        "--plot": ["fit.png"],
    },
    ("train",): {
        "--kind": ["images"],
        "--net": ["mlp", "small"],
        "--fraction": ["0.05"],
        "--method": ["proximal", "plain", "dropout", "advi"],
        "--epochs": ["1"],
        "--patience": ["1"],
        "--hidden": ["5"],
        "--batch-size": ["32"],
        "--draws": ["2"],
        "--seed": ["0"],
        "--set": ["prior_sd=0.5", "temperature=0.5"],
        "--output": ["model"],
        "--checkpoint": ["run.safetensors"],
        "--plot": ["net.png"],
    },
    ("forecast",): {
        "--horizon": ["4"],
        "--context": ["8"],
        "--columns": ["load"],
        "--date": ["date"],
        "--date-format": ["%Y-%m-%d %H:%M"],
        "--missing": ["-9999"],
        "--max-gap": ["2"],
        "--method": ["plain", "proximal"],
        "--calibration": ["conformal", "noise"],
        "--test": ["0.2"],
        "--epochs": ["1"],
        "--draws": ["2"],
        "--seed": ["0"],
        "--set": ["lr=0.01"],
        "--checkpoint": ["run.safetensors"],
        "--output": ["model"],
        "--table": ["next.csv"],
        "--plot": ["fan.png"],
    },
    ("list",): {},
    ("cite",): {},
    ("report",): {"--out": ["results"]},
    ("reproduce",): {
        "--profile": ["quick"],
        "--seeds": ["1"],
        "--methods": ["Ours"],
        "--jobs": ["1"],
        "--out": ["results"],
    },
    ("bench",): {},
    ("bench", "fit"): {"--repeats": ["1"], "--out": ["x.json"], "--plot": ["x.png"]},
    ("bench", "step"): {
        "--net": ["mlp-small"],
        "--batch": ["8"],
        "--methods": ["adamw"],
        "--repeats": ["1"],
        "--threads": ["1"],
        "--device": ["cpu"],
        "--patience": ["5"],
        "--minutes": ["0.1"],
        "--out": ["results"],
    },
    ("bench", "predict"): {
        "--net": ["mlp-small"],
        "--batch": ["8"],
        "--samples": ["1,2"],
        "--repeats": ["1"],
        "--threads": ["1"],
        "--minutes": ["0.1"],
        "--out": ["results"],
    },
    ("bench", "scaling"): {
        "--sizes": ["1000"],
        "--repeats": ["1"],
        "--threads": ["1"],
        "--patience": ["5"],
        "--minutes": ["0.1"],
        "--out": ["results"],
    },
}
#: what makes sure that a command which would work for minutes is refused
POISON = {
    "reproduce": [["no-such-id"], ["--profile", "no"], ["--seeds", "0"], ["--jobs", "0"]],
    "bench": [["--repeats", "0"], ["--no-such-option"], ["surplus"]],
}
TARGETS = ["gaussian", "banana", "funnel", "model.stan", "model.py:f", "model.py:g"]
BROKEN = ["x.py", "gaussian:", ":", "model.py:", "posteriordb:", ".stan", "model.py:f:g", "./", "model.py"]


def words_of_a_command(rng: random.Random) -> list[str]:
    """A command with a mistake or two."""
    names, weights = list(GRAMMAR), [8, 5, 2, 1, 1, 1, 4, 1, 1, 2, 2, 2]
    name = rng.choices(names, weights)[0]
    options, words = GRAMMAR[name], list(name)
    if name == ("fit",):
        words.append(rng.choice([*TARGETS, *TARGETS, rng.choice(BROKEN), rng.choice(WORDS)]))
    elif name == ("forecast",):
        words.append(rng.choice(["series.csv", "series.csv", "data.json", rng.choice(WORDS)]))
    elif name == ("reproduce",):
        words.append(rng.choice(["gaussian", "mixture", "list", rng.choice(WORDS)]))
    given = {option: rng.choice(values) for option, values in options.items() if option in ALWAYS[name[0]]}
    for option in rng.sample(sorted(options), min(len(options), rng.choice([0, 1, 1, 2]))):
        given[option] = rng.choice(options[option])
    for option in rng.sample(sorted(options), min(len(options), rng.choice([0, 1, 1, 2]))):
        given[option] = rng.choice(WORDS)
    for option, value in given.items():
        words += [f"{option}={value}"] if rng.random() < 0.3 else [option, value]
    if rng.random() < 0.15:
        words.insert(rng.randrange(1, len(words) + 1), rng.choice(WORDS))
    if rng.random() < 0.05 or not options:
        words.append(rng.choice([*WORDS, "--help", "--version", "--no-such-option"]))
    if name[0] in POISON and words != ["bench"]:
        words += rng.choice(POISON[name[0]])
    if words[0] == "bench" and len(words) > 1 and words[1] not in ("fit", "step", "predict", "scaling"):
        words = words[:2]
    return words


ALWAYS = {
    "fit": ["--steps", "--method", "--dim"],
    "train": ["--epochs", "--hidden", "--fraction", "--draws"],
    "forecast": ["--horizon", "--context", "--epochs", "--draws"],
    "reproduce": ["--out", "--seeds"],
    "report": ["--out"],
    "bench": ["--repeats"],
    "list": [],
    "cite": [],
}


def write_files_of_a_command(place: Path) -> None:
    """What the words of a command may name."""
    functions = ["def f(x):", "    return -x.square().sum(-1)", "def g(x):", "    return x @ 3"]
    (place / "model.py").write_text("\n".join(functions))
    (place / "model.stan").write_text("parameters { real x } model { }")  # stanc refuses it
    (place / "data.json").write_text('{"n": 3}')
    write_csv(place / "series.csv", hourly(40))


def check_command(code: int, output: str, errors: str) -> str:
    """Exit code and messages of a command that was given a mistake."""
    expect("Traceback" not in errors, f"a traceback:\n{errors}")
    expect(code in (0, 1, 2), f"exit code {code}:\n{errors}")
    if code == 0:
        return VALID
    expect(errors.strip() or output, f"exit code {code} without a word")
    said = [line for line in errors.splitlines() if line.startswith("error: ")]
    if code == 2 and errors:
        expect(len(said) == 1 and len(said[0].split()) > 4, f"not one sentence:\n{errors}")
    return REFUSED


def commands(scratch: Path) -> Attempt:
    """Every command with a mistake or two, in this process."""

    def attempt(rng: random.Random, place: Path) -> str:
        words = words_of_a_command(rng)
        (place / "words.json").write_text(json.dumps(words))
        write_files_of_a_command(place)
        output, errors = io.StringIO(), io.StringIO()
        here = Path.cwd()
        os.chdir(place)
        try:
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
                command(words)
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
        else:
            raise Wrong("the command returned instead of ending")
        finally:
            os.chdir(here)
        return check_command(code, output.getvalue(), errors.getvalue())

    return attempt
