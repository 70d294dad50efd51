"""How many GPUs work on a step, where they are, and how they share the work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.errors import ConfigError
from pipeline.hardware.clusters import AUTO, Cluster, check_fabric, load_cluster, usual_cluster
from pipeline.hardware.find_gpu import LOCAL
from pipeline.hardware.spec import GpuSpec
from pipeline.question.sections import DdpSettings, written

KEYS = ("devices", "nodes", "cluster", "parallel", "ddp")
"""Keys of the configuration that say this."""

MAX_DEVICES = 100_000

CAPTURED_RANKS = 2
"""Ranks with which a shipped workload is captured: its step depends on there being several, and not on how many."""


@dataclass(frozen=True)
class Ranks:
    """The GPUs of a step of several ranks, one rank each.

    Attributes:
        devices: number of GPUs.
        nodes: number of machines.
        cluster: what joins them.
        ddp: how gradients are exchanged.
    """

    devices: int
    nodes: int
    cluster: Cluster
    ddp: DdpSettings

    @classmethod
    def of(cls, config: Mapping[str, Any], gpu: GpuSpec, model: Mapping[str, Any]) -> Ranks | None:
        """The ranks that a configuration asks for; None for one GPU.

        Args:
            config: values of `KEYS`.
            gpu: what each rank has.
            model: section `model`.

        Raises:
            UnknownNameError: there is no such cluster.
            ConfigError: the numbers make no sense.
        """
        devices = _count(config["devices"], "devices")
        if devices == 1:
            return None
        _check_work(f"devices={devices}", gpu, model)
        cluster = usual_cluster(gpu) if config["cluster"] == AUTO else load_cluster(str(config["cluster"]))
        check_fabric(cluster, gpu)
        fewest = -(-devices // cluster.gpus_per_node)
        nodes = fewest if config["nodes"] == AUTO else _count(config["nodes"], "nodes")
        if devices % nodes:
            raise ConfigError(
                f"devices={devices} nodes={nodes}: each node holds the same number of GPUs; give a multiple"
            )
        if devices // nodes > cluster.gpus_per_node:
            raise ConfigError(
                f"devices={devices} nodes={nodes}: a node of {cluster.name} holds {cluster.gpus_per_node} GPUs; "
                f"take nodes={fewest}, or another cluster (steptime clusters)"
            )
        return cls(devices, nodes, cluster, DdpSettings(**config["ddp"]))

    def names(self, gpu: GpuSpec) -> list[str]:
        """The parts of a variant's name: what differs from one GPU, and from the defaults."""
        usual = asdict(DdpSettings())
        differing = {key: value for key, value in asdict(self.ddp).items() if value != usual[key]}
        fewest = -(-self.devices // self.cluster.gpus_per_node)
        names = [f"devices-{self.devices}", *([f"nodes-{self.nodes}"] if self.nodes != fewest else [])]
        names += [f"cluster-{self.cluster.name}"] if self.cluster != usual_cluster(gpu) else []
        return names + [f"ddp.{key}-{value}" for key, value in differing.items()]


def unread_alone(config: Mapping[str, Any], usual: Mapping[str, Any]) -> tuple[str, ...]:
    """A sentence on options of several GPUs that were given for one; in a sweep over `devices` they are for the others."""
    changed = [key for key in ("nodes", "cluster", "ddp") if config[key] != usual[key]]
    return (f"one GPU exchanges nothing and does not read {', '.join(changed)}",) if changed else ()


def with_exchange(
    ranks: Ranks | None, model: Mapping[str, Any], usual: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Section `model` and that of the files, with `ddp`: how a step of several ranks exchanges its gradients.

    A user's own step may read how many ranks there are, so it is captured with all of them.
    """
    if ranks is None:
        return dict(model), dict(usual)
    count = ranks.devices if model.get("architecture") == "custom" else CAPTURED_RANKS
    exchange = {"ranks": count, **asdict(ranks.ddp)}
    return {**model, "ddp": exchange}, {**usual, "ddp": {"ranks": 1, **asdict(DdpSettings())}}


def _check_work(devices: str, gpu: GpuSpec, model: Mapping[str, Any]) -> None:
    """Refuse what several GPUs cannot do.

    Raises:
        ConfigError: they are asked to infer, or to be this machine.
    """
    if model.get("mode") == "inference":
        raise ConfigError(
            f"{devices} model.mode=inference: GPUs that infer exchange nothing; multiply the throughput of one"
        )
    if gpu.name == LOCAL:
        raise ConfigError(f"{devices}: gpu=local is measured with one process; name a GPU, such as gpu=A100")


def _count(value: object, key: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_DEVICES:
        raise ConfigError(f"{key}={written(value)}: give a whole number from 1 to {MAX_DEVICES:,}")
    return value
