"""Damaged files and wrong requests by the thousand: `python tests/fuzz.py`, which is `make fuzz`.

Every loader of the library and of the lab, and every command, is given mutations of what is valid. Each must
be refused by one sentence of ours, or be read unchanged; a file without a checksum of ours (a user's data, a
record) may also be read as the other valid input that it has become. Anything else is a failure: an exception
that our code did not raise, a message of several lines, a file that was changed by reading, more than 10 s,
more than 1 GB of memory. Most mutations run in this process, some as processes of their own.

A mutation is determined by the seed, its surface and its number, and is repeated alone with
    python tests/fuzz.py --seed 0 --only "fits:17"
What failed is kept, each mutation in a folder of its own with the reason in `why.txt`.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gzip
import hashlib
import io
import json
import logging
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
for folder in (HERE, HERE / "lab", HERE / "optim"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import torch  # noqa: E402
from small_networks import NETWORKS, OPTIMIZERS, train  # noqa: E402
from toy_experiment import EXPERIMENT  # noqa: E402
from toy_tools import make_record  # noqa: E402

import bayescore as bs  # noqa: E402
import bayescore.nn as bnn  # noqa: E402
from bayescore.cli import main as command  # noqa: E402
from bayescore.data.files import Source, read  # noqa: E402
from bayescore.data.labelled_images import parse_idx  # noqa: E402
from bayescore.targets.stan.data import data_text  # noqa: E402
from bayescore.targets.stan.toolchain import find_toolchain  # noqa: E402
from bayescore_lab.bench.networks import network as bench_network  # noqa: E402
from bayescore_lab.bench.step import Measurement, Measurements, StepPlan, step_part  # noqa: E402
from bayescore_lab.engine import plan, run_plans, runner  # noqa: E402
from bayescore_lab.engine.drawing import CannotDraw, NothingToDraw, draw  # noqa: E402
from bayescore_lab.engine.records import RecordStore  # noqa: E402
from bayescore_lab.engine.report import build_report  # noqa: E402
from bayescore_lab.engine.workers import Event, perform  # noqa: E402
from cases import RUNS, family  # noqa: E402
from file_damage import INSIDE, OUTSIDE, header_of, mutate, mutated, with_header  # noqa: E402
from toy_posteriordb import DATA, load, write_folder  # noqa: E402
from toy_problem import POSTERIORS, loader, network, rings  # noqa: E402

__all__ = ["SURFACES", "Fuzz"]

SECONDS = 10.0
MEMORY = 10**9  # bytes
OURS = tuple(str(Path(module.__file__).parent) for module in (bs, sys.modules["bayescore_lab"]))
REFUSALS = (ValueError, TypeError, OSError, MemoryError, RuntimeError, ArithmeticError, CannotDraw, NothingToDraw)
REFUSED, UNCHANGED, VALID = "refused", "read unchanged", "read as other valid input"

#: one mutation: the rest of its randomness, and an empty folder to write into; returns how it ended
Attempt = Callable[[random.Random, Path], str]


class Wrong(AssertionError):
    """A mutation was neither refused nor read as it should be."""


class Hang(BaseException):
    """A mutation took too long. No `except Exception` in the code under test can catch it."""


# -- judging ---------------------------------------------------------------------------------------------


def refused(action: Callable[[], Any]) -> tuple[bool, Any]:
    """Whether the action was refused by a sentence of ours, and what it returned if not."""
    try:
        return False, action()
    except REFUSALS as problem:
        message = str(problem)
        frames = traceback.extract_tb(problem.__traceback__)
        if not frames[-1].filename.startswith(OURS):
            raise
        if "\n" in message or len(message.split()) < 4:
            raise Wrong(f"{type(problem).__name__} says {message!r}") from problem
        return True, None


def expect(condition: object, words: str) -> None:
    if not condition:
        raise Wrong(words)


def bytes_of(value: Any) -> Any:
    """Nested state with the bytes of tensors, and with texts for floats, so that NaN equals itself."""
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), tuple(value.shape), value.numpy().tobytes()]
    if isinstance(value, dict):
        return {key: bytes_of(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(bytes_of, value))
    return repr(value)


def damaged(rng: random.Random, content: bytes) -> bytes:
    return rng.choice(OUTSIDE)(rng, content)


# -- files with a checksum of ours -----------------------------------------------------------------------


def checked_file(
    path: Path,
    rng: random.Random,
    content: bytes,
    load: Callable[[], Any],
    save: Callable[[Any], None],
    written: Callable[[Path], Any] = header_of,
) -> str:
    """Damage must be refused; another header with a right checksum must be refused or kept as it is.

    Arguments:
        load: reads the file.
        save: writes what was read to the same place.
        written: what must be equal in the file that was read and in the one that was written.
    """
    path.write_bytes(content)
    forged = rng.random() < 0.5
    if forged:
        with_header(path, mutated(header_of(path), rng))
    else:
        path.write_bytes(damaged(rng, content))
    given = path.read_bytes()
    no, value = refused(load)
    expect(path.read_bytes() == given, "reading changed the file")
    if no:
        return REFUSED
    if not forged:
        expect(given == content, "damage was not noticed")
        return UNCHANGED
    header = written(path)
    save(value)
    expect(written(path) == header, "the file was read as something else")
    return UNCHANGED


def fits(scratch: Path) -> Attempt:
    """`Fit.load`."""
    target, files = bs.targets.Gaussian.random(3, seed=8), []
    for number, name in enumerate(
        ["descent full", "bam diagonal", "descent zuko", "advi gumbel", "bam full"]
    ):
        method, kind = RUNS[name]
        bs.fit(target, family(kind), method, steps=4, seed=3, record_every=2).save(scratch / str(number))
        files.append((scratch / str(number)).read_bytes())

    def attempt(rng: random.Random, place: Path) -> str:
        path = place / "fit"
        with_target = rng.choice([None, target])

        def read_fit() -> bs.Fit:
            fit = bs.Fit.load(path, with_target)
            expect(fit.summary() and repr(fit), "a fit that was read says nothing")
            return fit

        return checked_file(path, rng, rng.choice(files), read_fit, lambda fit: fit.save(path))

    return attempt


def posteriors(scratch: Path) -> Attempt:
    """`Posterior.load`, and a prediction of what was read."""
    files, x = [], rings(5, 3)[0]
    for kind, make in POSTERIORS.items():
        make(network()).save(scratch / kind)
        files.append((scratch / kind).read_bytes())

    def attempt(rng: random.Random, place: Path) -> str:
        path = place / "posterior"

        def read_posterior() -> bnn.Posterior:
            found = bnn.Posterior.load(path, network())
            if sum(value.numel() for value in bs.io.read_tensors(path, "bayescore-network-1")[1].values()):
                expect(found.predict(x, 2).probs.isfinite().all(), "it predicts no probabilities")
            return found

        return checked_file(path, rng, rng.choice(files), read_posterior, lambda found: found.save(path))

    return attempt


def states(scratch: Path) -> Attempt:
    """`nn.load_state`."""
    case, files = NETWORKS["mlp"], []
    for number, kind in enumerate(OPTIMIZERS):
        model = case.module()
        opt = OPTIMIZERS[kind](model.parameters(), 64)
        train(opt, case, model, 3)
        bnn.save_state(scratch / str(number), {"optimizer": opt.state_dict(), "model": model.state_dict()})
        files.append((scratch / str(number)).read_bytes())

    def attempt(rng: random.Random, place: Path) -> str:
        path = place / "state"
        return checked_file(
            path,
            rng,
            rng.choice(files),
            lambda: bnn.load_state(path),
            lambda state: bnn.save_state(path, state),
            lambda path: bytes_of(bnn.load_state(path)),
        )

    return attempt


def checkpoints(scratch: Path) -> Attempt:
    """`nn.fit(checkpoint=)` on a file of its own, of its settings and of a size that it may go on from."""

    def run(path: Path) -> bnn.NetworkFit:
        return bnn.fit(network(), loader(8, 0), epochs=1, validation=loader(8, 1), checkpoint=path)

    run(scratch / "run")
    content = (scratch / "run").read_bytes()

    def attempt(rng: random.Random, place: Path) -> str:
        path = place / "run"
        path.write_bytes(content)
        forged = rng.random() < 0.5
        if forged:
            with_header(path, mutated(header_of(path), rng))
        else:
            path.write_bytes(damaged(rng, content))
        given = path.read_bytes()
        no, trained = refused(lambda: run(path))
        if no:
            expect(path.read_bytes() == given, "a checkpoint that was refused was overwritten")
            return REFUSED
        expect(forged or given == content, "damage was not noticed")
        expect(all(p.isfinite().all() for p in trained.posterior.model.parameters()), "weights are lost")
        return UNCHANGED

    return attempt


def optimizer_states(scratch: Path) -> Attempt:
    """`load_state_dict` of every optimizer, with other values, names, shapes and kinds in the state."""
    case, saved = NETWORKS["mlp"], {}
    for kind, make in OPTIMIZERS.items():
        model = case.module()
        opt = make(model.parameters(), 64)
        train(opt, case, model, 4)
        saved[kind] = copy.deepcopy(opt.state_dict())
    strange: list[Any] = [
        None, True, False, -1, 0, 1, 3, 0.5, -0.5, 10**30, 10**400, 1e308, 1e-320, float("nan"), float("inf"),
        "", "x", [], {}, [[]], (), torch.zeros(0), torch.zeros(3), torch.tensor(float("nan")), torch.ones(2).bool(),
        torch.zeros(2, dtype=torch.complex64), torch.zeros(10**6).expand(4, -1), b"", object(), "given", "current",
    ]  # fmt: skip

    def attempt(rng: random.Random, place: Path) -> str:
        kind = rng.choice(list(saved))
        state = copy.deepcopy(saved[kind])
        for _ in range(rng.choice([1, 1, 2])):
            row: Any = state
            while True:
                keys = list(row) if isinstance(row, dict) else list(range(len(row)))
                if not keys:
                    break
                key = rng.choice(keys)
                if not isinstance(row[key], dict | list) or not row[key] or rng.random() < 0.15:
                    break
                row = row[key]
            if not keys:
                continue
            what = rng.choice(["delete", "change", "change", "flip", "add"])
            if what == "delete":
                del row[key]
            elif what == "flip" and isinstance(row[key], torch.Tensor) and row[key].numel():
                numbers = [float("nan"), float("inf"), -1.0, 0.0, 1e38, -1e-40]
                row[key].view(-1)[rng.randrange(row[key].numel())] = rng.choice(numbers)
            elif what == "add" and isinstance(row, dict):
                row[rng.choice(["another", 99, None, "sum_g", "draw"])] = rng.choice(strange)
            else:
                row[key] = rng.choice(strange)
        model = case.module()
        opt = OPTIMIZERS[kind](model.parameters(), 64)
        before = copy.deepcopy(opt.state_dict())
        no, _ = refused(lambda: opt.load_state_dict(state))
        if no:
            expect(bytes_of(opt.state_dict()) == bytes_of(before), "a state that was refused has changed the optimizer")
            return REFUSED
        if bytes_of(state) == bytes_of(saved[kind]):
            return UNCHANGED
        # another valid state: it must be possible to go on from it, or to be told why not
        refused(lambda: train(opt, case, model, 1))
        return VALID

    return attempt


# -- files without a checksum ----------------------------------------------------------------------------


def mutated_line(rng: random.Random, line: bytes) -> bytes:
    if rng.random() < 0.3:
        return damaged(rng, line)
    return rng.choice(INSIDE)(rng, json.loads(line)).encode(errors="surrogatepass")


def with_mutated_line(rng: random.Random, content: bytes) -> bytes:
    """One or two lines of a file of JSON lines changed; sometimes the whole file."""
    if rng.random() < 0.2:
        return damaged(rng, content)
    lines = content.splitlines()
    for place in rng.sample(range(len(lines)), rng.choice([1, 1, 2])):
        lines[place] = mutated_line(rng, lines[place])
    return b"\n".join(lines) + rng.choice([b"\n", b"\n", b""])


def work_here(next_task: Callable[[], Any], count: int) -> Iterator[Event]:
    """Execute the tasks of an experiment in this process."""
    while (task := next_task()) is not None:
        for run, fields in perform(task):
            yield Event(task, run, fields)


def recorded(scratch: Path) -> Path:
    """A folder of results: records, tables, figures and summary of the toy experiment."""
    work = runner.work
    runner.work = work_here
    try:
        toy = plan(EXPERIMENT, "quick")
        run_plans([toy], scratch, 1)
        draw(toy, scratch)
    finally:
        runner.work = work
    return scratch


def records(scratch: Path) -> Attempt:
    """`RecordStore`, and sometimes the tables and figures of what was read."""
    content = (recorded(scratch) / "toy" / "records.jsonl").read_bytes()
    toy, whole = plan(EXPERIMENT, "quick"), len(content.splitlines())

    def attempt(rng: random.Random, place: Path) -> str:
        path = place / "toy" / "records.jsonl"
        path.parent.mkdir()
        given = with_mutated_line(rng, content)
        path.write_bytes(given)
        store = RecordStore(path.parent)
        no, found = refused(store.read)
        expect(path.read_bytes() == given, "reading changed the file")
        if no:
            return REFUSED
        expect(store.done() <= {record.run for record in found}, "a run is done that is not recorded")
        expect(all("\n" not in why and why for why in store.corrupt.values()), "a line is refused in silence")
        if rng.random() < 0.03 and refused(lambda: draw(toy, place))[0]:
            return REFUSED
        extra = make_record("fuzz")
        expect(store.append(extra), "a record could not be added")
        again = RecordStore(path.parent)
        expect(extra in again.read(), "a record that was added is lost")
        lost = len(found) - (len(again.read()) - 1)
        expect(lost == 0, f"{lost} records were lost by adding one")
        return REFUSED if store.corrupt or len(found) < whole else VALID

    return attempt


def measurements(scratch: Path) -> Attempt:
    """The measurements of `bench step`, and the table that is made of them."""
    steps = StepPlan(bench_network("mlp-small"), 8, ("adamw", "proximal"), 2, code="x", threads=1)
    phases, numbers = {"forward": [0.5, 0.5]}, {"peak": 1e9, "weights": 10.0, "load_average": 0.5}
    numbers |= {"cold_first_step_seconds": 2.0, "warm_first_step_seconds": 1.0}
    rows = [
        Measurement(steps.key, name, "a", [1.0, 2.0], phases, numbers, [2.0, 2.0])
        for name in ("adamw", "proximal")
    ]
    content = b"".join(row.line() for row in rows)

    def attempt(rng: random.Random, place: Path) -> str:
        path = place / "records.jsonl"
        given = with_mutated_line(rng, content)
        path.write_bytes(given)
        no, _ = refused(lambda: step_part(steps, Measurements(path)))
        expect(path.read_bytes() == given, "reading changed the file")
        found = len(Measurements(path)._all) if not no else 0
        return REFUSED if found < 2 else VALID

    return attempt


def summaries(scratch: Path) -> Attempt:
    """The summary of an experiment in the report of all."""
    whole = recorded(scratch) / "toy" / "quick"
    content = (whole / "summary.json").read_bytes()

    def attempt(rng: random.Random, place: Path) -> str:
        shutil.copytree(whole, place / "toy" / "quick")
        path = place / "toy" / "quick" / "summary.json"
        given = mutated_line(rng, content)
        path.write_bytes(given)
        no, page = refused(lambda: build_report(place))
        expect(path.read_bytes() == given, "reading changed the file")
        if no:
            return REFUSED
        text = page.read_text()
        expect("<script>alert" not in text, "foreign HTML is in the report")
        return REFUSED if "is left out" in text else VALID

    return attempt


def posterior_folders(scratch: Path) -> Attempt:
    """PosteriorDB: description, data and reference draws."""
    write_folder(scratch)

    def attempt(rng: random.Random, place: Path) -> str:
        model = rng.choice(sorted(DATA))
        names = [f"posteriors/small-{model}.json", f"data/{model}.json.zip"]
        names.append(f"reference_draws/small-{model}.json.zip")
        for name in names:
            (place / name).parent.mkdir()
            shutil.copy(scratch / name, place / name)
        mutate(rng, place / rng.choice(names))
        return REFUSED if refused(lambda: load(place, model))[0] else VALID

    return attempt


STAN = "data { int n; vector[n] y; array[2] int k; } parameters { real mu; } model { y ~ normal(mu, 1); }"


def stan_data(scratch: Path) -> Attempt:
    """Data of a Stan program as text."""
    return mutated_stan_data(scratch, data_text)


def stan_models(scratch: Path) -> Attempt:
    """The same in the hands of a compiled program, where there is a compiler."""
    try:
        find_toolchain()
    except (ImportError, RuntimeError):
        return stan_data(scratch)
    bs.targets.Stan(STAN, {"n": 1, "y": [0.0], "k": [1, 2]})  # compiles it
    point = torch.zeros(1, dtype=torch.float64)
    return mutated_stan_data(scratch, lambda path: bs.targets.Stan(STAN, path).log_prob(point))


def mutated_stan_data(scratch: Path, take: Callable[[Path], object]) -> Attempt:
    file = scratch / "data.json"
    file.write_text(json.dumps({"n": 3, "y": [0.5, 1.5, -0.5], "k": [1, 2]}))

    def attempt(rng: random.Random, place: Path) -> str:
        path = place / "data.json"
        shutil.copy(file, path)
        mutate(rng, path)
        return REFUSED if refused(lambda: take(path))[0] else VALID

    return attempt


def images(scratch: Path) -> Attempt:
    """Files of data sets, and the format of images in them."""
    content = b"\x00\x00\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (4, 5, 6)) + bytes(range(120))
    source = Source("set/images.gz", hashlib.sha256(content).hexdigest(), len(content), ())
    packed = gzip.compress(content)

    def attempt(rng: random.Random, place: Path) -> str:
        if rng.random() < 0.5:
            other = damaged(rng, content)
            no, pixels = refused(lambda: parse_idx(other))
            if no:
                return REFUSED
            expect(pixels.numel() == len(other) - 4 - 4 * other[3], "pixels were lost")
            return UNCHANGED if other == content else VALID
        (place / "set").mkdir()
        (place / "set" / "images.gz").write_bytes(damaged(rng, packed))
        os.environ["BAYESCORE_DATA"], before = str(place), os.environ.get("BAYESCORE_DATA", "")
        try:
            no, found = refused(lambda: read(source))
        finally:
            os.environ["BAYESCORE_DATA"] = before
        if no:
            return REFUSED
        expect(found == content, "damage was not noticed")
        return UNCHANGED

    return attempt


# -- commands --------------------------------------------------------------------------------------------

WORDS = [
    "", " ", "-", "--", "---", "0", "-1", "-0", "1.5", "1e400", "nan", "inf", "-inf", "None", "true", "x", "[]",
    "{}", "9" * 30, "9" * 5000, "-" + "9" * 30, "99999999999", "1e-300", "0x10", "1_0", "٣", "💥", "é", "\ud800",
    "x" * 5000, "a=b", "=", "a=", "lr=[]", "lr={}", "lr=nan", "lr=1e400", "prior_sd=" + "[" * 5000, "draws=1e3",
    "../..", "/", "/dev/null", "/dev/full", "/proc/self/mem", "no/such/folder/x.safetensors", "x.safetensors",
    "x.png", "x.nc", "%s%n", "$(id)", "[red]x[/red]", "[/]", "\x1b[31m", "a\nb", ".", "..", ",", ",,", "10,,10",
]  # fmt: skip

#: options of each command with values that are valid and quick; the first words name the command
SMALL_FIT = {"--steps": ["3"], "--method": ["descent", "bam", "advi", "auto"], "--seed": ["0"]}
GRAMMAR: dict[tuple[str, ...], dict[str, list[str]]] = {
    ("fit",): {
        **SMALL_FIT,
        "--dim": ["2"],
        "--family": ["full", "diagonal", "mixture", "low-rank", "planar", "zuko"],
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
        "--data": ["digits"],
        "--fraction": ["0.05"],
        "--method": ["proximal", "plain", "dropout", "advi"],
        "--epochs": ["1"],
        "--patience": ["1"],
        "--hidden": ["5"],
        "--batch-size": ["32"],
        "--draws": ["2"],
        "--seed": ["0"],
        "--set": ["prior_sd=0.5", "temperature=0.5"],
        "--output": ["net.safetensors"],
        "--checkpoint": ["run.safetensors"],
        "--plot": ["net.png"],
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
    "reproduce": [
        ["no-such-id"],
        ["--profile", "no"],
        ["--seeds", "0"],
        ["--jobs", "0"],
        ["--methods", "no"],
    ],
    "bench": [["--repeats", "0"], ["--no-such-option"], ["surplus"]],
}
TARGETS = [
    "gaussian",
    "banana",
    "funnel",
    "model.stan",
    "posteriordb:small-arK",
    "model.py:f",
    "model.py:g",
    "x.py",
]
BROKEN = ["gaussian:", ":", "model.py:", "posteriordb:", ".stan", "model.py:f:g", "./", "model.py"]


def words_of_a_command(rng: random.Random) -> list[str]:
    """A command with a mistake or two."""
    names, weights = list(GRAMMAR), [8, 6, 1, 1, 1, 4, 1, 1, 2, 2, 2]
    name = rng.choices(names, weights)[0]
    options, words = GRAMMAR[name], list(name)
    if name == ("fit",):
        words.append(rng.choice([*TARGETS, *BROKEN, rng.choice(WORDS)]))
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
    "reproduce": ["--out", "--seeds"],
    "report": ["--out"],
    "bench": ["--repeats"],
    "list": [],
    "cite": [],
}


def write_files_of_a_command(place: Path) -> None:
    """What the words of a command may name."""
    (place / "model.py").write_text(
        "def f(x):\n    return -x.square().sum(-1)\n\ndef g(x):\n    return x @ 3\n"
    )
    (place / "model.stan").write_text("parameters { real x } model { }")  # stanc refuses it
    (place / "data.json").write_text('{"n": 3}')


def check_command(code: int, output: str, errors: str) -> str:
    """Exit code and messages of a command that was given a mistake."""
    expect("Traceback" not in errors, f"a traceback:\n{errors}")
    expect(code in (0, 1, 2), f"exit code {code}:\n{errors}")
    if code == 0:
        return VALID
    said = [line for line in errors.splitlines() if line.strip()]
    expect(said or output, f"exit code {code} without a word")
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


# -- the harness -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Surface:
    """Something that reads what others wrote: how it is prepared, and its share of all mutations in %."""

    prepare: Callable[[Path], Attempt]
    share: int


SURFACES = {
    "fits": Surface(fits, 14),
    "posteriors": Surface(posteriors, 12),
    "states": Surface(states, 10),
    "optimizer states": Surface(optimizer_states, 12),
    "checkpoints": Surface(checkpoints, 8),
    "records": Surface(records, 8),
    "measurements": Surface(measurements, 6),
    "summaries": Surface(summaries, 6),
    "posterior folders": Surface(posterior_folders, 8),
    "Stan data": Surface(stan_data, 3),
    "Stan models": Surface(stan_models, 2),
    "images": Surface(images, 4),
    "commands": Surface(commands, 7),
}


class Fuzz:
    """Mutations of all surfaces, the counts of how they ended, and the failures."""

    def __init__(self, seed: int, scratch: Path) -> None:
        self.seed, self.scratch = seed, scratch
        self.counts: dict[str, Counter[str]] = {}
        self.failures: list[str] = []
        self.slowest, self.largest = 0.0, 0
        self._attempts: dict[str, Attempt] = {}

    def run(self, surface: str, number: int) -> None:
        """One mutation in this process."""
        if surface not in self._attempts:
            folder = self.scratch / "valid" / surface
            folder.mkdir(parents=True)
            with quiet():
                self._attempts[surface] = SURFACES[surface].prepare(folder)
        place = self.scratch / "case"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        rng = random.Random(f"{self.seed} {surface} {number}")
        reset_peak()
        began = time.monotonic()
        try:
            with quiet(), limited_time():
                ended = self._attempts[surface](rng, place)
            why = ""
        except (Exception, Hang):
            ended, why = "failed", traceback.format_exc()
        seconds, memory = time.monotonic() - began, peak()
        self.slowest, self.largest = max(self.slowest, seconds), max(self.largest, memory)
        if not why and memory > MEMORY:
            ended, why = "failed", f"{memory / 1e6:.0f} MB of memory"
        self.count(f"{surface}:{number}", surface, ended, why, place)

    def count(self, name: str, surface: str, ended: str, why: str, place: Path) -> None:
        """Note how a mutation ended; what failed is kept."""
        self.counts.setdefault(surface, Counter())[ended] += 1
        if why:
            self.failures.append(f"{name}: {why.strip().splitlines()[-1][:300]}")
            kept = self.scratch / "failures" / name.replace(":", "-").replace(" ", "-")
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(place, kept, symlinks=True)
            (kept / "why.txt").write_text(why, errors="replace")

    def run_process(self, number: int, start: float) -> None:
        """One mutation as a process; `start` is what a process takes that is asked for nothing."""
        rng = random.Random(f"{self.seed} process {number}")
        place = self.scratch / "case"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        surface, words = process_words(rng, place, self.seed, self.scratch)
        (place / "words.json").write_text(json.dumps(words))
        limit = SECONDS + start
        code, output, errors, seconds, memory = run_words(words, place, limit)
        try:
            expect(code is not None, f"it was not over after {limit:.0f} s")
            expect(memory <= MEMORY, f"{memory / 1e6:.0f} MB of memory")
            ended, why = check_command(code or 0, output, errors), ""
        except Wrong as problem:
            ended, why = "failed", f"{problem}\n{output[-2000:]}\n{errors[-4000:]}\n{problem}"
        self.slowest, self.largest = max(self.slowest, seconds - start), max(self.largest, memory)
        self.count(f"process:{number}", f"process: {surface}", ended, why, place)

    def table(self) -> str:
        """The counts as Markdown."""
        columns = [REFUSED, UNCHANGED, VALID, "failed"]
        rows = [f"| mutations of | {' | '.join(columns)} |", "|---" * 5 + "|"]
        total: Counter[str] = Counter()
        for surface, counts in self.counts.items():
            total += counts
            rows.append(f"| {surface} | {' | '.join(str(counts[column]) for column in columns)} |")
        rows.append(f"| all | {' | '.join(str(total[column]) for column in columns)} |")
        return "\n".join(rows)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Warnings and log messages are words, too, but not for whoever reads the progress."""
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


