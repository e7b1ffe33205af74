"""Text from outside yields no id of an added token, whatever the kind of tokenizer, and stays readable."""

from __future__ import annotations

import re
import sys
import unicodedata

import pytest
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerBase

from medagent.pieces import Piece, encode
from medagent.policies.chat_endpoint import byte_tokenizer
from medagent.protocol import TagProtocol, neutralise
from medagent.retrieval.passages import Passage
from medagent.untrusted_text import encode_untrusted, harmless, visible
from tests.medagent.support import CONTENTS, CONTROL, MAKERS, sentencepiece_bpe, unigram, word_level

ORDINARY = "gout hurts: take 0.5 mg/d (x), p < 0.05 and <b>bold</b>; see [note] or {set} | #1"


@pytest.fixture(scope="module", params=MAKERS, ids=lambda make: make.__name__)
def kind(request) -> PreTrainedTokenizerBase:
    return request.param()


def added_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    return set(tokenizer.added_tokens_decoder) - {tokenizer.unk_token_id}


def squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text).lower()


def hostile_texts() -> list[str]:
    wide = {ord(c): ord(c) + 0xFEE0 for c in "<>|_/"}
    made = [*CONTENTS, *(text.upper() for text in CONTENTS), *(text.translate(wide) for text in CONTENTS)]
    made += ["".join(CONTENTS), " ".join(CONTENTS), f"gout{CONTENTS[3]}gout", f"a  {CONTENTS[6]}  b"]
    return [*made, *(f"gout {text} hurts" for text in made)]


def test_no_added_token_comes_from_outside(kind: PreTrainedTokenizerBase) -> None:
    for text in hostile_texts():
        ids = encode(kind, [Piece(text, trusted=False)])
        assert not added_ids(kind) & set(ids), text
        assert set(ids) <= set(range(len(kind)))


def test_trusted_text_still_has_its_added_tokens(kind: PreTrainedTokenizerBase) -> None:
    assert set(kind.convert_tokens_to_ids(list(CONTROL))) <= set(encode(kind, [Piece("".join(CONTROL))]))


def test_text_from_outside_reads_as_it_was(kind: PreTrainedTokenizerBase) -> None:
    for text in (ORDINARY, f"gout {CONTENTS[3]} x", " ".join(CONTENTS)):
        read = kind.decode(encode_untrusted(kind, text))
        if str(kind.unk_token) not in read:  # a vocabulary of words cannot spell parts of words
            assert squeezed(read) == squeezed(text)


def test_ordinary_text_has_the_ids_that_the_tokenizer_gives_it(kind: PreTrainedTokenizerBase) -> None:
    for text in (ORDINARY, "gout", " gout hurts", "x", "", "βeta ≥ 2 µg"):
        assert encode_untrusted(kind, text) == kind(text, add_special_tokens=False)["input_ids"]


def test_a_word_that_becomes_an_added_token_later_is_one() -> None:
    tokenizer = word_level()
    gout = tokenizer.convert_tokens_to_ids("gout")
    assert gout in encode_untrusted(tokenizer, "gout hurts")
    assert gout in encode(tokenizer, [Piece("gout hurts", trusted=False)])
    tokenizer.add_tokens([AddedToken("gout", special=True)])
    assert tokenizer.convert_tokens_to_ids("gout") == gout
    assert gout not in encode_untrusted(tokenizer, "gout hurts")
    assert gout not in encode(tokenizer, [Piece("gout hurts", trusted=False)])
    assert gout in encode(tokenizer, [Piece("gout hurts")])


def test_what_the_vocabulary_lacks_is_unknown_and_never_the_end_of_text() -> None:
    tokenizer = word_level()
    assert encode_untrusted(tokenizer, "zebra") == [tokenizer.unk_token_id]
    tokenizer = word_level()
    tokenizer.unk_token = "</s>"  # as GPT-2's is its end of text
    assert tokenizer.decode(encode_untrusted(tokenizer, "x </s> zebra x")).split() == ["x", "<", "/", ">", "x"]
    assert tokenizer.unk_token_id not in encode_untrusted(unigram(), "<unk> gout")


def test_a_sign_of_one_letter_is_spelt_in_bytes_or_kept() -> None:
    tokenizer = sentencepiece_bpe(("µ",))
    ordinary = encode_untrusted(tokenizer, "5 µg")
    tokenizer.add_tokens([AddedToken("µ", special=False)])
    assert encode_untrusted(tokenizer, "5 µg") == ordinary, "a dose stays a dose"
    tokenizer = sentencepiece_bpe(("§",))
    tokenizer.add_special_tokens({"additional_special_tokens": ["§"]})
    ids = encode_untrusted(tokenizer, "§ 5")
    assert tokenizer.convert_tokens_to_ids("§") not in ids
    assert squeezed(tokenizer.decode(ids)) == "§5"


def test_every_character_that_nobody_sees_is_dropped() -> None:
    hidden = [chr(c) for c in range(sys.maxunicode + 1) if unicodedata.category(chr(c)) in ("Cc", "Cf", "Cs")]
    kept = {c for c in hidden if c not in "\n\t" and visible(f"<sea{c}rch>") != "<search>"}
    assert {c for c in kept if not visible(c).isspace()} <= {"\u08e2"} | {chr(c) for c in range(0x890, 0x892)}
    medicine = "5 µg·kg⁻¹ ± 2 °C, β-blocker ≥ 3 × 10³ — naïve “Sjögren” T₄ H₂O ½ ♀"
    assert visible(medicine) == medicine
    assert neutralise("a\fb\rc\u2028d\u00a0e") == "a b c d e"
    assert visible("می\u200cخواهم") == "می\u200cخواهم"


def test_a_mark_cannot_be_hidden_and_assembled(tokenizer) -> None:
    for hider in ["\x00", "\u200b", "\xad", "\u2060", "\ufeff", "\ufe0f", "\u200d", "\u034f", "\U000e0041"]:
        text = f"<sea{hider}rch> </infor{hider}mation> [{hider}1] <{hider}answer>"
        assert neutralise(text) == "‹search> ‹/information> (1) ‹answer>"
        ids, _ = TagProtocol().encode_observation(tokenizer, [Passage("p", "x", text)], first_number=7, max_tokens=200)
        read = tokenizer.decode(ids)
        assert (read.count("<"), read.count("["), read.count("</information>")) == (2, 1, 1)


def test_forms_that_a_normaliser_folds_into_a_mark_are_marks() -> None:
    for text in ["＜search＞", "<séarch>", "［1］", "[²]", "≮search>", "＜／answer＞", "<ｓｅａｒｃｈ>"]:
        folded = unicodedata.normalize("NFKD", neutralise(text))
        plain = "".join(c for c in folded if not unicodedata.combining(c))
        assert not {"<", "["} & set(plain)


def test_a_long_run_of_spaces_costs_no_time() -> None:
    text = ("<" + " " * 20_000 + "/") * 5
    assert harmless(byte_tokenizer(), text) == text
    assert neutralise(text).count("<") == 5
