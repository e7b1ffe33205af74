"""Rows of unlike length, and rows that end one after the other, cost no more than they must and change no sample."""

from __future__ import annotations

import asyncio

import pytest
import torch

import medagent.policies.batch as batch_module
from medagent.policies.batch import ENOUGH_READ, MOST_READ, PADDING, groups_of_like_length
from medagent.policies.huggingface import HFPolicy

LENGTHS = (12, 600, 31, 320, 600, 45, 90, 300)
TURNS = (9, 3, 20, 5, 14, 1, 17, 11)


def dialogues(policy: HFPolicy, chosen: range, *, rounds: int = 2) -> list[list[tuple[int, ...]]]:
    """The tokens of each turn of the dialogues of some numbers, sampled together."""
    generator = torch.Generator().manual_seed(3)
    prompts = [torch.randint(5, 400, (length,), generator=generator).tolist() for length in LENGTHS]

    async def one(number: int) -> list[tuple[int, ...]]:
        session = sessions[number]
        turns = []
        for turn in range(rounds):
            session.append(prompts[number] if not turn else prompts[number][: 4 + number])
            turns.append((await session.sample(max_tokens=TURNS[number])).token_ids)
        session.close()
        return turns

    async def together() -> list[list[tuple[int, ...]]]:
        return await asyncio.gather(*(one(number) for number in chosen))

    sessions = {number: policy.open(seed=number, temperature=1.0, blocks=()) for number in chosen}
    return asyncio.run(together())


def test_unlike_rows_are_sampled_as_each_alone(starter) -> None:
    policy = HFPolicy(*starter)
    alone = [dialogues(policy, range(number, number + 1))[0] for number in range(len(LENGTHS))]
    assert dialogues(policy, range(len(LENGTHS))) == alone
    assert any(len(turns[0]) == most for turns, most in zip(alone, TURNS, strict=True))


def test_a_step_reads_neither_padding_nor_ended_rows(starter, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[int, int]] = []
    original = batch_module.hidden_states

    def noting(model, **inputs):
        shapes.append(tuple(inputs["input_ids"].shape))
        return original(model, **inputs)

    policy = HFPolicy(*starter)
    monkeypatch.setattr(batch_module, "hidden_states", noting)
    monkeypatch.setattr(batch_module, "ENOUGH_READ", 0)  # short rows count as well
    ends = dialogues(policy, range(len(LENGTHS)), rounds=1)
    prompts = [rows * width for rows, width in shapes if width > 1]
    assert sum(LENGTHS) <= sum(prompts) <= PADDING * sum(LENGTHS) + len(LENGTHS)
    widths = [rows for rows, width in shapes if width == 1]
    running = [sum(len(turns[0]) > step for turns in ends) for step in range(1, max(len(turns[0]) for turns in ends))]
    assert len(widths) == len(running)
    # Slots are moved together once an eighth of them, here one, has ended.
    assert widths == running


def test_groups_are_of_like_length_and_of_a_bounded_size() -> None:
    assert groups_of_like_length([1] * 200) == [(0, 200)]
    assert groups_of_like_length([5, 300]) == [(0, 1), (1, 2)]
    assert groups_of_like_length([5, 6, 40]) == [(0, 3)], "padding of few tokens costs less than another pass"
    lengths = sorted(range(3, 900, 7))
    groups = groups_of_like_length(lengths)
    assert [first for first, _ in groups[1:]] == [after for _, after in groups[:-1]]
    assert groups[0][0] == 0
    assert groups[-1][1] == len(lengths)
    for first, after in groups:
        padded = (after - first) * lengths[after - 1]
        assert padded <= max(ENOUGH_READ, PADDING * sum(lengths[first:after]))
        assert padded <= MOST_READ
    assert groups_of_like_length([MOST_READ + 1] * 2) == [(0, 1), (1, 2)]
