"""The rows of a run reach whoever logs them, a data frame and a picture; notebooks have a bar too."""

from __future__ import annotations

import sys
import types

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayescore.nn as bnn
from bayescore.plotting import plot_training
from bayescore.progress import Progress


def run(**options):
    torch.manual_seed(0)
    x = torch.randn(32, 2)
    loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=8)
    return bnn.fit(nn.Linear(2, 2), loader, epochs=3, validation=loader, **options)


class Logger:
    """As a run of wandb: it has `log`."""

    def __init__(self):
        self.rows = []

    def log(self, row):
        self.rows.append(row)


def test_functions_and_objects_that_log_get_every_row():
    logger, rows = Logger(), []
    fit = run(callbacks=[logger, rows.append])
    assert logger.rows == rows == fit.history
    rows[0]["loss"] = 0.0
    assert fit.history[0]["loss"] > 0  # they get copies


def test_tensorboard_has_the_numbers_of_the_history(tmp_path):
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    fit = run(callbacks=bnn.TensorBoard(tmp_path))
    written = EventAccumulator(str(tmp_path)).Reload()
    assert sorted(written.Tags()["scalars"]) == ["loss", "seconds", "validation_nll"]
    for name in ("loss", "validation_nll"):
        scalars = written.Scalars(name)
        assert [each.step for each in scalars] == [1, 2, 3]
        assert [each.value for each in scalars] == pytest.approx([row[name] for row in fit.history])


def test_tensorboard_that_is_missing_is_named_with_its_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.writer", None)
    with pytest.raises(ImportError, match=r"pip install 'bayescore\[tensorboard\]'"):
        bnn.TensorBoard(tmp_path)


def test_the_history_is_a_data_frame_and_a_picture():
    pytest.importorskip("pandas")
    fit = run()
    frame = fit.history.frame()
    assert list(frame.columns) == ["loss", "validation_nll", "seconds"]
    assert list(frame.index) == [1, 2, 3]
    assert frame["loss"].tolist() == [row["loss"] for row in fit.history]
    lines = plot_training(fit).axes[0].lines
    assert [line.get_label() for line in lines][:2] == ["loss", "validation nll"]
    assert lines[1].get_ydata().tolist() == frame["validation_nll"].tolist()
    with pytest.raises(AttributeError, match=r"has no plot; .*plot_training\(fit\) draws it"):
        fit.history.plot()


def test_a_fit_has_a_summary_and_its_file_comes_back(tmp_path):
    fit = run()
    assert "epoch 3 is kept" in fit.summary()
    assert f"validation nll {fit.history[-1]['validation_nll']:.4g}" in fit.summary()
    fit.save(tmp_path / "net.safetensors")
    x = torch.randn(5, 2)
    again = bnn.Posterior.load(tmp_path / "net.safetensors", nn.Linear(2, 2))
    assert torch.equal(again.predict(x).probs, fit.predict(x).probs)


def test_an_ensemble_has_the_summaries_of_its_members_and_one_file(tmp_path):
    x = torch.randn(16, 2)
    loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=8)
    fit = bnn.fit_ensemble(lambda: nn.Linear(2, 2), loader, members=2, epochs=1)
    assert fit.summary().count("epoch 1 is kept") == 2
    fit.save(tmp_path / "mixture.safetensors")
    again = bnn.Posterior.load(tmp_path / "mixture.safetensors", nn.Linear(2, 2))
    assert torch.allclose(again.predict(x).probs, fit.predict(x).probs)


def test_a_fit_can_be_copied_though_it_answers_for_names_it_lacks():
    import copy

    assert copy.copy(run()).best_epoch == 3


def test_a_notebook_gets_a_bar_without_a_terminal(monkeypatch):
    shown = []

    class Handle:
        def update(self, content, raw):
            shown.append(content["text/plain"])

    def display(content, raw, display_id):
        shown.append(content["text/plain"])
        return Handle()

    shell = type("ZMQInteractiveShell", (), {})
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = shell
    ipython.display = types.ModuleType("IPython.display")
    ipython.display.display = display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    run()
    assert "0/12" in shown[0]
    assert "12/12  loss" in shown[-1]
    assert not Progress(3, show=False).shown


def test_without_terminal_and_notebook_there_is_no_bar():
    assert not Progress(3).shown
