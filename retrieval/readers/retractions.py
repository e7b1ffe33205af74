"""What a title says of a retraction: that the article was retracted, or that this is the notice.

Publishers send retracted articles to PubMed and PMC under titles such as "RETRACTED: ..." (Elsevier), "WITHDRAWN: ..."
(Cochrane) or "... (Retracted article. See vol. 3, pg. 5)". Notices are called "Retraction: ..." or "Retraction notice".
"Retraction of the tongue" and "Withdrawn patients" are neither.
"""

from __future__ import annotations

import re

_THING = r"(?:article|paper|publication|chapter|manuscript|study|review|report|letter|protocol)"
_RETRACTED = re.compile(
    rf"^\W*(?i:(?:this {_THING} (?:has been|was) )?(?:retracted|withdrawn)|temporary removal|removed)"
    rf"(?:\s+(?i:{_THING}))?\s*(?::|[\])\u2013\u2014]|\.$|$)"
    r"|^\W*(?:RETRACTED|WITHDRAWN)\b(?=.*[a-z])"  # and not a title that is all in capitals
    rf"|^\W*(?i:{_THING} (?:retracted|withdrawn)\s*:)"
    rf"|[:.\u2013\u2014-]\s*(?i:retracted|withdrawn)(?:\s+(?i:{_THING}))?\W*$"
    rf"|[\[(]\s*(?i:retracted|withdrawn)(?:\s+(?i:{_THING}))?\s*(?:[.:,;][^\])]*|(?i:see|in|by)\b[^\])]*)?[\])]\W*$"
)
_NOTICE = re.compile(
    r"^\W*(?:(?:notice|statement|note|notification) of )(?:retraction|withdrawal)\b"
    r"|^\W*(?:editorial |publisher(?:'s|\u2019s)? |authors?(?:'s?|s?\u2019)? )?retraction"
    r"(?:\s+(?:notice|note|statement|and republication))?\s*(?:[:\u2014]|\.(?:\s|$)|(?:to|for)\s*[:\"\u201c\u2018'])"
    r"|^\W*retraction (?:to|for) [A-Z][\w'\u2019-]+ et al\b"
    r"|^\W*(?:retraction|withdrawal|removal) (?:notice|note|statement)\b"
    rf"|^\W*retraction (?:of|to|for)\s*(?:{_THING}\b|[:\"\u201c\u2018'])",
    re.IGNORECASE,
)


def is_retracted(title: str) -> bool:
    """Whether a title marks its article as retracted or withdrawn.

    >>> [is_retracted(title) for title in ("RETRACTED: Vitamin Q.", "Withdrawn patients in trials", "X [retracted]")]
    [True, False, True]
    """
    return bool(_RETRACTED.search(title))


def is_notice(title: str) -> bool:
    """Whether a title is that of a retraction's notice.

    >>> [is_notice(title) for title in ("Retraction: Fictase in myeloma", "Retraction of the tongue in infants")]
    [True, False]
    """
    return bool(_NOTICE.search(title))


def why_left_out(title: str) -> str:
    """Why an article with this title is left out; empty where its title says nothing."""
    if is_notice(title):
        return "is the notice of a retraction"
    return "is a retracted article" if is_retracted(title) else ""
