"""Errors that the papers report, for comparison with ours. This project measured and computed none of them."""

from __future__ import annotations

from dataclasses import dataclass

BOUND_PERCENT, BOUND_SOURCE = 10.0, "Lin et al., HiPC 2022"
"""Bound that the paper reports for the GMAE of every kernel family, in %, and the paper."""


@dataclass(frozen=True)
class Published:
    """One error from a paper."""

    key: str
    percent: float
    what: str
    source: str

    @property
    def label(self) -> str:
        """Name of the error in a legend."""
        what = self.what.replace(", ", ",\n")
        return f"published: {self.percent:g} % {what}\n({self.source})"


_LIN = BOUND_SOURCE

PUBLISHED = (
    Published("kernels", BOUND_PERCENT, "bound on the GMAE of every kernel family", _LIN),
    Published("active", 4.61, "GMAE of the GPU active time of DLRM", _LIN),
    Published(
        "active_first",
        5.23,
        "GMAE of the GPU active time of DLRM",
        "Lin et al., first version, January 2022",
    ),
    Published("step", 7.96, "GMAE of the DLRM step, overheads of the same workload", _LIN),
    Published("step_shared", 10.15, "GMAE of the DLRM step, shared overheads", _LIN),
    Published(
        "transfer",
        11.8,
        "mean error of a step scaled to another GPU",
        "Yu et al., ATC 2021 (Habitat)",
    ),
    Published("resnet50 Lin et al.", 8.0, "mean error of 9 steps of ResNet-50", _LIN),
    Published("resnet50 Habitat", 15.7, "mean error of 9 steps of ResNet-50", _LIN),
    Published("resnet50 MLPredict", 18.2, "mean error of 9 steps of ResNet-50", _LIN),
    Published("inception_v3 Lin et al.", 11.6, "mean error of 9 steps of Inception v3", _LIN),
    Published("inception_v3 Habitat", 15.0, "mean error of 9 steps of Inception v3", _LIN),
    Published("inception_v3 MLPredict", 40.7, "mean error of 9 steps of Inception v3", _LIN),
)
"""Published errors from two kinds of sources. The first are the papers' abstracts. The second are means over the
comparison of convolutional networks in Lin et al. (V100, TITAN Xp and P100, batch 16, 32 and 64; key: network and
method). Habitat's own mean (`transfer`) is over ResNet-50, Inception v3, Transformer, GNMT and DCGAN."""


NETWORK_METHODS = {
    "err_lin_pct": "Lin et al.",
    "err_habitat_pct": "Habitat",
    "err_mlpredict_pct": "MLPredict",
}
"""Names of the published predictions of convolutional networks, by the column that holds their errors in %."""


def published(*keys: str) -> list[Published]:
    """The published errors of these keys.

    Raises:
        KeyError: a key has no published error.
    """
    by_key = {error.key: error for error in PUBLISHED}
    return [by_key[key] for key in keys]
