"""One small network in the place of the two that predict a kernel's choice and time, for fast predictions.

`cublas_choice_fit` trains a large network for the choice and another for the time. Both together need half a million
multiply-adds per product. A network with a tenth of them learns their predictions at 600,000 sizes, and is as accurate
on unseen shapes (`docs/notes/kernels.md`); `tile_network_fit` trains it. Its inputs include the blocks and waves that
each tile on the menu would make, so it knows where times jump.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.errors import PackError
from pipeline.kernels.cublas_choice import DIMS, Menu
from pipeline.kernels.networks import Network
from pipeline.kernels.work import Array

MENU_CHOICES, MENU_FACTS = "menu_choices", "menu_facts"


@dataclass(frozen=True)
class TileNetwork:
    """A network of the features and of the columns that each tile of a menu makes of the sizes (`Menu.sizes`)."""

    menu: Menu
    network: Network

    def predict(self, features: Array, table_rows: int = 0) -> Array:
        """Log times of shape (rows,) from features of shape (rows, columns); `table_rows` as in `Network.scores`."""
        return self.network.predict(self.menu.sizes(features), table_rows)

    def tensors(self, prefix: str = "") -> dict[str, npt.NDArray[np.generic]]:
        """The arrays to save."""
        facts = np.array([self.menu.sms, int(self.menu.batched), *self.menu.at], dtype=np.int64)
        menu: dict[str, npt.NDArray[np.generic]] = {
            f"{prefix}{MENU_CHOICES}": self.menu.choices, f"{prefix}{MENU_FACTS}": facts,
        }  # fmt: skip
        return menu | self.network.tensors(prefix)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, npt.NDArray[np.generic]], prefix: str = "") -> TileNetwork:
        """Read the arrays that `tensors` returns.

        Raises:
            PackError: an array is missing or has the wrong shape.
        """
        try:
            choices = tensors[f"{prefix}{MENU_CHOICES}"].astype(np.float32)
            sms, batched, *at = (int(value) for value in tensors[f"{prefix}{MENU_FACTS}"])
        except KeyError as error:
            raise PackError(f"array {error.args[0]!r} of the menu of kernels is missing; rebuild the model") from None
        except ValueError:
            raise PackError(DAMAGED_ARRAYS) from None
        if choices.ndim != 2 or choices.shape[1] != 4 or len(choices) == 0 or len(at) != len(DIMS):
            raise PackError(DAMAGED_ARRAYS)
        menu, network = Menu(choices, sms, bool(batched), tuple(at)), Network.from_tensors(tensors, prefix, relu=True)
        columns = len(network.mean) - menu.tile_columns
        if min(at) < 0 or max(at) >= columns or network.weights[-1].shape[1] != 1:
            raise PackError(DAMAGED_ARRAYS)
        return cls(menu, network)


DAMAGED_ARRAYS = "arrays of the menu of kernels have sizes that contradict each other; rebuild the model"
