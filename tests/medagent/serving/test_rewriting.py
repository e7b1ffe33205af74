"""A model rewrites follow-up questions where what it writes says what the conversation does; else rules do."""

from __future__ import annotations

import asyncio

import pytest

from medagent.cli.ask import rewriter_of
from medagent.errors import ConfigError
from medagent.policies.scripted import ScriptedPolicy
from medagent.serving.rewriting import LONGEST, ModelRewriter, accepted, prompt, standing_alone, subject_phrase
from tests.medagent.serving.support import Stepwise
from tests.medagent.support import byte_level, chat_server

GOUT = ["What causes gout?", "Sure, but what would you give a woman who has had it twice?"]
WHOLE = "What would you give a woman who has had gout twice?"
TEMPLATE = "{% for m in messages %}<u>{{ m['content'] }}</u>{% endfor %}<a>"


def rewritten(reply: str, questions: list[str] = GOUT) -> str:
    policy = ScriptedPolicy(byte_level(), lambda read, turn: reply)
    return asyncio.run(ModelRewriter()(questions, policy))


def test_what_stands_around_the_rewritten_question_is_left_out() -> None:
    assert rewritten(WHOLE) == WHOLE
    for around in ('"{}"', "Rewritten question: {}", "Question: {}", "<think>gout</think>\n{}", " {}\n", "**{}**"):
        assert accepted(around.format(WHOLE), GOUT) == WHOLE


def test_what_says_something_else_is_not_taken() -> None:
    for reply in [
        "",
        "I cannot help with that.",
        "Colchicine.",
        "You would give a woman who has had gout twice what caused gout.",
        "<search>gout in women</search>",
        "What would you give a woman who has had pseudogout twice?",
        "What would you give a woman with diabetes who has had gout twice?",
        "What would you give for gout?",  # the woman is gone, and how often she had it
        f"{WHOLE}\nColchicine.",
        WHOLE + " gout" * LONGEST,
    ]:
        assert accepted(reply, GOUT) == ""
        assert rewritten(reply) == GOUT[1], "rules cannot complete it"


DRUG = "What is warfarin?"


def test_what_changes_the_question_is_not_taken() -> None:
    for before, last, reply in [
        (DRUG, "Is it safe in pregnancy?", "Is warfarin safe?"),
        ("What causes gout?", "How is it diagnosed?", "How is gout treated?"),
        ("What causes gout?", "Is it dangerous?", "Is gout safe to have?"),
        ("What is blood pressure?", "What happens if it is high?", "What happens if blood pressure is low?"),
        ("What causes gout?", "Which drugs shouldn't be given for it?", "Which drugs should be given for gout?"),
        ("What causes gout?", "What if I don't treat it?", "What if I treat gout?"),
        ("What causes gout?", "How is it treated?", "?"),
        ("What causes gout?", "How is it treated?", "What should I do?"),
        ("What causes gout?", "How is it treated?", "How is it treated?"),
        ("What causes gout?", "tell me how it is treated", "Gout is safe, take no medicine"),
        ("What causes gout?", "tell me how it is treated", "No"),
        (DRUG, "Should I take it before aspirin?", "Should I take aspirin before warfarin?"),
        (DRUG, "Is 1.5 g of it too much?", "Is 5.1 g of warfarin too much?"),
        ("What causes type 1 diabetes?", "How is it treated?", "How is diabetes treated?"),
        ("What causes gout?", "How is it treated?", "How is gout\u2028treated?"),
        ("What causes gout?", "How is it treated?", "How is \u202egout treated?"),
        ("What causes gout?", "How is it treated?", "How is gout\rtreated?"),
    ]:
        assert accepted(reply, [before, last]) == ""


def test_what_only_completes_it_is_taken() -> None:
    for before, last, reply in [
        (DRUG, "Should I take it before aspirin?", "Should I take warfarin before aspirin?"),
        (DRUG, "Is 1.5 g of it too much?", "Is 1.5 g of warfarin too much?"),
        ("What causes gout?", "Which drugs shouldn't be given for it?", "Which drugs should not be given for gout?"),
        ("What causes gout?", "tell me how it is treated", "tell me how gout is treated"),
        ("What causes gout?", "and pseudogout?", "What causes pseudogout?"),
        ("What causes gout?", "And how is it treated?", "What is the treatment of gout?"),
        ("What causes type 1 diabetes?", "How is it treated?", "How is type 1 diabetes treated?"),
    ]:
        assert accepted(reply, [before, last]) == reply


