"""Tables 2 and 3, and the paired t-tests: forecasting with Bayesian Koopa networks."""
