"""Pictures of classifiers show what the metrics say."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from classifiers import classifier

from bayescore.metrics import aurc, ece, reliability
from bayescore.plotting.calibration import _by_chance, plot_reliability, plot_risk_coverage
from bayescore.plotting.contact_sheet import plot_contact_sheet
from bayescore.posteriors.prediction import ClassPrediction


def test_reliability_diagrams_show_the_curve_and_its_error(tmp_path: Path) -> None:
    arms = {"calibrated": classifier(), "sharp": classifier(sharpness=3.0)}
    figure = plot_reliability(arms)
    assert [axes.get_title(loc="left") for axes in figure.axes] == list(arms)
    for axes, (probs, labels) in zip(figure.axes, arms.values(), strict=True):
        assert f"{100 * ece(probs, labels):.2f} %" in axes.texts[0].get_text()
        drawn = torch.tensor(axes.lines[1].get_xydata()).T
        curve = reliability(probs, labels)
        torch.testing.assert_close(drawn, torch.stack([curve.confidence, curve.accuracy]))
    figure.savefig(tmp_path / "reliability.png")
    coarse = plot_reliability(arms, bins=5)  # other points, the same error as in the tables
    for few, many in zip(coarse.axes, figure.axes, strict=True):
        assert few.texts[0].get_text() == many.texts[0].get_text()
        assert len(few.lines[1].get_xydata()) < len(many.lines[1].get_xydata())


@pytest.mark.parametrize(("confidence", "count"), [(0.5, 1), (0.9, 33), (0.3, 2000), (1.0, 50), (0.999, 7)])
def test_what_a_calibrated_network_shows_by_chance_is_binomial(confidence: float, count: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    expected = stats.binom.ppf((0.025, 0.975), count, confidence) / count
    assert _by_chance(confidence, count) == pytest.approx(tuple(expected))


def test_a_contact_sheet_of_few_pictures_shows_no_certain_one_as_uncertain(tmp_path: Path) -> None:
    top = torch.linspace(0.5, 1.0, 33)
    probs = torch.stack([top, 1 - top], 1)
    pixels = torch.zeros(33, 3, 4, 4, dtype=torch.uint8)
    for n, shown in ((33, 8), (10, 3), (2, 1)):
        few = ClassPrediction(1, probs[:n], torch.zeros(n))
        figure = plot_contact_sheet(pixels[:n], few, ["yes", "no"], torch.zeros(n, dtype=torch.long))
        said = [axes.texts[0].get_text() for axes in figure.axes if axes.texts]
        assert len(said) == 2 * shown
        certain, uncertain = said[:shown], said[shown:]
        assert not set(certain) & set(uncertain)
        sides = {(round(p.width, 6), round(p.height, 6)) for p in (a.get_position() for a in figure.axes)}
        assert len(sides) == 1
        figure.savefig(tmp_path / "sheet.png")


def test_risk_coverage_curves_end_at_the_error_and_name_their_area(tmp_path: Path) -> None:
    arms = {"one": classifier(), "two": classifier(sharpness=0.5, seed=1)}
    figure = plot_risk_coverage(arms)
    axes = figure.axes[0]
    for line, (probs, labels) in zip(axes.lines, arms.values(), strict=True):
        wrong = 100 * float((probs.argmax(1) != labels).double().mean())
        assert abs(float(line.get_xydata()[-1][1]) - wrong) < 1e-9
        assert f"{100 * aurc(probs, labels):.2f} %" in str(line.get_label())
    figure.savefig(tmp_path / "risk.png")
