"""Typical mistakes, as a user types them, with what was meant: forty, and those that were found later.

Python runs after `SETUP` in a folder of its own; what begins with `bayescore ` is a command of a shell.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["FURTHER", "MISTAKES", "SETUP", "Mistake"]

SETUP = """
import numpy as np
import torch
from pathlib import Path
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import bayescore as bs
import bayescore.nn as bnn
from bayescore.optim import ProximalScore

torch.manual_seed(0)
x = torch.randn(64, 2)
y = (x.square().sum(1) > 1.4).long()
train_set = TensorDataset(x, y)
loader = DataLoader(train_set, batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))
opt = ProximalScore(model.parameters(), num_data=len(train_set), lr=1e-2)
target = bs.targets.Banana()
Path("table.csv").write_text("date,load\\n" + "".join(f"2024-01-{d:02d},{d % 7}\\n" for d in range(1, 29)))
Path("money.csv").write_text("size,price\\n" + "".join(f'{i},"${i},{i:03d}"\\n' for i in range(1, 40)))
Path("my_model.py").write_text("def log_density(x):\\n    return -0.5 * x.square().sum(-1)\\n")
"""


class Mistake(NamedTuple):
    """What was typed, what was meant, and the sentence in which it ends, as a regular expression."""

    name: str
    typed: str
    meant: str
    sentence: str


MISTAKES = [
    # -- training a network --------------------------------------------------------------------------------
    Mistake(
        "tensors for a loader",
        "bnn.fit(model, x, y)",
        "batches of x and y, as in scikit-learn's fit(X, y)",
        r"train_loader must be batches .*; got a Tensor: make them by DataLoader\(TensorDataset\(x, y\)",
    ),
    Mistake(
        "loader first",
        "bnn.fit(loader, model)",
        "bnn.fit(model, loader)",
        r"model must be a torch\.nn\.Module; got a DataLoader: the order is fit\(model, loader\)",
    ),
    Mistake(
        "class of a module",
        "bnn.fit(nn.Linear, loader)",
        "nn.Linear(2, 2)",
        r"model must be a module, not the class Linear; call it to make one",
    ),
    Mistake(
        "validation third",
        "bnn.fit(model, loader, loader)",
        "validation=loader",
        r"likelihood must be a name.*; got a DataLoader: .* held-out batches are validation=",
    ),
    Mistake(
        "validation as a share",
        "bnn.fit(model, loader, validation=0.2)",
        "hold out a fifth, as in Keras",
        r"validation must be batches .*; got a float: make them by .*random_split",
    ),
    Mistake(
        "validation as a pair",
        "bnn.fit(model, loader, epochs=1, validation=(x, y))",
        "as in Keras",
        r"validation must be batches .*; got a pair of arrays: make them by DataLoader",
    ),
    Mistake(
        "class of an optimizer",
        "bnn.fit(model, loader, method=ProximalScore)",
        'method="proximal"',
        r"method must be a name; got the class ProximalScore: write method='proximal', and its options",
    ),
    Mistake(
        "optimizer for a method",
        "bnn.fit(model, loader, method=opt)",
        'method="proximal", lr=1e-2',
        r"method must be a name; got a ProximalScore: write method='proximal', and its options",
    ),
    Mistake(
        "callbacks by name",
        'bnn.fit(model, loader, epochs=1, callbacks="tensorboard")',
        "log to TensorBoard",
        r"a callback must be .*bnn\.TensorBoard\('logs'\).*; got 'tensorboard'",
    ),
    Mistake(
        "callback that cannot log",
        "bnn.fit(model, loader, epochs=1, callbacks=[3])",
        "an object with log(dict)",
        r"a callback must be a function .* or an object with log\(dict\), .*; got 3",
    ),
    Mistake(
        "learning_rate",
        "bnn.fit(model, loader, learning_rate=1e-2)",
        "lr=1e-2",
        r"no option of ProximalScore called 'learning_rate'; did you mean 'lr'\?",
    ),
    Mistake(
        "batch_size in fit",
        "bnn.fit(model, loader, batch_size=32)",
        "the loader's batch size",
        r"no option called 'batch_size'; the loader decides .*DataLoader\(\.\.\., batch_size=32\)",
    ),
    Mistake(
        "device in fit",
        'bnn.fit(model, loader, device="cuda")',
        'model.to("cuda")',
        r"no option called 'device'; a network is trained where it is: model\.to\('cuda'\)",
    ),
    Mistake(
        "verbose",
        "bnn.fit(model, loader, epochs=1, verbose=1)",
        "progress=True",
        r"no option of ProximalScore called 'verbose'; did you mean 'progress'\?",
    ),
    Mistake(
        "float class labels",
        "bnn.fit(model, DataLoader(TensorDataset(x, y.float()), batch_size=16))",
        "y.long()",
        r"class labels must be whole numbers; got torch\.float32: use y\.long\(\) if they number classes",
    ),
    Mistake(
        "loss by its name",
        'bnn.fit(model, loader, "cross_entropy")',
        '"categorical"',
        r"no likelihood called 'cross_entropy'; did you mean 'categorical'\?",
    ),
    Mistake(
        "mse for a likelihood",
        'bnn.fit(model, loader, likelihood="mse")',
        '"gaussian"',
        r"no likelihood called 'mse'; did you mean 'gaussian'\?",
    ),
    Mistake(
        "torch's loss for a likelihood",
        "bnn.fit(model, loader, nn.CrossEntropyLoss(), epochs=1).predict(x).probs",
        '"categorical", and probabilities',
        r"has no probs; .*likelihood='categorical' \(which is cross_entropy\).* gives probs",
    ),
    Mistake(
        "module that returns a dict",
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(2, 2)

    def forward(self, x):
        return {"out": self.net(x)}

bnn.fit(Net(), loader, epochs=1)
""",
        "its entry 'out', as of torchvision's networks",
        r"the module returned a dict.*; wrap it in a module whose forward returns the tensor",
    ),
    # -- a loop of one's own -------------------------------------------------------------------------------
    Mistake(
        "module for parameters",
        "ProximalScore(model, num_data=64)",
        "model.parameters()",
        r"got a module; pass its parameters, model\.parameters\(\)",
    ),
    Mistake(
        "no num_data",
        "ProximalScore(model.parameters(), lr=1e-2)",
        "num_data=len(train_set)",
        r"ProximalScore needs num_data=, the size of the training set, such as num_data=len\(train_set\)",
    ),
    Mistake(
        "data set for num_data",
        "ProximalScore(model.parameters(), num_data=train_set)",
        "its length",
        r"num_data must be a whole number; got <torch\.utils\.data",
    ),
    Mistake(
        "posterior of nothing",
        "opt.posterior()",
        "opt.posterior(model)",
        r"posterior\(\) needs the module whose weights these are: opt\.posterior\(model\)",
    ),
    # -- predictions and files -----------------------------------------------------------------------------
    Mistake(
        "predict_proba",
        "bnn.fit(model, loader, epochs=1).predict_proba(x)",
        ".predict(x).probs",
        r"a NetworkFit has no predict_proba; fit\.predict\(x\)\.probs are the probabilities",
    ),
    Mistake(
        "interval of classes",
        "bnn.fit(model, loader, epochs=1).predict(x).interval(0.9)",
        "how uncertain it is: .entropy",
        r"a ClassPrediction has no interval; classes have probs, entropy, mutual_information",
    ),
    Mistake(
        "file without a model",
        'bnn.fit(model, loader, epochs=1).save("a.safetensors")\nbnn.Posterior.load("a.safetensors")',
        'Posterior.load("a.safetensors", model)',
        r"a file holds weights and no network: .* load\('a\.safetensors', model\)",
    ),
    Mistake(
        "checkpoint for a posterior",
        'bnn.fit(model, loader, epochs=1, checkpoint="run.ckpt")\nbnn.Posterior.load("run.ckpt", model)',
        "the posterior of a run: .posterior.save(...)",
        r"run\.ckpt is the checkpoint of a run, not a posterior: continue the run",
    ),
    # -- densities -----------------------------------------------------------------------------------------
    Mistake(
        "no dimension",
        "bs.targets.LogDensity(lambda x: -0.5 * x.square().sum(-1))",
        "dim=2",
        r"does not say how many coordinates it takes; pass dim=",
    ),
    Mistake(
        "one point at a time",
        "bs.fit(bs.targets.LogDensity(lambda x: -0.5 * x @ x, dim=2))",
        "rows of points",
        r"failed at points of the shape \(4, 2\): .*; it must take rows of points.*torch\.vmap\(fn\)",
    ),
    Mistake(
        "numpy in a density",
        "bs.fit(bs.targets.LogDensity(lambda x: -np.log(1 + np.square(x).sum(-1)) * 3, dim=2))",
        "torch.log and x.square()",
        r"failed at points of the shape \(4, 2\): .*; it must take rows of points, in operations of torch",
    ),
    Mistake(
        "density for a log density",
        "bs.fit(bs.targets.LogDensity(lambda x: torch.exp(-0.5 * x.square().sum(-1)), dim=2))",
        "its logarithm",
        r"do not trust .*: q spread to .* the same everywhere .*; is the function a density instead of",
    ),
    Mistake(
        "family by name",
        'bs.fit(target, "full")',
        "bs.families.FullGaussian.init(2)",
        r"family must be a bayescore Family; got str; make one, such as bs\.families\.FullGaussian\.init",
    ),
    Mistake(
        "dimension of a family",
        "bs.families.FullGaussian(2)",
        "FullGaussian.init(2)",
        r"FullGaussian is made of tensors; FullGaussian\.init\(2\) makes one of a dimension",
    ),
    Mistake(
        "learning_rate of a method",
        "bs.methods.ADVI(learning_rate=0.1)",
        "lr=0.1",
        r"no argument of ADVI called 'learning_rate'; did you mean 'lr'\?",
    ),
    Mistake(
        "program that is not there",
        'bs.targets.Stan("schols.stan")',
        '"schools.stan"',
        r"there is no Stan program at schols\.stan",
    ),
    # -- forecasts -----------------------------------------------------------------------------------------
    Mistake(
        "horizon first",
        'bs.forecast.Forecaster(7).fit("table.csv")',
        "horizon=7",
        r"model must be a name or a function .*; got 7: other settings are keywords, such as horizon=7",
    ),
    Mistake(
        "option of the method",
        "bs.forecast.Forecaster(horizon=7, lr=1e-3)",
        'options={"lr": 1e-3}',
        r"no argument of Forecaster called 'lr'; .*options of the method go into options=",
    ),
    # -- a shell -------------------------------------------------------------------------------------------
    Mistake(
        "no function",
        "bayescore fit my_model.py",
        "my_model.py:log_density --dim 2",
        r"a density in a file is named path/to/file\.py:function; got 'my_model\.py'",
    ),
    Mistake(
        "data set that is misspelt",
        "bayescore train mnits",
        "mnist",
        r"no folder, file or data set called 'mnits'; did you mean 'mnist'\?",
    ),
    Mistake(
        "table for a model",
        "bayescore predict table.csv new.csv",
        "the folder of a model, then new data",
        r"there is no folder table\.csv, in which a model could be",
    ),
]

