"""Turns overrides into questions: one GPU, one workload and one batch size each, fully resolved and checked.

Vocabulary:
  override: a Hydra override, `model.embedding=sparse`; several values (`batch_size=512,1024`) make a sweep.
  experiment: a named set of sweeps under `config/experiment/`.
  question: what a prediction answers. A grid is a list of questions.
  variant: short name of all overrides that change the result, except GPU, model and batch size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import chain
from typing import Any

from pipeline.arrays import Array
from pipeline.errors import ConfigError, LayoutError
from pipeline.hardware.find_gpu import (
    LOCAL,
    catalogue_spec,
    composed_gpu,
    differing_figures,
    load_gpu,
)
from pipeline.hardware.hosts import Host, host_of, load_host, usual_host
from pipeline.hardware.spec import GpuSpec
from pipeline.question.checks import (
    check_values,
    checked_batch_size,
)
from pipeline.question.chosen_files import ambiguous_gpu, composed, name_in_group, with_half
from pipeline.question.compiled_target import with_target
from pipeline.question.compose import (
    Completed,
    Override,
    experiments,
    parse_grid,
    refuse_repeated,
    sweep,
    with_names_of_today,
)
from pipeline.question.options import GROUPS, SECTION_KINDS
from pipeline.question.placed_tables import TableWork, roles
from pipeline.question.settings import (
    CollectSettings,
    EditSettings,
    FrozenDict,
    KernelSettings,
    OverheadSettings,
    PredictSettings,
    plain,
)
from pipeline.question.several_gpus import RANKS_KEYS, Ranks, unread_alone, with_exchange
from pipeline.question.table_plan import TablePlan
from pipeline.question.variants import (
    changed_values,
    chosen_methods,
    effective,
    method_label,
    unchanged,
    variant_name,
)
from pipeline.work import OVERRIDE, Work, own_terms

LOCAL_GPU = LOCAL
"""Name of the device of this machine: its CUDA GPU, or its CPU if it has no CUDA GPU."""

Names = str | Sequence[str]
"""Names as Python gives them: separated by commas, or a list."""

_METHODS = ("kernels", "overheads", "predict", "collect")
"""Sections that are fields of a question, as typed settings."""

_UNREAD_BY_RULES = ("aliases", "sources")
"""Fields of a GPU that no result depends on: an edited comment on a source reruns no rule."""


@dataclass(frozen=True)
class Question:
    """What to predict: a GPU, a workload, a batch size, and how. It is hashable, and equal questions have equal answers."""

    gpu: GpuSpec
    host: Host
    """The host that launches the step: what `host=` names, or the usual one of the GPU."""
    model: str
    """Name of the workload's file."""
    workload: FrozenDict
    """Section `model`: what the workload's builder reads."""
    batch_size: int
    kernels: KernelSettings
    overheads: OverheadSettings
    predict: PredictSettings
    collect: CollectSettings
    edit: EditSettings
    ranks: Ranks | None
    """The GPUs of a step of several; None for one GPU."""
    overrides: tuple[str, ...]
    """Overrides besides GPU, model and batch size, as they can be given again."""
    variant: str
    model_variant: str
    """The part of `variant` that belongs to the model; measured steps have it in their names."""
    edit_variant: str
    """The part of `variant` that belongs to edits of the operators; empty without edits."""
    kernels_label: str
    """Name of the kernel models: the file of section `kernels`, with a hash of the settings that differ from it."""
    overheads_label: str
    """The same for overhead statistics."""
    own_price: float | None = field(default=None, compare=False)
    """What the user says an hour of the GPU costs; no time depends on it."""
    electricity: float = field(default=0.0, compare=False)
    """What the user says a kWh costs; 0: it does not count."""
    work: Work | None = field(default=None, compare=False)
    """What the user wants to train; no time depends on it."""
    stated: tuple[str, ...] = field(default=(), compare=False)
    """Overrides that state what is the default, so that rows of a table can show them."""
    notes: tuple[str, ...] = field(default=(), compare=False)
    """What to know about how the overrides were understood, one sentence each."""

    @property
    def step_name(self) -> str:
        """Name of this step in a host's overheads and in a campaign's steps."""
        return f"{self.model}/{self.model_variant}/b{self.batch_size}"

    @property
    def asked(self) -> dict[str, str]:
        """The options on which a time depends most, as the workload has them: dtype, optimizer, attention, length of sequences."""
        of = self.workload.get
        trains = ["optimizer"] * (of("mode") != "inference")
        keys = ("dtype", *trains, "attention", *["seq_len"] * (of("lengths") is None))
        return {key: str(of(key)) for key in keys if of(key) is not None}

    @property
    def devices(self) -> int:
        """Number of GPUs."""
        return self.ranks.devices if self.ranks else 1

    @property
    def nodes(self) -> int:
        """Number of machines that hold them."""
        return self.ranks.nodes if self.ranks else 1

    @property
    def global_batch(self) -> int:
        """Samples of one update of the weights."""
        of = self.ranks
        return self.batch_size * (of.replicas * of.parallel.micro_batches if of else 1)

    def alone(self) -> Question:
        """The same step on one of its GPUs, without exchange."""
        shared = ("layout", "ddp", "fsdp", "sequence", "owners", "part", "placed")
        own = {key: each for key, each in self.workload.items() if key not in shared}
        alone = replace(self, ranks=None, workload=FrozenDict(own), overrides=())
        return replace(alone, variant="alone", model_variant="alone")

    @property
    def chunks(self) -> tuple[Question, ...]:
        """The pieces of the model that are captured one by one, the middle layers last, or ranks with different tables.

        This question alone for other models.
        """
        if "placed" in self.workload:
            placed = self.workload["placed"]
            more: list[dict[str, Any]] = [{"placed": {**placed, "rank": r}} for r in self.roles]
        else:
            more = [{"part": kind} for kind in (self.ranks.pieces if self.ranks else ())]
        parts = [FrozenDict({**self.workload, **each}) for each in more]
        return tuple(replace(self, workload=part) for part in parts) or (self,)

    @property
    def table_work(self) -> TableWork:
        """What the tables take that are spread over the ranks."""
        assert self.ranks is not None
        return TableWork.of(self.workload, self.batch_size, self.gpu, self.ranks)

    @property
    def table_plan(self) -> TablePlan:
        """Where the tables are that are spread over the ranks."""
        return TablePlan.of_plain(self.workload["placed"]["plan"], self.devices)

    @property
    def lookups_of_ranks(self) -> Array:
        """What ranks have to do for these tables, by table (`TableWork.lookups`)."""
        return self.table_work.lookups(self.table_plan)

    @property
    def roles(self) -> tuple[int, ...]:
        """The ranks whose steps are simulated where tables are spread (`placed_tables.roles`)."""
        return roles(self.table_work.of_ranks(self.table_plan))

    @property
    def local(self) -> bool:
        """Whether the step is measured on this machine."""
        return self.gpu.name == LOCAL_GPU

    @property
    def altered(self) -> bool:
        """Whether the GPU is a what-if: a figure on which times depend differs from the GPU's file."""
        stated = catalogue_spec(self.gpu.name)
        return stated is not None and len(differing_figures(self.gpu, stated)) > 0

    @property
    def title(self) -> str:
        """The question in words, for pictures and messages."""
        return f"{self.model} on {self.gpu.name}, batch {self.batch_size:,}"

    def section(self, name: str) -> dict[str, Any]:
        """A section of the configuration, as plain values; `parallel` is empty for one GPU."""
        if name == "parallel":
            return asdict(self.ranks.parallel) if self.ranks else {}
        value = self.workload if name == "model" else getattr(self, name)
        return dict(plain(value))

    def plain(self) -> dict[str, Any]:
        """Plain values for a rule's params; `Question.of` reads them again."""
        return {
            entry.name: plain(getattr(self, entry.name), without=_UNREAD_BY_RULES)
            for entry in fields(self)
            if entry.name not in ("own_price", "electricity", "work", "stated")
        }

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Question:
        """The question of `plain` values."""
        import msgspec  # machines that are measured have none

        return msgspec.convert(values, cls, dec_hook=lambda _kind, value: FrozenDict(value))


