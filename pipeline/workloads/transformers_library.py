"""Steps of models of transformers: `model=transformers model.config=LlamaConfig`, or a config.json.

The configuration says what the model is, and `model.task` which head and loss it has. The loss is the library's own.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.as_on_cuda.mixed_precision import DTYPES
from pipeline.errors import ConfigError, InputError, SteptimeWarning, did_you_mean
from pipeline.question.settings import written
from pipeline.workloads.libraries import (
    classes_of,
    made,
    numbers,
    part_of_batch,
    sides,
    slow_code_reported,
)
from pipeline.workloads.model_names import imported, unknown_name
from pipeline.workloads.training_step import Step

TASKS = {
    "speech_seq2seq": ("AutoModelForSpeechSeq2Seq", "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING"),
    "seq2seq_lm": ("AutoModelForSeq2SeqLM", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING"),
    "masked_lm": ("AutoModelForMaskedLM", "MODEL_FOR_MASKED_LM_MAPPING"),
    "causal_lm": ("AutoModelForCausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING"),
    "contrastive": (
        "AutoModelForZeroShotImageClassification",
        "MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING",
    ),
    "ctc": ("AutoModelForCTC", "MODEL_FOR_CTC_MAPPING"),
    "image_classification": (
        "AutoModelForImageClassification",
        "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING",
    ),
    "video_classification": (
        "AutoModelForVideoClassification",
        "MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING",
    ),
    "semantic_segmentation": (
        "AutoModelForSemanticSegmentation",
        "MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING",
    ),
    "audio_classification": (
        "AutoModelForAudioClassification",
        "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING",
    ),
    "sequence_classification": (
        "AutoModelForSequenceClassification",
        "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING",
    ),
    "token_classification": (
        "AutoModelForTokenClassification",
        "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING",
    ),
    "question_answering": ("AutoModelForQuestionAnswering", "MODEL_FOR_QUESTION_ANSWERING_MAPPING"),
}
"""Tasks -> the class that makes a model, and the mapping of configurations that have one.

A model is made for the first task that it has, unless its file or `model.task` names another.
"""

ATTENTION = {"eager": "eager", "fused": "sdpa"}
"""Values of `model.attention` -> the library's names. FlashAttention's own package counts as PyTorch's fused kernel."""

USUAL_TOKENS, LONGEST = 512, 2048
"""Tokens of a sequence where a model states no limit, and the most by default: newer models can take 100,000 and more."""

SECONDS, PER_SECOND, FRAMES_PER_SECOND = 10, 16_000, 100
"""Length of a recording where the model fixes none, its samples, and the frames of a spectrogram in a second."""

CHARACTERS_PER_SECOND = 15
"""Labels of speech: LibriSpeech has about 15 characters a second."""

DROPOUT = 0.05
"""Dropout of the inputs of LoRA, as in the examples of peft."""


def build(config: Mapping[str, Any], batch_size: int, device: str) -> Step:
    """Build the step of a model of transformers on random inputs."""
    library = imported("transformers")
    settings = _settings(library, config)
    task = _task(library, settings, config)
    if config.get("classes"):
        settings.num_labels = int(config["classes"])
    vision = getattr(settings, "vision_config", settings)
    if config.get("image_size") and hasattr(vision, "image_size"):
        vision.image_size = config["image_size"]
    if getattr(settings, "decoder_start_token_id", None) is None:
        settings.decoder_start_token_id = 0
    settings.architectures = settings.architectures or []  # the library looks for one of several
    setattr(settings, "dtype" if hasattr(settings, "dtype") else "torch_dtype", torch.float32)
    with slow_code_reported("transformers"):
        model = made(lambda: _model(library, settings, task, config), device)
    _warn_of_experts(model, config)
    samples = part_of_batch(config, batch_size)
    training = config.get("mode", "train") == "train"
    inputs, labels = _inputs(
        getattr(model, "base_model", model), settings, task, config, samples, device
    )
    if not training:
        labels = (
            {"decoder_input_ids": labels["labels"]}
            if task in ("seq2seq_lm", "speech_seq2seq")
            else {}
        )
    recognises = task == "ctc" and training
    batch = inputs | labels
    passed = inputs if recognises else inputs | labels
    more = {"return_loss": True} if task == "contrastive" and training else {}

    def forward(*tensors: Tensor) -> Any:
        with slow_code_reported("transformers"):
            output = model(**dict(zip(passed, tensors, strict=False)), **more)
        return output.loss if training and not recognises else output

    loss, masked = (
        _ctc_loss if recognises else None,
        getattr(settings, "mask_time_prob", None),
    )  # of SpecAugment
    return Step(
        [model],
        [tuple(batch.values())],
        forward,
        loss,
        device,
        config,
        picked=masked or None,
        seq_len=inputs["input_ids"].shape[1] if list(inputs) == ["input_ids"] else None,
    )


