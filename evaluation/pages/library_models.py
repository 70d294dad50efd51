"""Writes the tables of `docs/library_models.md`: which models of timm, transformers and torchvision are captured by name.

    nice python -m evaluation.pages.library_models [timm] [transformers] [torchvision]

Each model is predicted in a process of its own, which starts as a copy of one that has imported the libraries.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from evaluation.pages.markdown import block, markdown, rewrite, table_rows
from pipeline.answers.predict import predict
from pipeline.errors import SteptimeError
from pipeline.paths import project_dir
from pipeline.workloads.model_names import imported, names_in

PAGE = project_dir() / "docs" / "library_models.md"

GPU = "A100-PCIE-40GB"
"""The GPU of the predictions: a current one with a pack."""

MAX_CPU_S, MAX_BYTES = 30, 1.5e9
"""What the capture and prediction of a model may take: CPU time, and memory of the process, libraries included."""

PICKED = 0.25
"""Share of its candidates that each selection of a detector keeps."""

SMALL = (
    "_pico", "_nano", "_tiny", "_xxs", "_xs", "_xxt", "t2i", "_small", "_s_", "_s0", "s12", "_mini",
    "_t_", "_t0", "_b0", "_m0", "18", "26", "50", "_base", "_b",
)  # fmt: skip
"""Parts of names of smaller models, from which the first that a module of timm has is taken."""

USUAL = {
    "vision_transformer": "vit_base_patch16_224", "resnet": "resnet50", "convnext": "convnext_tiny",
    "vgg": "vgg16", "efficientnet": "efficientnet_b0",
    "swin_transformer": "swin_tiny_patch4_window7_224", "densenet": "densenet121",
    "swin_transformer_v2": "swinv2_tiny_window8_256", "deit": "deit3_small_patch16_224",
    "regnet": "regnety_008", "mobilenetv3": "mobilenetv3_large_100",
    "beit": "beit_base_patch16_224", "maxxvit": "maxvit_tiny_tf_224",
}  # fmt: skip
"""The model that stands for a module of timm which has a usual one."""

LAYERS = {"num_hidden_layers": 2}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "LlamaConfig": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        **LAYERS,
    },
    **dict.fromkeys(
        (
            "MistralConfig",
            "Qwen2Config",
            "Qwen3Config",
            "GemmaConfig",
            "Gemma3TextConfig",
            "MixtralConfig",
            "GPTNeoXConfig",
            "FalconConfig",
            "MambaConfig",
            "Mamba2Config",
            "Phi3Config",
            "GptOssConfig",
            "Qwen3MoeConfig",
            "OPTConfig",
            "OlmoConfig",
            "BertConfig",
            "RobertaConfig",
            "ElectraConfig",
            "AlbertConfig",
            "ModernBertConfig",
            "DebertaV2Config",
            "XLMRobertaConfig",
            "ViTConfig",
            "Dinov2Config",
            "BeitConfig",
            "VideoMAEConfig",
            "ASTConfig",
            "Wav2Vec2Config",
            "HubertConfig",
        ),
        LAYERS,
    ),
    "GPT2Config": {"n_layer": 2},
    "BloomConfig": {"n_layer": 2},
    "DistilBertConfig": {"n_layers": 2},
    "T5Config": {"num_layers": 2},
    "BartConfig": {"encoder_layers": 2, "decoder_layers": 2},
    "WhisperConfig": {"encoder_layers": 2, "decoder_layers": 2},
    "DeepseekV3Config": {
        "n_routed_experts": 16,
        "first_k_dense_replace": 1,
        "n_group": 4,
        "topk_group": 2,
        **LAYERS,
    },
    "SwinConfig": {},
    "SegformerConfig": {},
    "CLIPConfig": {},
}
"""Configurations of transformers -> options: two layers of those that repeat layers, the library's sizes otherwise."""


