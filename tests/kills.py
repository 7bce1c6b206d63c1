"""kill -9 at random moments: `python tests/kills.py --kills 200 --seed 0`, which is `make kill-test`.

Four jobs write files while they run: `bayescore reproduce`, `nn.fit(checkpoint=)`, a fit that saves itself at
every record, and `bayescore train --checkpoint`. A job is first run to its end, which gives the files that it
must write and the time T that it takes. Then it is started in a new folder and killed at a moment that is
uniform on (0, T), started again on what it has left behind, and so on, up to five times; then it may finish.
After every kill all files must be readable and hold at least what they held before. In the end they must be
those of the undisturbed run, bitwise, except for seconds and time stamps.

A job is a fork of this process, which has imported torch already, so that kills hit the job and not its
imports; `reproduce`, which starts processes of its own, is a process of its own, killed as a group.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
for folder in (HERE, HERE / "lab"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import torch  # noqa: E402
from toy_tools import living, results  # noqa: E402

import bayescore as bs  # noqa: E402
from bayescore.cli import main as command  # noqa: E402
from bayescore.targets import Gaussian  # noqa: E402
from toy_problem import loader, network  # noqa: E402

__all__ = ["JOBS", "kill_at_random"]

ATTEMPTS = 5  # kills of one run before it may finish
PATIENCE = 300.0  # seconds that a run may take which is not killed
TIMES = ("seconds", "started", "commit")  # the last is that of the checkout in which a run ends


@dataclass(frozen=True)
class Job:
    """Something that writes into a folder.

    Arguments:
        start: starts it there; returns the number of the process, which leads its own group.
        read: reads all of its files, without what depends on the clock; raises if one is not readable.
        progress: how much of the work its files hold.
    """

    start: Callable[[Path], int]
    read: Callable[[Path], Any]
    progress: Callable[[Path], int]


# -- the jobs --------------------------------------------------------------------------------------------


def forked(work: Callable[[Path], None]) -> Callable[[Path], int]:
    """Start a function in a fork of this process."""

    def start(folder: Path) -> int:
        process = os.fork()
        if process:
            return process
        code = 1
        try:
            os.setpgid(0, 0)
            log = os.open(folder.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            work(folder)
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)

    return start


def start_reproduce(folder: Path) -> int:
    """The command of the lab for an experiment of its own, on two processes."""
    words = ["reproduce", "toy", "--profile", "slow", "--jobs", "2", "--out", str(folder)]
    with folder.with_suffix(".log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "lab" / "toy_command.py"), *words],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    process.returncode = 0  # `ended` waits for it
    return process.pid


def read_reproduce(folder: Path) -> Any:
    found: dict[str, Any] = {}
    for path in files_of(folder):
        name = str(path.relative_to(folder))
        if path.name == "records.jsonl":
            *lines, _ = path.read_bytes().split(b"\n")  # the last may be cut off
            found[name] = len([json.loads(line) for line in lines])
        elif path.name == "summary.json":
            found[name] = without_times(json.loads(path.read_text()))
        else:
            found[name] = path.read_bytes()
    if "toy/records.jsonl" in found and found["toy/records.jsonl"] == 36:
        found["runs"] = results(folder / "toy" / "records.jsonl")
    return found


def count_records(folder: Path) -> int:
    path = folder / "toy" / "records.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def train_network(folder: Path) -> None:
    """`nn.fit`, with a checkpoint every three steps."""
    fit = bs.nn.fit(
        network(),
        loader(96, 0, batch=8),
        epochs=6,
        validation=loader(64, 1),
        checkpoint=folder / "run.safetensors",
        checkpoint_every=3,
        progress=False,
    )
    fit.posterior.save(folder / "posterior.safetensors")


def train_command(folder: Path) -> None:
    """`bayescore train`."""
    sizes = {"--hidden": 30, "--epochs": 20, "--fraction": 0.2, "--batch-size": 32, "--draws": 3}
    words = ["train", "digits", "--quiet", *(str(word) for pair in sizes.items() for word in pair)]
    files = ["--checkpoint", str(folder / "run.safetensors"), "--output", str(folder / "model")]
    command([*words, *files])


def read_training(folder: Path) -> Any:
    """The checkpoint as nested state, and posteriors as bytes."""
    found: dict[str, Any] = {}
    for path in files_of(folder):
        if path.name == "run.safetensors":
            found[path.name] = as_lists(without_times(bs.nn.load_state(path)))
        else:
            found[path.name] = path.read_bytes()
    return found


def count_steps(folder: Path) -> int:
    path = folder / "run.safetensors"
    return int(bs.nn.load_state(path)["schedule"]["last_epoch"]) if path.exists() else 0


TARGET = Gaussian.random(20, seed=0)
STEPS = 160


def save_fit(folder: Path) -> None:
    """A fit that saves itself at every record, continued from its file if there is one."""
    path = folder / "fit.safetensors"

    def save(fit: bs.Fit) -> None:
        fit.save(path)

    method, options = bs.methods.ProximalDescent(), {"record_every": 4, "progress": False}
    if path.exists():
        fit = bs.resume(bs.Fit.load(path, TARGET), callbacks=[save], **options)
    else:
        q0 = bs.families.FullGaussian.init(20)
        fit = bs.fit(TARGET, q0, method, steps=STEPS, seed=1, callbacks=[save], **options)
    fit.save(path)


def read_fit(folder: Path) -> Any:
    path = folder / "fit.safetensors"
    if not path.exists():
        return None
    fit = bs.Fit.load(path)
    columns = without_times(fit.history.columns)
    history = {name: torch.tensor(values, dtype=torch.float64) for name, values in columns.items()}
    return [
        fit.state.step,
        fit.status,
        fit.counts,
        as_lists(history),
        as_lists(fit.streams),
        as_lists(fit.state.tensors()),
    ]


def count_fit_steps(folder: Path) -> int:
    path = folder / "fit.safetensors"
    return bs.Fit.load(path).state.step if path.exists() else 0


JOBS = {
    "bayescore reproduce": Job(start_reproduce, read_reproduce, count_records),
    "nn.fit(checkpoint=)": Job(forked(train_network), read_training, count_steps),
    "fit.save": Job(forked(save_fit), read_fit, count_fit_steps),
    "bayescore train --checkpoint": Job(forked(train_command), read_training, count_steps),
}


def files_of(folder: Path) -> list[Path]:
    """The files of a job, without what a killed write leaves in a private folder of its own."""
    found = [path for path in folder.rglob("*") if path.is_file()]
    return sorted(path for path in found if ".bayescore-" not in str(path.relative_to(folder)))


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_times(part) for key, part in value.items() if key not in TIMES}
    if isinstance(value, list | tuple):
        return [without_times(part) for part in value]
    return value


def as_lists(value: Any) -> Any:
    """Tensors as their kind and their bytes, which `==` can compare."""
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), list(value.shape), value.reshape(-1).view(torch.uint8).numpy().tobytes()]
    if isinstance(value, dict):
        return {key: as_lists(part) for key, part in value.items()}
    return [as_lists(part) for part in value] if isinstance(value, list) else value


# -- kills -----------------------------------------------------------------------------------------------


def ended(process: int, seconds: float) -> int | None:
    """The exit code of a process that ends within so many seconds; None if it does not."""
    deadline = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            return None
        time.sleep(min(0.005, max(0.0, deadline - time.monotonic())))


def kill(process: int) -> None:
    """kill -9, and wait until it and its workers are gone."""
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    deadline = time.monotonic() + 60
    while living(process):
        assert time.monotonic() < deadline, "a worker outlived its command"
        time.sleep(0.005)


def finish(job: Job, folder: Path) -> None:
    """Start a job and let it end."""
    process = job.start(folder)
    code = ended(process, PATIENCE)
    if code is None:
        kill(process)
    log = folder.with_suffix(".log").read_text(errors="replace")
    assert code == 0, f"a run that was not killed ended with {code}:\n{log}"


def kill_at_random(
    name: str, kills: int, rng: random.Random, scratch: Path, say: Callable[[str], None]
) -> dict[str, int]:
    """Kill a job so many times; raises AssertionError if a file is not what it must be.

    Returns how many kills hit a run in progress, how many of them left work behind, and how many runs were
    compared with the undisturbed one.
    """
    job = JOBS[name]
    whole = scratch / "whole"
    whole.mkdir(parents=True)
    began = time.monotonic()
    finish(job, whole)
    duration, wanted = time.monotonic() - began, job.read(whole)
    done = partial = runs = 0
    while done < kills:
        runs += 1
        folder = scratch / f"run{runs}"
        folder.mkdir()
        before, code = 0, None
        for _ in range(min(ATTEMPTS, kills - done)):
            process = job.start(folder)
            code = ended(process, rng.uniform(0, duration))
            if code is not None:
                assert code == 0, folder.with_suffix(".log").read_text(errors="replace")
                break
            kill(process)
            done += 1
            job.read(folder)  # every file is whole
            after = job.progress(folder)
            assert after >= before, f"a kill lost work: {before} before, {after} after"
            partial += after > 0
            before = after
            say(f"{name}: {done} of {kills} kills")
        if code is None:
            finish(job, folder)
        assert job.read(folder) == wanted, f"{folder} is not what an undisturbed run writes, {whole}"
        shutil.rmtree(folder)
    return {"kills": done, "with work to lose": partial, "runs compared": runs}


def main() -> None:
    parser = argparse.ArgumentParser(description="kill -9 at random moments")
    parser.add_argument("--kills", type=int, default=200, help="shared among four jobs")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="bayescore-kills-"))
    began = time.monotonic()
    print(f"seed {given.seed}, files in {scratch}", flush=True)

    def say(line: str) -> None:
        end = "\r" if sys.stdout.isatty() else "\n"
        print(f"{line}, {time.monotonic() - began:.0f} s", end=end, flush=True)

    found = {}
    for place, name in enumerate(JOBS):
        share = given.kills // len(JOBS) + (place < given.kills % len(JOBS))
        rng = random.Random(f"{given.seed} {name}")
        found[name] = kill_at_random(name, share, rng, scratch / str(place), say)
    shutil.rmtree(scratch)
    print("\n| job | kills | of these with work to lose | runs compared |\n|---|---|---|---|")
    for name, row in found.items():
        print(f"| `{name}` | {' | '.join(str(count) for count in row.values())} |")
    print(f"\n{given.kills} kills, nothing lost, in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
