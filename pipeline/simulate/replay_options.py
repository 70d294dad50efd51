"""What a replay may switch off or exchange, so that the worth of each part can be measured."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.simulate.critical_path import Form


@dataclass(frozen=True)
class Options:
    """What may be switched off or exchanged, for ablations.

    Attributes:
        estimator: how overhead statistics are taken (`pipeline.overheads.statistics.ESTIMATORS`).
        form: `full` or `published` critical path.
        signatures: look overheads up by full signature first.
        event_waits: keep waits between streams.
        host_waits: keep waits of the host (synchronisation, blocking copies).
        queue: keep the limit of the launch queue.
        occupancy: kernels that fill the device hold up other streams.
        threads: T1 by thread switch and by the op before.
        device_constants: launch latency and kernel gap from the trace; otherwise T4/2 and 1 us.
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