def _settings(library: Any, config: Mapping[str, Any]) -> Any:
    """The library's configuration that `model.config` names, with `model.config_options`."""
    named = str(config["config"])
    options = dict(config.get("config_options") or {})
    path = Path(named) / "config.json" if Path(named).is_dir() else Path(named)
    if path.is_file():
        return _settings_of_file(library, path, options)
    kind = getattr(library, named, None) if named.isidentifier() else None
    if kind is None:
        try:
            return library.AutoConfig.from_pretrained(named, local_files_only=True, **options)
        except (OSError, ValueError):
            if path.suffix == ".json" or named.count("/") > 1:
                raise InputError(f"model.config={named}: there is no such file") from None
            raise unknown_name("model.config", named, "transformers") from None
    if not getattr(kind, "model_type", ""):
        its = getattr(getattr(kind, "config_class", None), "__name__", "LlamaConfig")
        raise ConfigError(
            f"model.config={named}: this is not the configuration of a model: give one such as"
            f" {its}"
        )
    _check_options(kind, options)
    return kind(**options)


def _settings_of_file(library: Any, path: Path, options: dict[str, Any]) -> Any:
    """The configuration in a config.json, as models have it on Hugging Face's hub."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        kind = library.CONFIG_MAPPING[content["model_type"]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InputError(
            f"model.config={path}: not the config.json of a model that transformers "
            f"{library.__version__} has ({type(error).__name__}: {error})"
        ) from None
    _check_options(kind, options)
    return kind.from_dict(
        {
            **content,
            **{
                key: (
                    {**content[key], **value}
                    if isinstance(value, dict) and isinstance(content.get(key), dict)
                    else value
                )
                for key, value in options.items()
            },
        }
    )


def _check_options(kind: Any, options: Mapping[str, Any]) -> None:
    """Refuse options that a configuration does not have: the library would keep and never read them."""
    known = {*vars(kind()), *kind.attribute_map}
    for key in options:
        if key not in known and not hasattr(kind(), key):
            raise ConfigError(
                f"model.config_options.{key}: {kind.__name__} has no such option: "
                f"{did_you_mean(key, known)}see its documentation in transformers"
            )


def _task(library: Any, settings: Any, config: Mapping[str, Any]) -> str:
    """The task that `model.task` names, or that of the file, or the first that the model has."""
    mappings = {name: getattr(library, mapping) for name, (_, mapping) in TASKS.items()}
    tasks = [name for name, mapping in mappings.items() if type(settings) in mapping]
    named = config.get("task")
    kind = type(settings).__name__
    if not tasks:
        raise ConfigError(
            f"model.config={kind}: transformers has no model of it for any of {', '.join(TASKS)};"
            " use model=custom"
        )
    if named is not None and named not in tasks:
        raise ConfigError(f"model.task={named}: {kind} has {', '.join(tasks)}")
    classes = settings.architectures or ()
    stated = [
        name for name in tasks if getattr(mappings[name][type(settings)], "__name__", "") in classes
    ]
    if getattr(settings, "is_decoder", False) and "causal_lm" in tasks:
        stated.append("causal_lm")
    return str(named or (stated or tasks)[0])


def _model(library: Any, settings: Any, task: str, config: Mapping[str, Any]) -> nn.Module:
    """A model without weights, with gradient checkpointing and LoRA if they are asked for."""
    asked = config.get("attention")
    attention = {} if asked is None else {"attn_implementation": ATTENTION[str(asked)]}
    model: Any = getattr(library, TASKS[task][0]).from_config(settings, **attention)
    if config.get("checkpointing"):
        model.gradient_checkpointing_enable({"use_reentrant": False})
    targets = _lora_targets(model, config)
    if rank := config.get("lora"):
        peft = imported("peft")
        model = peft.get_peft_model(
            model, peft.LoraConfig(r=int(rank), lora_dropout=DROPOUT, target_modules=targets)
        )
    whole: nn.Module = model
    return whole


def _lora_targets(model: nn.Module, config: Mapping[str, Any]) -> list[str] | str | None:
    """The layers that get LoRA, by their names or the ends of their paths; peft chooses for `all-linear` and None."""
    stated = config.get("lora_targets") or None
    asked = f"model.lora_targets={written(stated)}"
    if stated and not config.get("lora"):
        raise ConfigError(f"{asked}: give model.lora= too, the rank of LoRA's matrices")
    if stated is None or stated == "all-linear":
        return stated
    targets = [stated] if isinstance(stated, str) else [str(target) for target in stated]
    for target in targets:  # peft skips an unknown one if it finds another
        if not any(f".{path}".endswith(f".{target}") for path, _ in model.named_modules()):
            layers = [
                name.split(".")[-2:][0]
                for name, weight in model.named_parameters()
                if weight.dim() > 1
            ]
            near = did_you_mean(target, layers)
            names = ", ".join(dict.fromkeys(layers))
            raise ConfigError(
                f"{asked}: {config['config']} has no layer {target}: {near}it has {names}"
            )
    return targets


def _warn_of_experts(model: nn.Module, config: Mapping[str, Any]) -> None:
    """Warn that autocast does not reach the experts of a mixture, whose weights are one tensor."""
    experts = any(
        weight.dim() == 3 and "experts" in name for name, weight in model.named_parameters()
    )
    if experts and config.get("dtype") in DTYPES and config.get("precision") != "pure":
        text = (
            f"model.dtype={config['dtype']}: autocast leaves the grouped products of the experts in"
            " fp32; "
        )
        warnings.warn(
            f"{text}model.precision=pure is a model in half precision",
            SteptimeWarning,
            stacklevel=2,
        )


def _inputs(
    model: Any, settings: Any, task: str, config: Mapping[str, Any], samples: int, device: str
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The inputs of a model and its labels, by the names of its arguments."""
    text = settings.get_text_config()
    stated = getattr(text, "max_position_embeddings", None)
    positions = int(stated or USUAL_TOKENS)
    own = min(
        positions - positions % 8 if positions > 128 else positions, LONGEST
    )  # RoBERTa states two more than it has
    tokens = int(config.get("seq_len") or own)
    if stated and tokens > positions:
        raise ConfigError(
            f"model.seq_len={tokens}: {type(settings).__name__} has {positions} positions; set "
            f"model.config_options.max_position_embeddings={tokens}"
        )
    words = int(getattr(text, "vocab_size", None) or 2)

    def ids(*shape: int, count: int = words) -> Tensor:
        return classes_of(count, samples, *shape, device=device)

    name = str(model.main_input_name)
    labels = int(settings.num_labels)
    if name == "input_ids" and task != "contrastive":
        inputs = {"input_ids": ids(tokens)}
    elif name == "pixel_values" or task == "contrastive":
        vision = getattr(settings, "vision_config", settings)
        size = sides(config.get("image_size") or getattr(vision, "image_size", None) or 224)
        frames = [int(settings.num_frames)] if task == "video_classification" else []
        images = numbers(samples, *frames, getattr(vision, "num_channels", 3), *size, device=device)
        inputs = {"pixel_values": images} | (
            {"input_ids": ids(tokens)} if task == "contrastive" else {}
        )
        if task == "semantic_segmentation":
            return inputs, {"labels": ids(*size, count=labels)}
    else:
        inputs = {name: numbers(samples, *_recording(settings, name, config), device=device)}
    if task == "question_answering":
        return inputs, {key: ids(count=tokens) for key in ("start_positions", "end_positions")}
    if task == "contrastive":
        return inputs, {}
    if task == "ctc":
        return inputs, {
            "labels": ids(int(config.get("seq_len") or CHARACTERS_PER_SECOND * _seconds(config)))
        }
    if task == "speech_seq2seq":
        return inputs, {
            "labels": ids(min(tokens, getattr(settings, "max_target_positions", tokens)))
        }
    per_token = task in ("causal_lm", "masked_lm", "seq2seq_lm", "token_classification")
    return inputs, {
        "labels": ids(*[tokens] * per_token, count=words if task.endswith("lm") else labels)
    }


