"""Paths of the configuration, packs, public data, and every artifact under the results folder.

Only this module defines file names; rules, scripts and the command line use it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pipeline.errors import ConfigError, InputError

_PACKAGE = Path(__file__).resolve().parent

CAMPAIGN = "manifest.json"
"""The manifest of a campaign: a folder under `measurements/` with this file is a campaign."""

KINETO, EXECUTION_TRACE = "kineto.json.gz", "execution_trace.json.gz"
"""The two trace files of a measured step."""

FIGURES = ("svg", "png")
"""Kinds of files of a figure."""

USER_GROUPS = ("gpu", "host", "cluster", "experiment")
"""Config groups of which a user may have files elsewhere: in a folder (`user_config_dir`), or given by path."""

_GIVEN_FILES = "STEPTIME_GIVEN_FILES"
"""Environment variable with the config files given by path, one `GROUP=PATH` a line, so that jobs know them too."""


def is_checkout() -> bool:
    """Whether this code runs from a checkout; else from an installed wheel."""
    return (_PACKAGE.parent / "config" / "config.yaml").is_file()


def project_dir() -> Path:
    """The folder with `config/`, `packs/` and the Snakefile: the checkout, or the data inside the installed package."""
    return _PACKAGE.parent if is_checkout() else _PACKAGE / "_data"


def short_path(folder: str) -> str:
    """A folder as seen from the project, or as it is where it lies elsewhere."""
    path, root = Path(folder).absolute(), project_dir()
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else folder


def config_dir() -> Path:
    """The folder of Hydra's config groups."""
    return project_dir() / "config"


def named_path(variable: str, usual: Callable[[], Path | None]) -> Path | None:
    """The path in an environment variable, else the usual one; None if the variable is empty or `none`."""
    named = os.environ.get(variable)
    if named is None:
        return usual()
    return Path(named).expanduser() if named not in ("", "none") else None


def _user_folder(kind: str) -> Path:
    import platformdirs  # campaigns run without it

    return Path(getattr(platformdirs, f"user_{kind}_dir")("steptime"))


def user_config_dir() -> Path | None:
    """The user's folder of `gpu/`, `host/`, `cluster/` and `experiment/`: $STEPTIME_CONFIG, else in the user's config folder.

    None if $STEPTIME_CONFIG is empty or `none`: then only shipped files and those given by path count.
    """
    named = named_path("STEPTIME_CONFIG", lambda: _user_folder("config"))
    return named and named.absolute()


def config_files(group: str) -> dict[str, Path]:
    """The files of a config group by name. Of one name, a file given by path counts, else the user's, else the shipped."""
    own = user_config_dir() if group in USER_GROUPS else None
    folders = (config_dir() / group, *([own / group] if own else []))
    given = [line.partition("=") for line in os.environ.get(_GIVEN_FILES, "").splitlines()]
    return files_by_name(folders, tuple(path for of_group, _, path in given if of_group == group))


@lru_cache(maxsize=64)
def files_by_name(folders: tuple[Path, ...], given: tuple[str, ...]) -> dict[str, Path]:
    """The files of folders, and given ones, by name; the last of each name counts."""
    paths = [path for folder in folders for path in sorted(folder.glob("*.yaml"))]
    return {path.stem: path for path in (*paths, *map(Path, given)) if path.is_file()}


def name_of_config(group: str, named: str, check: Callable[[Path], object]) -> str:
    """The name of a file of `USER_GROUPS` that is given by its name or its path (`gpu=mine/H900.yaml`).

    A path that `check` does not refuse is known by its name from then on, in this process and those that it starts.

    Raises:
        ConfigError: the path leads to no file.
    """
    if not named.endswith((".yaml", ".yml")):
        return named
    path = Path(named).expanduser().absolute()
    if not path.is_file():
        raise ConfigError(
            f"{group}={named}: no such file; give the path of a file like those of config/{group}/"
        )
    check(path)
    line, lines = f"{group}={path}", os.environ.get(_GIVEN_FILES, "").splitlines()
    os.environ[_GIVEN_FILES] = "\n".join([*(other for other in lines if other != line), line])
    return path.stem


