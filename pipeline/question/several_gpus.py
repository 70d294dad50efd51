"""How several GPUs share a step: the section `parallel`, and the ranks that it gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from pipeline.errors import ConfigError, LayoutError
from pipeline.hardware.clusters import (
    AUTO,
    Cluster,
    check_fabric,
    load_cluster,
    usual_cluster,
)
from pipeline.hardware.find_gpu import LOCAL
from pipeline.hardware.rank_layout import CAPTURED_REPLICAS, Layout
from pipeline.hardware.spec import GpuSpec
from pipeline.question.settings import option, written

RANKS_KEYS = ("devices", "nodes", "cluster", "parallel")
"""Keys of the configuration that say how many GPUs share a step, and how."""

MAX_DEVICES = 100_000

SPLIT_MODELS = ("gpt", "llama")
"""Architectures whose code runs on several ranks along other axes than `dp`."""

ONE_BUCKET_MB = 1_000_000
"""Size of a bucket that holds all gradients."""


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
class FsdpSettings:
    """Options of `fully_shard`."""

    reshard_after_forward: bool = option(
        "false: gathered weights are kept for the backward pass", True
    )
    mixed_precision: str = option(
        "dtype in which weights are gathered and used; none: theirs",
        "none",
        values=("none", "bf16", "fp16"),
    )
    reduce_dtype: str = option(
        "dtype in which gradients are summed; same: that of mixed_precision",
        "fp32",
        values=("fp32", "same"),
    )
    shard_size: int | str = option(
        "ranks that share the weights, with replicas between (HSDP); auto: all",
        AUTO,
        words=(AUTO,),
        whole=True,
    )


@dataclass(frozen=True)
class HybridSettings:
    """Options of tables that are spread over the GPUs."""

    sharding: str = option(
        "which GPUs hold which tables: auto, round_robin, by_size, column_wise, row_wise, or a file"
        " of `steptime plan sharding` or of TorchRec's planner",
        AUTO,
    )


@dataclass(frozen=True)
class ParallelSettings(DdpSettings, FsdpSettings, HybridSettings):
    """Section `parallel`: along which axes the work is split, and how replicas exchange gradients."""

    name: str = "ddp"
    tp: int = option("ranks that share each layer (tensor parallelism)", 1)
    cp: int = option("ranks that share the tokens of a sequence (context parallelism)", 1)
    pp: int = option("parts of the model in a pipeline", 1)
    virtual_stages: int = option("parts of the model on each stage (interleaved schedule)", 1)
    micro_batches: int = option(
        "forward and backward passes of a rank before one update", 1, most=100_000
    )
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
    def sharded(self) -> bool:
        """Whether replicas share their weights (`fully_shard`)."""
        return self.name == "fsdp"

    @property
    def spreads(self) -> bool:
        """Whether embedding tables are spread over the ranks."""
        return self.name == "hybrid"

    @property
    def exchange(self) -> dict[str, Any]:
        """How replicas exchange gradients, as a capture reads it."""
        options = {entry.name: getattr(self, entry.name) for entry in fields(DdpSettings)}
        options |= {"zero": True} if self.zero else {}
        return options if self.overlap else {**options, "bucket_cap_mb": ONE_BUCKET_MB}


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
        _check_work(f"devices={devices}", parallel, model)
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
        of, shards = self.parallel, self.shards
        sizes = {"tp": of.tp, "cp": of.cp, "fsdp": shards, "dp": self.replicas // shards}
        sizes["pp"] = of.pp
        return Layout(tuple((axis, size) for axis, size in sizes.items() if size > 1), self.nodes)

    @property
    def pieces(self) -> tuple[str, ...]:
        """The pieces of a model that is captured layer by layer, the middle layers last; empty for others."""
        if not self.layers:
            return ()
        return ("whole", "middle") if self.parallel.parts == 1 else ("first", "last", "middle")

    @property
    def replicas(self) -> int:
        """Replicas of the model, each with its own samples."""
        return self.devices // self.parallel.shares

    @property
    def shards(self) -> int:
        """Replicas that share their weights."""
        of = self.parallel
        if not of.sharded:
            return 1
        return self.replicas if of.shard_size == AUTO else int(of.shard_size)

    @property
    def sharding(self) -> dict[str, Any]:
        """How replicas share their weights, as a capture reads it; `sizes`: groups that hold all weights, and ranks of each.

        All numbers of such groups share a capture.
        """
        options = {each.name: getattr(self.parallel, each.name) for each in fields(FsdpSettings)}
        groups = min(self.replicas // self.shards, CAPTURED_REPLICAS)
        return {**options, "sizes": [groups, self.shards]}

    @property
    def scheduled(self) -> bool:
        """Whether a step is put together from several passes: of micro-batches, layers, and parts of a pipeline."""
        return self.layers > 0 or self.parallel.micro_batches > 1

    def names(self, gpu: GpuSpec) -> list[str]:
        """The parts of a variant's name: what differs from one GPU, and from the defaults."""
        usual, of = asdict(ParallelSettings()), asdict(self.parallel)
        differing = {key: value for key, value in of.items() if value != usual[key]}
        name = differing.pop("name", None)
        fewest = -(-self.devices // self.cluster.gpus_per_node)
        names = [f"devices-{self.devices}"]
        names += [] if self.nodes == fewest else [f"nodes-{self.nodes}"]
        names += [] if self.cluster == usual_cluster(gpu) else [f"cluster-{self.cluster.name}"]
        names += [f"parallel-{name}"] if name else []
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
    shares = config["parallel"]["name"] != ParallelSettings.name
    keys = ("nodes", "cluster", "parallel")
    changed = [k for k in keys if config[k] != usual[k] or (k == "parallel" and shares)]
    return (f"one GPU exchanges nothing and does not read {', '.join(changed)}",) if changed else ()


def with_exchange(
    ranks: Ranks | None, model: Mapping[str, Any], usual: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Section `model` and that of the files, with `layout` and `ddp` or `fsdp`: the ranks of a step, and how they exchange.

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
        reads_ranks = of.spreads or of.zero or model.get("architecture") in ("custom", "hstu")
        sizes = layout.captured(reads_ranks)
        how = {"fsdp": ranks.sharding} if of.sharded else {"ddp": of.exchange}
        added = {"layout": sizes, **how} if sizes else {}
    if of.micro_batches > 1:  # gradients of later micro-batches are added to those that are there
        added["set_to_none"] = False
    return {**model, **added}, {**usual, **{key: {} for key in added}}


def _check_shares(devices: int, parallel: ParallelSettings, model: Mapping[str, Any]) -> None:
    """Refuse ranks that do not divide each other or the model."""
    of, architecture = parallel, model.get("architecture")
    if of.shares * of.virtual_stages > 1 and architecture not in SPLIT_MODELS:
        raise ConfigError(
            f"parallel.tp={of.tp} parallel.cp={of.cp} parallel.pp={of.pp}: {model['name']} is not"
            " written for it; take model=gpt or model=llama with the sizes of yours, or devices="
            " and PyTorch's parallelize_module in a step of your own (docs/many_gpus.md)"
        )
    if of.sharded and architecture in SPLIT_MODELS:
        raise ConfigError(
            f"parallel=fsdp: {model['name']} updates its own copies of its weights; take"
            " parallel=ddp with parallel.tp or parallel.zero, or a model of a library"
        )
    if of.spreads:
        _check_spread(of, model)
    if devices % of.shares:
        raise LayoutError(
            f"devices={devices}: not a multiple of tp x cp x pp = {of.tp} x {of.cp} x {of.pp} ="
            f" {of.shares}; replicas of the model have that many GPUs"
        )
    if of.virtual_stages > 1 and (of.pp == 1 or of.micro_batches % of.pp):
        raise LayoutError(
            f"parallel.virtual_stages={of.virtual_stages}: the interleaved schedule needs"
            f" parallel.pp above 1 and parallel.micro_batches as a multiple of it, not"
            f" pp={of.pp} and micro_batches={of.micro_batches}"
        )
    if architecture in SPLIT_MODELS:
        _check_divided(of, model)
    size = of.shard_size
    if size != AUTO and (not isinstance(size, int) or size == 1 or devices % size):
        raise ConfigError(
            f"parallel.shard_size={of.shard_size}: give a divisor of devices={devices} above 1"
            " (parallel=ddp shares no weights)"
        )
    if of.parts > 1 and int(model["layers"]) % of.parts:
        raise LayoutError(
            f"model.layers={model['layers']}: not a multiple of pp x virtual_stages = {of.pp} x"
            f" {of.virtual_stages}; each part of the pipeline has the same number of layers"
        )


def _check_spread(of: ParallelSettings, model: Mapping[str, Any]) -> None:
    """Refuse to spread what has no tables, or lookups that are not fused."""
    if model.get("architecture") not in ("dlrm", "hstu"):
        raise ConfigError(
            f"parallel=hybrid: {model['name']} has no embedding tables to spread; take parallel=ddp"
            " or parallel=fsdp"
        )
    if model.get("embedding", "fused") != "fused":
        raise ConfigError(
            f"model.embedding={model.get('embedding')}: tables that are spread over GPUs have fused"
            " lookups (FBGEMM's, as in TorchRec); give model.embedding=fused"
        )
    if of.micro_batches > 1:
        raise ConfigError(
            f"parallel.micro_batches={of.micro_batches}: lookups update their tables in each"
            " backward pass; with parallel=hybrid give 1"
        )


def _check_divided(of: ParallelSettings, model: Mapping[str, Any]) -> None:
    """Refuse ranks that do not divide heads, the width of a layer, or tokens."""
    kv_heads = int(model.get("kv_heads") or model["heads"])
    width = int(model.get("ffn_width") or 4 * int(model["width"]))
    tokens = int(model["seq_len"])
    split = [("kv_heads", kv_heads, "tp", of.tp), ("ffn_width", width, "tp", of.tp)]
    split += [("seq_len", tokens, "cp", of.cp)]
    if of.sequence:
        split += [("seq_len over cp", tokens // of.cp, "tp", of.tp)]
    for name, size, axis, ranks in split:
        if size % ranks:
            raise LayoutError(f"model.{name}={size}: must be a multiple of parallel.{axis}={ranks}")


def _check_work(devices: str, parallel: ParallelSettings, model: Mapping[str, Any]) -> None:
    """Refuse what several GPUs cannot do."""
    if model.get("mode") == "inference" and not parallel.spreads:
        raise ConfigError(
            f"{devices} model.mode=inference: GPUs that infer exchange nothing; multiply the"
            " throughput of one"
        )
    plain = parallel.zero and model.get("architecture") not in SPLIT_MODELS
    if plain and (parallel.compression != "none" or model.get("compile")):
        raise ConfigError(
            f"parallel.zero=true: {model['name']} scatters its gradients as they are; leave out"
            " parallel.compression and model.compile"
        )


def _count(value: object, key: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_DEVICES:
        raise ConfigError(f"{key}={written(value)}: give a whole number from 1 to {MAX_DEVICES:,}")
    return value
