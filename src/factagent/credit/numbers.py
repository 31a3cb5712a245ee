"""The numbers of a statement: two statements with different numbers are different facts (credit.md section 2).

`number_signature` reads digits with separators and decimals, ordinals, number words, Roman numerals after a
name and the
parts of a date. Units, currencies, bounds ("more than") and quantifiers ("all", "some") are read beside the values, so
that "5 km" differs from "5 miles" and "over 50" from "under 50".
"""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal
from functools import lru_cache
from typing import NamedTuple

from factagent.credit.wordlists import words


class NumberSignature(NamedTuple):
    """Sorted multisets of what a text counts; equal signatures are necessary for equal facts."""

    values: tuple[str, ...]
    """Values in plain decimal notation; a month that is named or stands in an ISO date is `month:N`."""
    units: tuple[str, ...]
    """Canonical units and currencies that stand beside a number."""
    quantities: tuple[str, ...]
    """Bounds ("<", ">") before a number, and quantifiers."""
    words: tuple[str, ...]
    """The text in lower case with every number, unit and quantifier in canonical form, punctuation dropped."""


_UNITS_OF = {
    "km": "km kms kilometer kilometers kilometre kilometres", "m": "metre metres meter meters",
    "cm": "cm centimeter centimeters centimetre centimetres", "mm": "mm millimetre millimetres millimeter millimeters",
    "mi": "mi mile miles", "ft": "ft foot feet", "in": "inch inches", "yd": "yard yards yd",
    "km2": "km2 km² sqkm", "ha": "ha hectare hectares", "acre": "acre acres",
    "kg": "kg kgs kilogram kilograms kilo kilos", "g": "g gram grams gramme grammes", "lb": "lb lbs pound-weight",
    "t": "ton tons tonne tonnes", "s": "sec secs seconds", "min": "min mins minute minutes", "h": "hr hrs hour hours",
    "d": "day days", "wk": "week weeks", "mo": "month months", "yr": "year years yr yrs", "century": "century "
    "centuries",
    "decade": "decade decades", "%": "% percent percentage pct", "deg": "° degree degrees", "c": "°c celsius",
    "f": "°f fahrenheit", "usd": "$ us$ usd dollar dollars", "eur": "€ eur euro euros", "gbp": "£ gbp pound pounds",
    "jpy": "¥ jpy yen", "l": "l liter liters litre litres", "gal": "gallon gallons", "mph": "mph", "kmh": "km/h "
    "kph kmh",
    "w": "watt watts", "kw": "kw kilowatt kilowatts", "mw": "mw megawatt megawatts", "gw": "gw gigawatt gigawatts",
    "mb": "mb megabyte megabytes", "gb": "gb gigabyte gigabytes",
}  # fmt: skip
_UNITS = {form: unit for unit, forms in _UNITS_OF.items() for form in words(forms)}
_SMALL_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_SMALL = {word: value for value, word in enumerate(words(_SMALL_WORDS))}
_TENS = {
    word: 10 * (index + 2) for index, word in enumerate(words("twenty thirty forty fifty sixty seventy eighty ninety"))
}
_ORDINALS = {
    word: value
    for value, word in enumerate(
        words(
            "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth "
            "fifteenth sixteenth seventeenth eighteenth nineteenth"
        ),
        start=1,
    )
}
_ORDINALS |= {f"{word[:-1]}ieth": value for word, value in _TENS.items()}
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "bn": 10**9, "mn": 10**6}
_ABBREVIATED_SCALES = {"k": 10**3, "m": 10**6, "b": 10**9, "bn": 10**9, "mn": 10**6}
_MONTH_NAMES = "january february march april may june july august september october november december"
_MONTHS = {name: index for index, name in enumerate(words(_MONTH_NAMES), start=1)}
_MONTHS |= {name[:3]: index for name, index in _MONTHS.items()} | {"sept": 9}
_QUANTIFIER_TABLE = (
    "all:all every:all each:all both:both most:most some:some few:few many:many several:several half:half none:none "
    "majority:most minority:minority"
)
_QUANTIFIERS = dict(entry.split(":") for entry in words(_QUANTIFIER_TABLE))
_BOUNDS = {
    "more than": ">",
    "greater than": ">",
    "over": ">",
    "above": ">",
    "exceeding": ">",
    "at least": ">=",
    "no fewer than": ">=",
    "no less than": ">=",
    "less than": "<",
    "fewer than": "<",
    "under": "<",
    "below": "<",
    "at most": "<=",
    "up to": "<=",
    "no more than": "<=",
    "nearly": "~<",
    "almost": "~<",
}
_ROMAN = re.compile(r"(?=[IVXL])(XL|L?X{0,3})(IX|IV|V?I{0,3})")
_ROMAN_VALUES = {"I": 1, "V": 5, "X": 10, "L": 50}
_ROMAN_SINGLES = frozenset("IVX")

