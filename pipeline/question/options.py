"""All options of a question, by the key of the override: what each is, and which values it takes.

Options of the sections stand beside the fields of `settings.py`. Those of workloads are here, because a workload's options
are the keys of its file, and many workloads share them.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from pipeline.paths import config_dir
from pipeline.question.settings import (
    NO_EDIT,
    CollectSettings,
    KernelSettings,
    Option,
    OverheadSettings,
    PredictSettings,
)
from pipeline.question.several_gpus import ParallelSettings
from pipeline.yaml_text import load_yaml

GROUPS = ("gpu", "model", "kernels", "overheads", "parallel")
"""Config groups: folders under `config/` of which a question takes one file each."""

SECTION_KINDS = {
    "kernels": KernelSettings, "overheads": OverheadSettings, "predict": PredictSettings,
    "collect": CollectSettings, "parallel": ParallelSettings,
}  # fmt: skip
"""Sections with a fixed set of keys. The keys of `gpu` and `model` are those of their files."""

SYNONYMS = {
    "model.attention": {"sdpa": "fused", "flash_attention_2": "fused"},
    "model.dtype": {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"},
}
"""Option -> the names that transformers and PyTorch have for some of its values."""

NAMED_BY = {"timm": "model.name", "torchvision": "model.name", "transformers": "model.config"}
"""Architectures that are libraries, whose models are built by name -> the option that names one."""

FREE_OPTIONS = {
    "custom": "model.options.", "timm": "model.options.", "torchvision": "model.options.",
    "transformers": "model.config_options.",
}  # fmt: skip
"""Architecture -> the section whose keys no file lists."""

WORKLOAD_DEFAULTS: dict[str, Any] = {
    "mode": "train",
    "foreach": True,
    "set_to_none": True,
    "dtype": "default",
    "precision": "autocast",
    "copies": "pinned",
    "read_loss": "never",
    "compile": False,
}
"""Options that every workload has, with the values of those that its file does not state."""

_SHARE = (
    "assumed share of true values in masks that select data, and of boxes that a detector keeps"
)
_EDGE = "edge of the images in pixels, or [height,width]"

_WORKLOADS = {
    "mode": Option("what the step does", ("train", "inference")),
    "optimizer": Option(
        "what updates the parameters; none: gradients accumulate",
        ("sgd", "sgd_momentum", "adagrad", "adam", "adamw", "none"),
    ),
    "foreach": Option("false: the optimizer updates one parameter at a time", words=("fused",)),
    "set_to_none": Option("false: zero_grad fills gradients with zeros, as before PyTorch 2.0"),
    "dtype": Option(
        "default: fp32, with convolutions in TF32 where the GPU has it",
        ("default", "fp32", "tf32", "bf16", "fp16"),
    ),
    "precision": Option("what bf16 and fp16 mean", ("autocast", "pure")),
    "memory_format": Option("NCHW or NHWC", ("contiguous", "channels_last")),
    "copies": Option(
        "how a batch reaches the GPU: pageable copies, for which the host waits; none: it is there"
        " before the step, as in synthetic benchmarks",
        ("pinned", "pageable", "none"),
    ),
    "read_loss": Option(
        "where the host reads the loss and waits", ("never", "before_backward", "at_end")
    ),
    "compile": Option("true: the model is compiled by torch.compile; loss and optimizer are not"),
    "attention": Option("separate operators or one kernel", ("eager", "fused")),
    "seq_len": Option("tokens of a sequence; null: the most that the model takes", whole=True),
    "dropout": Option(
        "share of values that dropout sets to zero", least=0, most=1, whole=False
    ),
    "label_smoothing": Option(
        "label smoothing of the loss; the papers and NVIDIA use 0.1",
        least=0,
        most=1,
        whole=False,
    ),
    "shared_embedding": Option("true: one embedding for source, target and output layer"),
    "normalised_attention": Option("true: NVIDIA's, with a bias and a normalised weight vector"),
    "checkpointing": Option(
        "true: the backward pass computes activations again; of gpt and llama: none, selective (the"
        " core of attention) or full (each layer)"
    ),
    "kv_heads": Option("heads of keys and values; null: as many as of queries", whole=True),
    "ffn_width": Option("width of the feed-forward layers; null: four times the width", whole=True),
    "activation": Option("between the layers of the feed-forward network", ("gelu", "swiglu")),
    "tied": Option("true: the output layer has the weights of the embedding"),
    "accumulation": Option(
        "parts of a batch, each with a forward and a backward pass, before one update"
    ),
    "picked": Option(_SHARE),
    "embedding": Option(
        "the operators of the lookups", ("fused", "joint_sparse", "joint_rows", "sparse", "dense")
    ),
    "interaction": Option(
        "by_parts, one kernel for all dot products, or DCN v2's cross network",
        ("by_parts", "fused", "cross"),
    ),
    "cross_layers": Option("layers of the cross network"),
    "cross_rank": Option("rank of its weights"),
    "width": Option("width of the layers; of a DCGAN, the least number of channels"),
    "layers": Option("number of layers; of a translator, of encoder and decoder each"),
    "heads": Option("attention heads"),
    "vocabulary": Option("tokens that there are"),
    "positions": Option("longest sequence that the model takes, in tokens"),
    "noise": Option("numbers from which the generator makes an image"),
    "dim": Option("width of a row of the tables"),
    "loss": Option("mse, bce, or bce_logits"),
    "bottom_mlp": Option("widths; the first is the number of dense features"),
    "top_mlp": Option("widths after the input, which is the interaction's output"),
    "tables": Option("number of tables, or of those of the list; null: all"),
    "rows": Option("rows per table, or a list with one number for each", each=True),
    "lookups": Option("per sample and table, or a list with one number for each table", each=True),
    "distribution": Option(
        "distribution of the indices: uniform, zipf:1.05, or a file with pairs of a share of rows"
        " and their share of the lookups, for all tables or for each"
    ),
    "lengths": Option(
        "lengths of sequences: full, uniform, zipf:1.2, or a file with pairs of a length and how"
        " often it occurs"
    ),
    "candidates": Option("items of a sample that are ranked, behind its sequence"),
    "head_width": Option("width of a head"),
    "table_optimizer": Option(
        "what updates the tables; row-wise Adagrad moves about as many bytes as sgd",
        ("sgd", "adagrad", "adam"),
    ),
    "table_configs": Option("file of table configurations (facebookresearch/dlrm_datasets)"),
    "image_size": Option(_EDGE, whole=True),
    "classes": Option("outputs of the classifier", whole=True),
    "frames": Option("frames of a video; null: 16", whole=True),
    "audio_seconds": Option("length of recordings; null: the model's own, 10 where it has none"),
    "target": Option(
        "module:function; gets (config, batch_size, device) and returns a steptime.Step",
        example="my_module:make_step",
    ),
    "name": Option("the model of the library", example="resnet50"),
    "config": Option(
        "a class of the library, a config.json, its folder, or a name in Hugging Face's cache",
        example="LlamaConfig",
    ),
    "task": Option(
        "what it is trained for: causal_lm, masked_lm, ...; null: as the file says"
    ),
    "lora": Option("rank of LoRA's matrices; the model's weights are frozen", whole=True),
    "lora_targets": Option(
        "one or more names of layers: c_attn, [q_proj,v_proj], all-linear; null: as peft chooses"
    ),
    "options": Option("other options of the module or of the library's function"),
    "config_options": Option("options of the class: model.config_options.num_hidden_layers=2"),
}  # fmt: skip

OPTIONS: dict[str, Option] = {
    "batch_size": Option("samples of one GPU in a step; a model's file gives its default"),
    **{f"model.{name}": each for name, each in _WORKLOADS.items()},
    **{
        f"{section}.{each.name}": each.metadata["option"]
        for section, kind in SECTION_KINDS.items()
        for each in fields(kind)
        if "option" in each.metadata
    },
    "edit.remove": Option("operators to leave out", words=(NO_EDIT,), example="aten::dropout"),
    "edit.substitute": Option(
        "operators and those that take their place",
        words=(NO_EDIT,),
        example="aten::relu/aten::gelu",
    ),
    "parallel": Option(
        "how several GPUs share the work",
    ),
}
"""Every option with a description. Keys of `gpu` are figures, which `pipeline/hardware/spec.py` checks."""

UNKNOWN = Option("")
"""Stands for a key without a description: a figure of a GPU, or a key that a user's own file has."""


def with_defaults(stated: dict[str, Any]) -> dict[str, Any]:
    """All options of a workload, from those that its file states; these come first."""
    return stated | WORKLOAD_DEFAULTS | stated


def workload_values(name: str) -> dict[str, Any]:
    """All options of a shipped workload, with their defaults.

    Raises:
        OSError: there is no such file in `config/model`.
        YamlError: the file is not YAML.
    """
    file = config_dir() / "model" / f"{name}.yaml"
    return with_defaults(load_yaml(file.read_text(encoding="utf-8")) or {})


def words_of(key: str, flag: bool) -> tuple[str, ...]:
    """The words that an option takes; a `flag` is true or false. Empty where numbers or other names may stand."""
    option = option_of(key)
    return ("true", "false", *option.words) if flag else option.values


def option_of(key: str) -> Option:
    """What is known of an option."""
    return OPTIONS.get(key, UNKNOWN)
