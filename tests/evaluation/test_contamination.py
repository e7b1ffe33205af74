from __future__ import annotations

from pathlib import Path

import pytest

from medagent.cli.main import main
from medagent.errors import InputError
from medagent.evaluation.benchmarks import MedQABenchmark, StarterBenchmark
from medagent.evaluation.contamination import contamination, ngrams, question_texts, refuse_contaminated
from medagent.types import Question
from tests.support import SHARED_DATA

DATA = SHARED_DATA / "medqa"
WORDS = [f"word{number}" for number in range(100)]


def question(name: str, words: list[str]) -> Question:
    return Question(name, " ".join(words))


def test_ngrams_of_long_short_and_empty_texts() -> None:
    assert len(ngrams(" ".join(WORDS))) == 88
    assert ngrams("What treats gout?") == {("what", "treats", "gout")}
    assert ngrams("?!") == set()


def test_near_duplicates_by_the_share_of_common_grams() -> None:
    tests = [
        question("whole", WORDS),
        question("short", ["what", "treats", "gout"]),
        question("other", [w.upper() + "x" for w in WORDS]),
    ]
    changed = WORDS.copy()
    changed[50] = "another"  # 13 of the 88 grams contain it
    report = contamination(tests, [("changed", " ".join(changed)), ("half", " ".join(WORDS[:40]))])
    assert [(pair.test_id, pair.train_id, pair.overlap) for pair in report.near_duplicates] == [
        ("whole", "changed", 75 / 88)
    ]
    assert (report.tested, report.texts, report.share) == (3, 2, pytest.approx(1 / 3))
    # A short question counts only against the same question, not inside a long text.
    assert contamination(tests, [("long", "word what treats gout word")]).share == 0
    assert [pair.test_id for pair in contamination(tests, [("same", "What treats gout?")]).near_duplicates] == ["short"]
    with pytest.raises(InputError, match="threshold 0"):
        contamination(tests, [], threshold=0)


def test_questions_from_one_template_are_no_duplicates() -> None:
    stem = [f"a{number}" for number in range(14)]  # two common grams of three
    report = contamination([question("t", [*stem, "gout"])], [("s", " ".join([*stem, "mumps"]))])
    assert report.share == 0


def test_the_starter_splits_are_clean() -> None:
    for split in ("validation", "test"):
        report = contamination(
            StarterBenchmark(split).questions(), question_texts(StarterBenchmark("train").questions())
        )
        assert report.near_duplicates == ()


def test_contaminated_training_is_refused() -> None:
    report = contamination([question("t", WORDS), question("u", WORDS[::-1])], [("s", " ".join(WORDS))])
    with pytest.raises(InputError, match=r"1 of 2 test questions \(50.00%\).*such as t and s: 100%"):
        refuse_contaminated(report, allowed_share=0.0, what="training")
    refuse_contaminated(report, allowed_share=0.5, what="training")


def test_the_command_lists_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(WORDS)
    for name in ("test", "train"):
        (tmp_path / f"{name}.jsonl").write_text(f'{{"question": "{text}", "answer": "x", "id": "{name}-1"}}\n')
    arguments = ["contamination", "--benchmark", "jsonl", "--test", str(tmp_path / "test.jsonl")]
    assert main([*arguments, "--train", str(tmp_path / "train.jsonl")]) == 0
    out = capsys.readouterr().out
    assert "100.0%  test-1  train-1" in out
    assert "1 of 1 test questions" in out
    assert main(arguments) == 1
    assert "one of them" in capsys.readouterr().err
    (tmp_path / "corpus.jsonl").write_text(f'{{"title": "t", "text": "{text}"}}\n')
    assert main([*arguments, "--corpus", str(tmp_path / "corpus.jsonl")]) == 0
    assert "1 of 1 test questions" in capsys.readouterr().out


@pytest.mark.real_data
@pytest.mark.skipif(not DATA.exists(), reason="the real MedQA files are not there")
def test_stock_phrases_of_exam_questions_are_no_near_duplicates() -> None:
    tests = MedQABenchmark(str(DATA / "us_4options_dev.jsonl")).questions()
    train = MedQABenchmark(str(DATA / "train_sample_1000.jsonl")).questions()
    report = contamination(tests, question_texts(train))
    # The one pair tells the same story but for its finding ("clear fluid in the cervical canal").
    assert [(pair.test_id, pair.train_id) for pair in report.near_duplicates] == [
        ("medqa:us_4options_dev:610", "medqa:train_sample_1000:67")
    ]
