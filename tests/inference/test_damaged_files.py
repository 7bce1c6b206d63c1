"""A file that is no saved fit, or no longer one, is refused with a sentence that names it."""

from __future__ import annotations

import random
import re
import struct
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import bayescore as bs
from bayescore.inference.result import Outcome
from bayescore.targets import Gaussian
from cases import RUNS, family
from file_damage import check_that_damage_is_refused, header_of, mutated, read_or_refused, with_header

TARGET = Gaussian.random(3, seed=8)


@pytest.fixture(scope="module")
def fit() -> bs.Fit:
    method = bs.methods.ProximalDescent(inner_steps=2)
    return bs.fit(TARGET, family("full"), method, steps=12, seed=3, record_every=3)


@pytest.fixture
def path(fit: bs.Fit, tmp_path: Path) -> Path:
    fit.save(tmp_path / "my.fit")
    return tmp_path / "my.fit"


# -- what is not a fit ------------------------------------------------------------------------------------


def refused(path: Path, target: bs.targets.Target | None = None) -> None:
    with pytest.raises(ValueError, match=re.escape(str(path))) as caught:
        bs.Fit.load(path, target)
    assert "is not a readable bayescore fit" in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no saved fit at .*nothing"):
        bs.Fit.load(tmp_path / "nothing")


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(path: Path, share: float) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    refused(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 64,
        b"not a fit at all",
        b"{}",
        b"\x80\x04N.",
        b"\xff" * 1000,
        struct.pack("<Q", 2**62) + b"{}",
    ],
    ids=["empty", "zeros", "text", "json", "pickle", "ones", "enormous header"],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "other").write_bytes(content)
    refused(tmp_path / "other")


def test_a_safetensors_file_of_another_program_is_refused(tmp_path: Path) -> None:
    save_file({"weight": torch.zeros(3)}, tmp_path / "model.safetensors")
    refused(tmp_path / "model.safetensors")


KEYS = [
    "format",
    "family",
    "method",
    "step",
    "horizon",
    "outcome",
    "status",
    "history",
    "counts",
    "seconds",
    "seed",
    "pending",
    "notes",
    "objections",
]


@pytest.mark.parametrize("key", KEYS)
def test_a_damaged_header_is_refused(path: Path, key: str) -> None:
    """Of another type, or not there: the file is refused by its name, never half understood."""
    original = header_of(path)
    kind = type(original[key])
    others = [None, 17, 0.5, "x", [], {}, [[]], {"a": {}}]
    damaged = [{**original, key: value} for value in others if type(value) is not kind]
    damaged.append({k: v for k, v in original.items() if k != key})
    for header in damaged:
        if {type(header.get(key)), kind} == {int, float}:
            continue
        with_header(path, header)
        refused(path, TARGET)


@pytest.mark.parametrize(
    "header",
    ["[]", "3", "null", '"fit"', "{", "[" * 5000],
    ids=["list", "number", "null", "text", "broken", "deep"],
)
def test_a_header_of_another_shape_is_refused(path: Path, header: str) -> None:
    with_header(path, header)
    refused(path)


@pytest.mark.parametrize(
    "tensor", ["state.family.mean", "state.family.raw", "state.first", "state.second", "streams"]
)
def test_a_missing_tensor_is_refused(path: Path, tensor: str) -> None:
    with_header(path, header_of(path), rename=tensor)
    refused(path)


def test_a_method_that_does_not_exist_is_refused_with_the_nearest_name(path: Path) -> None:
    header = header_of(path)
    header["method"]["name"] = "proximate"
    with_header(path, header)
    with pytest.raises(ValueError, match=r"no method called 'proximate'; did you mean 'proximal'\?"):
        bs.Fit.load(path)


def test_another_target_than_the_fit_s_is_refused_with_both_dimensions(path: Path) -> None:
    with pytest.raises(ValueError, match=r"4.*3|3.*4"):
        bs.Fit.load(path, Gaussian.random(4))


def test_a_target_of_another_dtype_is_refused(path: Path) -> None:
    single = bs.targets.LogDensity(lambda x: -x.square().sum(-1), 3, dtype=torch.float32)
    with pytest.raises(ValueError, match="float32"):
        bs.Fit.load(path, single)


