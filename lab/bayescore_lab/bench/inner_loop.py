"""Part 1: the inner loop of Algorithm 1 against the same algorithm in plain autograd and Adam."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from bayescore.families import FullGaussian, GaussianMixture
from bayescore.families.base import Family
from bayescore.inference.fitting import fit
from bayescore.methods import Method
from bayescore.targets import Gaussian, Target
from bayescore.targets import GaussianMixture as MixtureTarget
from bayescore_lab.bench.results import Part, Ratio, Row
from bayescore_lab.bench.timing import CoreShare, Notify, one_thread, prefixed, rounds, seconds_of
from bayescore_lab.methods import low_dimensional_method
from bayescore_lab.reference.families import plain_proximal

__all__ = ["BAR", "inner_loop_part"]

BAR = 5.0  # how many times faster than plain autograd the Gaussian run must be
OURS, PLAIN = "bayescore", "autograd + torch.optim.Adam"
STEPS = 20  # N, of the paper's synthetic experiments
DRAWS = 1  # S
WARM_UP = 3  # steps before the clock starts


def inner_loop_part(repeats: int, notify: Notify, *, steps: int = 1000, mixture_steps: int = 200) -> Part:
    """Time both on a Gaussian (with a bar) and on a mixture of order 5, both with N = 20 steps of Adam."""
    cases: list[tuple[Target, Family, int, float | None]] = [
        (Gaussian.random(3, seed=0), FullGaussian.init(3), steps, BAR),
        (MixtureTarget.random(3, 5, seed=0), GaussianMixture.init(3, 5, seed=0), mixture_steps, None),
    ]
    methods: list[Method] = []
    share = CoreShare()
    rows: list[Row] = []
    ratios: list[Ratio] = []
    for target, family, T, bar in cases:
        problem = f"{'Gaussian' if isinstance(family, FullGaussian) else 'mixture of order 5'}, D=3, T={T}"
        kind = "full" if isinstance(family, FullGaussian) else "mixture"
        method = low_dimensional_method("proximal", family=kind, inner_steps=STEPS, optimizer="adam")
        methods.append(method)
        with one_thread():
            times = _time_both(target, family, method, T, repeats, prefixed(problem, notify))
        calls = (DRAWS * T,) * repeats
        plain, ours = (Row(problem, name, times[name], calls) for name in (PLAIN, OURS))
        rows += [plain, ours]
        ratios.append(Ratio.between(plain, ours, bar=bar))
    return Part(
        name="inner loop",
        title="Algorithm 1 against the same in plain autograd + torch.optim.Adam",
        kind="pairs",
        config={
            "methods": [{"name": method.name, **asdict(method)} for method in methods],
            "dtype": "float64",
            "threads": 1,
            "core_share": share.value,
        },
        rows=tuple(rows),
        ratios=tuple(ratios),
        notes=(
            f"N={STEPS}, S={DRAWS}, one thread; "
            "ours keeps the floor under Adam, which costs one pullback more per iteration",
            *share.notes(),
        ),
    )


def _time_both(
    target: Target, family: Family, method: Method, steps: int, repeats: int, notify: Notify
) -> dict[str, tuple[float, ...]]:
    def ours(T: int, seed: int) -> None:
        fit(target, family, method, steps=T, seed=seed, metrics={}, progress=False, check=False)

    def plain(T: int, seed: int) -> None:
        whitened = isinstance(family, FullGaussian)  # the norm of the library's default
        plain_proximal(target, family, steps=T, seed=seed, draws=DRAWS, inner_steps=STEPS, whitened=whitened)

    def timed(run: Callable[[int, int], None]) -> Callable[[int], float]:
        run(WARM_UP, 0)
        return lambda i: seconds_of(lambda: run(steps, i))

    times = rounds({OURS: timed(ours), PLAIN: timed(plain)}, repeats, notify)
    return {name: tuple(values) for name, values in times.items()}
