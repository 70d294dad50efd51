"""HSTU, a generative recommender (Zhai et al., arXiv:2402.17152), as MLPerf's DLRM-v3 trains it for ranking.

A sequence is a token of the user, the items that the user has seen, and candidates. Rows of items and their categories become
tokens by a small network. Layers attend to earlier tokens with SiLU in place of a softmax; candidates do not attend to each other.
What a candidate's token has become is compared with the candidate itself. Sequences have different lengths
(`pipeline.question.sequence_lengths`) and are not padded. Lookups are fused (FBGEMM's); in plain data parallelism, which reduces
gradients, tables have dense ones.

Of the public code (meta-recsys/generative-recommenders, `modules/dlrm_hstu.py`) the embeddings of actions and times, which
are added to tokens, and losses of further tasks are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.arrays import Ints
from pipeline.as_on_cuda.mixed_precision import DTYPES
from pipeline.as_on_cuda.shape_operators import apply
from pipeline.errors import ConfigError
from pipeline.hardware.rank_layout import Layout
from pipeline.question.embedding_tables import STATES, table_optimizer, tables
from pipeline.question.index_distributions import distributions
from pipeline.question.placed_tables import placed_by
from pipeline.question.sequence_lengths import typical_lengths
from pipeline.workloads.dlrm import BOUND
from pipeline.workloads.dlrm_operators import FusedLookup
from pipeline.workloads.feature_operators import split
from pipeline.workloads.hstu_operators import Jagged, Layer, Norm
from pipeline.workloads.sequence_tables import SequenceTables, each_alone
from pipeline.workloads.training_step import Batch, Step, host_empty, is_dry

POSITIONS, HIDDEN = 8192, (256, 512)
"""Places of the positional embedding, and hidden widths of the networks that make tokens, and of those that compare candidates
(`modules/dlrm_hstu.py`)."""


def network(inputs: int, hidden: int, outputs: int, normed: bool = True) -> nn.Sequential:
    """Two linear layers with a gated norm between them, and a norm at the end."""
    last = [Norm(outputs)] if normed else []
    layers = nn.Linear(inputs, hidden), Norm(hidden, True), nn.Linear(hidden, outputs), *last
    return nn.Sequential(*layers)


class Hstu(nn.Module):
    """Rows of tables to tokens, layers, and the score of each candidate.

    Args:
        config: section `model`.
        rows: of each table.
        of: what attention knows of the sequences.
        counts: indices of a batch in each table.
        states: tensors of the tables' size that their optimizer keeps.
        spread: the tables of this rank, where ranks share them.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        rows: list[int],
        of: Jagged,
        counts: list[int],
        states: int,
        spread: SequenceTables | None,
    ) -> None:
        super().__init__()
        width, dim, share = int(config["width"]), int(config["dim"]), float(config["dropout"])
        items = dim * (len(rows) - 1)
        self.counts, self.share, self.spread = counts, share, spread
        self.dtype = DTYPES.get(str(config.get("dtype")), torch.float32)
        self.item, self.user = network(items, HIDDEN[0], width), network(dim, HIDDEN[0], width)
        self.position = nn.Embedding(POSITIONS, width)
        inner = of.heads * int(config["head_width"])
        self.layers = nn.ModuleList(
            Layer(width, inner, share, of) for _ in range(int(config["layers"]))
        )
        self.norm, self.candidate = Norm(width), network(width, HIDDEN[1], width)
        self.head = network(width, HIDDEN[1], 1, False)
        self.anchor, self.fused = torch.zeros(0, requires_grad=True), torch.empty(0)
        self.states: list[Tensor] = []
        self.replicas = nn.Embedding(sum(rows), dim) if "ddp" in config and not spread else None
        if spread is None and self.replicas is None:
            self.fused = torch.empty(sum(rows), dim).uniform_(-BOUND, BOUND)
            self.states = [torch.zeros_like(self.fused) for _ in range(states)]

    def forward(
        self,
        indices: Tensor,
        lengths: Tensor,
        offsets: Tensor,
        order: Tensor,
        positions: Tensor,
        candidates: Tensor,
    ) -> Tensor:
        """Scores of all candidates, shape (samples x candidates,).

        Args:
            indices: into the tables, by table.
            lengths: of each sample in each table, by table.
            offsets: where each sequence begins, and the end of the last.
            order: for each token, its place among users and items.
            positions: of each token in its sequence.
            candidates: places of candidates among the tokens.
        """
        if self.spread is not None:
            rows = self.spread.rows_of(indices, lengths, self.dtype)
        elif self.replicas is not None:
            rows = list(split(self.replicas(indices), self.counts))
        else:
            of = each_alone(indices), 1, self.states
            joint = apply(FusedLookup, self.anchor, self.fused, indices, *of)
            rows = list(split(joint, self.counts))
        tokens = torch.cat([self.user(rows[-1]), self.item(torch.cat(rows[:-1], 1))])
        tokens = tokens.index_select(0, order)
        x = F.dropout(tokens + self.position(positions), self.share, self.training).to(self.dtype)
        for layer in self.layers:
            x = layer(x, offsets)
        seen, ranked = (each.index_select(0, candidates) for each in (x, tokens))
        scores: Tensor = self.head(self.norm(seen) * self.candidate(ranked))
        return scores.squeeze(1).float()


