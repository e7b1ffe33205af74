"""Verbs of factual sentences, in the third person: a closed list, so that no noun is taken for a verb."""

from __future__ import annotations

_BASES = (
    "absorb accompany accumulate activate act affect aid allow anchor appear arise articulate assist attach attack "
    "balance become begin bind block break bring carry catalyze cause change circulate clear coat combine conduct "
    "connect consist contain contract control convert coordinate cover create cushion damage decrease deliver depend "
    "destroy detect determine develop differentiate digest direct dissolve divide drain elevate enable encircle "
    "enclose encode engulf enhance enter extend fight filter flex flow form function generate give grow happen help "
    "hold house impair improve increase infect inhibit initiate innervate insulate integrate interfere involve join "
    "keep kill lack last lead lie limit line link lower lubricate maintain make measure mediate modify monitor move "
    "nourish occur open originate pass perform permit prevent process produce project promote protect provide pull "
    "pump raise reabsorb receive recognize reduce regulate relax release relay remove repair replace require resemble "
    "result rotate run sense separate serve show slow sort span specialize spread start stimulate stop store "
    "strengthen stretch supply support suppress surround synthesize take target tend transfer transform transmit "
    "transport trap travel treat trigger turn use vary weaken wrap"
).split()
_ODD = {"carry": "carries", "supply": "supplies", "vary": "varies", "modify": "modifies", "accompany": "accompanies"}


def _third(base: str) -> str:
    if base.endswith(("s", "sh", "ch", "x", "z")):
        return f"{base}es"
    return _ODD.get(base, f"{base}s")


THIRD_PERSON = frozenset(map(_third, _BASES))
PLURAL = frozenset(_BASES)
SINGULAR_AUXILIARIES = frozenset(("is", "has", "was", "does"))
PLURAL_AUXILIARIES = frozenset(("are", "have", "were", "do"))
MODALS = frozenset(("can", "may"))
ADVERBS = frozenset(
    "also usually often typically mainly mostly primarily commonly generally frequently only directly normally "
    "predominantly particularly specifically sometimes rarely most largely almost always".split()
)
PARTICIPLES = (
    "characterized characterised caused marked defined associated made formed produced secreted released located "
    "found used composed known inherited transmitted spread derived linked accompanied responsible present involved "
    "resulting"
).split()


def begins_with_verb(clause: str, *, plural: bool) -> bool:
    """Whether a clause begins with a finite verb of that number, after adverbs at most."""
    words = [word for word in clause.lower().split() if word not in ADVERBS]
    if not words:
        return False
    wanted = (PLURAL | PLURAL_AUXILIARIES) if plural else (THIRD_PERSON | SINGULAR_AUXILIARIES)
    return words[0] in wanted | MODALS
