"""A fixture of the workloads' tests: a network that is captured fast."""

from tests.workloads.conftest import shallow

__all__ = ["shallow"]
