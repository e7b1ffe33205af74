"""Letters that are no options: "E. coli", "B cells", "C-reactive protein".

Names of species are abbreviated by a letter and a point, as an option is marked. Which of the two is meant follows from
the options, else from a list of species that medicine names so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_ABBREVIATED = re.compile(r"\W*([A-J])\.\s?([A-Za-z][a-z]{3,})\b")
# Epithets of species whose genus begins with a letter from A to J.
_EPITHETS = frozenset(
    """abortus albicans anthracis aureus auris bacilliformis baumannii bivia botulinum burgdorferi burnetii canis
    capsulatum cereus coli cloacae dermatitidis difficile diphtheriae dubliniensis ducreyi duodenalis faecalis faecium
    felis flavus fragilis freundii fumigatus gattii glabrata granulosus henselae hepatica histolytica hominis immitis
    influenzae insidiosum intestinalis israelii jejuni krusei lamblia latum lumbricoides medinensis melitensis microti
    multilocularis neoformans nucleatum parapsilosis parvum perfringens pertussis posadasii psittaci pylori quintana
    recurrentis rhusiopathiae septicum stercoralis subtilis tetani trachomatis tropicalis tularensis vaginalis
    vermicularis xylosoxidans""".split()
)
# After an option's letter comes one of these, or none: "B because ...". "B cells" is a name.
_AFTER_A_LETTER = frozenset(
    """according although among and applies as based because but by due fits followed for from given has here if in
    instead is it maybe not of on or over rather remains seems since so than that therefore this though thus to
    was when where which while with would""".split()
)
_WORD_AFTER = re.compile(r"[ \t]+([a-z]+)\b")


def species(text: str, letters: str, options: Sequence[str]) -> tuple[bool, str | None]:
    """Whether `text` begins with an abbreviated species, and the option that names it.

    An option of that very letter which holds the epithet is named by either reading.

    >>> species("E. coli", "AB", ["Escherichia coli", "Proteus"])
    (True, 'A')
    """
    found = _ABBREVIATED.match(text)
    if not found:
        return False, None
    letter, epithet = found[1], found[2].lower()
    epithet = {"diff": "difficile"}.get(epithet, epithet)
    wordings = dict(zip(letters, (option.lower() for option in options), strict=False))
    same = [each for each, wording in wordings.items() if re.search(rf"\b{epithet}\b", wording)]
    if letter in same:
        return False, None
    if len(same) == 1 and wordings[same[0]].startswith(letter.lower()):
        return True, same[0]
    return epithet in _EPITHETS, None


def begins_a_name(letter: str, after: str) -> bool:
    """Whether a letter is the beginning of a name, by the text after it.

    >>> begins_a_name("B", " cells"), begins_a_name("C", "-reactive protein"), begins_a_name("B", " because it is oral")
    (True, True, False)
    """
    if re.match(r"\w|['’]\w|[-\u2010\u2011]\w", after, re.ASCII):
        return True
    word = _WORD_AFTER.match(after)
    return word is not None and word[1] not in _AFTER_A_LETTER
