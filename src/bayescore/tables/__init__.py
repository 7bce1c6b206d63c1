"""Bayesian networks for tables: from a CSV file to a model folder and back, or for rows of numbers."""

from bayescore.tables.rows import RowSettings, RowsModel, fit_rows
from bayescore.tables.training import TableModel, TrainedTable, load_table, train_table

__all__ = [
    "RowSettings",
    "RowsModel",
    "TableModel",
    "TrainedTable",
    "fit_rows",
    "load_table",
    "train_table",
]
