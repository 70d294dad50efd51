"""Origin of the public measurements: repository, commit, licence and citation. Packs hold it in their provenance."""

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
    "lambda": {
        "repository": "github.com/lambdal/deeplearning-benchmark",
        "files": "pytorch/csv_v1_v2/pytorch-train-{throughput,bs}-{fp32,fp16}.csv",
        "commit": "d743970e (throughput, fp32), 705355b8 (the others)",
        "citation": "Lambda Labs: deep-learning benchmark, NVIDIA's training examples on one GPU",
        "what": "samples per second of whole training steps, and batch sizes",
    },
    "lambda-gnmt": {
        "repository": "github.com/lambdal/deeplearning-benchmark",
        "files": "pytorch/results{,_v2}/*/PyTorch_gnmt_{FP32,FP16}/*.txt",
        "commit": "any; logs are added, not changed",
        "citation": "Lambda Labs: deep-learning benchmark, NVIDIA's GNMT v2 for PyTorch on one GPU",
        "what": "time of every tenth training step, and the mean over the epoch",
    },
    "nvidia-transformer": {
        "repository": "github.com/NVIDIA/DeepLearningExamples",
        "files": "PyTorch/Translation/Transformer/README.md",
        "commit": "d666f145",
        "citation": "NVIDIA: deep-learning examples, Transformer for PyTorch",
        "what": "tokens per second in training by precision on V100 and A100",
    },
    "nvidia-resnet50": {
        "repository": "github.com/NVIDIA/DeepLearningExamples",
        "files": "PyTorch/Classification/ConvNets/resnet50v1.5/README.md",
        "commit": "291f0d02",
        "citation": "NVIDIA: deep-learning examples, ResNet-50 v1.5",
        "what": "latency of inference by batch size on V100 and T4",
    },
    "nvidia-dlrm": {
        "repository": "github.com/NVIDIA/DeepLearningExamples",
        "files": "PyTorch/Recommendation/DLRM/README.md (as dlrm-README-<version>.md), tests/feature_specs/criteo_f15.yaml",
        "commit": "23a6382c (2020-04), 696cedf9 (2020-08), 4154bda6 (2021-10)",
        "citation": "NVIDIA: deep-learning examples, DLRM",
        "what": "training throughput of DLRM on one V100 or A100, latency of inference by batch size with CUDA graphs and without",
    },
    "ml_perf_model": {
        "repository": "github.com/owensgroup/ml_perf_model",
        "files": "analysis/notebooks/e2e_plot.ipynb, analysis/notebooks/legacy/exp_gpu_performance_models.ipynb",
        "commit": "1cca0643, f891ca6a",
        "licence": "BSD-3-Clause",
        "citation": "Lin, Feng, Ardestani, Lee, Lundell, Kim, Kejariwal, Owens: Building a Performance Model for Deep "
        "Learning Recommendation Model Training on GPUs, HiPC 2022",
        "what": "errors of predicted active times and steps of DLRM on V100, TITAN Xp and P100; times of embedding kernels on "
        "a V100",
    },
    "lin2022": {
        "files": "paper/lin2022_dlrm_batch_time.csv, paper/lin2022_cnn_batch_time.csv (typed from the paper)",
        "citation": "Lin, Feng, Ardestani, Lee, Lundell, Kim, Kejariwal, Owens: Building a Performance Model for Deep "
        "Learning Recommendation Model Training on GPUs, HiPC 2022",
        "what": "time of training steps of DLRM, ResNet-50 and Inception v3 on V100, TITAN Xp and P100, and errors of three "
        "predictions of the two networks",
    },
    "liger": {
        "repository": "github.com/linkedin/Liger-Kernel",
        "files": "benchmark/data/all_benchmark_data.csv",
        "commit": "0400d313",
        "licence": "BSD-2-Clause",
        "citation": "LinkedIn: Liger Kernel, benchmark data",
        "what": "median times of nn.Embedding and its gradient on an A100-SXM4-80GB, PyTorch 2.4",
    },
    "pytorch-49913": {
        "thread": "github.com/pytorch/pytorch/pull/49913",
        "citation": "Yilmaz: comment on the threshold of the embedding gradient's kernel, 2021",
        "what": "times of an embedding's gradient by tokens and features on an A100",
    },
    "timm": {
        "repository": "github.com/huggingface/pytorch-image-models",
        "files": "results/benchmark-train-amp-{nchw,nhwc}-pt112-cu113-rtx3090.csv",
        "commit": "5e7d47ca",
        "licence": "Apache-2.0",
        "citation": "Wightman: PyTorch image models",
        "what": "training steps of networks for images in mixed precision on an RTX 3090",
    },
}
