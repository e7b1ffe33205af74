"""Batches of warm-start lessons, the loss on them, and the exams."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils.data import IterableDataset
from transformers import Qwen2ForCausalLM
from transformers.models.qwen2.modeling_qwen2 import apply_rotary_pos_emb

from studies.starter_base.lessons import Lesson

NUM_EXAM_BATCHES = 4


@dataclass(frozen=True)
class LessonBatch:
    """Padded lessons: token_ids_BT, action_mask_BT, lookup_BT (positions of the letters whose evidence is shown)."""

    token_ids_BT: Tensor
    action_mask_BT: Tensor
    lookup_BT: Tensor


def collate(lessons: list[Lesson], *, pad_id: int) -> LessonBatch:
    """Pad lessons to the longest."""
    width = max(len(lesson.token_ids) for lesson in lessons)
    ids_BT = torch.full((len(lessons), width), pad_id)
    actions_BT = torch.zeros(len(lessons), width, dtype=torch.bool)
    lookup_BT = torch.zeros(len(lessons), width, dtype=torch.bool)
    for row, lesson in enumerate(lessons):
        ids_BT[row, : len(lesson.token_ids)] = torch.tensor(lesson.token_ids)
        actions_BT[row, : len(lesson.token_ids)] = torch.tensor(lesson.action_mask)
        lookup_BT[row, lesson.lookup] = True
    return LessonBatch(ids_BT, actions_BT, lookup_BT)


class LessonStream(IterableDataset[LessonBatch]):
    """An endless stream of batches, sorted by length within a pool so that little is padding."""

    def __init__(self, draw: Callable[[], Lesson], *, batch_size: int, seed: int, pad_id: int) -> None:
        self._draw, self._batch_size, self._seed, self._pad_id = draw, batch_size, seed, pad_id

    def __iter__(self) -> Iterator[LessonBatch]:
        """Batches of the settings' size, padded to their longest."""
        size, rng = self._batch_size, random.Random(self._seed)
        while True:
            pool = sorted((self._draw() for _ in range(32 * size)), key=lambda x: len(x.token_ids))
            batches = [pool[i : i + size] for i in range(0, len(pool), size)]
            rng.shuffle(batches)
            for batch in batches:
                yield collate(batch, pad_id=self._pad_id)


def action_states(model: Qwen2ForCausalLM, batch: LessonBatch) -> Tensor:
    """The last hidden states that predict action tokens: (number of action tokens, hidden size).

    They are in the order of the batch, and equal those of `model.model` up to rounding. Nothing reads the top layer's
    outputs elsewhere, so its queries and its MLP run at these positions alone. That saves much, as most tokens of a
    lesson are read and not written. The layers are those of `build.make_model`: attention by torch over all positions,
    without dropout, and as many heads for keys as for queries.
    """
    body, top = model.model, model.model.layers[-1]
    attention, actions_BT = top.self_attn, batch.action_mask_BT[:, 1:]
    hidden_BTD = body.embed_tokens(batch.token_ids_BT[:, :-1])
    places_1T = torch.arange(hidden_BTD.shape[1])[None]
    cos_1TK, sin_1TK = body.rotary_emb(hidden_BTD, places_1T)
    for layer in body.layers[:-1]:
        hidden_BTD = layer(hidden_BTD, attention_mask=None, position_embeddings=(cos_1TK, sin_1TK))
    # The positions of each row's actions, in order and padded to the row with the most.
    most = int(actions_BT.sum(1).max())
    place_BA = (~actions_BT).byte().argsort(dim=1, stable=True)[:, :most]
    real_BA = actions_BT.gather(1, place_BA)

    def heads(flat: Tensor) -> Tensor:
        split: Tensor = flat.unflatten(-1, (-1, attention.head_dim))
        return split.transpose(1, 2)

    normed_BTD = top.input_layernorm(hidden_BTD)
    asking_BAD = normed_BTD.gather(1, place_BA[..., None].expand(-1, -1, normed_BTD.shape[-1]))
    query_BHAK, key_BHTK = heads(attention.q_proj(asking_BAD)), heads(attention.k_proj(normed_BTD))
    query_BHAK, _ = apply_rotary_pos_emb(query_BHAK, query_BHAK, cos_1TK[0, place_BA], sin_1TK[0, place_BA])
    key_BHTK, _ = apply_rotary_pos_emb(key_BHTK, key_BHTK, cos_1TK, sin_1TK)
    visible_B1AT = (places_1T <= place_BA[..., None])[:, None]
    read_BHAK = scaled_dot_product_attention(
        query_BHAK, key_BHTK, heads(attention.v_proj(normed_BTD)), attn_mask=visible_B1AT
    )
    state_ND = hidden_BTD[actions_BT] + attention.o_proj(read_BHAK.transpose(1, 2).flatten(2)[real_BA])
    state_ND = state_ND + top.mlp(top.post_attention_layernorm(state_ND))
    normed_ND: Tensor = body.norm(state_ND)
    return normed_ND


def loss_and_lookup(model: Qwen2ForCausalLM, batch: LessonBatch) -> tuple[Tensor, int, int]:
    """Mean next-token loss (nats) over action tokens, lookups answered right by argmax, and lookups in all."""
    actions = batch.action_mask_BT[:, 1:]
    targets = batch.token_ids_BT[:, 1:][actions]
    logits = model.lm_head(action_states(model, batch))
    lookup = batch.lookup_BT[:, 1:][actions]
    right = int((logits[lookup].argmax(-1) == targets[lookup]).sum())
    return cross_entropy(logits, targets), right, int(lookup.sum())


def make_exam(draw: Callable[[], Lesson], *, pad_id: int) -> list[LessonBatch]:
    """Held-out lessons, `NUM_EXAM_BATCHES` batches of 64."""
    papers = [[draw() for _ in range(64)] for _ in range(NUM_EXAM_BATCHES)]
    return [collate(paper, pad_id=pad_id) for paper in papers]


@torch.no_grad()
def lookup_accuracy(model: Qwen2ForCausalLM, exam: list[LessonBatch]) -> float:
    """The share of an exam's lookups that are answered right."""
    scores = [loss_and_lookup(model, part) for part in exam]
    return sum(right for _, right, _ in scores) / sum(total for _, _, total in scores)
