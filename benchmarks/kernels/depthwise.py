"""Compares predicted depthwise kernels with times that others published in discussions of PyTorch's kernels.

    python benchmarks/kernels/depthwise.py

All are kernels of PyTorch itself, in fp32 and NCHW. `SET_ON` rows gave the constants of
`pipeline/kernels/convolutions.py`, so their errors show how well four constants describe them. The others were
compared afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd

from evaluation.pages.markdown import markdown
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.physics import Physics

FORWARD, DATA, WEIGHT = "conv2d_forward", "conv2d_backward_data", "conv2d_backward_weight"
PADDLE = "[PaddlePaddle/Paddle#46332](https://github.com/PaddlePaddle/Paddle/pull/46332)"
VOLUME = "[pytorch#40801](https://github.com/pytorch/pytorch/pull/40801)"
FIVE = "[pytorch#129609](https://github.com/pytorch/pytorch/pull/129609)"


@dataclass(frozen=True)
class Published:
    """A published time: ms of the `families` together, for `channels` (B, C, H, W) and a square window."""

    gpu: str
    families: tuple[str, ...]
    milliseconds: float
    sizes: tuple[int, int, int, int]
    window: tuple[int, int]
    source: str
    options: dict[str, float] = field(default_factory=dict)
    set_on: bool = True
    depth: int = 1


ROWS = (
    Published("V100", (WEIGHT,), 2.7723, (4, 2048, 64, 128), (3, 3), PADDLE, {"dilation": 12, "padding": 12}),
    Published("V100", (FORWARD, DATA), 7.0541 - 2.7723, (4, 2048, 64, 128), (3, 3), PADDLE,
              {"dilation": 12, "padding": 12}),
    Published("V100", (WEIGHT,), 1.0652, (8, 728, 65, 65), (3, 3), PADDLE),
    Published("V100", (FORWARD, DATA), 2.6483 - 1.0652, (8, 728, 65, 65), (3, 3), PADDLE),
    Published("V100", (WEIGHT,), 1.2308, (8, 128, 257, 257), (3, 3), PADDLE, {"stride": 2}),
    Published("V100", (WEIGHT,), 2.6702, (4, 304, 128, 256), (3, 3), PADDLE),
    Published("V100", (WEIGHT,), 2.1160, (4, 256, 128, 256), (3, 3), PADDLE),
    Published("V100", (WEIGHT,), 3.8364, (4, 256, 128, 256), (5, 5), PADDLE, {"padding": 1}),
    Published("V100", (FORWARD, DATA, WEIGHT), 14.221, (8, 64, 56, 56), (3, 3), VOLUME, depth=32),
    Published("V100", (FORWARD, DATA, WEIGHT), 7.206, (8, 128, 28, 28), (3, 3), VOLUME, set_on=False, depth=32),
    Published("V100", (FORWARD, DATA, WEIGHT), 3.994, (8, 256, 14, 14), (3, 3), VOLUME, set_on=False, depth=32),
    Published("V100", (FORWARD, DATA, WEIGHT), 2.739, (8, 512, 7, 7), (3, 3), VOLUME, set_on=False, depth=32),
    Published("A100", (DATA, WEIGHT), 89.0, (8, 64, 1024, 1008), (5, 5), FIVE),
    Published("A100", (DATA, WEIGHT), 9.49, (4, 48, 720, 539), (6, 1), FIVE),
    Published("A100", (DATA, WEIGHT), 4.19, (4, 120, 379, 283), (6, 1), FIVE),
)  # fmt: skip
"""Sizes of the first source are those of PaddlePaddle/benchmark, api/tests_v2/configs/depthwise_conv2d.json, commit
147e51ba. The last source does not name its GPU; an A100 is assumed."""


def predicted_ms(row: Published) -> float:
    """Predicted time of a row's kernels together."""
    batch, channels, height, width = row.sizes
    tall, wide = row.window
    volume = row.depth > 1
    options = {"stride": 1.0, "dilation": 1.0, "padding": tall // 2, **row.options}
    call = {"B": batch * row.depth, "in_channels": channels * (tall if volume else 1), "out_channels": channels,
            "groups": channels, "kernel_size": tall, "kernel_size_w": wide, "input_size": height, "input_size_w": width,
            "stride_w": options["stride"], "padding_w": min(options["padding"], wide * options["padding"] // max(tall, 1)),
            "dtype": "fp32", "attributes": '{"volume":true}' if volume else None, "op": "conv", **options}  # fmt: skip
    if tall == wide:
        call["padding_w"] = options["padding"]
    physics = Physics.of(load_gpu(row.gpu)).streaming()
    return (
        sum(float(physics.kernel_us(name, pd.DataFrame([{**call, "family": name}]))[0]) for name in row.families) / 1e3
    )


def main() -> None:
    kinds = {FORWARD: "forward", DATA: "data gradient", WEIGHT: "weight gradient"}
    lines = []
    for row in ROWS:
        found = predicted_ms(row)
        sizes = list(map(str, row.sizes))
        shape = " x ".join(sizes[:2] + ([str(row.depth)] if row.depth > 1 else []) + sizes[2:])
        window = " x ".join(map(str, ((row.window[0],) if row.depth > 1 else ()) + row.window))
        said = ", ".join(kinds[name] for name in row.families)
        extra = "".join(f", {name} {value:g}" for name, value in row.options.items() if name != "padding")
        lines.append([row.gpu if row.source != FIVE else f"{row.gpu} (assumed)", said, shape, window + extra,
                      f"{row.milliseconds:.2f}", f"{found:.2f}", f"{100 * (found / row.milliseconds - 1):+.0f}",
                      "yes" if row.set_on else "", row.source])  # fmt: skip
    head = [
        "GPU",
        "kernels",
        "images",
        "window",
        "published ms",
        "predicted ms",
        "error %",
        "used for tuning",
        "source",
    ]
    print(markdown(head, lines))


if __name__ == "__main__":
    main()
