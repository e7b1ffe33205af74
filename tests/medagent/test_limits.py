"""What every limit counts, and which reason a dialogue ends with: a table of stops.

The policy's tokens are bytes, so each length is the length of a text.
"""

from __future__ import annotations

from medagent.agent import Agent, GivenSearch, Job
from medagent.policies.chat_endpoint import byte_tokenizer
from medagent.policy import TurnStop
from medagent.protocol import TagProtocol
from medagent.retrieval.passages import Hit, Passage
from medagent.types import Limits, Question, Rollout, StopReason
from tests.recording import Finds, RecordingPolicy

PROTOCOL = TagProtocol(instructions="")
QUESTION = Question("q", "What treats gout?", ("aspirin", "allopurinol"), "B")
PASSAGE = Passage("p", "gout", "Allopurinol.")
PROMPT = len("Question: What treats gout?\nOptions:\nA) aspirin\nB) allopurinol\n")
SHOWN = len("\n<information>\n- gout: Allopurinol [1].\n</information>\n")
OPEN_SEARCH, OPEN_ANSWER = len("<search>"), len("<answer>")
QUERY = "<search> gout</search>"
CLOSED = "(B)</answer>"
ANSWER = f"<answer>{CLOSED}"
FORCED = {"force_answer": True}


def limits(turns: int = 4, turn: int = 1_000, total: int = 10_000) -> Limits:
    return Limits(turns, turn, 1_000, total)


def run(script, within: Limits, **job) -> tuple[Rollout, list[int], list[str]]:
    """The rollout, the room that each turn had, and the queries that were searched."""
    policy, retriever = RecordingPolicy(script), Finds(PASSAGE)
    (rollout,) = Agent(policy, retriever, PROTOCOL, within, top_k=1).run_all([Job(QUESTION, **job)])
    return rollout, policy.dialogues[0].rooms, retriever.queries


def saying(*turns: str | tuple[str, TurnStop]):
    return lambda read, number: turns[min(number, len(turns) - 1)]


GIVEN = {"given": GivenSearch("gout", (Hit(PASSAGE, 1.0),))}
AFTER_SEARCH = PROMPT + len(QUERY) + SHOWN


def test_each_end_has_its_reason() -> None:
    for turns, within, job, reason in [
        ((ANSWER,), limits(), {}, "answered"),
        ((ANSWER + " \n\t",), limits(), {}, "answered"),
        ((QUERY + " \n", ANSWER), limits(), {}, "answered"),
        (("no tags",), limits(), {}, "malformed"),
        ((ANSWER + " more",), limits(), {}, "malformed"),
        ((ANSWER.removesuffix("</answer>"),), limits(), {}, "malformed"),
        ((QUERY.removesuffix("</search>"),), limits(), {}, "malformed"),
        (("<search> </search>",), limits(), {}, "malformed"),
        ((QUERY + ANSWER,), limits(), {}, "malformed"),
        (("",), limits(), {}, "malformed"),
        (((QUERY, TurnStop.LENGTH), ANSWER), limits(total=PROMPT + 99), {}, "max_total_tokens"),
        (((QUERY, TurnStop.LENGTH), ANSWER), limits(turn=99), {}, "max_turn_tokens"),
        (((QUERY, TurnStop.END_OF_TEXT), ANSWER), limits(), {}, "malformed"),
        ((QUERY,), limits(turns=1), {}, "max_turns"),
        ((QUERY,), limits(turns=3), {}, "max_turns"),
        ((QUERY, QUERY, ANSWER), limits(turns=3), {}, "answered"),
        ((ANSWER,), limits(turn=len(ANSWER)), {}, "answered"),
        ((ANSWER,), limits(turn=len(ANSWER) - 1), {}, "max_turn_tokens"),
        ((QUERY, ANSWER), limits(turn=len(QUERY) - 1), {}, "max_turn_tokens"),
        ((ANSWER,), limits(total=PROMPT + len(ANSWER)), {}, "answered"),
        ((ANSWER,), limits(total=PROMPT + len(ANSWER) - 1), {}, "max_total_tokens"),
        ((ANSWER,), limits(total=PROMPT), {}, "max_total_tokens"),
        ((ANSWER,), limits(turn=9, total=PROMPT + 9), {}, "max_turn_tokens"),
        ((ANSWER,), limits(turn=9, total=PROMPT + 8), {}, "max_total_tokens"),
        ((QUERY, ANSWER), limits(total=AFTER_SEARCH + len(ANSWER)), {}, "answered"),
        ((QUERY, ANSWER), limits(total=AFTER_SEARCH + len(ANSWER) - 1), {}, "max_total_tokens"),
        ((QUERY, ANSWER), limits(total=AFTER_SEARCH), {}, "max_total_tokens"),
        (("gout</search>", ANSWER), limits(), {"force_search": True}, "answered"),
        (("gout</search>", QUERY), limits(turns=2), {"force_search": True}, "max_turns"),
        ((CLOSED,), limits(), FORCED, "answered"),
        (("gout</search>",), limits(), FORCED, "malformed"),
        ((CLOSED,), limits(total=PROMPT + len(ANSWER)), FORCED, "answered"),
        ((CLOSED,), limits(total=PROMPT + len(ANSWER) - 1), FORCED, "max_total_tokens"),
        ((CLOSED,), limits(total=PROMPT + OPEN_ANSWER), FORCED, "max_total_tokens"),
        ((CLOSED,), limits(turn=len(CLOSED)), FORCED, "answered"),
        ((CLOSED,), limits(turn=len(CLOSED) - 1), FORCED, "max_turn_tokens"),
        ((ANSWER,), limits(total=AFTER_SEARCH + len(ANSWER)), GIVEN, "answered"),
        ((ANSWER,), limits(total=AFTER_SEARCH + len(ANSWER) - 1), GIVEN, "max_total_tokens"),
        ((QUERY,), limits(turns=2), GIVEN, "max_turns"),
        ((ANSWER,), limits(turns=1), GIVEN, "max_turns"),
        ((QUERY, ANSWER), limits(turns=3), GIVEN, "answered"),
    ]:
        rollout, rooms, queries = run(saying(*turns), within, **job)
        assert rollout.stop_reason.value == reason
        assert (rollout.answer is not None) == (reason == "answered")
        assert rollout.stop_reason.truncated == (reason in ("max_turns", "max_turn_tokens", "max_total_tokens"))
        assert all(room <= within.max_turn_tokens for room in rooms)
        searched = [turn.query for turn in rollout.turns if turn.query is not None]
        assert searched[len(searched) - len(queries) :] == queries, "a query that counts was searched, and none other"
        spoken = len(rollout.token_ids) - (len(rollout.turns[-1].observation_ids) if rollout.turns else 0)
        assert spoken <= max(within.max_total_tokens, PROMPT), "nothing is sampled beyond the whole's limit"