def build(config: Mapping[str, Any], batch_size: int, device: str) -> Step:
    """Build the step of HSTU on one rank.

    Raises:
        ConfigError: the sizes make no sense.
    """
    rows, _ = tables(config)
    distributions(config, len(rows))  # refuses others
    if len(rows) < 2:
        raise ConfigError("model.rows: give rows of items, of what describes them, and of users")
    more, ranks = int(config["candidates"]), (Layout.of_workload(config) or Layout()).ranks
    history = typical_lengths(config, batch_size, ranks)
    tokens = int(history.sum()) + batch_size * more
    counts, before = [tokens] * (len(rows) - 1) + [batch_size], history + 1.0
    pairs = round(float((before**2 / 2.0 + (before + 1.0) * more).sum()))
    of = Jagged(int(config["heads"]), more, pairs, int(config["seq_len"]) + 1 + more)
    training = config.get("mode", "train") == "train"
    states, placed = STATES[table_optimizer(config)] if training else 0, placed_by(config)
    means, dim = [count / batch_size for count in counts], int(config["dim"])
    with torch.device(device):
        spread = placed and SequenceTables(*placed, rows, means, dim, batch_size, states)
        model = Hstu(config, rows, of, counts, states, spread)

    def forward(*batch: Tensor) -> Tensor:
        if spread:
            spread.begin(training)
        scores: Tensor = model(*batch[:-1])
        return scores

    def criterion(scores: Tensor, *batch: Tensor) -> Tensor:
        value = F.binary_cross_entropy_with_logits(scores, batch[-1])
        if spread:
            spread.distribute(*batch[:2])
        return value

    held = spread.weights if spread else [model.fused] if len(model.fused) else []
    modules = [model, *([spread.replicated] if spread and spread.replicated else [])]
    pool = [_batch(history, more, rows, counts, spread is None, is_dry(device)) for _ in range(4)]
    return Step(modules, pool, forward, criterion, device, config, held)


def _batch(
    history: Ints, more: int, rows: list[int], counts: list[int], joint: bool, dry: bool
) -> Batch:
    """A batch with these lengths and uniform random indices; if nothing is computed, indices take no memory.

    Args:
        history: items that each user has seen.
        more: candidates of each.
        rows: of each table.
        counts: indices in each table.
        joint: whether indices are into the joint weight of all tables.
        dry: whether nothing is computed.
    """
    of_items, samples = torch.as_tensor(history) + more, len(history)
    tokens, kind = counts[0], torch.long if joint else torch.int32
    ends = torch.cat([torch.zeros(1, dtype=torch.long), (of_items + 1).cumsum(0)])
    place = torch.arange(tokens + samples)
    sample = torch.arange(samples).repeat_interleave(of_items + 1)
    positions = place - ends[sample]
    order = torch.where(positions > 0, samples + place - sample - 1, sample)
    candidates = (ends[1:, None] - more + torch.arange(more)).flatten()
    lengths = torch.cat([of_items.repeat(len(rows) - 1), torch.ones(samples)]).int()
    firsts = [0, *accumulate(rows)]
    indices = host_empty(sum(counts), dtype=kind)
    if not dry:
        each = zip(rows, counts, firsts, strict=False)
        drawn = [torch.randint(size, (count,)) + joint * first for size, count, first in each]
        indices = torch.cat(drawn).to(kind)
    label = torch.randint(2, (samples * more,)).float()
    return indices, lengths, ends, order, positions % POSITIONS, candidates, label