_TOKEN = re.compile(
    r"""(?P<iso>\b\d{4}-\d{1,2}-\d{1,2}\b)
      | (?P<slash>\b\d{1,2}/\d{1,2}/\d{4}\b)
      | (?P<number>(?:(?<![\w.])[-−])?
            (?:\d{1,3}(?:,\d{3})+(?!\d) | \d{1,3}(?:[\u00a0\u202f\u2009\ ]\d{3})+(?!\d)
              | \d{1,3}(?:\.\d{3}){2,}(?!\d) | \d+) (?:\.\d+)?)
        (?P<suffix>st\b|nd\b|rd\b|th\b|(?:bn|mn|[kKmMbB])\b)?
      | (?P<symbol>US\$|[$€£¥%]|°[CF]?|km²|km/h)
      | (?P<word>[^\W\d_]+(?:'[^\W\d_]+)?[²2]?)
      | (?P<other>\S)""",
    re.VERBOSE,
)


class _Token(NamedTuple):
    kind: str
    text: str
    suffix: str


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    for match in _TOKEN.finditer(text):
        if match["number"]:
            tokens.append(_Token("number", match["number"], match["suffix"] or ""))
        elif match.lastgroup:
            tokens.append(_Token(match.lastgroup, match[0], ""))
    return tokens


def _plain(value: Decimal) -> str:
    """Plain notation without trailing zeros: "1000", "3.5", "0"."""
    text = format(value, "f")
    return (text.rstrip("0").rstrip(".") if "." in text else text) or "0"


def _digits(text: str) -> Decimal:
    text = re.sub(r"[,\s\u00a0\u202f\u2009]", "", text).replace("−", "-")
    if text.count(".") > 1:
        text = text.replace(".", "")
    return Decimal(text)


def _roman(text: str) -> int | None:
    """The value of a Roman numeral up to 89, or None. Larger letters (C, D, M) are initials far more often."""
    if len(text) == 1 and text not in _ROMAN_SINGLES or not _ROMAN.fullmatch(text):
        return None
    values = [_ROMAN_VALUES[letter] for letter in text]
    return sum(
        -value if value < following else value for value, following in zip(values, [*values[1:], 0], strict=True)
    )


def _word_number(tokens: list[_Token], start: int) -> tuple[Decimal, int] | None:
    """The number that begins with the word at `start`, and the index after it: "three hundred and five",
    "nineteen eighty-four".
    """
    parts: list[int] = []
    total, current, index, seen = 0, 0, start, False
    while index < len(tokens):
        word = tokens[index].text.lower()
        if tokens[index].kind == "other" and tokens[index].text == "-" and seen and index + 1 < len(tokens):
            if _unit_value(tokens[index + 1].text.lower()) is None:
                break
            index += 1
            continue
        value = _unit_value(word)
        if value is not None:
            if seen and current % 100 and not (current % 10 == 0 and value < 10 and current % 100 >= 20):
                if not (10 <= current <= 20 and value >= 10) or parts:
                    break
                parts.append(current)
                current = 0
            current += value
            seen = True
            if word in _ORDINALS:
                index += 1
                break
        elif word == "hundred" and seen:
            current *= 100
        elif word in ("hundred", "dozen") and not seen:
            current, seen = (100 if word == "hundred" else 12), True
        elif word in _SCALES and word not in _ABBREVIATED_SCALES:
            total, current, seen = total + max(current, 1) * _SCALES[word], 0, True
        elif not (word == "and" and seen and index + 1 < len(tokens) and current + total >= 100
                  and _unit_value(tokens[index + 1].text.lower()) is not None):  # fmt: skip
            break
        index += 1
    if not seen:
        return None
    return Decimal(parts[0] * 100 + current if parts else total + current), index


def _unit_value(word: str) -> int | None:
    for table in (_SMALL, _TENS, _ORDINALS):
        if word in table:
            return table[word]
    return None


