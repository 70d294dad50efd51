"""Versions of Python and of the packages: `python -m benchmarks.versions` writes the table of docs/trust.md."""