@contextlib.contextmanager
def limited_time() -> Iterator[None]:
    """Raise Hang in the block after ten seconds."""

    def end(*_: object) -> None:
        raise Hang(f"it was not over after {SECONDS:g} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def reset_peak() -> None:
    """Let the kernel forget the largest resident size of this process."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak() -> int:
    """The largest resident size of this process, in bytes, since the last reset."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:  # not Linux: since the start
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


# -- processes -------------------------------------------------------------------------------------------

RUN = "from bayescore.cli import main; main()"


def process_words(rng: random.Random, place: Path, seed: int, scratch: Path) -> tuple[str, list[str]]:
    """What a process is asked for, and the words that start it."""
    python = [sys.executable, "-W", "ignore"]
    kind = rng.choice(
        ["command", "command", "command", "loader", "report", "reproduce", "posterior", "train"]
    )
    write_files_of_a_command(place)
    if kind == "command":
        words = words_of_a_command(rng)
        return kind, [*python, "-c", RUN, *(w.replace("\ud800", "?") for w in words)]  # no shell sends halves
    if kind == "loader":
        name = rng.choice([name for name in SURFACES if name != "commands"])
        only = f"{name}:{rng.randrange(10**9)}"
        return kind, [*python, str(Path(__file__)), "--seed", str(seed), "--only", only]
    valid = scratch / "valid" / "processes"
    if not valid.exists():
        valid.mkdir(parents=True)
        (valid / "db").mkdir()
        (valid / "results").mkdir()
        with quiet():
            write_folder(valid / "db")
            recorded(valid / "results")
    if kind in ("report", "reproduce"):
        shutil.copytree(valid / "results", place / "results")
        out = ["--out", str(place / "results")]
        toy = place / "results" / "toy"
        if kind == "report":
            path = toy / "quick" / "summary.json"
            path.write_bytes(mutated_line(rng, path.read_bytes()))
            return kind, [*python, "-c", RUN, "report", *out]
        path = toy / "records.jsonl"
        path.write_bytes(with_mutated_line(rng, path.read_bytes()))
        return kind, [*python, str(HERE / "lab" / "toy_command.py"), "reproduce", "toy", "--jobs", "1", *out]
    if kind == "posterior":
        model = rng.choice(sorted(DATA))
        shutil.copytree(valid / "db", place / "db")
        names = [f"posteriors/small-{model}.json", f"data/{model}.json.zip"]
        mutate(rng, place / "db" / rng.choice(names))
        words = ["fit", f"posteriordb:small-{model}", "--data-folder", str(place / "db"), "--steps", "5"]
        return kind, [*python, "-c", RUN, *words, "--method", "advi"]
    small = "--hidden 5 --epochs 1 --fraction 0.05 --draws 2 --batch-size 32 --quiet".split()  # noqa: SIM905
    path = place / "run.safetensors"
    words = ["train", *small, "--checkpoint", str(path)]
    with quiet(), contextlib.suppress(SystemExit):
        command(words)
    content = path.read_bytes()
    if rng.random() < 0.5:
        with_header(path, mutated(header_of(path), rng))
    else:
        path.write_bytes(damaged(rng, content))
    return kind, [*python, "-c", RUN, *words]


def run_words(words: list[str], place: Path, limit: float) -> tuple[int | None, str, str, float, int]:
    """Exit code (None after the limit), output, errors, seconds and largest memory of a process."""
    files = [place / "output.txt", place / "errors.txt"]
    began = time.monotonic()
    with files[0].open("wb") as output, files[1].open("wb") as errors:
        process = subprocess.Popen(
            words, cwd=place, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, start_new_session=True
        )
        code = None
        while time.monotonic() - began < limit:
            found, status, usage = os.wait4(process.pid, os.WNOHANG)
            if found:
                code = os.waitstatus_to_exitcode(status)
                break
            time.sleep(0.01)
        else:
            os.killpg(process.pid, signal.SIGKILL)
            _, _, usage = os.wait4(process.pid, 0)
        process.returncode = code if code is not None else -signal.SIGKILL
    seconds = time.monotonic() - began
    said = [file.read_text(errors="replace") for file in files]
    return code, said[0], said[1], seconds, usage.ru_maxrss * 1024


def slowest_start(place: Path) -> float:
    """What a process takes to import all of it, three times the median of which is allowed for."""
    times = sorted(
        run_words([sys.executable, "-c", f"import sys; sys.argv[1:] = ['cite']; import bayescore_lab.bench.step; {RUN}"],
                  place, 300)[3]
        for _ in range(3)
    )  # fmt: skip
    return 3 * times[1]


def main() -> int:
    parser = argparse.ArgumentParser(description="Damaged files and wrong requests.")
    parser.add_argument("--count", type=int, default=10_000, help="mutations in this process")
    parser.add_argument("--processes", type=int, default=200, help="mutations as processes of their own")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=90.0, help="stop after so long with what there is")
    parser.add_argument("--only", help="one mutation, such as fits:17 or process:3")
    given = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="bayescore-fuzz-"))
    fuzz, began = Fuzz(given.seed, scratch), time.monotonic()
    if given.only:
        surface, _, number = given.only.rpartition(":")
        if surface == "process":
            fuzz.run_process(int(number), 30.0)
        else:
            fuzz.run(surface, int(number))
        print(fuzz.table())
        print(*fuzz.failures, sep="\n")
        if not fuzz.failures:
            shutil.rmtree(scratch)
        else:
            print(f"Traceback and files are in {scratch / 'failures'}", file=sys.stderr)
        return bool(fuzz.failures)
    print(f"seed {given.seed}; what fails is kept in {scratch / 'failures'}", flush=True)
    deadline = began + 60 * given.minutes

    def say(words: str) -> None:
        end = "\r" if sys.stdout.isatty() else "\n"
        line = f"{words}, {len(fuzz.failures)} failures, {time.monotonic() - began:.0f} s"
        print(f"{line:<100}" if end == "\r" else line, end=end, flush=True)

    jobs = [(name, n) for name, s in SURFACES.items() for n in range(round(given.count * s.share / 100))]
    late = False
    for done, (surface, number) in enumerate(jobs, 1):
        fuzz.run(surface, number)
        if done % 250 == 0 or done == len(jobs):
            say(f"{done:,} of {len(jobs):,} mutations in this process ({surface})")
        if late := time.monotonic() > deadline:
            break
    seconds, memory = fuzz.slowest, fuzz.largest
    fuzz.slowest, fuzz.largest = 0.0, 0
    start = slowest_start(scratch) if given.processes else 0.0
    for number in range(0 if late else given.processes):
        fuzz.run_process(number, start)
        if (number + 1) % 10 == 0:
            say(f"{number + 1} of {given.processes} processes")
        if late := time.monotonic() > deadline:
            break
    print(f"\n\n{fuzz.table()}\n")
    print(f"slowest mutation {seconds:.1f} s, largest memory {memory / 1e6:.0f} MB in this process;")
    print(
        f"slowest process {fuzz.slowest:.1f} s beyond its start, largest memory {fuzz.largest / 1e6:.0f} MB"
    )
    print(f"{time.monotonic() - began:.0f} s in all{', stopped by --minutes' if late else ''}")
    if fuzz.failures:
        print(f"\n{len(fuzz.failures)} failures, kept in {scratch / 'failures'}:", *fuzz.failures, sep="\n")
        return 1
    shutil.rmtree(scratch)
    return 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
