"""A file that is no saved fit, or no longer one, is refused with a sentence that names it."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import bayescore as bs
from bayescore.targets import Gaussian
from cases import family

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


def header_of(path: Path) -> tuple[dict, bytes, dict]:
    """The fit's own header, the tensors' bytes, and the safetensors header around it."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    outer = json.loads(data[8 : 8 + size])
    return json.loads(outer["__metadata__"]["json"]), data[8 + size :], outer


def with_header(path: Path, header: object, drop: str | None = None) -> None:
    """The file again with another header, or without one of its tensors' entries renamed."""
    _, tensors, outer = header_of(path)
    outer["__metadata__"]["json"] = header if isinstance(header, str) else json.dumps(header)
    if drop:
        outer["somewhere.else"] = outer.pop(drop)
    text = json.dumps(outer).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + tensors)


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
    original, _, _ = header_of(path)
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
    header, _, outer = header_of(path)
    if tensor not in outer:
        pytest.skip("this version does not write it")
    with_header(path, header, drop=tensor)
    refused(path)


def test_a_method_that_does_not_exist_is_refused_with_the_nearest_name(path: Path) -> None:
    header, _, _ = header_of(path)
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
