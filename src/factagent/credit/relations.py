"""The relation rule: when do two relation phrases say the same thing, in the same or in the opposite direction?

credit.md section 2: surface match after normalisation, or cosine of the relation embeddings; in the swapped
configuration
an inverse surface form counts. `match_relations` decides what the surface alone decides, and where the cosine
may decide.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal, NamedTuple

from rapidfuzz.fuzz import ratio

from factagent.credit.entities import noise_key
from factagent.credit.lexicon import compatible_predicates, predicates
from factagent.credit.negation import qualifiers
from factagent.credit.wordlists import words

Orientation = Literal["paper", "strict"]
SURFACE_RATIO = 90.0
"""rapidfuzz ratio (0-100) from which two normalised relations count as one surface form (credit.md section 2)."""

_WORD = re.compile(r"[^\W_]+")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_AUXILIARIES = frozenset(
    words(
        "is was are were be been being am s re ve has have had having do does did a an the its his her their ll d also "
        "currently once then there that which who whose became become becomes"
    )
)
_NEGATORS = frozenset(words("not never no t"))
_IRREGULAR_FORMS = (
    "bear:born,bore,borne beat:beaten become:became begin:began,begun bring:brought build:built buy:bought "
    "catch:caught "
    "choose:chose,chosen come:came deal:dealt draw:drew,drawn drive:drove,driven eat:ate,eaten fall:fell,fallen "
    "fight:fought fly:flew,flown forbid:forbade,forbidden get:got,gotten give:gave,given go:went,gone,goes "
    "grow:grew,grown "
    "hold:held keep:kept know:knew,known lead:led leave:left lend:lent lie:lay,lain,lying lose:lost make:made "
    "mean:meant meet:met "
    "overcome:overcame overthrow:overthrew,overthrown pay:paid ride:rode,ridden rise:rose,risen run:ran "
    "say:said see:saw,seen "
    "seek:sought sell:sold send:sent shoot:shot sing:sang,sung sit:sat speak:spoke,spoken spend:spent "
    "stand:stood steal:stole,stolen "
    "strike:struck swim:swam,swum take:took,taken,taking teach:taught tell:told think:thought "
    "throw:threw,thrown win:won "
    "write:wrote,written,writing wear:wore,worn weave:wove,woven die:died,dying sit:sitting wed:wedded "
    "withdraw:withdrew,withdrawn "
    "child:children"
)
_IRREGULAR = {form: entry.split(":")[0] for entry in words(_IRREGULAR_FORMS) for form in entry.split(":")[1].split(",")}
_KEPT = frozenset(words("during bring king spring string ring sing thing red bed wed speed seed need is as us his this across its "
                  "series species means news wing"))  # fmt: skip
_NOT_AGENTS = frozenset(
    words(
        "member mother father brother sister daughter number order river center centre character letter chapter "
        "border paper "
        "winter summer quarter corner water power tower number matter master officer partner minister other "
        "after over under "
        "former ever never per successor predecessor ancestor sector major minor color factor error doctor "
        "professor mayor "
        "governor editor author senator ambassador chancellor emperor monitor mirror cover layer offer suffer "
        "differ refer "
        "transfer consider remember discover deliver answer enter gather prefer better later larger smaller "
        "greater taller "
        "older younger higher lower quater neighbor neighbour character super inter"
    )
)


_OPPOSITE_TABLE = (
    "to:from into:out before:after north:south east:west begin:end begin:finish begin:complete start:end start:finish "
    "start:complete open:close win:lose join:leave import:export buy:sell lend:borrow increase:decrease "
    "rise:fall enter:leave "
    "enter:exit above:below over:under own:operate direct:produce arrive:depart return:leave appoint:retire "
    "appoint:dismiss "
    "appoint:resign hire:fire marry:divorce born:die bear:die love:hate support:oppose first:last oldest:youngest "
    "largest:smallest highest:lowest build:destroy found:dissolve elect:defeat male:female father:mother son:daughter "
    "brother:sister husband:wife write:produce write:direct write:translate teach:study attack:defend present:absent"
)


class RelationForm(NamedTuple):
    """A relation phrase as the rule reads it.

    `core` are its stems without auxiliaries and articles; `direction` is +1 (subject acts on object), -1
    (passive "by", or
    a bare role noun), 0 where only the other phrase could tell; `predicate` is the lexicon's name for it, `symmetric`
    says that both directions mean the same.
    """

    core: tuple[str, ...]
    direction: int
    predicate: str | None
    symmetric: bool
    passive: bool
    qualifiers: frozenset[str]


class RelationMatch(NamedTuple):
    """What the surface decides for the original and the swapped configuration, and where a cosine may still decide."""

    original: bool
    swapped: bool
    original_by_cosine: bool
    swapped_by_cosine: bool


NO_MATCH = RelationMatch(False, False, False, False)


def stem(word: str) -> str:
    """A crude verb and noun stem: equal for the inflections of one word ("marries", "married"; "created", "creating").

    It needs no dictionary because it is applied to every form, the base form too; irregular verbs come from a table.
    """
    word = _IRREGULAR.get(word, word)
    if word in _KEPT or len(word) <= 3:
        return word
    if word.endswith("ies"):
        word = word[:-3] + "y"
    elif word.endswith(("sses", "ches", "shes", "xes", "zes")):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    if word.endswith("ied"):
        word = word[:-3] + "y"
    elif word.endswith("ed") and not word.endswith("eed") and len(word) > 4:
        word = word[:-2]
    elif word.endswith("ing") and len(word) > 5:
        word = word[:-3]
    return _bare(word)


def _bare(word: str) -> str:
    """Without final e, with y as i, and with a final double consonant single."""
    if len(word) > 3 and word.endswith("e"):
        word = word[:-1]
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "aeiou":
        word = word[:-1]
    return word[:-1] + "i" if len(word) > 2 and word.endswith("y") else word


@lru_cache(maxsize=65_536)
def normalise_relation(relation: str) -> tuple[str, ...]:
    """Stems of the words that carry meaning: case, punctuation, camelCase, auxiliaries, articles and
    inflection removed.
    """
    text = _CAMEL.sub(" ", relation.replace("’", "'")).casefold()
    text = re.sub(r"n't\b", " not", text)
    found = [word for word in _WORD.findall(text) if word not in _NEGATORS]
    kept = [word for word in found if word not in _AUXILIARIES]
    if not kept and found:
        return ("have",) if found[0] in ("has", "have", "had") else ("be",)
    return tuple(stem(word) for word in kept)


def _agent_stem(word: str) -> str | None:
    """The verb inside an agent noun, as a stem: "ownership" has none, "owner" gives "own", "creator" "creat"."""
    if word in _NOT_AGENTS or len(word) < 5 or not word.endswith(("er", "or")):
        return None
    return _bare(word[:-2])


@lru_cache(maxsize=1)
def _lexicon() -> dict[tuple[str, ...], tuple[str, int, bool]]:
    """Normalised wording -> (predicate, direction, symmetric). The first entry of a wording wins."""
    table: dict[tuple[str, ...], tuple[str, int, bool]] = {}
    for predicate in predicates():
        for direction, wordings in ((1, predicate.forward), (-1, predicate.inverse)):
            for wording in wordings:
                table.setdefault(normalise_relation(wording), (predicate.name, direction, predicate.symmetric))
    return table


@lru_cache(maxsize=1)
def _opposites() -> frozenset[tuple[str, str]]:
    """Pairs of stems that tell two otherwise similar phrases apart, in both orders."""
    pairs = [entry.split(":") for entry in words(_OPPOSITE_TABLE)]
    return frozenset((stem(x), stem(y)) for a, b in pairs for x, y in ((a, b), (b, a)))


def _opposed(a: RelationForm, b: RelationForm) -> bool:
    """One phrase has a word where the other has its opposite: "transferred to" and "transferred from"."""
    only_a, only_b = set(a.core) - set(b.core), set(b.core) - set(a.core)
    return any((x, y) in _opposites() for x in only_a for y in only_b)


@lru_cache(maxsize=65_536)
def relation_form(relation: str) -> RelationForm:
    """Read a relation phrase: lexicon first, else passive "by", agent noun, "noun of", or plain."""
    core = normalise_relation(relation)
    kept = qualifiers(relation)
    passive = len(core) > 1 and core[-1] == "by"
    if (known := _lexicon().get(core)) is not None:
        name, direction, symmetric = known
        return RelationForm(core[:-1] if passive else core, direction, name, symmetric, passive, kept)
    if passive:
        return RelationForm(core[:-1], -1, None, False, True, kept)
    head = core[-2] if len(core) > 1 and core[-1] == "of" else core[-1] if core else ""
    if (verb := _agent_stem(head)) is not None:
        if core[-1] == "of":
            return RelationForm((*core[:-2], verb), 1, None, False, False, kept)
        return RelationForm((*core[:-1], verb), -1 if len(core) == 1 else 0, None, False, False, kept)
    return RelationForm(core, 0 if core and core[-1] == "of" else 1, None, False, False, kept)


@lru_cache(maxsize=1)
def _compatible() -> dict[tuple[str, str], int]:
    pairs = {(a, b): direction for a, b, direction in compatible_predicates()}
    return pairs | {(b, a): direction for (a, b), direction in pairs.items()}


def _surface(a: RelationForm, b: RelationForm) -> RelationMatch:
    """Same phrase: in the same direction (`original`), in opposite directions (`swapped`), in both, or in neither."""
    if a.predicate is not None and b.predicate is not None:
        if a.predicate == b.predicate:
            return _match(a.direction * b.direction, a.symmetric)
        link = _compatible().get((a.predicate, b.predicate))
        return NO_MATCH if link is None else _match(a.direction * b.direction * link, link == 0)
    if a.core == b.core or [noise_key(word) for word in a.core] == [noise_key(word) for word in b.core]:
        return _match(a.direction * b.direction, False)
    texts = " ".join(a.core), " ".join(b.core)
    if a.direction != b.direction and (texts[0] == f"{texts[1]} of" or texts[1] == f"{texts[0]} of"):
        return _match(-1, False)  # "X | parent company | Y" and "Y | parent company of | X"
    close = ratio(*texts) >= SURFACE_RATIO and not _opposed(a, b)
    return _match(a.direction * b.direction, False) if close else NO_MATCH


def _match(direction: int, symmetric: bool) -> RelationMatch:
    return RelationMatch(symmetric or direction >= 0, symmetric or direction < 0, False, False)


@lru_cache(maxsize=262_144)
def match_relations(a: str, b: str, orientation: Orientation) -> RelationMatch:
    """What the relation phrases of two triples allow (symmetric in `a` and `b`).

    A different role qualifier (vice, former, co-, step-, -in-law, ...) and two predicates that the lexicon knows to be
    different never match. "paper": the swapped configuration accepts whatever the original one accepts, and
    inverse forms. "strict":
    the original needs the same direction, the swapped one opposite directions or a symmetric relation.
    """
    form_a, form_b = relation_form(a), relation_form(b)
    if form_a.qualifiers != form_b.qualifiers:
        return NO_MATCH
    surface = _surface(form_a, form_b)
    matched = surface.original or surface.swapped
    if not matched and (None not in (form_a.predicate, form_b.predicate) or _opposed(form_a, form_b)):
        return NO_MATCH
    if orientation == "paper":
        return RelationMatch(surface.original, matched, True, True)
    if matched:
        return surface
    opposite = form_a.passive != form_b.passive
    return RelationMatch(False, False, not opposite, opposite)
