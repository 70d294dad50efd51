"""All figures of a grid in a checkout: those of the product, and those of errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from evaluation.checks.lin2022_steps import predicted_cnn, predicted_dlrm
from evaluation.figures import accuracy_data as tables
from evaluation.figures import measured_errors as measured
from evaluation.figures import paper_figures as paper
from evaluation.published.published_errors import published
from pipeline.show.figures.board import WIDE, Page
from pipeline.show.figures.gallery import ACCURACY, CATEGORIES, GALLERY, Artifacts, Entry
from pipeline.summary_rows import predictions_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _measured(artifacts: Artifacts) -> pd.DataFrame:
    points = artifacts.steps()
    return points[points["measured_us"].notna()].reset_index(drop=True)


def _convnets(artifacts: Artifacts) -> pd.DataFrame:
    points = artifacts.steps()
    return points[points["model_variant"].str.split().str[0].isin(measured.CONVNETS)].reset_index(
        drop=True
    )


def _parts(artifacts: Artifacts) -> pd.DataFrame:
    return tables.error_parts(artifacts.summary, artifacts.parts)


def _published_dlrm(artifacts: Artifacts) -> pd.DataFrame:
    return predicted_dlrm(made=predictions_of(artifacts.summary)).drop(columns="families_us")


def _published_networks(artifacts: Artifacts) -> pd.DataFrame:
    return predicted_cnn(made=predictions_of(artifacts.summary)).drop(columns="families_us")


def _beside_published(errors: pd.DataFrame, page: Page = WIDE) -> Figure:
    published_errors = published("active", "step", "step_shared")
    theirs = pd.DataFrame(
        [{"label": error.label, "percent": error.percent} for error in published_errors]
    )
    return measured.error_by_part(errors, theirs, page)


_NOT_MEASURED = (
    "no point of this grid has a measured step: only gpu=local and GPUs under measurements/"
    " have one"
)
_NO_DLRM = (
    "no point is a DLRM step that Lin et al. measured, in their loop: use experiment=paper_dlrm"
)
_NO_NETWORK = (
    "no point is a step of a network that Lin et al. measured, in their loop: use"
    " experiment=paper_cnn"
)
ACCURACY_FIGURES = (
    Entry(
        "published_steps",
        "Published steps beside predicted ones",
        ACCURACY,
        _published_dlrm,
        paper.measured_beside_predicted,
        _NO_DLRM,
    ),
    Entry(
        "published_errors",
        "Errors with own and shared overheads",
        ACCURACY,
        lambda a: tables.published_means(_published_dlrm(a)),
        paper.mean_step_errors,
        _NO_DLRM,
    ),
    Entry(
        "published_busy",
        "Published busy shares",
        ACCURACY,
        _published_dlrm,
        paper.busy_shares,
        _NO_DLRM,
    ),
    Entry(
        "published_networks",
        "Published steps of networks",
        ACCURACY,
        _published_networks,
        paper.published_networks,
        _NO_NETWORK,
    ),
    Entry(
        "predicted_against_measured",
        "Predicted and measured steps",
        ACCURACY,
        _measured,
        measured.predicted_against_measured,
        _NOT_MEASURED,
    ),
    Entry(
        "step_error_parts",
        "Error of each point by part",
        ACCURACY,
        _parts,
        measured.step_error_parts,
        _NOT_MEASURED,
    ),
    Entry(
        "errors_by_part",
        "Errors beside published ones",
        ACCURACY,
        lambda a: tables.errors_by_part(_parts(a)),
        _beside_published,
        _NOT_MEASURED,
    ),
    Entry(
        "convolutional_networks",
        "Convolutional networks",
        ACCURACY,
        _convnets,
        measured.convolutional_networks,
        "this grid has neither ResNet-50 nor Inception v3; use experiment=paper_cnn",
    ),
)
"""The figures that compare with measured steps, public measurements and published errors."""

ENTRIES = tuple(
    sorted((*GALLERY, *ACCURACY_FIGURES), key=lambda entry: CATEGORIES.index(entry.category))
)
"""Every figure, in the order of the report."""