def test_whatever_fails_in_a_model_falls_back_on_the_rules_and_stays_out_of_the_log(caplog) -> None:
    def fails(read: str, turn: int) -> str:
        raise RuntimeError("no memory for: " + read)

    asked = ["What causes gout?", "And how is it treated?"]
    policy = ScriptedPolicy(byte_level(), fails)
    assert asyncio.run(ModelRewriter()(asked, policy)) == "How is gout treated?"
    assert "RuntimeError" in caplog.text
    assert "gout" not in caplog.text


def test_one_rewriter_serves_several_event_loops() -> None:
    rewriter, policy = ModelRewriter(), ScriptedPolicy(byte_level(), lambda read, turn: WHOLE)

    async def many() -> list[str]:
        return await asyncio.gather(*(rewriter(GOUT, policy) for _ in range(20)))

    assert [asyncio.run(many()) for _ in range(2)] == [[WHOLE] * 20] * 2


def test_the_model_reads_the_questions_in_its_template_without_their_marks() -> None:
    tokenizer = byte_level()
    tokenizer.chat_template = TEMPLATE
    text = str(tokenizer.decode(prompt(tokenizer, ["What causes gout?", "</search> And its cause?"])))
    assert text.startswith("<u>Below are")
    assert text.endswith("Rewritten question:</u><a>")
    assert "Question 1: What causes gout?\nLast question: " in text
    assert "</search>" not in text


def test_a_late_model_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    silent = Stepwise(byte_level())
    found = asyncio.run(ModelRewriter(silent, timeout_s=0.05)(["What causes gout?", "And how is it treated?"], silent))
    assert (found, silent.opened, silent.open_now) == ("How is gout treated?", 1, 0)
    assert "not replied within 0.05 s" in caplog.text


def test_an_endpoint_rewrites_and_where_it_fails_rules_do(caplog: pytest.LogCaptureFixture) -> None:
    own = ScriptedPolicy(byte_level(), lambda read, turn: "never asked")
    with chat_server(WHOLE) as endpoint:
        rewriter = rewriter_of(endpoint.url, model="m", policy=own)
        assert asyncio.run(rewriter(GOUT, own)) == WHOLE
        (asked,) = endpoint.asked
        assert (asked["model"], asked["temperature"]) == ("m", 0.0)
        assert asked["messages"][0]["content"].endswith(f"Last question: {GOUT[1]}\n\nRewritten question:")
        endpoint.status = 401
        assert asyncio.run(rewriter(["What causes gout?", "And how is it treated?"], own)) == "How is gout treated?"
        endpoint.error = f"too long: {GOUT[1]}"
        asyncio.run(rewriter(GOUT, own))
    assert "completed by rules" in caplog.text
    assert "woman" not in caplog.text


def test_settings_that_cannot_be_are_refused() -> None:
    for name, model, wanted in [
        ("rules", "m", "together"),
        ("http://127.0.0.1:1/v1", "", "together"),
        ("model", "", "rules, agent or the address"),
        ("agent", "", "no chat template"),
    ]:
        with pytest.raises(ConfigError, match=wanted):
            rewriter_of(name, model=model, policy=ScriptedPolicy(byte_level(), lambda read, turn: ""))
    tokenizer = byte_level()
    tokenizer.chat_template = "{{ raise_exception('no') }}"
    with pytest.raises(ConfigError, match="refuses a lone message"):
        rewriter_of("agent", model="", policy=ScriptedPolicy(tokenizer, lambda read, turn: ""))


def test_an_agent_with_a_chat_template_rewrites_by_itself() -> None:
    tokenizer = byte_level()
    tokenizer.chat_template = TEMPLATE
    policy = ScriptedPolicy(tokenizer, lambda read, turn: WHOLE)
    assert asyncio.run(rewriter_of("agent", model="", policy=policy)(GOUT, policy)) == WHOLE


FIRST = "What is the first-line drug for trachoma?"


ALONE = (
    "What causes gout?; Is it safe to take ibuprofen in pregnancy?; "
    "What is the drug for the disease whose sign is Koplik spots?; Thanks!; What is psoriasis?; Can I eat cheese?; "
    "Are you sure?; I have chest pain and can't breathe; What is lupus and how is it diagnosed?; "
    "My mother has lupus. Is it inherited?; What is IT band syndrome?; Can I take ibuprofen with it?; "
    "No, I meant pseudogout"
).split("; ")


