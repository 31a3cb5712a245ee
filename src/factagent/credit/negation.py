"""Negation and role qualifiers: words that turn a relation into another one, read word by word (credit.md
section 2).
"""

from __future__ import annotations

import re
from functools import lru_cache

from factagent.credit.wordlists import words

_WORD = re.compile(r"[^\W_]+(?:'[^\W\d_]+)?")
_CUES = frozenset(
    words(
        "not no never without neither nor none nobody nowhere cannot cant wont isnt wasnt arent werent dont "
        "doesnt didnt hasnt "
        "havent hadnt couldnt wouldnt shouldnt aint fail fails failed failing deny denies denied denying refuse "
        "refuses refused "
        "decline declines declined lack lacks lacked lacking reject rejects rejected"
    )
)
_WITH_TO = frozenset(
    {"fail", "fails", "failed", "failing", "refuse", "refuses", "refused", "decline", "declines", "declined"}
)
"""Negations only before "to" (or "in" for fail): "declined to join" denies joining, "refused the offer" is its
own relation."""
_NEGATED_WORDS = frozenset(
    words(
        "unable unaffiliated unavailable unaware unbeaten uncommon unconnected unconfirmed uncredited "
        "undefeated unemployed "
        "unequal unfinished unfit unhappy uninhabited uninvolved uninjured unknown unlawful unlicensed unlike "
        "unlikely unlisted "
        "unmarried unnamed unnecessary unofficial unofficially unopposed unpaid unpopular unpublished "
        "unreleased unrelated unsafe "
        "unsigned unsolved unsuccessful unsuccessfully unsuitable unsupported untrue unused unwilling inactive "
        "incapable "
        "incompatible incomplete incorrect independent indirect indirectly ineffective ineligible inequal "
        "invalid invisible "
        "impossible improbable illegal illegitimate irregular irrelevant disagree disagrees disagreed disallow "
        "disallowed "
        "disapprove disapproves disapproved disconnected dislike dislikes disliked dismissive disobeyed "
        "disproved disproves "
        "disqualified dissatisfied dissimilar distrusts nonmember nonresident nonexistent nonprofit"
    )
)
_QUALIFIERS = frozenset(
    words(
        "vice deputy former formerly ex acting interim assistant associate honorary emeritus adoptive foster "
        "step half co joint "
        "great grand alleged allegedly reported reportedly supposed supposedly rumored rumoured attempted "
        "planned proposed "
        "fictional future next previous previously provisional would might may could should will hardly barely "
        "rarely seldom "
        "partly partially almost nearly initially originally temporarily "
        "non pre post anti pro sub under nearly unsuccessfully only possibly probably"
    )
)
_ENTITY_QUALIFIERS = frozenset(words("vice deputy former ex acting interim assistant honorary emeritus step co"))
_QUALIFYING_PREFIX = re.compile(
    r"(co|step|grand|god|half|vice|ex)-?(?=(found|author|wr|direct|produc|own|creat|star|host|develop|edit|invent|design|"
    r"father|mother|son$|daughter|brother|sister|parent|child|president|chair|captain|champion|wife|husband|minister)"
    r"[a-z]*)"
)
_IN_LAW = re.compile(r"\bin[- ]law\b")


def _lower(text: str) -> str:
    return text.replace("’", "'").replace("‘", "'").casefold()


@lru_cache(maxsize=65_536)
def is_negated(relation: str) -> bool:
    """True where a word of the relation denies it: a cue, a contraction, "non-", or a word of the closed prefix list.

    Words are looked at, not substrings: "notable", "united" and "noted for" affirm. "not only" affirms as well.
    """
    words = _WORD.findall(_lower(relation))
    for index, word in enumerate(words):
        following = words[index + 1] if index + 1 < len(words) else ""
        if word in _WITH_TO:
            if following == "to" or (following == "in" and word.startswith("fail")):
                return True
        elif word == "not" and following == "only":
            continue
        elif word in _CUES or word.endswith("n't") or word in _NEGATED_WORDS or (word == "non" and following):
            return True
    return False


@lru_cache(maxsize=65_536)
def starts_negated(entity: str) -> bool:
    """True for an object such as "not a member": the "not" slipped out of the relation."""
    return _lower(entity).startswith("not ")


@lru_cache(maxsize=65_536)
def qualifiers(text: str, in_entity: bool = False) -> frozenset[str]:
    """The words and prefixes that make another role of a role: vice, former, co-, step-, -in-law, ...

    In a name only those that never belong to the name itself are read (`in_entity`): "Great Britain" has none.
    """
    lowered = _lower(text)
    found = {
        match[1] for word in re.findall(r"[a-z]+(?:-[a-z]+)*", lowered) if (match := _QUALIFYING_PREFIX.match(word))
    }
    if _IN_LAW.search(lowered):
        found.add("in-law")
    table = _ENTITY_QUALIFIERS if in_entity else _QUALIFIERS
    return frozenset(found | (table & set(_WORD.findall(lowered))))