def expand(overrides: Sequence[str], completed: Completed | None = None) -> list[Question]:
    """All questions of a grid, in the order of the sweep, each once.

    Points whose GPUs cannot share the step as they say are left out, if others can.

    Args:
        overrides: Hydra overrides; several values separated by commas make a sweep, `experiment=NAME` a named one.
        completed: the points that a point of the grid stands for; None: itself.

    Raises:
        UnknownNameError: a GPU, model, experiment or option does not exist.
        ConfigError: an override cannot be read, or a value makes no sense.
    """
    overrides, renamed = with_names_of_today(overrides)
    refuse_repeated(overrides)
    overrides, prices, own = own_terms(overrides)
    named = [text for text in overrides if text.startswith("experiment=")]
    texts = [text for text in overrides if not text.startswith("experiment=")]
    keys = {text.partition("=")[0].lstrip("+") for text in texts}
    grids = [
        [f"{key}={values}" for key, values in sweeps.items() if key.lstrip("+") not in keys] + texts
        for sweeps in (experiments(named[0]) if named else [{}])
    ]
    resolved: dict[tuple[Override, ...], tuple[Question, Any] | None] = {}
    questions: dict[tuple[str, str, str, int], Question] = {}
    refused: LayoutError | None = None
    points = chain.from_iterable(map(parse_grid, grids))
    for point in chain.from_iterable(map(completed, points)) if completed else points:
        others = tuple(override for override in point if override.key != "batch_size")
        sizes = [override.value for override in point if override.key == "batch_size"]
        try:
            if others not in resolved:
                resolved[others] = None  # stays so where the layout is refused, at any batch size
                resolved[others] = _resolve(others)
            if (known := resolved[others]) is None:
                continue
            question, usual_batch = known
            question = replace(question, batch_size=checked_batch_size(*sizes or [usual_batch]))
            if question.ranks and question.ranks.parallel.spreads:
                question = with_tables(question)
        except LayoutError as error:
            refused = error
            continue
        questions.setdefault(
            (question.gpu.name, question.model, question.variant, question.batch_size), question
        )
    if refused and not questions:
        raise refused
    if unused := prices.keys() - {question.gpu.name for question in questions.values()}:
        raise ConfigError(f"{OVERRIDE}{min(unused)}: this GPU is not among those asked for")
    left_out = [f"left out: {refused}"] if refused and completed is None else []
    said = (*renamed, *left_out)
    return [
        replace(q, own_price=prices.get(q.gpu.name), notes=(*said, *q.notes), **own)
        for q in questions.values()
    ]


