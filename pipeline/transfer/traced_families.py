"""Kernel families of traced calls, for reports. The transfer methods have a narrower column of their own (`family`)."""

from __future__ import annotations

import pandas as pd

from pipeline.graph.opmap import find_row

CONVOLUTION_GRADIENTS = {"dgrad": "conv2d_backward_data", "wgrad": "conv2d_backward_weight"}
"""Words in the names of convolution kernels, and the family that they show."""


def named_families(calls: pd.DataFrame) -> list[str]:
    """Family of each row of `trace_calls`: that of the launching op in the operator map, else `other`.

    Copies and collectives have families by their kind. The two gradients of a convolution are told apart by the names
    of their kernels.
    """
    columns = zip(
        calls["op"].astype(str), calls["kernel_name"].astype(str), calls["kind"], calls["family"], strict=True
    )
    return [_family(op, kernel, str(kind), str(family)) for op, kernel, kind, family in columns]


def _family(op: str, kernel: str, kind: str, family: str) -> str:
    if kind == "collective":
        return "collective"
    if kind == "link":
        return "memcpy_d2h" if "DtoH" in kernel else "memcpy_h2d"
    if kind == "copy":
        return "memset" if "memset" in kernel.lower() else "memcpy_d2d"
    if family != "other":
        return family
    row = find_row(op)
    rules = row.calls if row is not None else ()
    found = rules[-1].family if rules else "other"
    if found == "conv2d_backward_data":
        return next((name for word, name in CONVOLUTION_GRADIENTS.items() if word in kernel), found)
    return found