def packs_dir() -> Path:
    """The folder of shipped packs, one per GPU."""
    return project_dir() / "packs"


def transfer_dir() -> Path:
    """The folder of shipped cross-GPU models and their errors."""
    return packs_dir() / "transfer"


def measurements_dir() -> Path:
    """The folder of our own measurements, with one folder per GPU: $STEPTIME_MEASUREMENTS, else the project's."""
    return Path(os.environ.get("STEPTIME_MEASUREMENTS") or project_dir() / "measurements")


def campaign_gpus() -> list[str]:
    """GPUs that a campaign measured: the folders of `measurements_dir` with a manifest."""
    return sorted(path.parent.name for path in measurements_dir().glob(f"*/{CAMPAIGN}"))


def datasets_dir() -> Path | None:
    """The folder of public measurements: $STEPTIME_DATASETS, `datasets/`, `../shared/datasets`; else None.

    An empty $STEPTIME_DATASETS (or `none`) switches public data off.
    """
    root = _PACKAGE.parent
    usual = (root / "datasets", root.parent / "shared" / "datasets")
    path = named_path("STEPTIME_DATASETS", lambda: next(filter(Path.is_dir, usual), None))
    return path if path and path.is_dir() else None


def cache_dir() -> Path | None:
    """The folder of captured graphs that are kept between runs: $STEPTIME_CACHE, else in the user's cache folder.

    None if $STEPTIME_CACHE is empty or `none`: nothing is kept.
    """
    return named_path("STEPTIME_CACHE", lambda: _user_folder("cache"))


@dataclass(frozen=True)
class Artifacts:
    """File names under a results folder; `gpu`, `model`, `variant`, `batch` may be Snakemake wildcards."""

    root: str = "results"

    def point(self, gpu: str, model: str, variant: str, batch: int | str) -> str:
        """Folder of one grid point."""
        return f"{self.root}/{gpu}/{model}/{variant}/b{batch}"

    def graph(
        self, model: str, model_variant: str, batch: int | str, edit_variant: str = ""
    ) -> str:
        """The captured graph of a workload. It does not depend on the GPU or the methods, so all points share it.

        With edits of the operators, it is the graph after them.
        """
        edits = f"{edit_variant}/" if edit_variant else ""
        return f"{self.root}/graphs/{model}/{model_variant}/{edits}b{batch}/graph.parquet"

    def kernels(self, gpu: str) -> str:
        """Folder of a GPU's kernel samples and models."""
        return f"{self.root}/{gpu}/kernels"

    def overheads(self, gpu: str, choice: str) -> str:
        """Overhead statistics of a GPU's host. The default choice has the plain name; a wildcard covers all choices."""
        if choice == "{overheads}":
            return f"{self.root}/{gpu}/{{overheads}}.parquet"
        file = "overheads" if choice == "shared" else f"overheads-{choice}"
        return f"{self.root}/{gpu}/{file}.parquet"

    @property
    def tracking(self) -> str:
        """Folder of the MLflow database and its artifacts."""
        return f"{self.root}/mlflow"

    def logged(self, name: str) -> str:
        """Empty file that says what a job has logged to the database: without it, the job runs again."""
        return f"{self.tracking}/logged/{name}"

    def overhead_samples(self, gpu: str) -> str:
        """Raw overhead observations of a GPU's host."""
        return f"{self.root}/{gpu}/overhead_samples.parquet"


def check_file(path: Path | None, option: str, kinds: Sequence[str] = FIGURES) -> None:
    """Refuse a file that cannot be written, before the work.

    Args:
        path: the file; None for none.
        option: the option that names it.
        kinds: endings that its name may have.

    Raises:
        InputError: it has another ending, or its folder does not exist.
    """
    if path is None:
        return
    endings = tuple(f".{kind}" for kind in kinds)
    if not path.name.endswith(endings):
        raise InputError(f"{option} {path}: give a name that ends in {' or '.join(endings)}")
    if not path.parent.is_dir():
        raise InputError(f"{option} {path}: there is no folder {path.parent}")
