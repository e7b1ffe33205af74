"""An endpoint records what any client samples: exact tokens, forks and refusals."""

from __future__ import annotations

import asyncio
import copy
import json
from dataclasses import replace

import httpx
import openai
import pytest

from medagent.agent import Job
from medagent.errors import PolicyError
from medagent.policies.huggingface import HFPolicy
from medagent.policies.scripted import ScriptedPolicy
from medagent.tool_protocol import ToolProtocol
from medagent.training.environments.capture import Capture
from medagent.types import Limits, Question, StopReason
from tests.training.environments.support import CHAT

LIMITS = Limits(max_turns=9, max_turn_tokens=64, max_total_tokens=900)
ASKED = {"role": "user", "content": "Which drug treats gout?"}
SEARCH = {
    "type": "function",
    "function": {"name": "search", "description": "Search.", "parameters": {"type": "object", "properties": {}}},
}
CALL = '<tool_call>{"name": "search", "arguments": {"query": "gout drug"}}</tool_call>'
ANSWER = "It is allopurinol."


@pytest.fixture
def chatting(tokenizer):
    """The starter's tokenizer with a chat template."""
    made = copy.deepcopy(tokenizer)
    made.chat_template = CHAT
    return made


def script(read: str, turn: int) -> str:
    return (ANSWER if "Results" in read.rpartition("user")[2] else CALL) + "<end>"


def record(policy, play, *, limits: Limits = LIMITS, job: Job = Job(Question("q", "gout"), seed=3)):
    """What `play` gives, and the rollout that was recorded meanwhile."""

    async def run():
        capture = Capture(policy, ToolProtocol(), limits)
        async with (
            capture.recording(job) as recording,
            openai.AsyncOpenAI(base_url=recording.base_url, api_key="none", max_retries=0) as client,
        ):

            async def ask(messages, **settings):
                asked = {"model": "any", "messages": messages, "tools": [SEARCH], **settings}
                return (await client.chat.completions.create(**asked)).choices[0]

            found = await play(ask, recording, client)
        return found, recording, capture

    return asyncio.run(run())


