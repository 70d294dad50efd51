"""The sections of a question as frozen values: settings of methods, edits, and how many GPUs share the work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from typing import Any

from pipeline.errors import ConfigError
from pipeline.hardware.clusters import (
    AUTO,
    Cluster,
    check_fabric,
    load_cluster,
    usual_cluster,
)
from pipeline.hardware.find_gpu import LOCAL
from pipeline.hardware.rank_layout import Layout
from pipeline.hardware.spec import GpuSpec

RANKS_KEYS = ("devices", "nodes", "cluster", "parallel")
"""Keys of the configuration that say how many GPUs share a step, and how."""

MAX_DEVICES = 100_000

NO_EDIT = "none"
"""Value of an option of the section `edit` that edits nothing."""

FUSE_ALL = "elementwise"
"""Value of `edit.fuse` that fuses every chain of elementwise operators."""


@dataclass(frozen=True)
class Option:
    """What an option is and may be: checks, completion, lists and the table of config/README.md read it.

    Attributes:
        what: its meaning, as the end of a sentence that begins with its name.
        values: the words that it may be; empty where numbers or other names may stand.
        words: words that may stand in place of true, false or a number.
        example: a value, where no file gives a default.
        least: the least number; None where it must be above 0.
        whole: whether its numbers are whole; None: if that of its file or field is.
        each: whether one number may stand for a list of numbers, or a list for one number.
        remedy: what to know beside `values`.
    """

    what: str
    values: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    example: str = ""
    least: float | None = None
    whole: bool | None = None
    each: bool = False
    remedy: str = ""


def option(what: str, default: Any = MISSING, **limits: Any) -> Any:
    """A field of a section: its option, and its default if the files may leave it out."""
    return field(default=default, metadata={"option": Option(what, **limits)})


@dataclass(frozen=True)
class KernelSettings:
    """Section `kernels`: the variants of kernel models to fit, and how to fit them."""

    name: str
    variants: tuple[str, ...] = option("variants of kernel models to fit and compare")
    seed: int = option("seed of the fits", least=0)
    workers: int = option("processes that fit; they change no result")
    families: tuple[str, ...] = option("families to fit; all if empty", (), example="[gemm,bmm]")
    """Families to fit; empty for all that have samples. Shipped models or physics predict the others."""


@dataclass(frozen=True)
class OverheadSettings:
    """Section `overheads`: the observations of a host to use, and how to summarise them; times are in µs."""

    name: str
    observations: str = option(
        "observations of the host: all, those of the same workload, or all per operator",
        values=("all", "own", "pooled"),
    )
    estimator: str = option(
        "statistic of the observations", values=("clipped_mean", "trimmed_mean", "mean", "median")
    )
    profiler_event_us: float = option("cost of the profiler for each host event, µs", least=0)
    profiler_launch_us: float = option("cost of the profiler for each launch, µs", least=0)
    host_scale: float = option(
        "host time divided by that of the profiled host: 2 means a host that is half as fast", 1.0
    )
    """Ratio of the host's time to the profiled host's time; it is applied when a point is predicted."""


@dataclass(frozen=True)
class PredictSettings:
    """Section `predict`: the form of the critical path, and the random draws for an interval."""

    critical_path: str = option(
        "the walk along the critical path; published: Lin et al., Algorithm 1 as printed",
        "full",
        values=("full", "published"),
    )
    cuda_graph: bool = option("true: kernels between two host waits are one CUDA graph", False)
    wait_each_step: bool = option(
        "true: the host waits for the GPU after each step, as a timer around each step does", False
    )
    draws: int = option("simulated draws for p10 to p90", 1024, least=10)
    """With so many, p10 and p90 vary from seed to seed with a standard deviation of about 1 % of the step. With fewer than
    10, p10 and p90 are not distinct draws and mean nothing."""
    seed: int = option("seed of these draws", 0, least=0)


@dataclass(frozen=True)
class CollectSettings:
    """Section `collect`: time limits of measurements on this machine (s), and the number of profiled iterations."""

    step_seconds: float = option("gpu=local: time for unprofiled steps, s", 15)
    kernel_seconds: float = option("gpu=local: time for kernel microbenchmarks, s", 60)
    iterations: int = option("gpu=local: profiled iterations", 12)


@dataclass(frozen=True)
class DdpSettings:
    """Options of `DistributedDataParallel`, and of its hook that compresses gradients."""

    bucket_cap_mb: float = option("MiB of gradients that are exchanged together", 25)
    gradient_as_bucket_view: bool = option("true: no copies between gradients and buckets", False)
    static_graph: bool = option("true: the graph is the same in every step", False)
    broadcast_buffers: bool = option(
        "true: the first rank's buffers (batch norm) are sent to all before each step", True
    )
    find_unused_parameters: bool = option(
        "true: parameters without a gradient are looked for", False
    )
    compression: str = option(
        "dtype in which gradients are exchanged", "none", values=("none", "fp16", "bf16")
    )


@dataclass(frozen=True)
class ParallelSettings(DdpSettings):
    """Section `parallel`: along which axes the work is split, and how replicas exchange gradients."""

    name: str = "ddp"
    tp: int = option("ranks that share each layer (tensor parallelism)", 1)
    cp: int = option("ranks that share the tokens of a sequence (context parallelism)", 1)
    pp: int = option("parts of the model in a pipeline", 1)
    virtual_stages: int = option("parts of the model on each stage (interleaved schedule)", 1)
    micro_batches: int = option("forward and backward passes of a rank before one update", 1)
    overlap: bool = option("false: gradients are exchanged after the last backward pass", True)
    sequence: bool = option(
        "with tp: activations between products are split over tokens (sequence parallelism)", True
    )
    zero: bool = option(
        "true: each replica updates a part of the weights (ZeRO-1, distributed optimizer)", False
    )

    @property
    def shares(self) -> int:
        """Ranks that hold one replica of the model together."""
        return self.tp * self.cp * self.pp

    @property
    def parts(self) -> int:
        """Parts into which the layers are cut."""
        return self.pp * self.virtual_stages

    @property
    def exchange(self) -> dict[str, Any]:
        """How replicas exchange gradients, as a capture reads it."""
        options = {entry.name: getattr(self, entry.name) for entry in fields(DdpSettings)}
        return options if self.overlap else {**options, "bucket_cap_mb": ONE_BUCKET_MB}


SPLIT_MODELS = ("gpt", "llama")
"""Architectures whose code runs on several ranks along other axes than `dp`."""

ONE_BUCKET_MB = 1_000_000
"""Size of a bucket that holds all gradients."""


@dataclass(frozen=True)
class EditSettings:
    """Section `edit`: edits of the step's operators, in the order in which they are applied; false if there are none."""

    remove: tuple[str, ...] = ()
    """Operators to remove."""
    substitute: tuple[str, ...] = ()
    """Operators and those that take their place: `aten::relu/aten::gelu`."""
    fuse: tuple[str, ...] = ()
    """Chains of operators that become one kernel: `aten::add+aten::relu`; `elementwise` for every chain."""

    @classmethod
    def of(cls, section: Mapping[str, Any]) -> EditSettings:
        """From the values of the section: a name, several names, or `none`."""
        names_of = {
            key: (value,) if isinstance(value, str) else tuple(value)
            for key, value in section.items()
        }
        return cls(**{key: () if names == (NO_EDIT,) else names for key, names in names_of.items()})

    def __bool__(self) -> bool:
        return bool(self.remove or self.substitute or self.fuse)

    @property
    def texts(self) -> list[str]:
        """The edits as overrides, such as `edit.remove=aten::dropout`, one for each name."""
        return [f"edit.{key}={name}" for key, names in asdict(self).items() for name in names]


