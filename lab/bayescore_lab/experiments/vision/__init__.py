"""Pretrained networks on pictures and texts: Table 1, convergence, cost, and the same for sentences."""
