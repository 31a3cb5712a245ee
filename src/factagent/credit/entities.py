"""Keys of entity names: the same name in another spelling gets the same key.

A cosine cannot tell "Silent Bay" from "Silent Night" in otherwise equal sentences, so encoders that were calibrated for it
also compare subject with subject and object with object (equivalence.py). This module decides the part that needs no encoder.
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
_ROMAN = {"ii": "2", "iii": "3", "iv": "4", "vi": "6", "vii": "7", "viii": "8", "ix": "9"}
_DATE_WORDS = frozenset(
    words(
        "january february march april may june july august september october november december jan feb mar apr jun jul aug sep "
        "sept oct nov dec of on in year st nd rd th about around approximately circa c"
    )
)
NOISE_LENGTH = 7
"""Letters from which a transposed or doubled letter inside a word counts as noise rather than as another name."""


class EntityKeys(NamedTuple):
    """Strings to compare names by: equal `name`s, or the `name` of one against `acronym` or `initialled` of the other."""

    name: str
    acronym: str
    initialled: str


def _letters(text: str) -> str:
    decomposed = unicodedata.normalize("NFKD", text)
    return "".join(char for char in decomposed if not unicodedata.combining(char)).casefold()


def _noise_key(word: str) -> str:
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
    """The keys of a name: titles, articles and company forms dropped, "Moor, Alden" as "Alden Moor", dates as their parts."""
    if name.count(",") == 1 and not re.search(r"\d", name):
        last, first = name.split(",")
        if len(last.split()) == 1 and len(first.split()) == 1:
            name = f"{first} {last}"
    lowered = re.sub(r"\b([a-z])\.(?=[a-z]\b)", r"\1", _letters(name).replace("&", " and ").replace("'s", ""))
    words = _WORD.findall(lowered)
    if re.search(r"\d", name) and all(
        word in _DATE_WORDS or re.fullmatch(r"\d+(st|nd|rd|th)?", word) for word in words
    ):
        signature = number_signature(name)
        return EntityKeys("#" + " ".join((*signature.values, *signature.units)), "", "")
    words = [word for word in words if word not in _DROPPED] or words
    key = " ".join(_noise_key(_ROMAN.get(word, word)) for word in words)
    meaningful = [word for word in words if word not in ("of", "and", "for")]
    acronym = "".join(word[0] for word in meaningful) if len(meaningful) > 1 else ""
    initialled = f"{words[0][0]} {_noise_key(words[-1])}" if len(words) == 2 and words[0].isalpha() else ""
    return EntityKeys(
        key, acronym if len(acronym) > 1 else "", initialled if len(words) == 2 and len(words[0]) > 1 else ""
    )


def same_name(a: EntityKeys, b: EntityKeys) -> bool:
    """True where the keys alone say that two names name one thing."""
    if a.name == b.name:
        return True
    return bool(a.name and a.name in (b.acronym, b.initialled) or b.name and b.name in (a.acronym, a.initialled))