@dataclass(frozen=True)
class Case:
    """A model of the page: a library, its name there, what else its row says, and how it is asked for."""

    library: str
    name: str
    group: str
    batch_size: int
    options: dict[str, Any] = field(default_factory=dict)

    def row(self, answer: dict[str, Any]) -> list[str]:
        """The cells of the row of an answer."""
        if refusal := answer.get("refused"):
            return [f"`{self.name}`", self.group, str(self.batch_size), refusal, *[""] * 5]
        shares = [
            f"{100 * answer['evidence'].get(kind, 0):.0f}"
            for kind in ("pack", "transferred", "roofline")
        ]
        cost = f"{answer['cpu_s']:.1f}", f"{answer['bytes'] / 1e9:.1f}"
        return [f"`{self.name}`", self.group, str(self.batch_size), "yes", *cost, *shares]


HEAD = (
    "model",
    "part",
    "batch",
    "captured",
    "CPU s",
    "GB",
    "pack %",
    "transferred %",
    "roofline %",
)


def cases(library: str) -> Iterator[Case]:
    """The models of a library that the page has."""
    module = imported("torchvision.models" if library == "torchvision" else library)
    if library == "transformers":
        for name, options in CONFIGURATIONS.items():
            yield Case(library, name, "", 2, {"config": name, "config_options": options})
    elif library == "torchvision":
        for name in names_in(library):
            part = (*module.get_model_builder(name).__module__.split("."), "")[2]
            part = (
                part
                if part in ("segmentation", "detection", "video", "quantization", "optical_flow")
                else "classification"
            )
            picked = {"picked": PICKED} if part == "detection" else {}
            yield Case(
                library,
                name,
                part,
                8 if part in ("classification", "quantization") else 2,
                {"name": name, **picked},
            )
    else:
        for part in module.list_modules():
            names = module.list_models(module=part)
            small = (name for size in SMALL for name in names if size in f"{name}_")
            if names:
                name = USUAL.get(part) or next(small, names[0])
                yield Case(library, name, part, 8, {"name": name})


def answer(case: Case) -> dict[str, Any]:
    """What a prediction says of a model: why it is refused, or its evidence; and what the answer took."""
    began = time.process_time()
    with warnings.catch_warnings(action="ignore"):
        try:
            options = {f"model__{key}": value for key, value in case.options.items()}
            step = predict(GPU, case.library, batch_size=case.batch_size, **options)
        except SteptimeError as error:
            return {"refused": " ".join(str(error).split()).replace("|", "/")}
    evidence: dict[str, float] = {}
    for kind, share in step.evidence.items():
        kind = kind.split()[0]
        evidence[kind] = evidence.get(kind, 0) + share
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "evidence": evidence,
        "cpu_s": time.process_time() - began,
        "bytes": peak,
        "step": step.predicted_us,
    }


def answer_apart(case: Case) -> dict[str, Any]:
    """`answer`, in a process of its own."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(case, sender))
    process.start()
    sender.close()
    try:
        return dict(receiver.recv())
    except EOFError:
        return {"refused": "the process was killed"}
    finally:
        process.join()


def _send(case: Case, sender: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (6 * MAX_CPU_S, 6 * MAX_CPU_S))
    sender.send(answer(case))


def shown_rows(library: str) -> dict[str, dict[str, str]]:
    """The rows of a library on the page, by the name of the model."""
    return {
        row["model"].strip("`"): row
        for row in table_rows(block(PAGE.read_text(encoding="utf-8"), library))
    }


def main(libraries: Sequence[str]) -> None:
    """Write the tables of libraries, and report what took more than it may."""
    os.environ["STEPTIME_CACHE"] = "none"
    predict(GPU, "resnet50", batch_size=2)  # reads the models that every prediction needs
    blocks = {}
    for library in libraries:
        rows = []
        for case in cases(library):
            told = answer_apart(case)
            rows.append(case.row(told))
            over = told.get("cpu_s", 0) > MAX_CPU_S or told.get("bytes", 0) > MAX_BYTES
            print(" ".join(rows[-1]), "MORE THAN IT MAY TAKE" if over else "", flush=True)
        captured = sum(row[3] == "yes" for row in rows)
        blocks[library] = f"{captured} of {len(rows)} are captured.\n\n" + markdown(HEAD, rows)
    rewrite(PAGE, blocks)


if __name__ == "__main__":
    main(sys.argv[1:] or ("timm", "transformers", "torchvision"))