# -- damage anywhere --------------------------------------------------------------------------------------


def test_a_flipped_bit_or_a_cut_anywhere_is_refused(path: Path) -> None:
    check_that_damage_is_refused(path, lambda: bs.Fit.load(path, TARGET), flips=300, cuts=100)


def test_a_changed_number_in_the_tensors_is_refused(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match="do not match their checksum; take an undamaged copy"):
        bs.Fit.load(path)


@pytest.mark.parametrize("run", ["descent full", "bam diagonal", "descent zuko"])
def test_any_header_is_refused_by_a_sentence_or_read_as_it_is(run: str, tmp_path: Path) -> None:
    """The checksum is right, so that the header itself is judged: nothing in it is dropped or altered."""
    method, kind = RUNS[run]
    path, rng = tmp_path / "fit", random.Random(1)
    bs.fit(TARGET, family(kind), method, steps=4, seed=3, record_every=2).save(path)
    valid, read = header_of(path), 0
    for _ in range(500):
        with_header(path, mutated(valid, rng))
        fit = read_or_refused(path, lambda: bs.Fit.load(path))
        if fit is None:
            continue
        read += 1
        assert fit.summary()
        fit.save(tmp_path / "again")
        assert header_of(tmp_path / "again") == header_of(path)
    assert 0 < read < 250


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize(
    "run",
    ["descent full", "bam full", "advi diagonal", "proximal score diagonal", "calibrated score diagonal"],
)
def test_a_state_that_is_not_finite_is_refused_unless_the_fit_says_that_it_diverged(
    run: str, number: float, tmp_path: Path
) -> None:
    method, kind = RUNS[run]
    fit = bs.fit(TARGET, family(kind), method, steps=4, seed=3)
    first, path = method.init(fit.state.family, 4).tensors(), tmp_path / "fit"
    for name in first:
        tensors = {key: value.clone() for key, value in fit.state.tensors().items()}
        if not tensors[name].numel() or bool((first[name] == number).any()):
            continue  # a tensor that the method does not use, or that begins as an infinity
        tensors[name].view(-1)[0] = number
        broken = replace(fit, state=fit.state.with_tensors(tensors))
        why = f"its tensor {name} is not finite, and it does not say that it diverged"
        with pytest.raises(ValueError, match=f"the fit cannot be saved: {why}"):
            broken.save(path)
        replace(broken, outcome=Outcome.DIVERGED).save(path)
        again = bs.Fit.load(path).state.tensors()[name]
        assert torch.equal(again.nan_to_num(7.0), tensors[name].nan_to_num(7.0))
        with_header(path, header_of(path) | {"outcome": "BUDGET"})
        with pytest.raises(ValueError, match=why):
            bs.Fit.load(path)


@pytest.mark.parametrize(
    ("run", "part", "change"),
    [
        ("paired bam diagonal", "method", {"draws": 10**12}),
        ("descent zuko", "family", {"hidden": [10**9, 10**9]}),
        ("descent zuko", "family", {"transforms": 10**9}),
        ("descent zuko", "family", {"dim": 10**9}),
    ],
)
def test_a_header_that_asks_for_more_than_the_file_holds_is_refused_before_memory_is_used(
    run: str, part: str, change: dict, tmp_path: Path
) -> None:
    method, kind = RUNS[run]
    bs.fit(TARGET, family(kind), method, steps=2).save(tmp_path / "fit")
    header = header_of(tmp_path / "fit")
    header[part] |= change
    with_header(tmp_path / "fit", header)
    with pytest.raises(ValueError, match=r"more parameters than|tensors are not those of"):
        bs.Fit.load(tmp_path / "fit")


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("method", {"name": "paired-bam", **bs.methods.PairedBaM().config()}),
        ("family", {"form": "covariance"}),
        ("family", {"another": 1}),
    ],
)
def test_a_method_and_a_family_that_do_not_go_together_are_refused(
    path: Path, part: str, change: dict
) -> None:
    header = header_of(path)
    header[part] = change if part == "method" else header[part] | change
    with_header(path, header)
    with pytest.raises(ValueError, match=r"cannot fit a FullGaussian|not of the form that its header says"):
        bs.Fit.load(path)
