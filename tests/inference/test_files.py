"""A saved fit: safetensors and JSON, written whole or not at all, and read back as it was."""

from __future__ import annotations

import json
import os
import re
import stat
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import zuko

import bayescore as bs
from bayescore.inference.result import Outcome, Trust
from bayescore.targets import Gaussian
from cases import RUNS, family, same_run

TARGET = Gaussian.random(3, seed=8)
SOURCE = Path(bs.__file__).parent


@pytest.fixture(scope="module")
def fit() -> bs.Fit:
    return bs.fit(
        TARGET, family("full"), bs.methods.ProximalDescent(inner_steps=2), steps=12, seed=3, record_every=3
    )


@pytest.fixture
def path(fit: bs.Fit, tmp_path: Path) -> Path:
    fit.save(tmp_path / "my.fit")
    return tmp_path / "my.fit"


@pytest.mark.parametrize("name", RUNS)
def test_a_saved_fit_loads_as_it_was(name: str, tmp_path: Path) -> None:
    method, kind = RUNS[name]
    fit = bs.fit(TARGET, family(kind), method, steps=4, record_every=2, seed=5)
    fit.save(tmp_path / "fit")
    again = bs.Fit.load(tmp_path / "fit", TARGET)
    same_run(again, fit)
    assert again.method == fit.method
    assert again.seed == 5
    assert again.seconds == fit.seconds
    assert again.pending == fit.pending
    assert type(again.family) is type(fit.family)
    assert repr(again.family) == repr(fit.family)
    assert again.elbo == fit.elbo


def test_a_loaded_history_equals_the_saved_one(path: Path, fit: bs.Fit) -> None:
    assert bs.Fit.load(path).history == fit.history


def test_single_precision_is_kept(tmp_path: Path) -> None:
    target = bs.targets.LogDensity(lambda x: -0.5 * x.square().sum(-1), 3, dtype=torch.float32)
    fit = bs.fit(target, bs.families.FullGaussian.init(3, dtype=torch.float32), bs.methods.BaM(), steps=5)
    fit.save(tmp_path / "fit")
    assert bs.Fit.load(tmp_path / "fit", target).family.dtype == torch.float32


def test_without_its_target_a_fit_can_be_sampled_but_not_judged(path: Path, fit: bs.Fit) -> None:
    again = bs.Fit.load(path)
    assert torch.equal(again.family.sample(5, seed=1), fit.family.sample(5, seed=1))
    assert again.elbo is None
    assert again.khat is None
    assert again.trust is Trust.UNKNOWN
    assert again.verdict.startswith("unknown: ")
    assert "pass it to Fit.load(path, target)" in again.verdict
    assert again.summary().count("none: the fit was loaded without its target") == 2


def test_a_file_can_be_replaced_and_leaves_no_litter(path: Path, fit: bs.Fit) -> None:
    fit.save(path)
    assert [p.name for p in path.parent.iterdir()] == ["my.fit"]


def test_paths_may_be_strings(tmp_path: Path, fit: bs.Fit) -> None:
    fit.save(str(tmp_path / "fit"))
    assert bs.Fit.load(str(tmp_path / "fit")).status == fit.status


def test_a_saved_fit_has_the_permissions_of_any_new_file(path: Path) -> None:
    (path.parent / "plain").write_text("x")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((path.parent / "plain").stat().st_mode)


@pytest.mark.parametrize(
    "name",
    [".my.fit.{pid}.part", ".my.fit.part", "my.fit.part", "my.fit.tmp", ".my.fit.tmp", "my.fit~", "my.fit"],
)
def test_a_planted_link_is_not_followed(name: str, tmp_path: Path, fit: bs.Fit) -> None:
    (tmp_path / "victim").write_text("precious")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / name.format(pid=os.getpid())).symlink_to(tmp_path / "victim")
    fit.save(folder / "my.fit")
    assert (tmp_path / "victim").read_text() == "precious"
    assert not (folder / "my.fit").is_symlink()
    assert bs.Fit.load(folder / "my.fit").history == fit.history


