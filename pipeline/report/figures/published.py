"""Errors that the papers report, to stand beside ours; nothing here was measured or computed by this project."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """One figure from a paper."""

    key: str
    percent: float
    what: str
    source: str

    @property
    def label(self) -> str:
        """How a legend names it."""
        what = self.what.replace(", ", ",\n")
        return f"published: {self.percent:g} % {what}\n({self.source})"


_LIN = "Lin et al., HiPC 2022"

PUBLISHED = (
    Published("active", 4.61, "GMAE of the GPU active time of DLRM", _LIN),
    Published("step", 7.96, "GMAE of the DLRM step, overheads of the same workload", _LIN),
    Published("step_shared", 10.15, "GMAE of the DLRM step, shared overheads", _LIN),
    Published("transfer", 11.8, "mean error of a step carried to another GPU", "Yu et al., ATC 2021 (Habitat)"),
)
"""Figures from the papers' abstracts."""


def published(*keys: str) -> list[Published]:
    """The figures of these keys.

    Raises:
        KeyError: no such figure.
    """
    known = {each.key: each for each in PUBLISHED}
    return [known[key] for key in keys]
