"""How much processor time a fit may take: `quick`, the default, or `long`, with which the shipped models were made.

Both ways make models of the same kinds. The quick way trains fewer and narrower members on fewer and smaller batches, and
its student starts from the weights of a member. `docs/speed.md` compares their errors and times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pipeline.errors import UnknownNameError
from pipeline.kernels.networks import Recipe


@dataclass(frozen=True)
class Effort:
    """Sizes of a fit that decide how long it takes.

    Attributes:
        folds: cross-validation folds, of `learned_variants.FOLDS`, for which trees or Gaussian processes are trained.
        network_folds: folds for which networks are trained. Rows of other folds have no out-of-fold prediction of a
            network. Families with fewer than `learned_variants.SMALL_FAMILY_SAMPLES` train both kinds for all folds.
        choice_folds: folds, of `cublas_choice_fit.FOLDS`, for which members are trained where the kernel is known.
        choice_teacher_steps: factor on the optimiser steps, and on the boosting rounds, of the teachers of the choice. Their
            learning rates are divided by it.
        tree_rounds: factor on the boosting rounds of trees that predict times. Their learning rate is divided by it.
        gaussian_process_samples: largest number of samples for which Gaussian processes replace the trees of an average.
        narrow_networks: whether networks are narrower (`learned_variants.member_recipe`). Those of products then all have
            sines and cosines, and those of all matrix families train at a higher rate.
        network_steps: factor on the optimiser steps of member networks.
        network_batch: factor on their samples per step.
        synthetic_rows: factor on the sizes that the members of an average label for its student. Also a factor on the
            training set of `tile_network_fit`.
        warm_student: whether a student starts from the weights of a member. Where the kernel is known, it then has the
            width and layers of the periodic members.
        student_steps: factor on the optimiser steps of the student of an average.
        student_batch: factor on the samples per step of students and of the network of the choice.
        choice_student_steps: factor on the optimiser steps of the two networks that learn from teachers where the kernel
            is known: its choice, and its time.
        tile_network_steps: the same for the network that learns from both.
        tile_near_share: share of that network's sizes that are near those of samples. Without such sizes, the error on
            unseen shapes of the V100 was 2.23 instead of 1.97 %. With few steps, more of them pay.
    """

    folds: int = 5
    network_folds: int = 3
    choice_folds: int = 8
    choice_teacher_steps: float = 1.0
    tree_rounds: float = 1.0
    gaussian_process_samples: int = 0
    narrow_networks: bool = False
    network_steps: float = 1.0
    network_batch: float = 1.0
    synthetic_rows: float = 1.0
    warm_student: bool = False
    student_steps: float = 1.0
    student_batch: float = 1.0
    choice_student_steps: float = 1.0
    tile_network_steps: float = 1.0
    tile_near_share: float = 0.7

    def member(self, recipe: Recipe) -> Recipe:
        """The recipe of a member network, from that of the long way."""
        return _scaled(recipe, self.network_steps, self.network_batch)

    def student(self, recipe: Recipe) -> Recipe:
        """The recipe of the student of an average, from that of the long way."""
        return _scaled(recipe, self.student_steps, self.student_batch)

    def choice_student(self, recipe: Recipe) -> Recipe:
        """The recipe of a network that learns from teachers where the kernel is known, from that of the long way."""
        return _scaled(recipe, self.choice_student_steps, self.student_batch)

    def tile_network(self, recipe: Recipe) -> Recipe:
        """The recipe of the network that learns from both of these, from that of the long way."""
        return _scaled(recipe, self.tile_network_steps)


def _scaled(recipe: Recipe, steps: float, batch: float = 1.0) -> Recipe:
    return replace(recipe, steps=max(1, round(steps * recipe.steps)), batch=max(1, round(batch * recipe.batch)))


LONG = Effort()
"""The long way: sizes beyond which more did not pay (`docs/notes/kernels.md`)."""

QUICK = Effort(
    folds=3, network_folds=2, choice_folds=4, choice_teacher_steps=0.5, tree_rounds=1 / 3, gaussian_process_samples=5000,
    narrow_networks=True, network_steps=0.67, network_batch=0.5, synthetic_rows=0.5, warm_student=True,
    student_steps=0.75, student_batch=0.5, choice_student_steps=0.5, tile_network_steps=0.2,
    tile_near_share=0.9,
)  # fmt: skip
"""The quick way. With half of a student's steps, layer norm and batched products lose 6 % (`docs/notes/kernels.md`)."""

EFFORTS: Mapping[str, Effort] = {"quick": QUICK, "long": LONG}
"""Efforts by name."""

DEFAULT_EFFORT = "quick"
"""Effort of a fit that names none."""


def effort_of(name: str) -> Effort:
    """Look an effort up.

    Raises:
        UnknownNameError: no effort has that name; the message lists the names.
    """
    if name not in EFFORTS:
        raise UnknownNameError("effort of a fit", name, list(EFFORTS))
    return EFFORTS[name]
