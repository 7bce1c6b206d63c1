"""Every loader of the library and of the lab, given mutations of valid files.

A function prepares valid files in a folder, and returns what makes one mutation of them and reads it.
"""

from __future__ import annotations

import copy
import gzip
import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from small_networks import NETWORKS, OPTIMIZERS, train
from toy_experiment import EXPERIMENT
from toy_tools import make_record

import bayescore as bs
import bayescore.nn as bnn
from bayescore.data.files import Source, read
from bayescore.data.labelled_images import parse_idx
from bayescore.targets.stan.data import data_text
from bayescore.targets.stan.toolchain import find_toolchain
from bayescore_lab.bench.networks import network as bench_network
from bayescore_lab.bench.step import Measurement, Measurements, StepPlan, step_part
from bayescore_lab.engine import plan, run_plans, runner
from bayescore_lab.engine.drawing import draw
from bayescore_lab.engine.records import RecordStore
from bayescore_lab.engine.report import build_report
from bayescore_lab.engine.workers import Event, perform
from cases import RUNS, family
from file_damage import INSIDE, OUTSIDE, header_of, mutate, mutated, with_header
from fuzzing.judging import REFUSED, UNCHANGED, VALID, Attempt, bytes_of, expect, refused
from toy_posteriordb import DATA, load, write_folder
from toy_problem import POSTERIORS, loader, network, rings

__all__ = [
    "checkpoints", "damaged", "fits", "images", "measurements", "mutated_line", "optimizer_states",
    "posterior_folders", "posteriors", "recorded", "records", "stan_data", "stan_models", "states",
    "summaries", "with_mutated_line",
]  # fmt: skip


# -- files with a checksum of ours -----------------------------------------------------------------------


def damaged(rng: random.Random, content: bytes) -> bytes:
    return rng.choice(OUTSIDE)(rng, content)


def spoilt(path: Path, content: bytes, rng: random.Random) -> tuple[bool, bytes]:
    """Write a file with a forged header, which carries a right checksum, or with damaged bytes.

    Returns whether the header is forged, and what was written.
    """
    path.write_bytes(content)
    forged = rng.random() < 0.5
    if forged:
        with_header(path, mutated(header_of(path), rng))
    else:
        path.write_bytes(damaged(rng, content))
    return forged, path.read_bytes()


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
    forged, given = spoilt(path, content, rng)
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
    for run in ("descent full", "bam diagonal", "descent zuko", "advi gumbel", "bam full"):
        method, kind = RUNS[run]
        bs.fit(target, family(kind), method, steps=4, seed=3, record_every=2).save(scratch / run)
        files.append((scratch / run).read_bytes())

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
        forged, given = spoilt(path, content, rng)
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
        "", "x", "given", "current", b"", object(), [], {}, [[]], (), torch.zeros(0), torch.zeros(3),
        torch.tensor(float("nan")), torch.ones(2).bool(), torch.zeros(2, dtype=torch.complex64),
        torch.zeros(10**6).expand(4, -1),
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
                row[key] = row[key].contiguous()
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
            expect(
                bytes_of(opt.state_dict()) == bytes_of(before),
                "a state that was refused has changed the optimizer",
            )
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


def recorded(scratch: Path, drawn: bool = True) -> Path:
    """A folder of results: records of the toy experiment, and its tables, figures and summary."""
    work = runner.work
    runner.work = work_here
    try:
        toy = plan(EXPERIMENT, "quick")
        run_plans([toy], scratch, 1)
        if drawn:
            draw(toy, scratch)
    finally:
        runner.work = work
    return scratch


def records(scratch: Path) -> Attempt:
    """`RecordStore`, and sometimes the tables and figures of what was read."""
    content = (recorded(scratch, drawn=False) / "toy" / "records.jsonl").read_bytes()
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
