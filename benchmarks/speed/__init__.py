"""The page on speed, docs/speed.md: each part is a module, and `python -m benchmarks.speed` writes the page."""
