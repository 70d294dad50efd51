"""Fixtures of other rooms: small tables of a grid, samples of a known law, a GPU."""

from tests.kernels.conftest import v100
from tests.show.conftest import artifacts, summary
from tests.transfer.conftest import gemm_samples

__all__ = ["artifacts", "gemm_samples", "summary", "v100"]
