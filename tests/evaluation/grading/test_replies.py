"""Whole replies of any model: 200 labelled by hand, then kinds one by one."""

from __future__ import annotations

import json

from medagent.evaluation.grading.replies import read_reply
from tests.support import ROOT

LABELS = [
    json.loads(line)
    for line in (ROOT / "tests" / "evaluation" / "reply_labels.jsonl").read_text(encoding="utf-8").splitlines()
]
LETTERS = "ABCDE"
DRUGS = ("aspirin", "warfarin", "heparin", "none of the above")
GERMS = (
    "Escherichia coli",
    "Proteus mirabilis",
    "Borrelia burgdorferi",
    "Clostridioides difficile",
    "Staphylococcus saprophyticus",
)
ANSWERS = ("yes", "no", "maybe")
BLOOD = ("A positive", "B negative", "AB positive", "O negative")


def read(raw: str, options: tuple[str, ...], *, asked: bool = False) -> tuple[str | None, str | None]:
    found = read_reply(raw, LETTERS[: len(options)], options, last_line_asked=asked)
    return found.strict, found.lenient


def test_labelled_replies_are_read_as_labelled() -> None:
    """A label's `lenient` is the option that a person takes the reply to name."""
    assert len(LABELS) > 200
    found = [(label, *read(label["raw"], tuple(label["options"]), asked=label["asked"])) for label in LABELS]
    strict = [(label, one) for label, one, _ in found if one]
    lenient = [(label, one) for label, _, one in found if one]
    assert [label["raw"] for label, one in strict if one != label["lenient"]] == []
    assert [label["raw"] for label, one in lenient if one != label["lenient"]] == []
    named = [label for label in LABELS if label["lenient"]]
    assert len(lenient) >= 0.95 * len(named)
    assert [label["raw"] for label, one, _ in found if label["strict"] and not one] == [
        "<think>first thought: A</think>So far so good.<think>second thought: C</think>\n(B)"
    ]


def test_labelled_outcomes_tell_truncated_several_and_declined_apart() -> None:
    for label in LABELS:
        found = read_reply(
            label["raw"], LETTERS[: len(label["options"])], label["options"], last_line_asked=label["asked"]
        )
        if label["outcome"] in ("truncated", "multiple", "abstained"):
            assert found.outcome.value == label["outcome"], label["raw"]
        assert found.refused == (label["kind"] == "refusal" and label["lenient"] is None), label["raw"]


# Kinds of replies about DRUGS, separated by bars: B by either reading, leniently alone, or none.
STRICTLY_B = (
    'Answer: $B$|Answer: `B`|ANSWER: B|Answer:B|Answer: "B"|Answer: B)|Answer: Option B|'
    "Final Answer: **B) warfarin**|**Final Answer**: B|Ans: B|Correct option: B|"
    "At first sight the answer is C. Heparin is injected. Hence warfarin (B).|It must act by mouth, thus (B)."
)
LENIENTLY_B = (
    "answer: (b)|b.|(b)|b) warfarin|option b|정답 : B번|따라서 정답은 **B**입니다|选项B正确|B选项正确|答案:B|"
    "La respuesta es B|respuesta final: B|La respuesta correcta es la opción B.|La bonne réponse est la B|"
    "Die Antwort ist B.|Antwort B ist richtig.|Korrekt ist B.|A resposta é B.|Letra B|Gabarito: B|"
    "La opción B es la correcta.|B es la respuesta correcta.|La respuesta no es A, sino B.|"
    "Answer: ruling out A and C, we are left with B|By exclusion: B|Only B remains.|"
    "That leaves us with only option B.|(B) rather than (C)|B, and not C|The answer is B (not C).|"
    "It is B instead of C.|The answer is B, C is wrong.|The answer could be A, but it is more likely B.|"
    "I would say C is wrong and B is right.|If she were pregnant, the answer would be C. She is not, so I choose B.|"
    "故选B。若怀孕则选C。|The second-best answer is C. The best answer is B.|"
    "Many students choose A, but the answer is B.|Going A to Z, the drug is warfarin.|"
    "The answer A is wrong. The answer is B.|All options except B are wrong.|A and C are incorrect. Therefore B.|"
    "The most suitable drug would be B.|The answer is (A). Wait, actually the answer is (B)."
)
NONE_NAMED = (
    "The answer is A fib.|The answer is B12.|The answer is group B streptococcus.|La respuesta correcta no es A.|"
    "Sorry, I can't provide medical advice.|As an AI, I don't have the ability to diagnose.|"
    "{'answer': ['A', 'C']}|A: no. B: yes, it is oral. C: no.|The patient's answer is a matter of taste.|"
    "Vitamin C deficiency|Question A asks for drugs.|In phase B of the trial, aspirin and heparin were equal.|"
    "The trap answer is A.|Option A is correct about platelets but does not need the INR.|The answer is A if|"
    "Avoid warfarin.|Warfarin is contraindicated.|不选A。|答案：B、C|정답은 A가 아닙니다.|"
    "<analysis>The answer is A, but let me|Answer: A. No, B.|So A beta blocker is not meant.|"
    "The most consistent vitamin is B complex.|[x] A 12-lead ECG was done|so C. difficile is excluded|"
    "Not all, but A is wrong."
)


