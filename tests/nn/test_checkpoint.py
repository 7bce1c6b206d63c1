"""A run that was killed continues from its checkpoint as if nothing had happened."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from toy_run import Failing, Killed, killed, run

import bayescore.nn as bnn
from bayescore.optim import ProximalScore
from file_damage import check_that_damage_is_refused, header_of, mutated, read_or_refused, with_header
from toy_problem import loader, network, rings


def how_it_ended(fit: bnn.NetworkFit) -> str:
    """The status without the optimizer's own."""
    return fit.status.split(";")[0]


METHODS: dict[str, dict[str, Any]] = {
    "proximal": {},
    "calibrated": {},
    "advi": {"draws": 2},
    "sgld": {"burn_in": 4, "thin": 2, "lr": 0.05},
    "plain": {"lr": 1e-2},
    "dropout": {"p": 0.2},
    "swag": {"rank": 3},
}


@pytest.mark.parametrize("method", METHODS)
def test_a_run_cut_in_an_epoch_continues_bitwise_from_the_epoch_before(method: str, tmp_path: Path) -> None:
    def fit(batches: Any, checkpoint: Path | None) -> bnn.NetworkFit:
        return bnn.fit(
            network(), batches, method=method, epochs=5, validation=loader(32, 1), seed=2,
            checkpoint=checkpoint, **METHODS[method],
        )  # fmt: skip

    whole = fit(loader(64, 0, batch=16), None)
    path = tmp_path / "run"
    with pytest.raises(Killed):
        fit(Failing(loader(64, 0, batch=16), 4 * 3 + 2), path)
    assert len(bnn.load_state(path)["history"]) == 3
    resumed = fit(loader(64, 0, batch=16), path)
    x, _ = rings(20, 5)
    assert torch.equal(resumed.predict(x, 4).probs, whole.predict(x, 4).probs)
    for one, two in zip(resumed.history, whole.history, strict=True):
        assert {k: v for k, v in one.items() if k != "seconds"} == {
            k: v for k, v in two.items() if k != "seconds"
        }
    assert how_it_ended(resumed) == how_it_ended(whole)
    assert resumed.best_epoch == whole.best_epoch


def test_a_killed_process_loses_the_epoch_it_was_in_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "run"
    done = len(killed(path, lambda state: len(state["history"]) > 1)["history"])
    assert 2 <= done < 6
    resumed, probs = run(path)
    assert [row["epoch"] for row in resumed.history] == [1, 2, 3, 4, 5, 6]
    _, expected = run(None)
    assert torch.equal(probs, expected)


def test_a_finished_run_is_read_back_without_training(tmp_path: Path) -> None:
    first, probs = run(tmp_path / "run")
    before = (tmp_path / "run").stat().st_mtime_ns
    again, same = run(tmp_path / "run")
    assert torch.equal(probs, same)
    assert how_it_ended(again) == how_it_ended(first)
    assert again.seconds == first.seconds
    assert (tmp_path / "run").stat().st_mtime_ns == before


def test_learned_noise_and_point_weights_are_in_the_checkpoint(tmp_path: Path) -> None:
    def fit(batches: Any, checkpoint: Path | None) -> Tensor:
        like = bnn.likelihoods.Gaussian("learned")
        bnn.fit(network(1), batches, like, epochs=4, bayesian="last", checkpoint=checkpoint)
        return like.log_noise.detach()

    whole = fit(loader(64, 0, regression=True), None)
    with pytest.raises(Killed):
        fit(Failing(loader(64, 0, regression=True), 5), tmp_path / "run")
    assert torch.equal(fit(loader(64, 0, regression=True), tmp_path / "run"), whole)


def test_patience_is_kept_across_a_cut(tmp_path: Path) -> None:
    def fit(path: Path | None) -> bnn.NetworkFit:
        return bnn.fit(
            network(), loader(32, 0, batch=8), epochs=60, validation=loader(64, 1), patience=2, lr=0.9,
            checkpoint=path,
        )  # fmt: skip

    stopped = fit(tmp_path / "run")
    assert "without improvement" in stopped.status
    assert how_it_ended(fit(tmp_path / "run")) == how_it_ended(stopped)


