"""Questions whose evidence is withheld, and passages that give orders: what an iteration asks, and what it earns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from medagent.agent import Job
from medagent.errors import ConfigError
from medagent.evaluation.grading.grade import Verdict, grade
from medagent.evaluation.trust.injections import PLANTED
from medagent.retrieval.controls import NoRetriever
from medagent.training.data import RolloutData
from medagent.training.rewards import ExactMatch
from medagent.training.rollouts.questions import NoisyRetrieval, withheld_from
from medagent.training.sft.data import LeftOutReason
from medagent.training.sft.scripted import ScriptedDemonstrations
from medagent.types import Question, Rollout, StopReason, Turn
from tests.training.sft.support import RULES, Asked, WordRetriever, passage, said
from tests.training.support import make_data, make_module, quiet_trainer

NO_INDEX = NoRetriever()
QUESTIONS = [Question(f"q{number}", "?", ("a", "b"), "A", gold_passage_ids=(f"p{number}",)) for number in range(400)]


def asked(noisy_retrieval: NoisyRetrieval, *, seed: int = 0, iteration: int = 0) -> list[Job]:
    return [noisy_retrieval.with_noise(Job(q), seed=seed, iteration=iteration, retriever=NO_INDEX) for q in QUESTIONS]


def test_the_shares_are_those_wanted_and_follow_from_seed_and_iteration() -> None:
    jobs = asked(NoisyRetrieval(withheld=0.25, injected=0.1))
    withheld = [job.question.id for job in jobs if job.withheld]
    planted = [job.question.id for job in jobs if job.planted]
    assert 70 <= len(withheld) <= 130
    assert 20 <= len(planted) <= 60
    assert all(job.withheld in (frozenset(), frozenset(job.question.gold_passage_ids)) for job in jobs)
    numbers = {int(job.question.meta[PLANTED]) for job in jobs if job.planted}
    assert len(numbers) > 10
    assert not any(number % 2 for number in numbers)  # the others are kept for a report
    assert jobs == asked(NoisyRetrieval(withheld=0.25, injected=0.1))
    for other in ({"seed": 1}, {"iteration": 1}):
        assert [job.question.id for job in asked(NoisyRetrieval(withheld=0.25), **other) if job.withheld] != withheld
    assert asked(NoisyRetrieval()) == [Job(question) for question in QUESTIONS]


def test_the_documents_of_the_evidence_are_withheld(retriever) -> None:
    passage = retriever.passages[0]
    question = Question("q", "?", gold_passage_ids=(passage.id, "elsewhere"))
    wanted = {passage.id, "elsewhere", *([passage.document] if passage.document else [])}
    assert withheld_from(question, 1.0, 0, retriever) == wanted


def test_a_question_is_disturbed_alike_in_all_its_samples() -> None:
    noisy_retrieval = NoisyRetrieval(withheld=0.5, injected=0.5)
    for question in QUESTIONS[:20]:
        jobs = [
            noisy_retrieval.with_noise(Job(question, sample=sample), seed=0, iteration=3, retriever=NO_INDEX)
            for sample in range(4)
        ]
        assert len({(job.withheld, job.planted) for job in jobs}) == 1


@pytest.mark.parametrize("field", ["withheld", "injected"])
def test_a_share_is_from_0_to_1(field: str) -> None:
    with pytest.raises(ConfigError, match=f"{field}: found 1.5, wanted a share"):
        NoisyRetrieval(**{field: 1.5})


def test_questions_without_evidence_are_refused(retriever) -> None:
    without = Asked(*(replace(question, gold_passage_ids=()) for question in QUESTIONS))
    with pytest.raises(ConfigError, match="no question names a gold passage"):
        RolloutData(without, retriever, noisy_retrieval=NoisyRetrieval(withheld=0.5))
    RolloutData(without, retriever, noisy_retrieval=NoisyRetrieval(injected=0.5))


def test_rollouts_of_an_iteration_are_disturbed(retriever, tmp_path: Path) -> None:
    data = make_data(
        retriever, num_questions=24, num_samples=1, noisy_retrieval=NoisyRetrieval(withheld=1.0, injected=0.5)
    )
    module = make_module()
    trainer = quiet_trainer(tmp_path)
    trainer.strategy.connect(module)
    policy = data.policy_of(module, version=0)
    rollouts = data.collect(policy, temperature=1.0, iteration=0, version=0, rank=0, world_size=1)
    shown = [(set(r.question.gold_passage_ids), {hit.passage.id for hit in r.hits}) for r in rollouts if r.hits]
    assert shown
    assert not any(gold & found for gold, found in shown)
    planted = [r for r in rollouts if r.hits and PLANTED in r.question.meta]
    assert planted
    assert all(r.hits[0].passage.source == f"injection {r.question.meta[PLANTED]}" for r in planted)


def test_scripted_dialogues_abstain_where_the_evidence_is_withheld(tokenizer, tmp_path: Path) -> None:
    corpus = [passage(f"fever {number}", f"The drug is drug{number}.") for number in range(40)]
    questions = [
        Question(
            f"q{number}", f"Which drug treats fever {number}?", answer=f"drug{number}", gold_passage_ids=(each.id,)
        )
        for number, each in enumerate(corpus)
    ]
    source = ScriptedDemonstrations(Asked(*questions), thoughts=False, abstentions=0.4, withheld=0.5)
    source.make(RULES, WordRetriever(corpus), tmp_path, tokenizer)
    rollouts = source.read(tmp_path, RULES.protocol)
    withheld = {question.id for question in questions if withheld_from(question, 0.5, 0, NO_INDEX)}
    abstained = {r.question.id for r in rollouts if grade(r).verdict is Verdict.ABSTAINED}
    assert 10 < len(withheld) < 30
    assert abstained <= withheld
    assert withheld & {r.question.id for r in rollouts} == abstained
    assert len(abstained) == pytest.approx(0.4 * len(rollouts), abs=1)
    assert {said(r)[-1] for r in rollouts if r.question.id in abstained} == {"<answer> not found</answer>"}
    assert source.left_out[LeftOutReason.NOT_FOUND] == len(withheld) - len(abstained)


@pytest.mark.parametrize(
    ("answer", "reward"), [("(A) [1]", 1.0), ("(B) [1]", -1.0), ("not found", 0.0), ("(A) or (B)", -1.0), ("", -1.0)]
)
def test_silence_has_its_price(answer: str, reward: float) -> None:
    rollout = Rollout(QUESTIONS[0], (), (Turn((), (), answer, answer=answer),), StopReason.ANSWERED)
    assert ExactMatch(correct=1.0, well_formed=-1.0, abstained=0.0)(rollout).reward == reward
