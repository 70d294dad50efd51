"""Fixtures of the workloads' tests: networks that are captured fast, and steps that are captured once."""

from tests.workloads.conftest import no_line, own_cache, shallow

__all__ = ["no_line", "own_cache", "shallow"]
