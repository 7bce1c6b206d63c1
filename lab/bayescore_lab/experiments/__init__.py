"""The experiments, one declaration per file; `bayescore reproduce list` shows them."""