def test_of_a_prompt_without_room_no_more_is_kept_than_the_limit() -> None:
    for total in [1, PROMPT // 2, PROMPT]:
        rollout, rooms, _ = run(saying(ANSWER), limits(total=total))
        assert (rollout.stop_reason.value, rollout.turns, rooms) == ("max_total_tokens", (), [])
        assert len(rollout.token_ids) == total
        whole, _, _ = run(saying(ANSWER), limits())
        assert rollout.prompt_ids == whole.prompt_ids[:total]


def test_the_room_of_a_turn_is_what_is_left_of_the_whole() -> None:
    """By hand, with every kind of token in between: prompt, opening, sampled ones, passages."""
    total = 400
    said = ["gout</search>", QUERY, ANSWER]
    rollout, rooms, _ = run(saying(*said), limits(total=total), force_search=True)
    first = total - PROMPT - OPEN_SEARCH
    second = first - len(said[0]) - SHOWN
    third = second - len(QUERY) - SHOWN
    assert rooms == [first, second, third]
    assert len(rollout.token_ids) == total - third + len(ANSWER)
    rollout, rooms, _ = run(saying(QUERY, ANSWER), limits(total=total), **GIVEN)
    assert rooms == [total - AFTER_SEARCH, total - AFTER_SEARCH - len(QUERY) - SHOWN]


def test_only_the_policys_first_turn_is_opened() -> None:
    rollout, _, queries = run(saying("one</search>", "<search>two</search>", ANSWER), limits(), force_search=True)
    assert queries == ["one", "two"]
    assert [turn.forced_prefix for turn in rollout.turns] == [OPEN_SEARCH, 0, 0]
    rollout, _, queries = run(saying("two</search>", ANSWER), limits(), force_search=True, **GIVEN)
    assert queries == [], "the given search's passages were given, and are shown again"
    assert rollout.turns[1].hits == rollout.turns[0].hits
    shown = [byte_tokenizer().decode(turn.observation_ids) for turn in rollout.turns[:2]]
    assert shown == [f"\n<information>\n- gout: Allopurinol [{number}].\n</information>\n" for number in (1, 2)]
    assert [turn.forced_prefix for turn in rollout.turns] == [len(QUERY), OPEN_SEARCH, 0]
    assert [turn.query for turn in rollout.turns] == ["gout", "two", None]


def test_what_the_environment_wrote_is_no_action_and_has_no_log_prob() -> None:
    for job, wrote in (({"force_search": True}, OPEN_SEARCH), (GIVEN, len(QUERY))):
        rollout, _, _ = run(saying("x</search>" if "given" not in job else QUERY, ANSWER), limits(), **job)
        first = rollout.turns[0]
        assert first.forced_prefix == wrote
        assert set(first.logprobs[:wrote]) == {0.0}
        assert set(first.logprobs[wrote:]) <= {-0.5}
        marked = list(zip(rollout.rollout_logprobs, rollout.loss_mask, strict=True))
        assert set(marked) == {(-0.5, True), (0.0, False)}
        assert sum(rollout.loss_mask) == sum(len(turn.token_ids) - turn.forced_prefix for turn in rollout.turns)


def test_a_search_that_is_never_run_is_none() -> None:
    """Neither the last turn's, nor one that a limit cut after its tag would have been read."""
    rollout, _, queries = run(saying(QUERY), limits(turns=2))
    assert (queries, [turn.query for turn in rollout.turns], rollout.num_searches) == (["gout"], ["gout", None], 1)
    cut = "<think>then <search>gout</search></think> and so on without an end"
    rollout, _, queries = run(saying(cut), limits(turn=len("<think>then <search>gout</search>")))
    assert rollout.stop_reason is StopReason.MALFORMED
    assert (queries, rollout.num_searches) == ([], 0)
