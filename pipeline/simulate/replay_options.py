"""The parts that a replay can switch off or exchange, to measure the effect of each part."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.simulate.critical_path import Form


@dataclass(frozen=True)
class Options:
    """The parts that can be switched off or exchanged, for ablations.

    Attributes:
        estimator: estimator of the overhead statistics (`pipeline.overheads.statistics.ESTIMATORS`).
        form: `full` or `published` critical path.
        signatures: look overheads up by full signature first.
        event_waits: keep waits between streams.
        host_waits: keep waits of the host (synchronisation, blocking copies).
        queue: keep the limit of the launch queue.
        occupancy: kernels that fill the device delay kernels of other streams.
        threads: look T1 up by thread switch and by the previous op.
        device_constants: launch latency and kernel gap from the trace; otherwise T4/2 and 1 µs.
    """

    estimator: str = "clipped_mean"
    form: Form = "full"
    signatures: bool = True
    event_waits: bool = True
    host_waits: bool = True
    queue: bool = True
    occupancy: bool = True
    threads: bool = True
    device_constants: bool = True


PUBLISHED = Options(estimator="trimmed_mean", form="published", signatures=False, threads=False)
"""Algorithm 1 with statistics per op name, outliers beyond 1.5 IQR removed (Lin et al.)."""