def test_checkpoints_of_other_runs_and_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run"
    bnn.fit(network(), loader(32, 0), epochs=1, checkpoint=path)
    with pytest.raises(ValueError, match="another run: its epochs is 1"):
        bnn.fit(network(), loader(32, 0), epochs=2, checkpoint=path)
    with pytest.raises(ValueError, match="another run: its method is 'proximal'"):
        bnn.fit(network(), loader(32, 0), epochs=1, method="plain", checkpoint=path)
    with pytest.raises(ValueError, match=r"another run: its \S+ is \[2, 16\], this one's is \[3, 16\]"):
        bnn.fit(network(3), loader(32, 0), epochs=1, checkpoint=path)
    with pytest.raises(ValueError, match="another run: its batch_size is 32, this one's is 16"):
        bnn.fit(network(), loader(32, 0, batch=16), epochs=1, checkpoint=path)
    with pytest.raises(ValueError, match="another run: its lr is the default, this"):
        bnn.fit(network(), loader(32, 0), epochs=1, lr=0.1, checkpoint=path)
    with pytest.raises(ValueError, match="another run: its point_lr is"):
        bnn.fit(network(), loader(32, 0), epochs=1, point_lr=0.1, checkpoint=path)
    warm = tmp_path / "warm"
    bnn.fit(network(), loader(32, 0), epochs=1, temperature=0.5, checkpoint=warm)
    with pytest.raises(ValueError, match=r"another run: its temperature is .* this one's is the default"):
        bnn.fit(network(), loader(32, 0), epochs=1, checkpoint=warm)
    data = path.read_bytes()
    for content in (data[: len(data) // 2], b"", b"\x80\x04\x95" + data, b"{}" * 50):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="not a readable checkpoint"):
            bnn.fit(network(), loader(32, 0), epochs=1, checkpoint=path)


def test_files_that_save_state_has_not_written_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        bnn.load_state(path)
    deep = '{"list": [' * 5000 + "]}" * 5000
    for tree in (
        "1",
        "[]",
        '{"list": "ab"}',
        '{"dict": [[1.5, 1]]}',
        '{"dict": [[[], 1]]}',
        '{"dict": 1}',
        '{"set": []}',
        '{"tensor": "b"}',
        "{}",
        deep,
    ):
        bnn.save_state(path, {"a": torch.zeros(1)})
        with_header(path, f'{{"format": "bayescore-run-1", "tree": {tree}}}')
        with pytest.raises(ValueError, match="not a readable checkpoint") as caught:
            bnn.load_state(path)
        assert "checksum" not in str(caught.value)
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(ValueError, match="not a readable checkpoint"):
        bnn.load_state(path)


def small_run(path: Path) -> bnn.NetworkFit:
    return bnn.fit(network(), loader(8, 0), epochs=1, validation=loader(8, 1), checkpoint=path)


def test_a_flipped_bit_or_a_cut_anywhere_in_a_checkpoint_is_refused(tmp_path: Path) -> None:
    small_run(tmp_path / "run")
    check_that_damage_is_refused(tmp_path / "run", lambda: small_run(tmp_path / "run"), flips=300, cuts=100)


def test_a_flipped_bit_or_a_cut_anywhere_in_a_state_is_refused(tmp_path: Path) -> None:
    path, model = tmp_path / "state", network()
    opt = ProximalScore(model.parameters(), num_data=64)
    with opt.sample():
        model(rings(8, 0)[0]).square().mean().backward()
    opt.step()
    bnn.save_state(path, {"optimizer": opt.state_dict(), "step": 1})
    check_that_damage_is_refused(path, lambda: bnn.load_state(path), flips=300, cuts=100)


def test_any_header_of_a_checkpoint_is_refused_by_a_sentence_or_read(tmp_path: Path) -> None:
    """The checksum is right, so that the header itself is judged."""
    path, rng, read = tmp_path / "run", random.Random(1), 0
    small_run(path)
    valid = header_of(path)
    for _ in range(500):
        with_header(path, mutated(valid, rng))
        state = read_or_refused(path, lambda: bnn.load_state(path))
        if state is None:
            continue
        bnn.save_state(tmp_path / "again", state)
        assert bnn.load_state(tmp_path / "again").keys() == state.keys()
        read += read_or_refused(path, lambda: small_run(path)) is not None
    assert 0 < read < 250


DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no settings": (lambda s: s.pop("settings"), "does not say of which run"),
    "no seconds": (lambda s: s.pop("seconds"), "lacks 'seconds'"),
    "no tensor": (lambda s: s["model"].pop("3.bias"), "lacks '3.bias'"),
    "shape": (lambda s: s["model"].update({"3.bias": torch.zeros(())}), "3.bias is of another shape"),
    "kind": (lambda s: s["model"].update({"3.bias": torch.zeros(1).long()}), "3.bias is of another"),
    "nan": (lambda s: s["model"]["3.bias"].fill_(float("nan")), "3.bias is not finite"),
    "noise": (lambda s: s["likelihood"].update(log_noise=torch.zeros(3)), "log_noise is of another"),
    "moments": (
        lambda s: s["optimizer"]["state"][0]["second"].fill_(-1),
        "second of 3.weight holds impossible",
    ),
    "adam": (lambda s: s["point_optimizer"]["state"][0].update(exp_avg=torch.zeros(5)), "exp_avg of Adam"),
    "adam's number": (lambda s: s["point_optimizer"]["param_groups"][0].update(eps="x"), "eps of Adam"),
    "schedule": (lambda s: s["schedule"].update(last_epoch="x"), "last_epoch must be a whole number"),
    "rates": (lambda s: s["schedule"].update(base_lrs=[]), "another learning rate"),
    "history": (lambda s: s.update(history=[{"loss": "x"}]), "rows of numbers"),
    "stream": (lambda s: s["loaders"].update(loader=torch.zeros(9)), "damaged"),
    "best": (lambda s: s["best"][2][1].pop("random.sd.3.bias"), "damaged"),
    "best's options": (lambda s: s["best"][2][0].update(config={"x": 1}), "damaged"),
    "unfinished epoch": (lambda s: s.update(unfinished={"batches": 1}), "damaged"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_run_is_refused_and_the_users_objects_are_as_they_were(what: str, tmp_path: Path) -> None:
    def fit(model: nn.Module, batches: Any, like: Any) -> bnn.NetworkFit:
        return bnn.fit(
            model, batches, like, bayesian="last", epochs=1, checkpoint=path,
            validation=loader(8, 1, regression=True),
        )  # fmt: skip

    path = tmp_path / "run"
    fit(network(1), loader(8, 0, regression=True), bnn.likelihoods.Gaussian("learned"))
    state = bnn.load_state(path)
    change, message = DAMAGE[what]
    change(state)
    bnn.save_state(path, state)
    model, batches, like = (
        network(1, seed=5),
        loader(8, 0, regression=True),
        bnn.likelihoods.Gaussian("learned"),
    )
    with pytest.raises(ValueError, match=message) as caught:
        fit(model, batches, like)
    assert "\n" not in str(caught.value)
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), network(1, seed=5).parameters(), strict=True)
    )
    assert float(like.log_noise.detach()) == 0
    assert torch.equal(batches.generator.get_state(), torch.Generator().manual_seed(0).get_state())


