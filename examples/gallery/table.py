"""A table, with intervals

An estimator for scikit-learn: `fit`, `predict(return_std=True)`, `predict_interval`. Left, how many values
lie inside the intervals; right, the values of rows that were not learned from against their predictions.
"""

from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

import bayescore as bs
from bayescore.sklearn import BayesianRegressor

X, y = load_diabetes(return_X_y=True, as_frame=True)
X, X_test, y, y_test = train_test_split(X, y, random_state=0)
regressor = BayesianRegressor(epochs=8, random_state=0).fit(X, y)
prediction = regressor.predict_distribution(X_test)
scores = bs.metrics.evaluate(prediction, y_test)
print(
    f"noise {regressor.noise_:.1f}; {100 * scores['coverage_90']:.0f} % of the values lie in 90 % intervals"
)
figure = bs.plotting.plot_values(prediction, y_test)
