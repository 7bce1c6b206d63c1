"""A posterior does not depend on how many processes hold it: sharded networks against whole ones.

The processes are those of sharded_worker.py; two of them here, four in the slow tests.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from sharded_worker import launch
from small_networks import OPTIMIZERS

TOLERANCE = {"float64": 1e-10, "float32": 1e-5}


def case(**changes: Any) -> dict[str, Any]:
    return {"network": "mlp", "kind": "proximal", "how": "fsdp", "dtype": "float64", "count": 20, **changes}


EVERY_OPTIMIZER = {kind: case(kind=kind) for kind in OPTIMIZERS}
LARGE = {
    f"large tensors, {kind}, noise of the {noise}": case(kind=kind, large=noise, count=12)
    for kind, noise in (
        ("proximal", "generator"),
        ("proximal", "counter"),
        ("calibrated", "generator"),
        ("advi", "generator"),
        ("bam", "generator"),
    )
}
LARGE["large tensors that outgrow their grids"] = case(large="counter", options={"lr": 0.3}, count=12)
SITUATIONS = {
    **LARGE,
    "tied embeddings": case(network="language"),
    "frozen BatchNorm": case(network="conv"),
    "offload": case(how="offload", count=5),
    "whole": case(how="ddp", count=5),
    "accumulation": case(parts=2, options={"accumulate": 2}, count=5),
    "one reduction for several backward calls": case(
        parts=2, options={"accumulate": 2}, late_sync=True, count=5
    ),
    "clipping": case(clip=0.05, count=5),
    "an empty part": case(network="one number", count=5),
    "a gradient that is not finite on one process": case(spoilt=2, count=5),
    "the same with several draws": case(kind="bam", spoilt=2, count=5),
    "evaluation between steps": case(evaluating=True, count=5),
    "average and prior": case(options={"average": 0.5, "prior_mean": "current"}, count=5),
    "single precision": case(network="language", dtype="float32"),
}
MANY = {
    f"{network} {how} {kind} {dtype}": case(network=network, how=how, kind=kind, dtype=dtype)
    for network in ("mlp", "conv", "language")
    for how in ("ddp", "fsdp", "offload", "hybrid", "tp", "tp only")
    for kind in OPTIMIZERS
    for dtype in ("float64", "float32")
    if kind == "proximal" or how in ("ddp", "fsdp", "offload", "tp")
    # one process alone differs by up to 1.5e-5 there if the rows of its batch change places: at first, small
    # gradients are divided by themselves
    if (network, kind, dtype) != ("language", "psgld", "float32")
}
MANY |= {
    f"large tensors {network} {how} {kind}": case(network=network, how=how, kind=kind, large="counter")
    for network in ("mlp", "language")
    for how in ("fsdp", "tp")
    for kind in OPTIMIZERS
}
MANY |= {
    f"clipping on several meshes, {how}": case(network="language", how=how, clip=0.05, meshes=True, count=5)
    for how in ("fsdp", "tp", "tp only")
}
ALONE = {
    f"{how} {kind}": case(kind=kind, how=how, count=5)
    for how in ("ddp", "fsdp", "offload")
    for kind in OPTIMIZERS
}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What two processes found."""
    folder = tmp_path_factory.mktemp("two")
    cases = {**EVERY_OPTIMIZER, **SITUATIONS}
    for name in ("saved", "large"):
        (folder / name).mkdir()
    tasks: dict[str, tuple[str, dict[str, Any]]] = {
        "differences": ("equality", {"cases": list(cases.values())}),
        "positions": ("positions", {}),
        "gaussian": ("predictions", {"folder": str(folder)}),
        "chain": ("predictions", {"folder": str(folder), "kind": "sgld"}),
        "precision": ("low_precision", {}),
        "mistakes": ("mistakes", {}),
        "refused": ("refused", {}),
        "full": ("full", {"kinds": ["proximal"]}),
        "replaced": ("replaced", {}),
        "messages": ("messages", {}),
        "fit": ("fitting", {"folder": str(folder)}),
        "save": (
            "save",
            {"folder": str(folder / "saved"), "kinds": ["proximal"], "how": "fsdp", "later": True},
        ),
        "load": ("load", {"folder": str(folder / "saved"), "kinds": ["proximal"], "how": "whole"}),
        "save large": (
            "save",
            {"folder": str(folder / "large"), "kinds": ["proximal"], "how": "fsdp", "large": "counter"},
        ),
        "load large": (
            "load",
            {"folder": str(folder / "large"), "kinds": ["proximal"], "how": "whole", "large": "counter"},
        ),
    }
    found = dict(zip(tasks, launch(folder, 2, *tasks.values()), strict=True))
    found["differences"] = dict(zip(cases, found["differences"], strict=True))
    return found