def _seconds(config: Mapping[str, Any]) -> int:
    return int(config.get("audio_seconds") or SECONDS)


def _recording(settings: Any, name: str, config: Mapping[str, Any]) -> tuple[int, ...]:
    """Shape of a recording: samples of a wave, or the frames of a spectrogram."""
    seconds = config.get("audio_seconds")
    if name == "input_values" and not (
        hasattr(settings, "num_mel_bins") and hasattr(settings, "max_length")
    ):
        return (_seconds(config) * PER_SECOND,)
    frames = _seconds(config) * FRAMES_PER_SECOND
    if name == "input_values":  # the audio spectrogram transformer
        return (frames if seconds else settings.max_length, settings.num_mel_bins)
    if hasattr(settings, "num_mel_bins") and not hasattr(
        settings, "input_feat_per_channel"
    ):  # Whisper
        return (settings.num_mel_bins, frames if seconds else 2 * settings.max_source_positions)
    features = [
        getattr(settings, key, None)
        for key in ("input_feat_per_channel", "feature_projection_input_dim", "input_dim")
    ]
    return (frames, int(next(filter(None, features), 80)))


def _ctc_loss(output: Any, _: Tensor, labels: Tensor) -> Tensor:
    """CTC loss of labels that fill their tensor; the library's own loss selects them by a mask."""
    scores = output.logits.float().log_softmax(-1).transpose(0, 1)
    lengths = torch.full(
        (scores.shape[1],),
        scores.shape[0],
        dtype=torch.long,
        device="cpu",
    )
    return F.ctc_loss(
        scores, labels, lengths, torch.full_like(lengths, labels.shape[1]), zero_infinity=True
    )
