"""Measurements of this package: one module per benchmark, run by `kvstream benchmark NAME` in a checkout."""