def test_two_threads_save_one_file_and_neither_fails(tmp_path: Path, fit: bs.Fit) -> None:
    path = tmp_path / "my.fit"
    with ThreadPoolExecutor(2) as threads:
        for saved in [threads.submit(fit.save, path) for _ in range(120)]:
            saved.result()  # raises what the thread raised
    assert bs.Fit.load(path).history == fit.history
    assert [p.name for p in tmp_path.iterdir()] == ["my.fit"]


@pytest.mark.parametrize("call", ["os.replace", "os.fsync"])
def test_a_failure_while_writing_leaves_the_old_file_and_nothing_else(
    call: str, path: Path, fit: bs.Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(call, fail)
    with pytest.raises(OSError, match="no space left"):
        fit.save(path)
    monkeypatch.undo()
    assert path.read_bytes() == old
    assert [p.name for p in path.parent.iterdir()] == ["my.fit"]


def test_ctrl_c_while_writing_leaves_no_half_file(
    path: Path, fit: bs.Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = path.read_bytes()
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        fit.save(path)
    monkeypatch.undo()
    assert path.read_bytes() == old
    assert [p.name for p in path.parent.iterdir()] == ["my.fit"]


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path, fit: bs.Fit) -> None:
    with pytest.raises(FileNotFoundError, match=re.escape(str(tmp_path / "nowhere"))) as caught:
        fit.save(tmp_path / "nowhere" / "fit")
    assert ".part" not in str(caught.value), "the name of a temporary file helps nobody"


def test_a_method_with_a_function_is_not_saved_and_the_argument_is_named(tmp_path: Path) -> None:
    method = bs.methods.ProximalDescent(alpha=lambda t, T: 0.5)
    fit = bs.fit(TARGET, family("full"), method, steps=2)
    with pytest.raises(
        TypeError, match=r"alpha=.*is a function and cannot be saved; use a named schedule or a number"
    ):
        fit.save(tmp_path / "fit")
    assert not list(tmp_path.iterdir())


def test_a_family_that_cannot_be_rebuilt_is_not_saved_in_silence(tmp_path: Path) -> None:
    with torch.random.fork_rng(devices=[]):
        q = bs.families.ZukoFlow(zuko.flows.MAF(3, transforms=1, hidden_features=(4,))).to(torch.float64)
    fit = bs.fit(TARGET, q, bs.methods.ADVI(), steps=2)

    def there_and_back() -> None:
        fit.save(tmp_path / "fit")
        bs.Fit.load(tmp_path / "fit")

    with pytest.raises((TypeError, ValueError), match=r"own module|custom"):
        there_and_back()


def test_an_outcome_is_kept_by_its_name(tmp_path: Path) -> None:
    fit = bs.fit(
        TARGET, family("full"), bs.methods.GSM(), steps=9, record_every=3, callbacks=[lambda _: True]
    )
    assert fit.outcome is Outcome.STOPPED
    fit.save(tmp_path / "fit")
    assert bs.Fit.load(tmp_path / "fit").outcome is Outcome.STOPPED


def test_nothing_in_the_library_is_ever_pickled() -> None:
    words = re.compile(
        r"\b(import pickle|from pickle|pickle\.|torch\.(save|load)\(|joblib|cloudpickle|allow_pickle=True)"
    )
    files = [
        p for p in SOURCE.rglob("*.py") if "experiments" not in p.parts
    ]  # its workers talk through pipes
    weights = SOURCE / "models" / "weights.py"  # pretrained weights of others may come as torch's state dicts
    loads = [line for line in weights.read_text().splitlines() if "torch.load(" in line]
    assert len(loads) == 1
    assert "weights_only=True" in loads[0]
    files.remove(weights)
    found = [
        f"{p.relative_to(SOURCE)}: {line}"
        for p in files
        for line in p.read_text().splitlines()
        if words.search(line)
    ]
    assert not found


def test_the_header_is_json_that_any_reader_accepts(path: Path) -> None:
    """Not a number is no JSON: other languages' readers stop at it."""
    data = path.read_bytes()
    outer = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    json.loads(outer["__metadata__"]["json"], parse_constant=refuse)