class _Reader:
    """One pass over the tokens of a text, collecting values, units and quantities."""

    def __init__(self, text: str) -> None:
        text = unicodedata.normalize("NFC", text).replace("’", "'")
        self.tokens = _tokens(text)
        self.values: list[str] = []
        self.units: list[str] = []
        self.quantities: list[str] = []

    def read(self) -> NumberSignature:
        index, words = 0, []
        lists = (self.values, self.units, self.quantities)
        while index < len(self.tokens):
            before, token = [len(kept) for kept in lists], self.tokens[index]
            index = self._step(index)
            found = [word for kept, size in zip(lists, before, strict=True) for word in kept[size:]]
            words += found or ([token.text.lower()] if token.kind == "word" else [])
        values, units, quantities = (tuple(sorted(kept)) for kept in lists)
        return NumberSignature(values, units, quantities, tuple(words))

    def _step(self, index: int) -> int:
        token = self.tokens[index]
        if token.kind in ("iso", "slash"):
            self._date(token)
            return index + 1
        if token.kind == "number":
            return self._number(_digits(token.text), index, index + 1, token.suffix)
        if token.kind != "word":
            return index + 1
        word = token.text.lower()
        if word in _MONTHS and self._beside_number(index):
            self.values.append(f"month:{_MONTHS[word]}")
        elif word in _QUANTIFIERS:
            self.quantities.append(_QUANTIFIERS[word])
        elif (roman := _roman(token.text)) is not None and self._after_name(index):
            self.values.append(str(roman))
        elif (found := _word_number(self.tokens, index)) is not None and not self._pronoun(word, found[1]):
            return self._number(found[0], index, found[1], "")
        return index + 1

    def _number(self, value: Decimal, start: int, end: int, suffix: str) -> int:
        """Record a value with the scale, unit, currency and bound around it; returns the next index."""
        following = self._word(end)
        currency = self._word(start - 1) if start and self.tokens[start - 1].kind == "symbol" else ""
        if suffix == "m" and not currency:
            self.units.append("m")  # "212m" is a height, "$5m" is five million
        elif suffix.lower() in _ABBREVIATED_SCALES:
            value *= _ABBREVIATED_SCALES[suffix.lower()]
        while following in _SCALES:
            value *= _SCALES[following]
            end += 1
            following = self._word(end)
        self.values.append(_plain(value))
        if following == "square" or following == "sq":
            end += 1
            self.units.append("sq " + _UNITS.get(self._word(end), self._word(end)))
            end += 1
        elif following in _UNITS and suffix not in ("st", "nd", "rd", "th"):
            self.units.append(_UNITS[following])
            end += 1
        if currency in _UNITS:
            self.units.append(_UNITS[currency])
            start -= 1
        self._bound(start)
        return end

    def _bound(self, start: int) -> None:
        words = [self._word(index) for index in range(max(0, start - 3), start)]
        for length in (3, 2, 1):
            if (bound := _BOUNDS.get(" ".join(words[-length:]))) and len(words) >= length:
                self.quantities.append(bound)
                return

    def _date(self, token: _Token) -> None:
        parts = [int(part) for part in re.split(r"[-/]", token.text)]
        if token.kind == "iso":
            year, month, day = parts
            self.values += [str(year), f"month:{month}", str(day)]
            return
        first, second, year = parts
        if first > 12 >= second or first == second:
            self.values += [str(first), f"month:{second}", str(year)]
        elif second > 12 >= first:
            self.values += [str(second), f"month:{first}", str(year)]
        else:  # day and month cannot be told apart
            self.values += [f"?{first}", f"?{second}", str(year)]

    def _beside_number(self, index: int) -> bool:
        """A day or a year stands next to this month: "12 March", "4th of July", "Sept. 9", "March, 1990"."""
        behind = index - 2 if self._word(index - 1) == "of" else index - 1
        ahead = index + 2 if self._word(index + 1) in (".", ",") else index + 1
        near = [self.tokens[i] for i in (behind, ahead) if 0 <= i < len(self.tokens)]
        return any(token.kind == "number" or _unit_value(token.text.lower()) is not None for token in near)

    def _after_name(self, index: int) -> bool:
        previous = self.tokens[index - 1] if index else None
        return previous is not None and previous.kind == "word" and previous.text[0].isupper()

    def _pronoun(self, word: str, end: int) -> bool:
        """Whether "one" counts nothing here: "one of the founders", "one another"."""
        return word == "one" and self._word(end) in ("of", "another")

    def _word(self, index: int) -> str:
        return self.tokens[index].text.lower() if 0 <= index < len(self.tokens) else ""


@lru_cache(maxsize=65_536)
def number_signature(text: str) -> NumberSignature:
    """The values, units and quantities of a text, each a sorted multiset.

    "1,000" and "1000" agree, "3.5 million" is 3500000, "Henry VIII" and "Henry the Eighth" hold 8,
    "12 March 1990" and "1990-03-12" hold 12, month 3 and 1990. Works on any string; linear in its length.
    """
    return _Reader(text).read()