def test_nested_state_comes_back_as_it_was(tmp_path: Path) -> None:
    state = {"a": [1, 2.5, None, "x", True], "b": {3: torch.arange(4), "t": (torch.ones(()), [])}, "c": {}}
    bnn.save_state(tmp_path / "state", state)
    found = bnn.load_state(tmp_path / "state")
    assert found["a"] == state["a"]
    assert found["c"] == {}
    assert torch.equal(found["b"][3], torch.arange(4))
    assert isinstance(found["b"]["t"], tuple)
    assert found["b"]["t"][0].shape == ()
    with pytest.raises(TypeError, match="cannot hold a function"):
        bnn.save_state(tmp_path / "state", {"f": lambda: None})
    with pytest.raises(TypeError, match="key"):
        bnn.save_state(tmp_path / "state", {(1, 2): 3})
    with pytest.raises(TypeError, match="holds a dict"):
        bnn.save_state(tmp_path / "state", [1])  # type: ignore[arg-type]
    assert bnn.load_state(tmp_path / "state")["a"] == state["a"]


def test_infinities_and_nan_come_back_as_they_were(tmp_path: Path) -> None:
    bnn.save_state(tmp_path / "state", {"best": [math.inf, -math.inf], "loss": math.nan})
    found = bnn.load_state(tmp_path / "state")
    assert found["best"] == [math.inf, -math.inf]
    assert math.isnan(found["loss"])
