"""Which kernel the library runs for a matrix product, and how long that kernel takes.

cuBLAS has a menu of kernels. They differ in the tile of the output. Some slice the reduction within a block, and cuBLAS
may split the reduction over blocks (split-K). A few more rows can select another kernel or split, and the time jumps.
Most of the error of a model that sees only sizes comes from these jumps.

Samples with kernel name and grid show each choice. `cublas_choice_fit` learns from them which kernel runs and how long it
takes, and makes one small network of both: `TileNetwork`. Its inputs include the blocks and waves that each tile on the
menu would make, so it knows where times jump.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.errors import PackError
from pipeline.kernels.networks import Float32, Network
from pipeline.kernels.work import Array

DIMS = ("log B", "log M", "log N", "log K")
"""Feature columns that hold the sizes."""

KERNEL = r"(\d+)x(\d+)(?:_sliced(\d+)x(\d+))?"
"""Tile (along K, along M) and slices in a kernel's name: volta_sgemm_64x32_sliced1x4_tn."""

MIN_READABLE_SHARE = 0.9
"""Smallest share of samples with a readable kernel for which a menu is made."""

MIN_CHOICE_SAMPLES = 2
"""Smallest number of samples with a choice for which it is on the menu."""

MAX_CHOICE_SHARE = 0.95
"""Largest share of samples with one and the same choice for which a menu is made."""

Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Menu:
    """Choices that a library made on one GPU.

    Attributes:
        choices: tile along K, tile along M, slices and split of each choice, shape (choices, 4).
        sms: multiprocessors of the GPU.
        batched: whether B counts products (bmm) rather than rows of one product.
        at: positions of the columns `DIMS` among the features.
    """

    choices: Float32
    sms: int
    batched: bool
    at: tuple[int, ...]

    @property
    def fixed(self) -> Float32:
        """Properties of choices that do not depend on sizes: logs of tile, slices and split, and the kernel one-hot."""
        kernels = np.unique(self.choices[:, :3], axis=0, return_inverse=True)[1].ravel()
        one_hot = np.eye(kernels.max() + 1, dtype=np.float32)[kernels]
        return np.column_stack([np.log2(self.choices), one_hot])

    def moving(self, features: Array, choice: Labels) -> Array:
        """Waves and steps of choices, shape (rows, 11).

        Args:
            features: derived features, shape (rows, columns).
            choice: indices of choices, shape (rows,).
        """
        batch, m, n, k = product_sizes(features, self.at, self.batched).T
        tile_k, tile_m, _, split = self.choices[choice].T.astype(np.float64)
        tiles = batch * np.ceil(k / tile_k) * np.ceil(m / tile_m)
        waves, steps, area = tiles * split / self.sms, n / split, tile_k * tile_m
        whole = np.ceil(waves)
        resident = [waves / blocks / np.ceil(waves / blocks) for blocks in (2.0, 3.0, 4.0)]
        return np.column_stack([
            np.log2(tiles), np.log2(tiles * split), np.log2(whole), waves / whole, *resident,
            batch * k * m / (tiles * area), np.log2(steps), np.log2(whole * steps), np.log2(whole * steps * area),
        ])  # fmt: skip

    def inputs(self, features: Array, choice: Labels) -> Array:
        """Inputs of a model of the time of a choice, shape (rows, columns): the features, and columns of the choice."""
        return np.column_stack([features, self.moving(features, choice), self.fixed[choice]])

    def sizes(self, features: Array) -> Array:
        """Inputs of a model of the choice: the features, and columns for every tile on the menu.

        Returns:
            Shape (rows, columns + `tile_columns`): the features, then the remainders of M, N and K by 4. Then follow,
            for each tile, its blocks, whole waves, mean occupancy of these waves, and used share of the blocks along K
            and M.
        """
        batch, m, n, k = product_sizes(features, self.at, self.batched).T
        rows, columns = features.shape
        inputs = np.empty((columns + self.tile_columns, rows))  # each column in contiguous memory
        inputs[:columns] = features.T
        for i, size in enumerate((m, n, k)):
            np.remainder(size, 4, out=inputs[columns + i])
        for i, (tile_k, tile_m) in enumerate(self._tiles()):
            log_blocks, whole, occupancy, used_k, used_m = inputs[columns + 3 + 5 * i :][:5]
            along_k, along_m = np.ceil(k / tile_k), np.ceil(m / tile_m)
            blocks = batch * along_k * along_m
            waves = blocks / self.sms
            np.log2(blocks, out=log_blocks)
            np.ceil(waves, out=whole)
            np.divide(waves, whole, out=occupancy)
            np.divide(k, along_k * tile_k, out=used_k)
            np.divide(m, along_m * tile_m, out=used_m)
        return inputs.T

    @property
    def tile_columns(self) -> int:
        """Columns that `sizes` adds to the features."""
        return 3 + 5 * len(self._tiles())

    def _tiles(self) -> Array:
        """Distinct tiles, along K and along M, shape (tiles, 2)."""
        return np.asarray(np.unique(self.choices[:, :2], axis=0), dtype=np.float64)