@pytest.mark.parametrize("name", [*EVERY_OPTIMIZER, *SITUATIONS])
def test_two_processes_with_shards_equal_one_with_the_joined_batch(two: dict[str, Any], name: str) -> None:
    precision = {**EVERY_OPTIMIZER, **SITUATIONS}[name]["dtype"]
    difference = two["differences"][name]
    assert isinstance(difference, float), difference
    assert difference < TOLERANCE[precision]


def test_noise_is_the_same_at_every_position(two: dict[str, Any]) -> None:
    assert two["positions"] == {"generator fsdp": True, "counter fsdp": True}


@pytest.mark.parametrize("kind", ["gaussian", "chain"])
def test_a_sharded_posterior_predicts_as_the_whole_one_and_never_gathers(
    two: dict[str, Any], kind: str
) -> None:
    found = two[kind]
    assert found.pop("sharded state") is True
    assert set(found) == {"prediction", "mean afterwards", "one draw", "file, whole", "file, sharded"}
    assert max(found.values()) < 1e-12


def test_state_is_float32_under_a_mixed_precision_policy(two: dict[str, Any]) -> None:
    assert two["precision"]["kinds"] == ["torch.float32"]
    assert 0 < two["precision"]["difference"] < 0.5


def test_processes_that_differ_are_told_so_and_a_damaged_part_is_refused_by_all(two: dict[str, Any]) -> None:
    for told in two["mistakes"]:
        assert "different seeds" in told["seeds"]
        assert "different options" in told["options"]
    assert "another process" in two["mistakes"][0]["damage"]
    assert "impossible numbers" in two["mistakes"][1]["damage"]


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("family", "a density over all weights together needs whole weights, and a parameter is sharded"),
        ("plain", "the methods plain, dropout and swag need whole weights, and a parameter is sharded"),
        ("in_backward", "leave it out in distributed training"),
        ("pipeline", "have different parameters.*pipelines of different layers are not supported"),
    ],
)
def test_what_cannot_be_sharded_is_refused_on_every_process(
    two: dict[str, Any], what: str, words: str
) -> None:
    for told in two["refused"]:
        assert re.search(words, told[what])


def test_an_optimizer_whose_weights_are_replaced_by_sharded_ones_trains_these(two: dict[str, Any]) -> None:
    assert two["replaced"] < TOLERANCE["float64"]


def test_a_step_sends_one_small_message(two: dict[str, Any]) -> None:
    """Of eight steps, in one of which the grids of large tensors are looked at."""
    for kind, (calls, size) in two["messages"].items():
        largest = kind in ("advi", "descent")  # sums and largest values cannot travel together
        assert calls == (2 if largest else 1), kind
        assert size < 1000


def test_fit_of_two_processes_is_that_of_one_with_the_joined_batches(two: dict[str, Any]) -> None:
    assert "DistributedSampler" in two["fit"].pop("same batches")
    assert len(two["fit"]) == 4
    assert max(two["fit"].values()) < 1e-10, two["fit"]


def test_an_asynchronous_checkpoint_of_two_processes_loads_into_a_whole_network(two: dict[str, Any]) -> None:
    assert two["load"] == {"proximal": True}


def test_a_whole_state_dict_of_the_first_process_is_that_of_all(two: dict[str, Any]) -> None:
    assert two["full"] == {"proximal": True}


def test_a_checkpoint_of_large_tensors_loads_into_a_whole_network_bitwise(two: dict[str, Any]) -> None:
    assert two["load large"] == {"proximal": True}