def test_a_follow_up_is_completed() -> None:
    assert not [question for question in ALONE if standing_alone([FIRST, question]) != question]
    for following, whole in [
        ("How is it confirmed?", "How is trachoma confirmed?"),
        ("And its classic sign?", "What is the classic sign of trachoma?"),
        ("What is its first-line drug?", "What is the first-line drug for trachoma?"),
        ("what about treatment?", "What is the treatment for trachoma?"),
        ("Which sign points to this condition?", "Which sign points to trachoma?"),
        ("And for gout?", "What is the first-line drug for gout?"),
        ("What about hepatitis A?", "What is the first-line drug for hepatitis A?"),
        ("Does it cause blindness?", "Does trachoma cause blindness?"),
        # whom it concerns is added
        ("In children?", "What is the first-line drug for trachoma in children?"),
        ("And in pregnancy?", "What is the first-line drug for trachoma in pregnancy?"),
    ]:
        assert standing_alone([FIRST, following]) == whole


DRUG_FIRST = "What is the first-line drug for Graves disease?"


def test_no_follow_up_is_forced_into_a_form_that_it_does_not_have() -> None:
    for text in [
        "She is pregnant. Still the same?",
        "He is 80. Same again?",
        "Kidney failure too. Still okay?",
        "She had it before. Now what?",
        "She is allergic to penicillin. Still the same?",
        "I am breastfeeding. Is that ok?",
        "My son is 4. What dose?",
        "And if that fails?",
        "It got worse. Now?",
        "What if she is pregnant?",
        "Doesn't help. What else?",
        "How long does it take?",
        "Can she take it?",
        "Is it the same in men?",
        "Why?",
        "Pregnant.",
    ]:
        assert standing_alone([DRUG_FIRST, text]) == f"About Graves disease: {text}"
        assert standing_alone([DRUG_FIRST, text, "How is it diagnosed?"]) == "How is Graves disease diagnosed?"
    for text in [
        "Do they need surgery?",  # nobody says "they" of one disease
        "He also has gout. What now?",
        "The patient is on warfarin. Any change?",
        "No.",
        "ok thanks",
    ]:
        assert standing_alone([DRUG_FIRST, text]) == text


def test_things_and_people_are_completed_as_a_person_would_ask() -> None:
    for text, whole in [
        ("Any contraindications?", "What are the contraindications of Graves disease?"),
        ("Side effects?", "What are the side effects of Graves disease?"),
        ("And my daughter?", "What is the first-line drug for Graves disease in my daughter?"),
        ("for a 5-year-old?", "What is the first-line drug for Graves disease for a 5-year-old?"),
        ("Same for type 2 diabetes?", "What is the first-line drug for type 2 diabetes?"),
        ("tell me how it is treated", "Tell me how Graves disease is treated"),
        ("Can it come back?", "Can Graves disease come back?"),
    ]:
        assert standing_alone([DRUG_FIRST, text]) == whole
    assert standing_alone(["What causes kidney stones?", "How are they treated?"]) == "How are kidney stones treated?"
    assert standing_alone([DRUG, "Can I take it with alcohol?"]) == "Can I take warfarin with alcohol?"


def test_what_replaces_what() -> None:
    dose = "What is the dose of paracetamol for adults?"
    assert standing_alone([dose, "And for children?"]) == "What is the dose of paracetamol for children?"
    assert standing_alone(["How is type 2 diabetes treated?", "And type 1?"]) == "And type 1?"
    assert standing_alone(["What causes hepatitis E?", "How is it treated?"]) == "How is hepatitis E treated?"
    both = "Does warfarin interact with ibuprofen?"
    assert standing_alone([both, "What about paracetamol?"]) == "What about paracetamol?", "of which, nobody knows"


def test_a_question_cannot_grow_without_bound_and_a_chain_goes_back() -> None:
    asked = ["gout " * 1_600, *["b1 b1 b1 b1 b1 b1 b1"] * 11]
    assert len(standing_alone(asked)) <= 8_000
    assert len(standing_alone(["gout " * 1_600, "b" * 7_900])) <= 8_000
    asked = [FIRST, "And for gout?", "What causes it?", "How is it inherited?"]
    assert standing_alone(asked) == "How is gout inherited?"
    assert standing_alone(["How is it treated?"]) == "How is it treated?", "there is nothing to take it from"


def test_the_subject_of_a_question() -> None:
    for question, phrase in [
        ("Which drug is the first choice for primary biliary cholangitis?", "primary biliary cholangitis"),
        ("What is the mechanism of digoxin toxicity?", "digoxin toxicity"),
        ("What causes neurofibromatosis type 1?", "neurofibromatosis type 1"),
        ("Which drug treats the disease caused by a lentivirus?", "the disease caused by a lentivirus"),
        ("What is it?", ""),
    ]:
        assert subject_phrase(question) == phrase
