"""Keys of entity names: the same name in another spelling gets the same key.

A cosine cannot tell "Silent Bay" from "Silent Night" in otherwise equal sentences, so encoders that were
calibrated for it
also compare subject with subject and object with object (equivalence.py). This module decides the part that
needs no encoder.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import NamedTuple

from factagent.credit.numbers import number_signature
from factagent.credit.wordlists import words

_WORD = re.compile(r"[^\W_]+")
_DROPPED = frozenset(
    words("the a an mr mrs ms dr sir dame lord lady saint st inc ltd llc corp corporation company plc gmbh")
)
_NICKNAME_TABLE = (
    "bill:william will:william bob:robert rob:robert dick:richard jim:james jimmy:james joe:joseph tom:thomas "
    "tony:anthony "
    "ted:edward ned:edward mike:michael dave:david dan:daniel sam:samuel ben:benjamin alex:alexander steve:stephen "
    "steven:stephen chris:christopher matt:matthew nick:nicholas fred:frederick liz:elizabeth beth:elizabeth "
    "kate:katherine "
    "kathy:katherine cathy:catherine maggie:margaret peggy:margaret sue:susan jenny:jennifer andy:andrew greg:gregory "
    "ron:ronald ken:kenneth larry:lawrence charlie:charles chuck:charles hank:henry harry:harold jack:john johnny:john"
)
_NICKNAMES = dict(entry.split(":") for entry in words(_NICKNAME_TABLE))
_DISTINGUISHING = frozenset(
    words(
        "north south east west northern southern eastern western northeast northwest southeast southwest "
        "central upper lower "
        "inner outer old new greater lesser little big senior junior sr jr pere fils elder younger democratic"
    )
)
_PLACE_PREFIX = re.compile(r"^(city|town|village|municipality|borough|republic|commune) of (?=\w)")
NOISE_LENGTH = 6
"""Letters (doubled ones counted once) from which a transposed or doubled letter in a word is noise rather than
another name."""


class EntityKeys(NamedTuple):
    """Strings to compare names by: equal `name`s, or the `name` of one against `acronym` or `initialled` of the other.

    `distinguishing` are words that make another thing of the same name (north, junior, ...), `bracket` what stands in
    parentheses after it ("Georgia (country)").
    """

    name: str
    acronym: str
    initialled: str
    distinguishing: tuple[str, ...]
    bracket: str


def _letters(text: str) -> str:
    decomposed = unicodedata.normalize("NFKD", text)
    return "".join(char for char in decomposed if not unicodedata.combining(char)).casefold()


def noise_key(word: str) -> str:
    """Equal for a word and the same word with two letters transposed or one doubled, from NOISE_LENGTH letters on."""
    single = re.sub(r"(.)\1", r"\1", word)
    if len(single) < NOISE_LENGTH or not single.isalpha():
        return word
    return single[0] + "".join(sorted(single[1:-1])) + single[-1]


@lru_cache(maxsize=65_536)
def normalise_text(text: str) -> str:
    """Case, accents, punctuation and blanks removed; numbers keep their digits and decimal points."""
    lowered = re.sub(r"(?<=\d),(?=\d{3}\b)", "", _letters(text))
    return " ".join(re.findall(r"\d+(?:\.\d+)?|[^\W\d_]+", lowered))


@lru_cache(maxsize=65_536)
def entity_keys(name: str) -> EntityKeys:
    """The keys of a name: titles, articles and company forms dropped, "Moor, Alden" as "Alden Moor", numbers
    as values.
    """
    name, bracket = _without_bracket(name)
    if name.count(",") == 1 and not re.search(r"\d", name):
        last, first = name.split(",")
        if len(last.split()) == 1 and len(first.split()) == 1:
            name = f"{first} {last}"
    numbers = number_signature(name)
    if numbers.values:
        parts = [word for word in map(_letters, numbers.words) if word not in _DROPPED]
        is_date = any(value.startswith("month:") for value in numbers.values)
        return EntityKeys(" ".join(sorted(parts) if is_date else parts), "", "", (), bracket)
    lowered = re.sub(r"\b([a-z])\.(?=[a-z]\b)", r"\1", _letters(name).replace("&", " and ").replace("'s", ""))
    found = _WORD.findall(lowered)
    dropped = _DROPPED - {"a"} if re.search(r"\ba\.", name, re.IGNORECASE) else _DROPPED  # "A. Moor" has no article
    found = [word for word in found if word not in dropped] or found
    found = words(_PLACE_PREFIX.sub("", " ".join(found)))
    if len(found) > 1:
        found[0] = _NICKNAMES.get(found[0], found[0])
    key = " ".join(noise_key(word) for word in found)
    meaningful = [word for word in found if word not in ("of", "and", "for")]
    acronym = "".join(word[0] for word in meaningful) if len(meaningful) > 1 else ""
    initialled = f"{found[0][0]} {noise_key(found[1])}" if len(found) == 2 and len(found[0]) > 1 else ""
    distinguishing = tuple(sorted(_DISTINGUISHING.intersection(found))) if len(found) > 1 else ()
    return EntityKeys(key, acronym, initialled, distinguishing, bracket)


def _without_bracket(name: str) -> tuple[str, str]:
    """A name and what stands in parentheses at its end."""
    match = re.fullmatch(r"(.*\S)\s*\(([^()]+)\)\s*", name)
    return (match[1], _letters(match[2]).strip()) if match else (name, "")


def same_name(a: EntityKeys, b: EntityKeys) -> bool:
    """True where the keys alone say that two names name one thing."""
    if a.bracket and b.bracket and a.bracket != b.bracket:
        return False
    if a.name == b.name:
        return True
    return bool(a.name and a.name in (b.acronym, b.initialled) or b.name and b.name in (a.acronym, a.initialled))


def different_name(a: EntityKeys, b: EntityKeys) -> bool:
    """True where the keys alone say that two names name two things: another bracket, or north against south."""
    if a.bracket and b.bracket and a.bracket != b.bracket:
        return True
    return a.distinguishing != b.distinguishing and not same_name(a, b)
