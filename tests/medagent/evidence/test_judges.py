"""Models as judges of support: an NLI cross-encoder, a language model by likelihood, an endpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

from medagent.errors import ConfigError, EndpointError, InputError
from medagent.evidence.judges import LikelihoodJudge, NLIModel, asked_about, support_judge
from medagent.evidence.kinds import EvidenceKind
from medagent.evidence.rules import LexicalRule
from medagent.evidence.support import Statement, SupportJudge
from medagent.evidence.verdict import judge as judge_answer
from medagent.models.base_models import STARTER, model_path
from medagent.policies.huggingface import HFPolicy
from medagent.retrieval.passages import Hit, Passage
from medagent.types import Question, Rollout, StopReason, Turn
from tests.medagent.support import chat_server

CELIAC = Passage.make(
    "Celiac disease",
    "It is lifelong. Many have no symptoms. A provider diagnoses celiac disease with blood tests and a biopsy of the "
    "small intestine. A dose of 5 mg is an example. The last one.",
    section="Diagnosis",
)
OWN_WORDS = Statement("Celiac disease is diagnosed with a blood test and a biopsy.", (1,))
NAME = Statement("biopsy", (1,), "How is celiac disease diagnosed?", name=True)


def tiny(folder: Path, *names: str) -> str:
    """A tiny cross-encoder with random weights and these labels."""
    tokenizer = AutoTokenizer.from_pretrained(model_path(STARTER))
    torch.manual_seed(0)
    labels = {"id2label": dict(enumerate(names)), "label2id": {name: number for number, name in enumerate(names)}}
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=512, **size, **labels)
    BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny(tmp_path_factory.mktemp("nli"), "contradiction", "entailment", "neutral")


def test_an_nli_model_judges_as_its_likeliest_label_says(classifier: str) -> None:
    model = NLIModel(classifier)
    items = [
        (Statement(f"claim {number}", (1,)), [Passage.make("", f"passage {number} " * number)])
        for number in range(1, 8)
    ]
    found = model.judge_all(items)
    assert found == [judged for item in items for judged in model.judge_all([item])]  # no batch or padding changes it
    for bias, judged in ((1e3, True), (-1e3, False)):
        with torch.no_grad():
            model._classify.model.classifier.bias[:] = torch.tensor([0.0, bias, 0.0])
        assert model.judge_all(items) == [judged] * 7


def test_an_nli_model_reads_long_questions_and_passages_too(classifier: str) -> None:
    model = NLIModel(classifier)
    long = Statement("an option", (1,), "What is it? " * 400, name=True)
    assert long.hypothesis.endswith("an option")
    texts = ("short", "word " * 900)
    assert len(model.judge_all([(long, [Passage.make("", text)]) for text in texts])) == 2


def test_what_is_no_model_for_inference_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"support nli:.*cannot be loaded"):
        support_judge(f"nli:{tmp_path}")
    with pytest.raises(InputError, match=r"yes, no, wanted one that begins with \"entail\""):
        support_judge(f"nli:{tiny(tmp_path, 'yes', 'no')}")


def test_a_judge_has_a_known_name() -> None:
    assert isinstance(support_judge("rules"), LexicalRule)
    with pytest.raises(ConfigError, match="rules, nli:MODEL, judge:hf:MODEL or judge:http://HOST/v1#MODEL"):
        support_judge("words")
    with pytest.raises(InputError, match="needs the name of its model"):
        support_judge("judge:http://127.0.0.1:9/v1")


@pytest.fixture
def judge(starter) -> LikelihoodJudge:
    return LikelihoodJudge(HFPolicy(*starter), "judge:starter")


def test_a_language_model_judges_by_its_likelihoods_of_yes_and_no(
    judge: LikelihoodJudge, tokenizer: Any, starter: Any
) -> None:
    items = [(OWN_WORDS, [CELIAC]), (NAME, [CELIAC])]
    ids = tokenizer(asked_about(*items[0]), add_special_tokens=False)["input_ids"]
    scores = dict[str, float]()
    for word in (" yes", " no"):
        said = tokenizer(word, add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            logprobs = starter[0](input_ids=torch.tensor([[*ids, *said]])).logits[0].log_softmax(-1)
        scores[word] = sum(float(logprobs[len(ids) - 1 + at, token]) for at, token in enumerate(said))
    chance = 1 / (1 + torch.tensor(scores[" no"] - scores[" yes"]).exp().item())
    found = judge.probabilities(items)
    assert found[0] == pytest.approx(chance, abs=1e-5)
    assert found[0] != found[1]
    judge.threshold = (found[0] + found[1]) / 2
    assert judge.judge_all(items) == [each > judge.threshold for each in found]


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("Many have no symptoms.", True),  # word by word
        ("Give 50 mg of dapsone.", False),  # neither that dose nor that drug
        ("A dose of 50 mg is an example.", False),
    ],
)
@pytest.mark.parametrize("threshold", [0.0, 1.1])
def test_no_model_overrules_what_words_settle(
    judge: LikelihoodJudge, text: str, stated: bool, threshold: float
) -> None:
    judge.threshold = threshold
    assert judge.judge_all([(Statement(text, (1,)), [CELIAC]), (OWN_WORDS, [CELIAC])]) == [stated, threshold == 0]


def test_no_model_finds_a_name_that_no_sentence_states(judge: LikelihoodJudge) -> None:
    judge.threshold = 0.0
    names = [Statement(name, (1,), NAME.question, name=True) for name in ("biopsy", "endoscopy")]
    assert judge.judge_all([(name, [CELIAC]) for name in names]) == [True, False]


def test_a_verdict_takes_own_words_from_a_model_alone_and_only_on_the_subject(judge: LikelihoodJudge) -> None:
    judge.threshold = 0.0
    gout = Passage.make("Gout", "A provider diagnoses gout with a blood test and a biopsy.")

    def kind(passage: Passage, support: SupportJudge, text: str = "Celiac disease is found by a tissue sample.") -> str:
        searched = Turn((), (), "", query="q", hits=(Hit(passage, 1.0),))
        turns = (searched, Turn((), (), "", answer=f"{text} [1]"))
        return judge_answer(Rollout(Question("q", NAME.question), (), turns, StopReason.ANSWERED), support).kind

    assert kind(CELIAC, judge) == EvidenceKind.STATED
    assert kind(CELIAC, LexicalRule()) != EvidenceKind.STATED
    assert kind(CELIAC, LexicalRule(), OWN_WORDS.text) == EvidenceKind.STATED
    assert kind(gout, judge) != EvidenceKind.STATED


def test_a_language_model_reads_the_sentences_near_the_answer() -> None:
    filler = "The other sentence is of no interest to anyone. " * 20
    long = Passage.make("Celiac disease", f"{filler}{CELIAC.text} {filler}")
    text = asked_about(NAME, [long])
    assert text.startswith("Passage: Celiac disease: It is lifelong. Many have no symptoms. A provider diagnoses")
    assert "The last one.\n\nQuestion: How is celiac disease diagnosed?\nAnswer: biopsy\n" in text
    one = Passage.make("", "word " * 300)
    assert asked_about(OWN_WORDS, [one]).count("word ") == 109


def likeliest(**chances: float) -> list[dict[str, Any]]:
    return [{"token": token, "logprob": float(torch.tensor(chance).log())} for token, chance in chances.items()]


def test_an_endpoint_judges_by_the_log_probs_of_its_first_token() -> None:
    with chat_server("Yes") as server:
        server.logprobs = {"content": [{"top_logprobs": likeliest(Yes=0.5, yes=0.1, No=0.2, Maybe=0.2)}]}
        judge = support_judge(f"judge:{server.url}#small")
        assert isinstance(judge, LikelihoodJudge)
        assert judge.probabilities([(OWN_WORDS, [CELIAC]), (NAME, [CELIAC])]) == pytest.approx([0.75, 0.75])
        asked = server.asked[0]
        assert (asked["model"], asked["max_tokens"], asked["logprobs"]) == ("small", 1, True)
        assert {each["messages"][0]["content"] for each in server.asked} == {
            asked_about(OWN_WORDS, [CELIAC]),
            asked_about(NAME, [CELIAC]),
        }


@pytest.mark.parametrize("logprobs", [None, {"content": []}, {"content": [{"top_logprobs": likeliest(The=1.0)}]}])
def test_an_endpoint_without_log_probs_of_yes_or_no_is_an_error(logprobs: Any) -> None:
    with chat_server("Yes") as server:
        server.logprobs = logprobs
        with pytest.raises(EndpointError, match="wanted log-probs of yes or no"):
            support_judge(f"judge:{server.url}#small").judge_all([(OWN_WORDS, [CELIAC])])


def test_the_rules_take_no_wrong_answer_in_words_of_its_own() -> None:
    rows = map(json.loads, Path(__file__).with_name("own_words.jsonl").read_text(encoding="utf-8").splitlines())
    wrong = [row for row in rows if not row["supported"]]
    items = [(Statement(row["answer"], (1,)), [Passage.make(row["title"], row["passage"])]) for row in wrong]
    assert LexicalRule().judge_all(items) == [False] * 20
