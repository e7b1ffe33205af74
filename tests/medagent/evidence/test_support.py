"""Citations, statement by statement: ALCE's counts by hand, the rule of words against labels, and an NLI model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

from medagent.errors import InputError
from medagent.evaluation.grading.citations import ground
from medagent.evidence.support import LexicalRule, NLIModel, Statement, Support, statements_of, support_of
from medagent.models.base_models import STARTER, model_path
from medagent.retrieval.passages import Hit, Passage
from medagent.types import Question, Rollout, StopReason, Turn

LABELS = Path(__file__).with_name("support_labels.jsonl")


class Table:
    """Entails what a table says: {(passage, statement): True}."""

    label = "table"

    def __init__(self, *entailed: tuple[str, str]) -> None:
        self._entailed = set(entailed)

    def __call__(self, pairs: Sequence[tuple[str, Statement]]) -> list[bool]:
        return [(text, statement.text) in self._entailed for text, statement in pairs]


def test_the_rule_of_words_against_200_labels() -> None:
    rule, marks = LexicalRule(), []
    for line in LABELS.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        for claim, label in row["claims"]:
            marks.append((rule([(row["passage"], Statement(claim, (1,)))])[0], label))
    assert len(marks) == 200
    right = sum(said == label for said, label in marks)
    both = sum(said and label for said, label in marks)
    assert right / 200 >= 0.91
    assert both / sum(said for said, _ in marks) >= 0.92  # precision
    assert both / sum(label for _, label in marks) >= 0.89  # recall


def test_the_counts_of_alce_by_hand() -> None:
    texts = ["one", "two", "three"]
    said = [Statement("a", (1, 2)), Statement("b", (2, 3)), Statement("c", (3,)), Statement("d", ())]
    entails = Table(
        ("one\ntwo", "a"),  # only both together: each citation counts
        ("two\nthree", "b"),
        ("two", "b"),  # the second is enough: the third is irrelevant
    )
    assert support_of(said, texts, entails) == Support(statements=4, entailed=2, citations=5, counted=3)


def test_citations_of_what_is_not_entailed_never_count() -> None:
    # Each alone entails, both together do not: recall 0, so neither counts.
    entails = Table(("one", "a"), ("two", "a"))
    assert support_of([Statement("a", (1, 2))], ["one", "two"], entails) == Support(1, 0, 2, 0)


LONG = "Allopurinol lowers uric acid in the long run"


def test_statements() -> None:
    both = [Statement(f"{LONG}.", (1,)), Statement("It is not for acute attacks.", (2,))]
    for answer, expected in [
        ("(B) allopurinol [1] [9]", [Statement("allopurinol", (1,), "What lowers urate?", name=True)]),
        (f"{LONG} [1]. It is not for acute attacks [2].", both),
        (f"{LONG}. [1] It is not for acute attacks. [2]", both),
        (f"{LONG} [1, 2].", [Statement(f"{LONG} [1, 2].", ())]),
    ]:
        found = statements_of(answer, "allopurinol", "What lowers urate?", shown=2)
        assert [(each.text, each.cited, each.name) for each in found] == [(e.text, e.cited, e.name) for e in expected]


def test_sentences_by_words() -> None:
    for text, claim, entailed in [
        ("Start with 5 mg once a day.", "Start with 5 mg once a day.", True),
        ("Start with 5 mg once a day.", "Start with 50 mg once a day.", False),
        ("It is not given in pregnancy.", "It is given in pregnancy.", False),
        ("Aspirin is given. Warfarin is stopped.", "Warfarin is given.", False),
        ("Gout is painful. It is treated with colchicine.", "Gout is treated with colchicine.", True),
    ]:
        assert LexicalRule()([(text, Statement(claim, (1,)))]) == [entailed]


def test_a_long_answer_is_counted_by_its_sentences() -> None:
    hits = (
        Hit(Passage("p1", "gout", "Allopurinol lowers uric acid in the long run."), 1.0),
        Hit(Passage("p2", "gout", "Colchicine relieves acute attacks of gout."), 0.5),
    )
    answer = "Allopurinol lowers uric acid in the long run [1]. Colchicine relieves acute attacks of gout [1][2]."
    turns = (Turn((), (), "", query="x", hits=hits), Turn((), (), "", answer=answer))
    found = ground([Rollout(Question("q", "?", (), "allopurinol"), (), turns, StopReason.ANSWERED)])
    assert (found.statements, found.citation_recall, found.citation_precision) == (2, 1.0, pytest.approx(2 / 3))


def tiny(folder: Path, *names: str) -> str:
    """A tiny cross-encoder with random weights and these labels."""
    tokenizer = AutoTokenizer.from_pretrained(model_path(STARTER))
    torch.manual_seed(0)
    labels = {"id2label": dict(enumerate(names)), "label2id": {name: number for number, name in enumerate(names)}}
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **size, **labels)
    BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny(tmp_path_factory.mktemp("nli"), "contradiction", "entailment", "neutral")


def test_a_model_judges_as_its_likeliest_label_says(classifier: str) -> None:
    model = NLIModel(classifier, batch=3, max_tokens=32)
    pairs = [(f"passage {number} " * number, Statement(f"claim {number}", (1,))) for number in range(1, 8)]
    found = model(pairs)
    assert found == [judged for pair in pairs for judged in model([pair])]  # no batch or padding changes it
    for bias, judged in ((1e3, True), (-1e3, False)):
        with torch.no_grad():
            model._model.classifier.bias[:] = torch.tensor([0.0, bias, 0.0])
        assert model(pairs) == [judged] * 7


def test_long_questions_and_passages_are_judged_too(classifier: str) -> None:
    model = NLIModel(classifier, max_tokens=32)
    long = Statement("an option", (1,), "What is it? " * 400, name=True)
    assert long.hypothesis.endswith("an option")
    assert len(model([("short", long), ("word " * 900, long)])) == 2


def test_what_is_no_entailment_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"entailment .*cannot be loaded"):
        NLIModel(str(tmp_path))
    with pytest.raises(InputError, match=r"yes, no, wanted one that begins with \"entail\""):
        NLIModel(tiny(tmp_path, "yes", "no"))
