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
import json
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
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from bayescore.cli import main as command
from file_damage import header_of, mutate, mutated, with_header
from fuzzing import files, series
from fuzzing.commands import check_command, commands, words_of_a_command, write_files_of_a_command
from fuzzing.judging import REFUSED, UNCHANGED, VALID, Attempt, Wrong, expect, quiet
from toy_posteriordb import DATA, write_folder

__all__ = ["SURFACES", "Fuzz"]

HERE = Path(__file__).parent
SECONDS = 10.0
PATIENCE = 120.0  # seconds of the clock for a process, on a machine that may be busy with others
MEMORY = 10**9  # bytes


class Hang(BaseException):
    """A mutation took too long. No `except Exception` in the code under test can catch it."""


@dataclass(frozen=True)
class Surface:
    """Something that reads what others wrote: how it is prepared, and its share of all mutations in %."""

    prepare: Callable[[Path], Attempt]
    share: int


SURFACES = {
    "fits": Surface(files.fits, 10),
    "posteriors": Surface(files.posteriors, 10),
    "states": Surface(files.states, 10),
    "optimizer states": Surface(files.optimizer_states, 12),
    "checkpoints": Surface(files.checkpoints, 8),
    "records": Surface(files.records, 8),
    "measurements": Surface(files.measurements, 6),
    "summaries": Surface(files.summaries, 6),
    "posterior folders": Surface(files.posterior_folders, 8),
    "Stan data": Surface(files.stan_data, 2),
    "Stan models": Surface(files.stan_models, 2),
    "images": Surface(files.images, 3),
    "series": Surface(series.series, 2),
    "forecasters": Surface(series.forecasters, 2),
    "tables": Surface(series.tables, 2),
    "table models": Surface(series.table_models, 2),
    "commands": Surface(commands, 7),
}


class Fuzz:
    """Mutations of all surfaces, the counts of how they ended, and the failures.

    Arguments:
        held: bytes that this process holds for other reasons, and that do not count.
    """

    def __init__(self, seed: int, scratch: Path, held: int = 0) -> None:
        self.seed, self.scratch, self.held = seed, scratch, held
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
        seconds, memory = time.monotonic() - began, peak() - self.held
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
        """One mutation as a process; `start` is the time of a process that only imports everything."""
        rng = random.Random(f"{self.seed} process {number}")
        place = self.scratch / "case"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        surface, words = process_words(rng, place, self.seed, self.scratch)
        (place / "words.json").write_text(json.dumps(words))
        code, output, errors, seconds, memory = run_words(words, place)
        seconds -= start
        try:
            expect(code is not None, f"it was not over after {PATIENCE:g} s")
            expect(seconds <= SECONDS, f"it took {seconds:.0f} s of the processor")
            expect(memory <= MEMORY, f"{memory / 1e6:.0f} MB of memory")
            ended, why = check_command(code or 0, output, errors), ""
        except Wrong as problem:
            ended, why = "failed", f"{problem}\n{output[-2000:]}\n{errors[-4000:]}\n{problem}"
        self.slowest, self.largest = max(self.slowest, seconds), max(self.largest, memory)
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
            files.recorded(valid / "results")
    if kind in ("report", "reproduce"):
        shutil.copytree(valid / "results", place / "results")
        out = ["--out", str(place / "results")]
        toy = place / "results" / "toy"
        if kind == "report":
            path = toy / "quick" / "summary.json"
            path.write_bytes(files.mutated_line(rng, path.read_bytes()))
            return kind, [*python, "-c", RUN, "report", *out]
        path = toy / "records.jsonl"
        path.write_bytes(files.with_mutated_line(rng, path.read_bytes()))
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
    words = ["train", "digits", *small, "--checkpoint", str(path)]
    with quiet(), contextlib.suppress(SystemExit):
        command(words)
    content = path.read_bytes()
    if rng.random() < 0.5:
        with_header(path, mutated(header_of(path), rng))
    else:
        path.write_bytes(files.damaged(rng, content))
    return kind, [*python, "-c", RUN, *words]


def run_words(words: list[str], place: Path) -> tuple[int | None, str, str, float, int]:
    """Exit code (None if it had to be ended), output, errors, processor seconds, largest memory."""
    files = [place / "output.txt", place / "errors.txt"]
    began = time.monotonic()
    with files[0].open("wb") as output, files[1].open("wb") as errors:
        process = subprocess.Popen(
            words, cwd=place, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, start_new_session=True
        )
        code = None
        while time.monotonic() - began < PATIENCE:
            found, status, usage = os.wait4(process.pid, os.WNOHANG)
            if found:
                code = os.waitstatus_to_exitcode(status)
                break
            time.sleep(0.01)
        else:
            os.killpg(process.pid, signal.SIGKILL)
            _, _, usage = os.wait4(process.pid, 0)
        process.returncode = code if code is not None else -signal.SIGKILL
    said = [file.read_text(errors="replace") for file in files]
    return code, said[0], said[1], usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def usual_start(place: Path) -> float:
    """The seconds of a process that imports everything and does nothing: the median of three."""
    code = f"import sys; import bayescore_lab.bench.step; sys.argv[1:] = ['cite']; {RUN}"
    return sorted(run_words([sys.executable, "-c", code], place)[3] for _ in range(3))[1]


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
            fuzz.run_process(int(number), usual_start(scratch))
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
    start = usual_start(scratch) if given.processes else 0.0
    for number in range(0 if late else given.processes):
        fuzz.run_process(number, start)
        if (number + 1) % 10 == 0:
            say(f"{number + 1} of {given.processes} processes")
        if late := time.monotonic() > deadline:
            break
    print(f"\n\n{fuzz.table()}\n")
    print(f"in this process: slowest {seconds:.1f} s, largest memory {memory / 1e6:.0f} MB")
    print(
        f"processes: slowest {fuzz.slowest:.1f} s after its start, largest memory {fuzz.largest / 1e6:.0f} MB"
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
