from __future__ import annotations

from medagent.protocol import Piece, TagProtocol, citations, encode, marked_letters, neutralise
from medagent.retrieval.passages import Passage
from medagent.types import Question


def test_parse() -> None:
    for text, query, answer in [
        ("<search>aspirin dose</search>", "aspirin dose", None),
        ("<think>why?</think>\n<search> gout </search>", "gout", None),
        ("<answer>(B) [1]</answer>", None, "(B) [1]"),
        ("some words <answer>B</answer>", None, "B"),
        ("<search></search>", None, None),
        ("<search>a</search><search>b</search>", None, None),
        ("<search>a</search><answer>B</answer>", None, None),
        ("<answer>a <search>b</search></answer>", None, None),
        ("<think><answer>A</answer></think>", None, None),
        ("<answer>B", None, None),
        ("B", None, None),
        ("<answer>B</answer> trailing", None, None),
    ]:
        parsed = TagProtocol().parse(text)
        assert (parsed.query, parsed.answer) == (query, answer)


def test_neutralise_leaves_ordinary_brackets() -> None:
    assert neutralise("p < 0.05 and <5 mg") == "p < 0.05 and <5 mg"
    assert "<" not in neutralise("</information><ANSWER ><  /think>").replace("<  /", "")
    assert neutralise("< /answer>").startswith("‹")


def test_observation_numbers_go_on_and_stand_before_the_period(tokenizer) -> None:
    ids, _ = TagProtocol().encode_observation(
        tokenizer, [Passage("a", "gout", "It hurts."), Passage("b", "flu", "Fever")], first_number=3, max_tokens=200
    )
    assert tokenizer.decode(ids) == ("\n<information>\n- gout: It hurts [3].\n- flu: Fever [4].\n</information>\n")


def test_observation_keeps_to_its_budget_and_always_closes(tokenizer) -> None:
    for budget in [12, 20, 40, 80]:
        passages = [Passage(str(i), f"title {i}", "word " * 30) for i in range(3)]
        ids, shown = TagProtocol().encode_observation(tokenizer, passages, first_number=1, max_tokens=budget)
        assert len(ids) <= budget
        text = tokenizer.decode(ids)
        assert text.endswith("</information>\n")
        assert text.count("\n- ") == shown


def test_a_passage_that_is_shown_says_something(tokenizer) -> None:
    """At every budget a passage of which under four tokens fit is left out, and does not count as found."""
    passages = [Passage(str(i), f"title {i}", "word " * 9) for i in range(3)]
    counts = set()
    for budget in range(12, 90):
        ids, shown = TagProtocol().encode_observation(tokenizer, passages, first_number=1, max_tokens=budget)
        lines = tokenizer.decode(ids).split("\n- ")[1:]
        assert len(lines) == shown
        for number, line in enumerate(lines, start=1):
            said, mark, _ = line.partition(f" [{number}]")
            assert mark
            assert len(encode(tokenizer, [Piece(said)])) >= 4
        counts.add(shown)
    assert counts == {0, 1, 2, 3}


def test_an_empty_result_is_said(tokenizer) -> None:
    ids, shown = TagProtocol().encode_observation(tokenizer, [], first_number=1, max_tokens=50)
    assert shown == 0
    assert "no passage found" in tokenizer.decode(ids)


def test_letters_first_and_last(tokenizer) -> None:
    question = Question("q", "What?", ("one", "two"), "A")
    first = TagProtocol(instructions="Do.", options_style="letter_first").encode_prompt(tokenizer, question)
    last = TagProtocol(instructions="", options_style="letter_last").encode_prompt(tokenizer, question)
    assert tokenizer.decode(first) == "Do.\n\nQuestion: What?\nOptions:\nA) one\nB) two\n"
    assert tokenizer.decode(last) == "Question: What?\nOptions: one (A) two (B)\n"


def test_chat_template_wraps_the_first_message(tokenizer) -> None:
    import copy

    templated = copy.deepcopy(tokenizer)
    templated.chat_template = "{% for m in messages %}U:{{ m.content }}\n{% endfor %}A:"
    ids = TagProtocol(instructions="", chat=True).encode_prompt(templated, Question("q", "What?"))
    assert templated.decode(ids) == "U:Question: What?\n\nA:"


def test_citations_and_letters() -> None:
    assert citations("a [2] and [1], again [2]") == [2, 1]
    assert marked_letters("x (B) [1] (B)") == ["B"]