@pytest.mark.slow
def test_four_processes_equal_one_for_every_network_optimizer_and_wrapper(tmp_path: Path) -> None:
    tasks = ("equality", {"cases": list(MANY.values())}), ("positions", {}), ("refused", {})
    differences, positions, refused, full = launch(tmp_path, 4, *tasks, ("full", {"kinds": list(OPTIMIZERS)}))
    assert not different(MANY, differences)
    assert full == dict.fromkeys(OPTIMIZERS, True)
    assert all("cut it along one of them" in told["blocks"] for told in refused)
    assert len(positions) == 8
    assert all(positions.values()), positions


def different(cases: dict[str, Any], differences: list[Any]) -> dict[str, Any]:
    """The cases with too large a difference, or with an error."""
    found = zip(cases.items(), differences, strict=True)
    return {
        name: d for (name, asked), d in found if not (isinstance(d, float) and d < TOLERANCE[asked["dtype"]])
    }


@pytest.mark.slow
def test_a_wrapper_around_one_process_changes_nothing(tmp_path: Path) -> None:
    (differences,) = launch(tmp_path, 1, ("equality", {"cases": list(ALONE.values())}))
    assert not different(ALONE, differences)


@pytest.mark.slow
def test_posteriors_of_four_processes_predict_as_the_whole_one_under_every_wrapper(tmp_path: Path) -> None:
    asked = [(how, kind) for how in ("offload", "hybrid", "tp", "tp only") for kind in ("proximal", "sgld")]
    tasks = [("predictions", {"folder": str(tmp_path), "kind": kind, "how": how}) for how, kind in asked]
    for pair, found in zip(asked, launch(tmp_path, 4, *tasks), strict=True):
        assert found.pop("sharded state") is True, pair
        assert max(found.values()) < 1e-12, (pair, found)


@pytest.mark.slow
def test_a_network_with_batchnorm_in_training_mode_equals_one_that_normalises_parts_apart(
    tmp_path: Path,
) -> None:
    cases = [case(network="conv training", how=how, apart=1) for how in ("fsdp", "ddp")]
    (differences,) = launch(tmp_path, 2, ("equality", {"cases": cases}))
    assert max(differences) < TOLERANCE["float64"], differences


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "large"), [("fsdp", None), ("tp", None), ("fsdp", "counter"), ("tp", "counter")]
)
def test_what_four_processes_saved_is_loaded_by_one_two_and_three_bitwise(
    how: str, large: str | None, tmp_path: Path
) -> None:
    kinds = list(OPTIMIZERS)
    asked = {"folder": str(tmp_path), "kinds": kinds, "large": large}
    launch(tmp_path, 4, ("save", {**asked, "how": how}))
    for processes in (1, 2, 3):
        (found,) = launch(tmp_path, processes, ("load", {**asked, "how": "fsdp"}))
        assert found == dict.fromkeys(kinds, True)


@pytest.fixture(scope="module")
def through(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The state after eight steps that nothing interrupted."""
    folder = tmp_path_factory.mktemp("through")
    launch(folder, 2, ("resumed", {"folder": str(folder), "killed_at": None}))
    found: dict[str, Any] = torch.load(folder / "result.pt", weights_only=True)["state"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("while_saving", [False, True])
def test_a_run_of_which_one_process_was_killed_resumes_to_the_bitwise_result(
    through: dict[str, Any], while_saving: bool, tmp_path: Path
) -> None:
    """A checkpoint of which that process has written its part, but not all of it is known, is not read."""
    asked = {"folder": str(tmp_path), "killed_at": 6, "while_saving": while_saving}
    launch(tmp_path, 2, ("resumed", asked), killed=True)
    assert bool(list(tmp_path.glob("6/*.distcp"))) == while_saving
    with pytest.raises(FileNotFoundError, match="metadata"):
        dcp.FileSystemReader(tmp_path / "6").read_metadata()
    (begun,) = launch(tmp_path, 2, ("resumed", {**asked, "killed_at": None}))
    assert begun == 4
    found = torch.load(tmp_path / "result.pt", weights_only=True)["state"]
    for key, row in through.items():
        assert all(torch.equal(value, found[key][name]) for name, value in row.items())