def with_tables(question: Question) -> Question:
    """A question with the places of its tables, which depend on GPU and batch size."""
    assert question.ranks is not None
    of = question.table_work
    plan = of.plan(question.ranks.parallel.sharding)
    first, *_ = roles(of.of_ranks(plan))
    placed = {"plan": plan.plain(), "ranks": question.devices, "rank": first}
    workload = FrozenDict({**question.workload, "placed": placed})
    variant = variant_name({"model": plain(workload)}, {"model": {"placed": {}}})
    return replace(question, workload=workload, model_variant=variant)


def ask(overrides: Sequence[str]) -> Question:
    """The single question that overrides without sweeps describe.

    Raises:
        UnknownNameError: a GPU, model or option does not exist.
        ConfigError: an override cannot be read, is a sweep, or a value makes no sense.
    """
    return only(expand(overrides))


def only(questions: Sequence[Question]) -> Question:
    """The single question of a list.

    Raises:
        ConfigError: there are several.
    """
    if len(questions) != 1:
        raise ConfigError(
            f"one point is taken, but these overrides give {len(questions)} points; compare takes"
            " several"
        )
    return questions[0]


def questions_of(
    gpu: Names,
    model: str,
    options: Mapping[str, Any],
    completed: Completed | None = None,
) -> list[Question]:
    """The questions that Python arguments describe: `model__embedding="sparse"` is the override `model.embedding=sparse`."""
    given = {"gpu": gpu, "model": model, **options}
    texts = [f"{key.replace('__', '.')}={sweep(key, value)}" for key, value in given.items()]
    return expand(texts, completed)


def _resolve(overrides: Sequence[Override]) -> tuple[Question, Any]:
    """The question of overrides without a batch size, and the batch size of the model's file (or None)."""
    import msgspec

    overrides, half = with_half(overrides)
    chosen = {
        override.key: name_in_group(override) for override in overrides if override.key in GROUPS
    }
    config, base = composed(
        chosen, [override for override in overrides if override.key not in GROUPS]
    )
    usual_batch, host_name = config["model"].get("batch_size"), str(config["host"])
    for sections in (config, base):
        sections.pop("batch_size", None)
        del sections["host"]
        sections["model"] = {
            key: value for key, value in sections["model"].items() if key != "batch_size"
        }
    check_values(config, base)
    several, usual_several = (
        {key: sections.pop(key) for key in RANKS_KEYS} for sections in (config, base)
    )
    local, edit = chosen.get("gpu") == LOCAL_GPU, EditSettings.of(config["edit"])
    if edit and local:
        raise ConfigError(
            f"{edit.texts[0]}: gpu=local is measured as it is; name a GPU, such as gpu=V100"
        )
    gpu = load_gpu(LOCAL_GPU) if local else composed_gpu(config["gpu"])[0]
    ranks = Ranks.of(several, gpu, config["model"])
    of_cluster = ranks.cluster.host if ranks else None
    usual = load_host(of_cluster) if of_cluster else usual_host(gpu)
    host = host_of(usual, host_name)
    methods = chosen_methods(base) + ([f"host-{host.name}"] if host != usual else [])
    methods += ranks.names(gpu) if ranks else []
    changed = {*changed_values(config, base), *(text.partition("-")[0] for text in methods)}
    model, usual_model = with_exchange(ranks, config["model"], base["model"])
    model = with_target(model, gpu, local, ranks is not None and ranks.parallel.spreads)
    notes = [*gpu.notes, *half, *filter(None, map(ambiguous_gpu, overrides))]
    question = Question(
        gpu=gpu,
        host=host,
        model=str(base["model"]["name"]),
        workload=FrozenDict(model),
        batch_size=0,
        **{
            name: msgspec.convert(config[name], SECTION_KINDS[name], strict=False)
            for name in _METHODS
        },
        edit=edit,
        ranks=ranks,
        overrides=effective(overrides, changed),
        stated=unchanged(overrides, changed),
        variant=variant_name(config, base, methods),
        model_variant=variant_name({"model": model}, {"model": usual_model}),
        edit_variant=variant_name({"edit": config["edit"]}, {"edit": base["edit"]}) if edit else "",
        kernels_label=method_label(config["kernels"], base["kernels"]),
        overheads_label=method_label(config["overheads"], base["overheads"]),
        notes=(*notes, *(() if ranks else unread_alone(several, usual_several))),
    )
    return question, usual_batch