def product_sizes(features: Array, at: tuple[int, ...], batched: bool) -> Array:
    """Number of products, and M, N and K of each product, shape (rows, 4). Unless `batched`, M is multiplied by B."""
    sizes = np.rint(np.exp2(features[:, list(at)]))
    if not batched:
        sizes[:, 1] *= sizes[:, 0]
        sizes[:, 0] = 1.0
    return np.asarray(sizes)


@dataclass(frozen=True)
class ObservedChoices:
    """The menu of some samples, and the choice of each sample, shape (rows,); -1 where it is not known."""

    menu: Menu
    choice: Labels


def read_choices(samples: pd.DataFrame, features: Array, columns: list[str], sms: int) -> ObservedChoices | None:
    """Read the kernels of product samples.

    A kernel is readable if its name contains a tile and the grid agrees with that tile and the sizes. The split is the
    grid's depth over the number of products.

    Args:
        samples: samples of gemm or bmm, with `kernel_name` and `grid` ("[x,y,z]").
        features: their derived features, shape (rows, columns).
        columns: names of the columns of `features`.
        sms: multiprocessors of the GPU.

    Returns:
        None where too few samples have a readable kernel, or nearly all samples have the same choice.
    """
    if not {"kernel_name", "grid"} <= set(samples.columns) or not set(DIMS) <= set(columns):
        return None
    batched = bool((samples["family"] == "bmm").any())
    at = tuple(columns.index(name) for name in DIMS)
    tile = samples["kernel_name"].astype("string").str.extract(KERNEL)
    grid = samples["grid"].astype("string").str.extract(r"\[\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\]")
    numbers = np.column_stack(
        [pd.to_numeric(table[i], errors="coerce").to_numpy(np.float64, na_value=np.nan)
         for table, count in ((tile, 4), (grid, 3)) for i in range(count)]
    )  # fmt: skip
    tile_k, tile_m, across, along, x, y, z = numbers.T
    slices = np.nan_to_num(across, nan=1.0) * np.nan_to_num(along, nan=1.0)
    batch, m, _, k = product_sizes(features, at, batched).T
    split = z / batch
    with np.errstate(invalid="ignore"):
        readable = (x == np.ceil(k / tile_k)) & (y == np.ceil(m / tile_m)) & (split >= 1) & (split == np.floor(split))
    if readable.mean() < MIN_READABLE_SHARE:
        return None
    readable_choices = np.column_stack([tile_k, tile_m, slices, split])[readable]
    choices, index, counts = np.unique(readable_choices, axis=0, return_inverse=True, return_counts=True)
    kept = counts >= MIN_CHOICE_SAMPLES
    if kept.sum() < 2 or counts.max() > MAX_CHOICE_SHARE * len(readable_choices):
        return None
    position = np.where(kept, np.cumsum(kept) - 1, -1)
    labels = np.full(len(samples), -1, dtype=np.int64)
    labels[readable] = position[index.ravel()]
    return ObservedChoices(Menu(choices[kept].astype(np.float32), sms, batched, at), labels)


MENU_CHOICES, MENU_FACTS = "menu_choices", "menu_facts"


@dataclass(frozen=True)
class TileNetwork:
    """A network of the features and of the columns that each tile of a menu makes of the sizes (`Menu.sizes`)."""

    menu: Menu
    network: Network

    def predict(self, features: Array, table_rows: int = 0) -> Array:
        """Log times of shape (rows,) from features of shape (rows, columns); `table_rows` as in `Network.predict`."""
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
