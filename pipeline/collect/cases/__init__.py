"""Build a runnable case from a row of a calls table; one module per group of kernel families."""

from pipeline.collect.cases.case import Case, Maker, Spec, UnsupportedCallError
from pipeline.collect.cases.case_builders import BUILDERS, build_case

__all__ = ["BUILDERS", "Case", "Maker", "Spec", "UnsupportedCallError", "build_case"]