FURTHER = [
    Mistake(
        "inputs in double",
        "bnn.fit(model, DataLoader(TensorDataset(x.double(), y), batch_size=16), epochs=1)",
        "x.float(), since torch.from_numpy gives doubles",
        r"inputs hold torch\.float64, and the network's weights torch\.float32; give x\.to\(torch\.float32\)",
    ),
    Mistake(
        "pictures in double",
        "net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))\n"
        "bnn.fit(net, DataLoader(TensorDataset(torch.rand(8, 1, 4, 4).double(), y[:8])), epochs=1)",
        "x.float()",
        r"inputs hold torch\.float64, and the network's weights torch\.float32",
    ),
    Mistake(
        "one-hot labels",
        "bnn.fit(model, DataLoader(TensorDataset(x, F.one_hot(y, 2)), batch_size=16), epochs=1)",
        "the numbers of the classes",
        r"class labels must have the shape \(16,\).*; got \(16, 2\): give y\.argmax\(1\) of one-hot rows",
    ),
    Mistake(
        "labels in a column",
        "bnn.fit(model, DataLoader(TensorDataset(x, y[:, None]), batch_size=16), epochs=1)",
        "y",
        r"class labels must have the shape \(16,\).*; got \(16, 1\): give y\.squeeze\(1\)",
    ),
    Mistake(
        "checkpoint as a switch",
        "bnn.fit(model, loader, epochs=1, checkpoint=True)",
        'checkpoint="run.ckpt"',
        r"checkpoint must be the path of a file, such as 'run\.ckpt'; got True",
    ),
    Mistake(
        "adam for a method",
        'bnn.fit(model, loader, method="adam", epochs=1)',
        '"plain", or the default',
        r"no method called 'adam'; did you mean 'plain'\?",
    ),
    Mistake(
        "laplace for a method",
        'bnn.fit(model, loader, method="laplace", epochs=1)',
        "bnn.fit_laplace(model, loader)",
        r"is made of a trained network: .*fit_laplace\(model, loader\)",
    ),
    Mistake(
        "evaluation of a fit",
        "bs.metrics.evaluate(bnn.fit(model, loader, epochs=1), loader)",
        "bs.metrics.evaluate(fit.predict(x), y)",
        r"as in evaluate\(fit\.predict\(x\), y\); got a NetworkFit",
    ),
    Mistake(
        "evaluation the wrong way round",
        "bs.metrics.evaluate(y, bnn.fit(model, loader, epochs=1).predict(x))",
        "the prediction first",
        r"labels are the numbers of classes.*; got a ClassPrediction",
    ),
    Mistake(
        "pool first",
        "bnn.acquire(x, 5)",
        "bnn.acquire(fit.posterior, x, 5)",
        r"acquire\(posterior, pool, k\) begins with a posterior; got a Tensor",
    ),
    Mistake(
        "fit for a posterior",
        "bnn.pruned(bnn.fit(model, loader, epochs=1), 0.5)",
        "fit.posterior",
        r"those of a Gaussian posterior; got a NetworkFit: pass its posterior",
    ),
    Mistake(
        "reliability of one prediction",
        "bs.plotting.plot_reliability(bnn.fit(model, loader, epochs=1).predict(x), y)",
        '{"network": (prediction, y)}',
        r"as in plot_reliability\(\{'network': \(prediction, y\)\}\); got a ClassPrediction",
    ),
    Mistake(
        "plot of values for classes",
        "bs.plotting.plot_values(bnn.fit(model, loader, epochs=1).predict(x), y)",
        "plot_reliability",
        r"a prediction of values; got a ClassPrediction \(of classes: plot_reliability",
    ),
    Mistake(
        "draws of a fit",
        "bs.fit(target, steps=5).sample(100)",
        "fit.family.sample(100)",
        r"a Fit has no sample; fit\.family\.sample\(1000, seed=0\) draws",
    ),
    Mistake(
        "mean of a fit",
        "bs.fit(target, steps=5).mean",
        "fit.marginals()",
        r"a Fit has no mean; fit\.marginals\(\) has mean, sd and quantiles",
    ),
    Mistake(
        "prices with signs",
        "bayescore train money.csv --target price",
        "1234.5",
        r"'price' has 39 different answers in 39 rows, such as '\$1,001', too many to be classes; "
        r"values are written as 1234\.5",
    ),
    Mistake(
        "regression for a task",
        "bayescore train table.csv --target load --task regression",
        "--task values",
        r"no task called 'regression'; did you mean 'values'\?",
    ),
    Mistake(
        "learning_rate of an estimator",
        "from bayescore.sklearn import BayesianClassifier\nBayesianClassifier(learning_rate=0.1)",
        "lr=0.1",
        r"no argument of BayesianClassifier called 'learning_rate'; did you mean 'lr'\?",
    ),
    Mistake(
        "prediction of an optimizer",
        "opt.predict(x)",
        "opt.posterior(model).predict(x)",
        r"a ProximalScore has no predict; opt\.posterior\(model\) predicts",
    ),
    Mistake(
        "frame for the parts of a table",
        'import pandas as pd\nbs.tables.train_table(pd.read_csv("table.csv"), target="load")',
        'bs.data.parts(bs.data.read_table("table.csv", "load")), or an estimator',
        r"takes the parts of a table, .*; got a DataFrame \(bayescore\.sklearn has estimators",
    ),
    Mistake(
        "training curve of a density",
        "bs.plotting.plot_training(bs.fit(target, steps=5))",
        "plot_fit",
        r"plot_training draws what bnn\.fit returns, or its history; got a Fit \(plot_fit draws",
    ),
]