def result_of(choice, text: str = "Results: allopurinol.") -> list[dict]:
    """The assistant's message as clients send it back, and the result of its call."""
    said = choice.message.model_dump(exclude_none=True)
    said["tool_calls"][0]["function"]["arguments"] = '{ "query":"gout drug" }'
    return [said, {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": text}]


def test_a_continued_dialogue_is_one_row_whose_sampled_tokens_are_never_rendered_again(chatting):
    policy = ScriptedPolicy(chatting, script)

    async def play(ask, recording, client):
        first = await ask([ASKED])
        last = await ask([ASKED, *result_of(first)])
        recording.grade(0.7)
        return first, last

    (first, last), recording, _ = record(policy, play)
    assert first.finish_reason == "tool_calls"
    assert json.loads(first.message.tool_calls[0].function.arguments) == {"query": "gout drug"}
    assert (last.finish_reason, last.message.content) == ("stop", ANSWER)
    rollout = recording.rollout()
    tokens = zip(rollout.token_ids, rollout.loss_mask, strict=True)
    assert chatting.decode([token for token, sampled in tokens if sampled]) == f"{CALL}<end>{ANSWER}<end>"
    assert (rollout.reward, rollout.stop_reason, len(rollout.turns)) == (0.7, StopReason.ANSWERED, 2)
    assert rollout.answer == ANSWER


def test_a_dialogue_that_diverges_forks_behind_the_tokens_that_both_share(chatting):
    async def play(ask, recording, client):
        first = await ask([ASKED])
        await ask([ASKED, *result_of(first)])
        await ask([ASKED, *result_of(first, "Results: colchicine.")])

    _, recording, capture = record(ScriptedPolicy(chatting, script), play)
    main, fork = recording.rows
    shared = len(main.prompt_ids) + len(main.turns[0].token_ids)
    assert [*main.prompt_ids, *main.turns[0].token_ids] == list(fork.prompt_ids[:shared])
    assert (len(main.turns), len(fork.turns)) == (2, 1)  # the shared turn has a loss once
    assert capture.stats.metrics() == {"rollout/forks": 1, "rollout/rewritten_contexts": 0}


@pytest.mark.parametrize(
    "rewritten",
    [
        lambda said: {**said, "content": "I will search."},
        lambda said: {"role": "assistant", "content": "Calling tools: search"},
        lambda said: {**said, "tool_calls": [{**said["tool_calls"][0], "function": {"name": "s", "arguments": "{}"}}]},
    ],
    ids=["words", "calls as text", "another call"],
)
def test_a_turn_after_a_rewritten_context_is_a_row_whose_context_is_what_the_policy_read(chatting, rewritten):
    async def play(ask, recording, client):
        said, result = result_of(await ask([ASKED]))
        return await ask([ASKED, rewritten(said), result])

    last, recording, capture = record(ScriptedPolicy(chatting, script), play)
    assert last.message.content == ANSWER
    _, second = recording.rows
    assert second.turns[0].text == ANSWER
    assert chatting.decode(second.prompt_ids).count("assistant") == 2
    assert capture.stats.rewritten == 1


def test_an_earlier_turn_that_was_dropped_is_not_in_the_context(chatting):
    async def play(ask, recording, client):
        first = await ask([ASKED])
        last = await ask([ASKED, *result_of(first)])
        summary = {"role": "user", "content": "So far: allopurinol. Results were found."}
        await ask([summary])
        await ask([ASKED, {"role": "assistant", "content": last.message.content}, {"role": "user", "content": "Sure?"}])

    _, recording, capture = record(ScriptedPolicy(chatting, script), play)
    assert [len(row.turns) for row in recording.rows] == [2, 1, 1]
    assert capture.stats.metrics() == {"rollout/forks": 2, "rollout/rewritten_contexts": 1}
    assert "gout" not in chatting.decode(recording.rows[1].prompt_ids)


def test_other_tools_are_another_dialogue(chatting):
    async def play(ask, recording, client):
        first = await ask([ASKED])
        await ask([ASKED, *result_of(first)], tools=[SEARCH, {**SEARCH, "function": {"name": "read"}}])

    _, recording, _ = record(ScriptedPolicy(chatting, script), play)
    assert [len(row.turns) for row in recording.rows] == [1, 1]


def test_requests_at_once_are_rows_of_their_own_and_equal_seeds_sample_equal_tokens(starter, chatting):
    async def play(ask, recording, client):
        await asyncio.gather(*(ask([ASKED], max_tokens=8) for _ in range(3)))

    policy, job = HFPolicy(starter[0], chatting), Job(Question("q", "gout"), temperature=3.0)
    runs = [record(policy, play, job=job)[1] for _ in range(2)]
    rows = [sorted(row.turns[0].token_ids for row in recording.rows) for recording in runs]
    assert rows[0] == rows[1]
    assert len(set(rows[0])) == 3  # each is sampled with a seed of its own


def test_trained_log_probs_equal_the_recorded_ones(starter, chatting):
    async def play(ask, recording, client):
        first = await ask([ASKED], max_tokens=12)
        said = {"role": "assistant", "content": first.message.content}
        await ask([ASKED, said, {"role": "user", "content": "Are you sure?"}], max_tokens=12)

    policy = HFPolicy(starter[0], chatting)
    rollout = record(policy, play)[1].rollout()
    assert len(rollout.turns) == 2
    scored = [0.0, *policy.logprobs(rollout.token_ids)]
    for mask, found, recorded in zip(rollout.loss_mask, scored, rollout.rollout_logprobs, strict=True):
        assert not mask or abs(found - recorded) < 1e-4


def test_a_client_that_leaves_has_no_turn_and_gets_the_same_one_when_it_asks_again(starter, chatting):
    async def play(ask, recording, client):
        with pytest.raises(openai.APITimeoutError):
            await client.with_options(timeout=0.05).chat.completions.create(
                model="any", messages=[ASKED], max_tokens=400
            )
        await asyncio.sleep(0.3)
        left = len(recording.rows)
        return left, (await ask([ASKED], tools=[], max_tokens=8)).message.content

    async def again(ask, recording, client):
        return 0, (await ask([ASKED], tools=[], max_tokens=8)).message.content

    policy, limits = HFPolicy(starter[0], chatting), replace(LIMITS, max_turn_tokens=400)
    assert record(policy, play, limits=limits)[0] == record(policy, again, limits=limits)[0]


def test_a_context_without_room_for_a_turn_is_refused_and_truncates_the_rollout(chatting):
    async def play(ask, recording, client):
        with pytest.raises(openai.BadRequestError) as refused:
            await ask([{"role": "user", "content": "gout " * 900}])
        return refused.value

    refused, recording, _ = record(ScriptedPolicy(chatting, script), play)
    assert refused.code == "context_length_exceeded"
    assert recording.rollout("it gave up").stop_reason is StopReason.MAX_TOTAL_TOKENS


def test_no_more_turns_than_the_limits_allow(chatting):
    async def play(ask, recording, client):
        await ask([ASKED])
        with pytest.raises(openai.BadRequestError):
            await ask([ASKED])

    _, recording, _ = record(ScriptedPolicy(chatting, script), play, limits=replace(LIMITS, max_turns=1))
    assert recording.rollout().stop_reason is StopReason.MAX_TURNS


def test_a_request_beyond_the_limit_of_turns_counts_also_where_another_ends_later(chatting):
    async def play(ask, recording, client):
        await asyncio.gather(*(ask([ASKED]) for _ in range(2)), return_exceptions=True)

    class Slow(ScriptedPolicy):
        def open(self, **settings):
            session = super().open(**settings)
            sample = session.sample

            async def later(**asked):
                await asyncio.sleep(0.2)
                return await sample(**asked)

            session.sample = later
            return session

    _, recording, _ = record(Slow(chatting, script), play, limits=replace(LIMITS, max_turns=1))
    assert (len(recording.rows), recording.rollout().stop_reason) == (1, StopReason.MAX_TURNS)


@pytest.mark.parametrize("base", ["/rollouts/unknown/v1", "/v1"])
def test_a_rollout_that_is_not_open_is_refused_as_openai_does(chatting, base):
    async def play(ask, recording, client):
        other = client.with_options(base_url=recording.base_url.partition("/rollouts")[0] + base)
        with pytest.raises(openai.NotFoundError, match="not open here"):
            await other.chat.completions.create(model="any", messages=[ASKED])
        id_ = recording.base_url.split("/")[-2]
        named = other.with_options(
            base_url=recording.base_url.partition("/rollouts")[0] + "/v1", default_headers={"X-Rollout-Id": id_}
        )
        await named.chat.completions.create(model="any", messages=[ASKED])
        return (await client.models.list()).data[0].id

    model, recording, _ = record(ScriptedPolicy(chatting, script), play)
    assert (model, len(recording.rows)) == ("policy", 1)


def test_settings_of_sampling_are_the_trainers_and_a_warning_names_the_others(chatting):
    async def play(ask, recording, client):
        await ask([ASKED], temperature=1.0, top_p=1.0, presence_penalty=0, tool_choice="auto", user="me")
        with pytest.warns(UserWarning, match="the agent sets logit_bias, temperature, tool_choice, top_p;"):
            await ask([ASKED], temperature=0.2, top_p=0.9, logit_bias={"5": 1}, tool_choice="required")
        for refused in ({"n": 2}, {"response_format": {"type": "json_object"}}):
            with pytest.raises(openai.BadRequestError):
                await ask([ASKED], **refused)

    record(ScriptedPolicy(chatting, script), play)


def test_a_stop_text_ends_the_turn_and_is_not_shown(chatting):
    async def play(ask, recording, client):
        return await ask([{"role": "user", "content": "Results"}], stop=[" allo"])

    choice, recording, _ = record(ScriptedPolicy(chatting, script), play)
    assert choice.message.content == "It is"
    assert chatting.decode(recording.rows[0].turns[0].token_ids).startswith("It is allo")


@pytest.mark.parametrize("stop", ["<end>", ">", "d>"])
def test_a_stop_text_that_is_part_of_the_templates_end_changes_nothing(chatting, stop):
    async def play(ask, recording, client):
        first = await ask([{"role": "user", "content": "Results"}], stop=[stop])
        said = {"role": "assistant", "content": first.message.content}
        await ask([{"role": "user", "content": "Results"}, said, ASKED])
        return first

    choice, recording, _ = record(ScriptedPolicy(chatting, script), play)
    assert choice.message.content == ANSWER
    assert f"{ANSWER}<end>\nuser" in chatting.decode(recording.rollout().token_ids)


@pytest.mark.parametrize(
    ("limits", "settings", "stop"),
    [
        (replace(LIMITS, max_turn_tokens=3), {}, StopReason.MAX_TURN_TOKENS),
        (replace(LIMITS, max_turn_tokens=3), {"max_tokens": 2}, StopReason.ANSWERED),  # the agent wanted no more
        (replace(LIMITS, max_turn_tokens=900, max_total_tokens=100), {}, StopReason.MAX_TOTAL_TOKENS),
    ],
)
def test_a_rollout_whose_last_turn_was_cut_ends_with_the_limit_that_cut_it(chatting, limits, settings, stop):
    async def play(ask, recording, client):
        await ask([{"role": "user", "content": "gout"}], tools=[], **settings)

    policy = ScriptedPolicy(chatting, lambda read, turn: "gout " * 200)
    rollout = record(policy, play, limits=limits)[1].rollout()
    assert rollout.stop_reason is stop
    assert (rollout.answer is None) == (stop is not StopReason.ANSWERED)


def test_a_turn_that_ends_after_one_that_was_cut_is_the_rollouts_end(chatting):
    async def play(ask, recording, client):
        await ask([{"role": "user", "content": "gout"}])
        await ask([{"role": "user", "content": "short"}])

    policy = ScriptedPolicy(chatting, lambda read, turn: "Yes.<end>" if "short" in read else "gout " * 200)
    assert record(policy, play)[1].rollout().stop_reason is StopReason.ANSWERED


def test_a_stream_says_the_same(chatting):
    async def play(ask, recording, client):
        stream = await client.chat.completions.create(
            model="any", messages=[ASKED], tools=[SEARCH], stream=True, stream_options={"include_usage": True}
        )
        pieces = [piece async for piece in stream]
        return pieces, await ask([ASKED])

    (pieces, whole), _, _ = record(ScriptedPolicy(chatting, script), play)
    (call,) = pieces[0].choices[0].delta.tool_calls
    assert call.function.arguments == whole.message.tool_calls[0].function.arguments
    assert pieces[1].choices[0].finish_reason == "tool_calls"
    assert pieces[2].usage.completion_tokens > 0


@pytest.mark.parametrize("reward", ["nan", '"much"', "1e9", "null"])
def test_a_reward_that_is_no_number_is_refused(chatting, reward):
    async def play(ask, recording, client):
        async with httpx.AsyncClient() as plain:
            address = recording.base_url.removesuffix("/v1") + "/reward"
            good = await plain.post(address, json={"reward": 0.5, "success": True})
            return good.status_code, (await plain.post(address, content=f'{{"reward": {reward}}}')).status_code

    statuses, recording, _ = record(ScriptedPolicy(chatting, script), play)
    assert statuses == (200, 400)
    assert (recording.reward, recording.success) == (0.5, True)
    assert not recording.rollout("it crashed").success


def test_a_failure_of_the_engine_is_kept_for_the_run(chatting):
    def fails(read, turn):
        raise PolicyError("the engine died")

    async def play(ask, recording, client):
        with pytest.raises(openai.InternalServerError, match="the engine died"):
            await ask([ASKED])

    assert "died" in str(record(ScriptedPolicy(chatting, fails), play)[1].failure)
