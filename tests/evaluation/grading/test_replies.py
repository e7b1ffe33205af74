"""Whole replies of any model: 200 labelled by hand, then kinds one by one."""

from __future__ import annotations

import json

import pytest

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


@pytest.mark.parametrize(
    ("raw", "options", "strict", "lenient"),
    [
        ("Thus the answer is D?\n</thinking>\n(B)", DRUGS, "B", "B"),
        ("<unused94>thought\nIs it A?<unused95>B", DRUGS, "B", "B"),
        ("<|begin_of_thought|>A<|end_of_thought|>\n\nThe answer is B.", DRUGS, None, "B"),
        ("## Thinking\n\nMaybe A.\n\n## Final Response\n\nB", DRUGS, "B", "B"),
        ("<|START_THINKING|>x A<|END_THINKING|>B", DRUGS, "B", "B"),
        ("<unused94>thought\nThe answer is B, but", DRUGS, None, None),
        ("There is no role for aspirin here.\nFinal answer: B", DRUGS, None, "B"),
        (
            "**Answer: B**\n\nWarfarin is taken by mouth. " + "The INR must be checked often. " * 9,
            DRUGS,
            None,
            "B",
        ),
        (
            "B\n\n" + "It is taken by mouth, and its effect is measured by the INR. " * 3,
            DRUGS,
            None,
            "B",
        ),
        ('The answer is: "no"', ANSWERS, None, "B"),
        ("Answer: No, there was no difference.", ANSWERS, None, "B"),
        ("Conclusion: no.", ANSWERS, None, "B"),
        ("So, no.", ANSWERS, None, "B"),
        ("The evidence does not support it. No.", ANSWERS, None, "B"),
        ("<answer>B. burgdorferi</answer>", GERMS, None, "C"),
        ("<answer>E.coli</answer>", GERMS, None, "A"),
        ("<answer>A. baumannii</answer>", GERMS, None, None),
        ("The answer is E. faecalis, which is found in the gut.", GERMS, None, None),
        ("The answer is A fib.", DRUGS, None, None),
        ("The answer is B12.", DRUGS, None, None),
        ("The answer is A positive.", BLOOD, None, "A"),
        ("Answer: B negative", BLOOD, None, "B"),
        ("The answer is group B streptococcus.", DRUGS, None, None),
        ("Answer: $B$", DRUGS, "B", "B"),
        ("Answer: `B`", DRUGS, "B", "B"),
        ("ANSWER: B", DRUGS, "B", "B"),
        ("Answer:B", DRUGS, "B", "B"),
        ("answer: (b)", DRUGS, None, "B"),
        ('Answer: "B"', DRUGS, "B", "B"),
        ("Answer: B)", DRUGS, "B", "B"),
        ("Answer: Option B", DRUGS, "B", "B"),
        ("Final Answer: **B) warfarin**", DRUGS, "B", "B"),
        ("**Final Answer**: B", DRUGS, "B", "B"),
        ("Ans: B", DRUGS, "B", "B"),
        ("Correct option: B", DRUGS, "B", "B"),
        ("b.", DRUGS, None, "B"),
        ("(b)", DRUGS, None, "B"),
        ("b) warfarin", DRUGS, None, "B"),
        ("option b", DRUGS, None, "B"),
        ("It is oral.\n\nB.", DRUGS, None, "B"),
        ("It is oral.\n\nb", DRUGS, None, "B"),
        ("정답 : B번", DRUGS, None, "B"),
        ("따라서 정답은 **B**입니다", DRUGS, None, "B"),
        ("选项B正确", DRUGS, None, "B"),
        ("B选项正确", DRUGS, None, "B"),
        ("答案:B", DRUGS, None, "B"),
        ("La respuesta es B", DRUGS, None, "B"),
        ("respuesta final: B", DRUGS, None, "B"),
        ("La respuesta correcta es la opción B.", DRUGS, None, "B"),
        ("La bonne réponse est la B", DRUGS, None, "B"),
        ("Die Antwort ist B.", DRUGS, None, "B"),
        ("Antwort B ist richtig.", DRUGS, None, "B"),
        ("Korrekt ist B.", DRUGS, None, "B"),
        ("A resposta é B.", DRUGS, None, "B"),
        ("Letra B", DRUGS, None, "B"),
        ("Gabarito: B", DRUGS, None, "B"),
        ("La opción B es la correcta.", DRUGS, None, "B"),
        ("B es la respuesta correcta.", DRUGS, None, "B"),
        ("La respuesta no es A, sino B.", DRUGS, None, "B"),
        ("La respuesta correcta no es A.", DRUGS, None, None),
        ("Sorry, I can't provide medical advice.", DRUGS, None, None),
        ("As an AI, I don't have the ability to diagnose.", DRUGS, None, None),
        ("{'answer': ['A', 'C']}", DRUGS, None, None),
        ('{"answer": ["A", "A"]}', DRUGS, "A", "A"),
        ("Answer: ruling out A and C, we are left with B", DRUGS, None, "B"),
        ("By exclusion: B", DRUGS, None, "B"),
        ("Only B remains.", DRUGS, None, "B"),
        ("That leaves us with only option B.", DRUGS, None, "B"),
        ("(B) rather than (C)", DRUGS, None, "B"),
        ("B, and not C", DRUGS, None, "B"),
        ("The answer is B (not C).", DRUGS, None, "B"),
        ("It is B instead of C.", DRUGS, None, "B"),
        ("The answer is B, C is wrong.", DRUGS, None, "B"),
        ("The answer could be A, but it is more likely B.", DRUGS, None, "B"),
        ("A: no. B: yes, it is oral. C: no.", DRUGS, None, None),
        ("I would say C is wrong and B is right.", DRUGS, None, "B"),
        ("The patient's answer is a matter of taste.", DRUGS, None, None),
        ("Vitamin C deficiency", DRUGS, None, None),
        ("Question A asks for drugs.", DRUGS, None, None),
        ("In phase B of the trial, aspirin and heparin were equal.", DRUGS, None, None),
        ("E. Coli", GERMS, None, "A"),
        ("It is C. diff.", GERMS, None, "D"),
        ("E. coli is not the cause; the answer is Proteus mirabilis.", GERMS, None, "B"),
        ("Answer: B\n\nNote: had it been an injection, the answer would be C.", DRUGS, None, "B"),
        ("Answer: B\n\nIf renal failure was present, I would choose C.", DRUGS, None, "B"),
        ("If she were pregnant, the answer would be C. She is not, so I choose B.", DRUGS, None, "B"),
        ("故选B。若怀孕则选C。", DRUGS, None, "B"),
        ("The trap answer is A.", DRUGS, None, None),
        ("The second-best answer is C. The best answer is B.", DRUGS, None, "B"),
        ("Many students choose A, but the answer is B.", DRUGS, None, "B"),
        ("At first sight the answer is C. Heparin is injected. Hence warfarin (B).", DRUGS, "B", "B"),
        ("Going A to Z, the drug is warfarin.", DRUGS, None, "B"),
        ("Option A is correct about platelets but does not need the INR.", DRUGS, None, None),
        ("The answer is A if", DRUGS, None, None),
        ("The answer A is wrong. The answer is B.", DRUGS, None, "B"),
        ("Avoid warfarin.", DRUGS, None, None),
        ("Warfarin is contraindicated.", DRUGS, None, None),
        ("不选A。", DRUGS, None, None),
        ("答案：B、C", DRUGS, None, None),
        ("정답은 A가 아닙니다.", DRUGS, None, None),
        ("<analysis>The answer is A, but let me", DRUGS, None, None),
        ("Answer: A. No, B.", DRUGS, None, None),
        ("All options except B are wrong.", DRUGS, None, "B"),
        ("All options but (C) can be excluded.", DRUGS, None, "C"),
        ("A and C are incorrect. Therefore B.", DRUGS, None, "B"),
        ("It must act by mouth, thus (B).", DRUGS, "B", "B"),
        ("So A beta blocker is not meant.", DRUGS, None, None),
        ("Thus, the most appropriate option is C.", DRUGS, None, "C"),
        ("The most suitable drug would be B.", DRUGS, None, "B"),
        ("The most consistent vitamin is B complex.", DRUGS, None, None),
        ("Letter: C", DRUGS, None, "C"),
        ("- [ ] A\n- [x] B\n- [ ] C", DRUGS, None, "B"),
        ("- [x] A\n- [x] B\n- [ ] C", DRUGS, None, None),
        ("[x] A 12-lead ECG was done", DRUGS, None, None),
        ("so C. difficile is excluded", DRUGS, None, None),
        ("Not all, but A is wrong.", DRUGS, None, None),
        ("The answer is (A). Wait, actually the answer is (B).", DRUGS, None, "B"),
    ],
)
def test_kinds_of_replies(raw: str, options: tuple[str, ...], strict: str | None, lenient: str | None) -> None:
    assert read(raw, options) == (strict, lenient)