@dataclass(frozen=True)
class Ranks:
    """The GPUs of a step of several ranks, one rank each.

    Attributes:
        devices: number of GPUs.
        nodes: number of machines.
        cluster: what joins them.
        parallel: how they share the work.
        layers: of each part of a model that is captured layer by layer (`SPLIT_MODELS`); 0 for others.
    """

    devices: int
    nodes: int
    cluster: Cluster
    parallel: ParallelSettings
    layers: int = 0

    @classmethod
    def of(cls, config: Mapping[str, Any], gpu: GpuSpec, model: Mapping[str, Any]) -> Ranks | None:
        """The ranks that a configuration asks for; None for one GPU.

        Args:
            config: values of `RANKS_KEYS`.
            gpu: what each rank has.
            model: section `model`.

        Raises:
            UnknownNameError: there is no such cluster.
            ConfigError: the numbers make no sense.
        """
        devices = _count(config["devices"], "devices")
        parallel = ParallelSettings(**config["parallel"])
        _check_shares(devices, parallel, model)
        if devices == parallel.micro_batches == 1:
            return None
        _check_work(f"devices={devices}", model)
        if gpu.name == LOCAL:
            raise ConfigError(
                f"gpu=local devices={devices}: this machine's device is measured alone; name a GPU,"
                " such as gpu=A100"
            )
        cluster = cluster_of(str(config["cluster"]), gpu)
        fewest = -(-devices // cluster.gpus_per_node)
        nodes = fewest if config["nodes"] == AUTO else _count(config["nodes"], "nodes")
        given = f"devices={devices} nodes={nodes}"
        room = f"a node of {cluster.name} holds {cluster.gpus_per_node} GPUs"
        if devices % nodes:
            if config["nodes"] == AUTO:
                given = f"devices={devices}: {room}, so {nodes} are needed"
            raise ConfigError(
                f"{given}: each node holds the same number of GPUs; give a multiple of {nodes}"
            )
        if devices // nodes > cluster.gpus_per_node:
            raise ConfigError(
                f"{given}: {room}; take nodes={fewest}, or another cluster (steptime clusters)"
            )
        split = model.get("architecture") in SPLIT_MODELS
        layers = int(model["layers"]) // parallel.parts if split else 0
        return cls(devices, nodes, cluster, parallel, layers)

    @property
    def layout(self) -> Layout:
        """The ranks by axes, in Megatron-LM's order: ranks that share layers are neighbours."""
        of = self.parallel
        sizes = {"tp": of.tp, "cp": of.cp, "dp": self.replicas, "pp": of.pp}
        return Layout(tuple((axis, size) for axis, size in sizes.items() if size > 1), self.nodes)

    @property
    def replicas(self) -> int:
        """Replicas of the model, each with its own samples."""
        return self.devices // self.parallel.shares

    @property
    def scheduled(self) -> bool:
        """Whether a step is put together from several passes: of micro-batches, layers, and parts of a pipeline."""
        return self.layers > 0 or self.parallel.micro_batches > 1

    def names(self, gpu: GpuSpec) -> list[str]:
        """The parts of a variant's name: what differs from one GPU, and from the defaults."""
        usual, of = asdict(ParallelSettings()), asdict(self.parallel)
        differing = {key: value for key, value in of.items() if value != usual[key]}
        fewest = -(-self.devices // self.cluster.gpus_per_node)
        names = [f"devices-{self.devices}"]
        names += [] if self.nodes == fewest else [f"nodes-{self.nodes}"]
        names += [] if self.cluster == usual_cluster(gpu) else [f"cluster-{self.cluster.name}"]
        return names + [f"parallel.{key}-{value}" for key, value in differing.items()]


def cluster_of(name: str, gpu: GpuSpec) -> Cluster:
    """The cluster of a name or file, or the usual one of a GPU (`AUTO`), after a check that the GPU fits into it.

    Raises:
        UnknownNameError: there is no such cluster.
        ConfigError: the GPU does not fit into it.
    """
    cluster = usual_cluster(gpu) if name == AUTO else load_cluster(name)
    check_fabric(cluster, gpu)
    return cluster


def unread_alone(config: Mapping[str, Any], usual: Mapping[str, Any]) -> tuple[str, ...]:
    """A sentence on options of several GPUs that were given for one; in a sweep over `devices` they are for the others."""
    changed = [key for key in ("nodes", "cluster", "parallel") if config[key] != usual[key]]
    return (f"one GPU exchanges nothing and does not read {', '.join(changed)}",) if changed else ()


def with_exchange(
    ranks: Ranks | None, model: Mapping[str, Any], usual: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Section `model` and that of the files, with `layout` and `ddp`: the ranks of a step, and how they exchange gradients.

    A user's own step may read how many ranks there are, so it is captured with all of them.
    """
    if ranks is None:
        return dict(model), dict(usual)
    of, layout = ranks.parallel, ranks.layout
    if ranks.layers:
        inside = {axis: size for axis, size in layout.sizes if axis in ("tp", "cp")}
        added: dict[str, Any] = {
            "sequence": of.sequence,
            "owners": ranks.replicas if of.zero else 1,
        }
        added |= {"layout": inside} if inside else {}
        added["part"] = "whole" if of.parts == 1 else "first"
    else:
        sizes = layout.captured(reads_ranks=model.get("architecture") == "custom")
        added = {"layout": sizes, "ddp": of.exchange} if sizes else {}
    if of.micro_batches > 1:  # gradients of later micro-batches are added to those that are there
        added["set_to_none"] = False
    return {**model, **added}, {**usual, **{key: {} for key in added}}


def _check_shares(devices: int, parallel: ParallelSettings, model: Mapping[str, Any]) -> None:
    """Refuse ranks that do not divide each other or the model."""
    of, architecture = parallel, model.get("architecture")
    if of.shares * of.virtual_stages > 1 and architecture not in SPLIT_MODELS:
        raise ConfigError(
            f"parallel.tp={of.tp} parallel.cp={of.cp} parallel.pp={of.pp}: {model['name']} is not"
            " written for it; take model=gpt or model=llama with the sizes of yours"
            " (docs/many_gpus.md)"
        )
    if devices % of.shares:
        raise ConfigError(
            f"devices={devices}: not a multiple of tp x cp x pp = {of.tp} x {of.cp} x {of.pp} ="
            f" {of.shares}; replicas of the model have that many GPUs"
        )
    if of.virtual_stages > 1 and (of.pp == 1 or of.micro_batches % of.pp):
        raise ConfigError(
            f"parallel.virtual_stages={of.virtual_stages}: the interleaved schedule needs"
            f" parallel.pp above 1 and parallel.micro_batches as a multiple of it, not"
            f" pp={of.pp} and micro_batches={of.micro_batches}"
        )
    if of.parts > 1 and int(model["layers"]) % of.parts:
        raise ConfigError(
            f"model.layers={model['layers']}: not a multiple of pp x virtual_stages = {of.pp} x"
            f" {of.virtual_stages}; each part of the pipeline has the same number of layers"
        )


def _check_work(devices: str, model: Mapping[str, Any]) -> None:
    """Refuse what several GPUs cannot do."""
    if model.get("mode") == "inference":
        raise ConfigError(
            f"{devices} model.mode=inference: GPUs that infer exchange nothing; multiply the"
            " throughput of one"
        )


def _count(value: object, key: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_DEVICES:
        raise ConfigError(f"{key}={written(value)}: give a whole number from 1 to {MAX_DEVICES:,}")
    return value


class FrozenDict(dict[str, Any]):
    """A hashable mapping that nobody changes. Nested mappings and lists are frozen too (lists become tuples)."""

    __slots__ = ("_hash",)

    def __init__(self, values: Any) -> None:
        super().__init__({str(key): _frozen(value) for key, value in dict(values).items()})
        self._hash: int | None = None

    def __hash__(self) -> int:  # type: ignore[override]
        if self._hash is None:
            self._hash = hash(frozenset(self.items()))
        return self._hash

    def __reduce__(self) -> tuple[type[FrozenDict], tuple[dict[str, Any]]]:
        # without the hash: those of texts differ between processes
        return FrozenDict, (dict(self),)

    def plain(self) -> dict[str, Any]:
        """The same values as dicts and lists, for functions that build models and for Snakemake's params."""
        return {key: plain(value) for key, value in self.items()}


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return FrozenDict(value)
    return tuple(_frozen(entry) for entry in value) if isinstance(value, (list, tuple)) else value


def plain(value: Any, without: Sequence[str] = ()) -> Any:
    """A frozen value as dicts and lists; fields of a dataclass that `without` names are left out."""
    if isinstance(value, FrozenDict):
        return value.plain()
    if is_dataclass(value):
        kept = [entry.name for entry in fields(value) if entry.name not in without]
        return {name: plain(getattr(value, name), without) for name in kept}
    return [plain(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def written(value: Any) -> str:
    """A value in the form in which a user types it on the command line."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{written(each)}" for key, each in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(written, value))}]"
    return "null" if value is None else str(value)
