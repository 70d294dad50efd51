"""Hosts: the CPU and software that launch the work of a GPU, one file each under `config/host/`.

A host states whose traces its overheads come from (`observations`), a factor on these times, and how uncertain the
factor is. `host=usual` is the host that a card of that generation usually sits in. Measured hosts of newer cards are not faster
than those of 2020: servers of many cores and virtual machines.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import ConfigError, UnknownNameError
from pipeline.hardware.find_gpu import LOCAL
from pipeline.hardware.spec import GpuSpec
from pipeline.paths import campaign_gpus, config_files, name_of_config
from pipeline.yaml_text import SOURCES, TEXT, kept_while_unchanged, names, number, read_named

USUAL = "usual"
"""Value of `host` that takes the usual host of the GPU."""

NEWEST = "typical-2022"
"""The usual host of a GPU whose architecture no file of a host names."""

CAMPAIGN_LOG_SD = 0.18
"""Standard deviation of log host time of a campaign's host, beside that of shared overheads: what profiled times leave open.
35 steps of `measurements/H100` that wait for the host, a virtual machine, differ by 0.23 from their predictions."""

_TEXTS = ("name", "what", "observations")
_KEYS = dict.fromkeys(_TEXTS, TEXT) | {
    "scale": number("give a number above 0", 1000),
    "log_sd": number("give a number 0 or above 0", 1000, zero=True),
    "usual_for": names("architectures"),
    "sources": SOURCES,
}


@dataclass(frozen=True)
class Host:
    """A host that launches the work of a GPU."""

    name: str
    what: str
    """What it is, in a few words."""
    observations: str
    """The GPU on whose host the overheads of operators were observed: a pack, a campaign, or `local`."""
    scale: float = 1.0
    """Host times over those observed."""
    log_sd: float = 0.0
    """Standard deviation of the log of the factor: what is not known of this host. 0 for the host of a public trace."""
    usual_for: tuple[str, ...] = ()
    """Architectures of the GPUs that usually sit in it."""

    @property
    def inferred(self) -> bool:
        """Whether its overheads were observed on another host, and scaled."""
        return self.scale != 1.0 or (self.log_sd > 0.0 and self.name != self.observations)


def load_host(name: str) -> Host:
    """The host of a name (`paths.config_files`), of a file given by path, or of a campaign (the name of its GPU).

    Raises:
        UnknownNameError: there is no such host.
        ConfigError: its file is damaged.
    """
    name = name_of_config("host", name, _read)
    hosts = {host.name: host for host in list_hosts()}
    if name not in hosts:
        raise UnknownNameError("host", name, [*hosts, USUAL])
    return hosts[name]


def list_hosts() -> list[Host]:
    """All hosts: those with a file, then those of campaigns, by name."""
    files = [_read(path) for path in config_files("host").values()]
    campaigns = [
        Host(gpu, f"the host of the measured {gpu}", gpu, log_sd=CAMPAIGN_LOG_SD)
        for gpu in campaign_gpus()
    ]
    return [*files, *campaigns]


def usual_host(gpu: GpuSpec) -> Host:
    """The host of a GPU for which none is named: the usual one of its generation.

    A user's own file that is `usual_for` an architecture counts before the shipped ones. The host of a campaign is one
    machine among many, and may be slower than an older card's: it counts only where it is named.
    """
    if gpu.name == LOCAL:
        return Host(LOCAL, "this machine", LOCAL)
    usual = (host for host in reversed(list_hosts()) if gpu.architecture in host.usual_for)
    return next(usual, None) or load_host(NEWEST)


def host_of(usual: Host, name: str) -> Host:
    """The host that `host=NAME` means for a GPU with this usual host.

    Raises:
        UnknownNameError: there is no such host.
        ConfigError: its file is damaged, or the GPU is this machine's, which is measured with its own host.
    """
    if name in (USUAL, usual.name):
        return usual
    if usual.name == LOCAL:
        raise ConfigError(
            f"host={name}: gpu=local is measured with the host of this machine; leave host out"
        )
    return load_host(name)


@kept_while_unchanged
def _read(path: Path) -> Host:
    """The host of a file. Its errors are those of `load_host`."""
    values = read_named(path, "host", NEWEST, _KEYS, _TEXTS)
    return Host(
        **{key: values[key] for key in _TEXTS},
        scale=float(values.get("scale", 1.0)),
        log_sd=float(values.get("log_sd", 0.0)),
        usual_for=tuple(map(str, values.get("usual_for", ()))),
    )
