"""GPUs whose published training steps were known while constants were set: those of `docs/accuracy/published_steps.md`.

The page holds the rows: Lambda Labs' throughputs of NVIDIA's training examples on a single GPU, and NVIDIA's own page on
ResNet-50 (`lambda` and `nvidia-resnet50` in `sources.yaml`). Nothing was fitted to them except with the rows of `TUNING_GPUS`.
"""

TUNING_GPUS = (
    "V100-SXM2-16GB",
    "V100-SXM2-32GB",
    "A100-PCIE-40GB",
    "A100-PCIE-80GB",
    "A100-SXM4-80GB",
    "RTX3090",
)
"""GPUs with a training row that was known when tensor-core models were tuned: constants of convolutions, or the form of
the models of matrix products. All other GPUs and all inference rows were not used for tuning."""

SHOWN_GPUS = ("A10", "RTX4090", "H100")
"""GPUs of which other measurements led to constants. BERT's row on the A10 led to one of its chip, and timm's inference on the RTX
4090 to one of images. Kernels of H100s led to starts and waits of new cards. Their training rows were used for nothing else."""
