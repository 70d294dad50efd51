"""Predictions that a change must not move unnoticed: whole steps and single kernels, kept as tables in this folder."""
