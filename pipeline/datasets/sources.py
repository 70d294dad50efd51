"""Where public measurements come from: repository, commit, licence, citation. Goes into the provenance of packs."""

from __future__ import annotations

SOURCES: dict[str, dict[str, str]] = {
    "neusight": {
        "repository": "github.com/sitar-lab/NeuSight",
        "commit": "6945927d",
        "licence": "MIT",
        "citation": "Lee, Phanishayee, Mahajan: Forecasting GPU Performance for Deep Learning Training and Inference, "
        "ASPLOS 2025",
        "what": "forward latency per operator and shape, CUDA events, fp32 without TF32, mean of the 5 fastest of 25",
    },
    "param": {
        "repository": "github.com/facebookresearch/param",
        "commit": "1e115ffc",
        "licence": "MIT",
        "citation": "PyTorch profiler and execution traces",
        "what": "profiler traces of training steps",
    },
    "hta": {
        "repository": "github.com/facebookresearch/HolisticTraceAnalysis",
        "commit": "f4d0062c",
        "licence": "MIT",
        "citation": "PyTorch profiler traces",
        "what": "profiler traces of training steps",
    },
    "aiconfigurator": {
        "package": "aiconfigurator-core",
        "release": "0.12.0",
        "licence": "Apache-2.0",
        "citation": "NVIDIA: aiconfigurator, measured operator times for serving language models",
        "what": "kernel time of torch.nn.functional.linear in bf16, 36,000 sizes a GPU; NCCL collectives over NVLink; "
        "fused attention in bf16",
    },
}