def test_kinds_of_replies_about_drugs() -> None:
    for replies, named in ((STRICTLY_B, ("B", "B")), (LENIENTLY_B, (None, "B")), (NONE_NAMED, (None, None))):
        for raw in replies.split("|"):
            assert read(raw, DRUGS) == named, raw


def test_other_kinds_of_replies() -> None:
    for raw, options, strict, lenient in (
        ("Thus the answer is D?\n</thinking>\n(B)", DRUGS, "B", "B"),
        ("<unused94>thought\nIs it A?<unused95>B", DRUGS, "B", "B"),
        ("<|begin_of_thought|>A<|end_of_thought|>\n\nThe answer is B.", DRUGS, None, "B"),
        ("## Thinking\n\nMaybe A.\n\n## Final Response\n\nB", DRUGS, "B", "B"),
        ("<|START_THINKING|>x A<|END_THINKING|>B", DRUGS, "B", "B"),
        ("<unused94>thought\nThe answer is B, but", DRUGS, None, None),
        ("There is no role for aspirin here.\nFinal answer: B", DRUGS, None, "B"),
        ("**Answer: B**\n\nWarfarin is taken by mouth. " + "The INR must be checked often. " * 9, DRUGS, None, "B"),
        ("B\n\n" + "It is taken by mouth, and its effect is measured by the INR. " * 3, DRUGS, None, "B"),
        ('The answer is: "no"', ANSWERS, None, "B"),
        ("Answer: No, there was no difference.", ANSWERS, None, "B"),
        ("Conclusion: no.", ANSWERS, None, "B"),
        ("So, no.", ANSWERS, None, "B"),
        ("The evidence does not support it. No.", ANSWERS, None, "B"),
        ("<answer>B. burgdorferi</answer>", GERMS, None, "C"),
        ("<answer>E.coli</answer>", GERMS, None, "A"),
        ("<answer>A. baumannii</answer>", GERMS, None, None),
        ("The answer is E. faecalis, which is found in the gut.", GERMS, None, None),
        ("The answer is A positive.", BLOOD, None, "A"),
        ("Answer: B negative", BLOOD, None, "B"),
        ("It is oral.\n\nB.", DRUGS, None, "B"),
        ("It is oral.\n\nb", DRUGS, None, "B"),
        ('{"answer": ["A", "A"]}', DRUGS, "A", "A"),
        ("E. Coli", GERMS, None, "A"),
        ("It is C. diff.", GERMS, None, "D"),
        ("E. coli is not the cause; the answer is Proteus mirabilis.", GERMS, None, "B"),
        ("Answer: B\n\nNote: had it been an injection, the answer would be C.", DRUGS, None, "B"),
        ("Answer: B\n\nIf renal failure was present, I would choose C.", DRUGS, None, "B"),
        ("All options but (C) can be excluded.", DRUGS, None, "C"),
        ("Thus, the most appropriate option is C.", DRUGS, None, "C"),
        ("Letter: C", DRUGS, None, "C"),
        ("- [ ] A\n- [x] B\n- [ ] C", DRUGS, None, "B"),
        ("- [x] A\n- [x] B\n- [ ] C", DRUGS, None, None),
    ):
        assert read(raw, options) == (strict, lenient), raw
