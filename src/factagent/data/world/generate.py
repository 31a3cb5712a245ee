"""Entities and facts: who exists and what is true of them, before a word is written.

Facts link entity ids (literals stand for themselves), so namesakes stay apart here and become ambiguous only on paper.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from factagent.data.world import names
from factagent.data.world.config import WorldConfig
from factagent.data.world.relations import RELATIONS
from factagent.data.world.schema import LITERALS, PERSON

SHARES = {
    "country": 0.0125,
    "city": 0.0625,
    "person": 0.37,
    "film": 0.18,
    "book": 0.1,
    "band": 0.05,
    "album": 0.04,
    "company": 0.065,
    "university": 0.035,
    "award": 0.0125,
    "river": 0.015,
    "museum": 0.025,
    "team": 0.0325,
}
"""Share of each kind among the entities (sums to 1)."""
LIMITS = {"country": len(names.COUNTRIES), "city": len(names.CITIES), "river": len(names.RIVERS)}
ROLE_SHARES = {
    "actor": 0.24,
    "director": 0.14,
    "writer": 0.15,
    "musician": 0.18,
    "founder": 0.09,
    "politician": 0.08,
    "architect": 0.04,
    "coach": 0.04,
    "scholar": 0.04,
}


@dataclass(frozen=True, slots=True)
class Entity:
    """Something with a page. `name` is what sentences say, `title` heads its page; they differ for namesakes."""

    id: str
    kind: str
    name: str
    title: str
    role: str = ""


@dataclass(frozen=True, slots=True)
class Fact:
    """A true statement. `object` is an entity id, or the text of a year, number or field."""

    subject: str
    relation: str
    object: str


@dataclass(slots=True)
class World:
    """All entities by id, and all facts in the order of their drawing."""

    config: WorldConfig
    entities: dict[str, Entity] = field(default_factory=dict)
    facts: list[Fact] = field(default_factory=list)

    def name(self, value: str) -> str:
        """How a sentence writes an entity id or a literal."""
        return self.entities[value].name if value in self.entities else value

    def of_kind(self, kind: str, role: str = "") -> list[Entity]:
        """The entities of a kind (and role), in order."""
        return [e for e in self.entities.values() if e.kind == kind and (not role or e.role == role)]

    def ambiguous_names(self) -> frozenset[str]:
        """Names that more than one entity bears."""
        counts = Counter(entity.name for entity in self.entities.values())
        return frozenset(name for name, count in counts.items() if count > 1)


def generate(config: WorldConfig) -> World:
    """Draw the entities and their facts; the same config gives the same world."""
    world = World(config)
    _name_entities(world)
    _FactWriter(world).write_all()
    return world


def random_of(config: WorldConfig, *purpose: object) -> random.Random:
    """A generator for one purpose: text seeds are hashed by SHA-512, so every platform draws the same."""
    return random.Random("/".join(map(str, ("world", config.seed, *purpose))))


def _counts(total: int) -> dict[str, int]:
    counts = {kind: min(round(total * share), LIMITS.get(kind, total)) for kind, share in SHARES.items()}
    # People take what rounding and the limits left, so that the total is met exactly.
    counts[PERSON] += total - sum(counts.values())
    return counts


def _name_entities(world: World) -> None:
    rng = random_of(world.config, "names")
    counts = _counts(world.config.entities)
    cities = rng.sample(names.CITIES, counts["city"])
    drawn = {kind: _names_of(kind, count, cities, rng) for kind, count in counts.items()}
    roles = rng.choices(list(ROLE_SHARES), weights=list(ROLE_SHARES.values()), k=counts[PERSON])
    _share_names(drawn, roles, world.config, rng)
    bearers = Counter(name for names_ in drawn.values() for name in names_)
    for kind, names_ in drawn.items():
        for index, name in enumerate(names_):
            role = roles[index] if kind == PERSON else ""
            title = f"{name} ({role or kind})" if bearers[name] > 1 else name
            entity = Entity(f"{kind}-{index:04d}", kind, name, title, role)
            world.entities[entity.id] = entity


def _share_names(drawn: dict[str, list[str]], roles: list[str], config: WorldConfig, rng: random.Random) -> None:
    """Give some people the name of a person in another role, and some books the title of a film (in place)."""
    people, used = drawn[PERSON], set[int]()
    for index in rng.sample(range(len(people)), round(len(people) * config.namesakes / 2)):
        others = [i for i in range(len(people)) if roles[i] != roles[index] and i not in used]
        if index in used or not others:
            continue
        other = rng.choice(others)
        people[index] = people[other]
        used |= {index, other}
    pairs = round(len(drawn["book"]) * config.namesakes)
    books, films = rng.sample(range(len(drawn["book"])), pairs), rng.sample(range(len(drawn["film"])), pairs)
    for book, film in zip(books, films, strict=True):
        drawn["book"][book] = drawn["film"][film]


def _names_of(kind: str, count: int, cities: Sequence[str], rng: random.Random) -> list[str]:
    """`count` different names for a kind, drawn from its word lists."""

    def pick(*lists: Sequence[str], pattern: str = "{} {}") -> Callable[[], str]:
        return lambda: pattern.format(*(rng.choice(words) for words in lists))

    if kind == "city":
        return list(cities)
    if kind in LIMITS:
        return rng.sample(names.COUNTRIES if kind == "country" else names.RIVERS, count)
    suffixes = names.FILM_COMPANIES + names.LABELS + names.PUBLISHERS + names.OTHER_COMPANIES
    makers: dict[str, Callable[[], str]] = {
        PERSON: pick(names.FIRST_NAMES, names.LAST_NAMES),
        "film": pick(names.ADJECTIVES, names.NOUNS),
        "book": pick(names.NOUNS, names.NOUNS, pattern="The {} of {}"),
        "band": pick(names.ADJECTIVES, names.PLURALS, pattern="The {} {}"),
        "album": pick(names.NOUNS, names.NOUNS, pattern="{} and {}"),
        "company": pick(names.COMPANY_WORDS, suffixes),
        "university": pick(names.LAST_NAMES, names.COLLEGE_WORDS),
        "museum": pick(names.LAST_NAMES, names.MUSEUM_WORDS),
        "award": pick(names.LAST_NAMES, names.AWARD_WORDS),
        "team": pick(names.COMPANY_WORDS, names.TEAM_WORDS),
    }
    found: dict[str, None] = {}
    if kind == "university":
        found |= {f"University of {city}": None for city in cities[: count // 2]}
    while len(found) < count:
        name = makers[kind]()
        if len(set(name.split())) == len(name.split()):  # no "The Bay of Bay"
            found[name] = None
    return list(found)


class _FactWriter:
    """Draws the facts of one world, kind by kind."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = random_of(world.config, "facts")
        self.birth: dict[str, int] = {}
        self.cities = [e.id for e in world.of_kind("city")]
        self.roles = {role: [e.id for e in world.of_kind(PERSON, role)] for role in ROLE_SHARES}
        self.ids = {kind: [e.id for e in world.of_kind(kind)] for kind in SHARES}

    def write_all(self) -> None:
        """Draw everything; people first, because works follow their makers' birth years."""
        for entity in self.world.of_kind(PERSON):
            self.birth[entity.id] = self.rng.randint(1900, 1969)
        self._people()
        writers: dict[str, Callable[[str], None]] = {
            "film": self._film,
            "book": self._book,
            "band": self._band,
            "album": self._album,
            "company": self._company,
            "university": self._university,
            "museum": self._museum,
            "team": self._team,
            "award": self._award,
        }
        for kind, write in writers.items():
            for id_ in self.ids[kind]:
                write(id_)
        self._places()

    def _add(self, subject: str, relation: str, objects: Iterable[str] | str) -> None:
        for object_ in [objects] if isinstance(objects, str) else objects:
            self.world.facts.append(Fact(subject, relation, object_))

    def _maybe(self, chance: float, subject: str, relation: str, choices: Sequence[str]) -> None:
        if self.rng.random() < chance:
            self._add(subject, relation, self.rng.choice(choices))

    def _distract(self, subject: str, *options: tuple[str, Sequence[str]]) -> None:
        """State up to `distractors` facts of relations that nobody asks for."""
        wanted = min(self.world.config.distractors, len(options))
        for relation, choices in self.rng.sample(options, wanted):
            self._add(subject, relation, self.rng.choice([choice for choice in choices if choice != subject]))

    def _adult(self, role: str, year: int) -> str:
        """Someone of the role who was at least 20 in that year, or the oldest of the role."""
        fitting = [id_ for id_ in self.roles[role] if self.birth[id_] + 20 <= year]
        return self.rng.choice(fitting) if fitting else min(self.roles[role], key=lambda id_: self.birth[id_])

    def _companies(self, *suffixes: str) -> list[str]:
        fitting = [id_ for id_ in self.ids["company"] if self.world.entities[id_].name.split()[-1] in suffixes]
        return fitting or self.ids["company"]

    def _people(self) -> None:
        rng, people = self.rng, self.ids[PERSON]
        singles = rng.sample(people, 2 * (len(people) * 2 // 9))
        for first, second in zip(singles[::2], singles[1::2], strict=True):
            self._add(first, "spouse", second)
        for id_ in people:
            role = self.world.entities[id_].role
            self._add(id_, "born_in", rng.choice(self.cities))
            self._add(id_, "born_year", str(self.birth[id_]))
            self._maybe(0.7, id_, "educated_at", self.ids["university"])
            older = [p for p in people if 20 <= self.birth[id_] - self.birth[p] <= 45]
            if older:
                self._maybe(0.4, id_, "parent", older)
            self._maybe(0.25, id_, "won", self.ids["award"])
            field_ = [names.OCCUPATIONS[role]]
            self._distract(id_, ("occupation", field_), ("died_in", self.cities), ("lived_in", self.cities))

    def _film(self, id_: str) -> None:
        rng, year = self.rng, self.rng.randint(1930, 1999)
        self._add(id_, "directed_by", self._adult("director", year))
        self._add(id_, "starring", rng.sample(self.roles["actor"], 3))
        self._add(id_, "released_in", str(year))
        self._maybe(0.8, id_, "produced_by", self._companies(*names.FILM_COMPANIES))
        extra = rng.choice(("filmed_in", "music_by", "based_on"))
        choices = {"filmed_in": self.cities, "music_by": self.roles["musician"], "based_on": self.ids["book"]}
        self._add(id_, extra, rng.choice(choices[extra]))
        self._distract(id_, ("premiered_in", self.cities), ("edited_by", self.roles["director"]))

    def _book(self, id_: str) -> None:
        year = self.rng.randint(1925, 1999)
        self._add(id_, "written_by", self._adult("writer", year))
        self._add(id_, "published_in", str(year))
        self._add(id_, "published_by", self.rng.choice(self._companies(*names.PUBLISHERS)))
        self._distract(id_, ("set_in", self.cities), ("dedicated_to", self.ids[PERSON]))

    def _band(self, id_: str) -> None:
        self._add(id_, "member", self.rng.sample(self.roles["musician"], 3))
        self._add(id_, "formed_in", self.rng.choice(self.cities))
        self._add(id_, "founded_year", str(self.rng.randint(1930, 1995)))
        self._maybe(0.8, id_, "signed_to", self._companies(*names.LABELS))
        self._distract(id_, ("toured_in", self.ids["country"]))

    def _album(self, id_: str) -> None:
        self._add(id_, "recorded_by", self.rng.choice(self.ids["band"]))
        self._add(id_, "released_in", str(self.rng.randint(1935, 1999)))
        self._distract(id_, ("premiered_in", self.cities))

    def _company(self, id_: str) -> None:
        year = self.rng.randint(1920, 1995)
        self._add(id_, "founded_by", self._adult("founder", year))
        self._add(id_, "founded_year", str(year))
        self._add(id_, "headquartered_in", self.rng.choice(self.cities))
        self._maybe(0.7, id_, "led_by", self.roles["founder"])
        self._distract(id_, ("branch_in", self.cities))

    def _university(self, id_: str) -> None:
        city = self.world.entities[id_].name.removeprefix("University of ")
        home = next((c for c in self.cities if self.world.entities[c].name == city), None)
        self._add(id_, "located_in", home or self.rng.choice(self.cities))
        self._add(id_, "founded_year", str(self.rng.randint(1900, 1950)))
        self._add(id_, "led_by", self.rng.choice(self.roles["scholar"]))

    def _museum(self, id_: str) -> None:
        year = self.rng.randint(1930, 1999)
        self._add(id_, "located_in", self.rng.choice(self.cities))
        self._add(id_, "founded_year", str(year))
        self._add(id_, "designed_by", self._adult("architect", year))
        self._distract(id_, ("sponsored_by", self._companies(*names.OTHER_COMPANIES)))

    def _team(self, id_: str) -> None:
        self._add(id_, "based_in", self.rng.choice(self.cities))
        self._add(id_, "founded_year", str(self.rng.randint(1900, 1980)))
        self._add(id_, "coached_by", self.rng.choice(self.roles["coach"]))
        self._distract(id_, ("sponsored_by", self._companies(*names.OTHER_COMPANIES)))

    def _award(self, id_: str) -> None:
        self._add(id_, "awarded_in", self.rng.choice(self.cities))
        self._add(id_, "founded_year", str(self.rng.randint(1900, 1950)))

    def _places(self) -> None:
        rng, countries = self.rng, self.ids["country"]
        country_of = {city: countries[index % len(countries)] for index, city in enumerate(self.cities)}
        mayors = rng.sample(self.roles["politician"], min(len(self.cities), len(self.roles["politician"])))
        for index, city in enumerate(self.cities):
            self._add(city, "country", country_of[city])
            self._add(city, "population", rng.choice(names.POPULATIONS))
            if rng.random() < 0.6:
                self._add(city, "mayor", mayors[index % len(mayors)])
            self._maybe(0.6, city, "river", self.ids["river"])
            self._distract(city, ("twinned", self.cities))
        for country in countries:
            self._add(country, "capital", rng.choice([city for city in self.cities if country_of[city] == country]))
            self._add(country, "leader", rng.choice(self.roles["politician"]))
        for river in self.ids["river"]:
            self._add(river, "length", rng.choice(names.LENGTHS))
            self._add(river, "source", rng.choice(countries))


def check_facts(world: World) -> None:
    """Raise ValueError where a fact links the wrong kinds (a defect of the generator, never of the settings)."""
    for fact in world.facts:
        relation = RELATIONS[fact.relation]
        kind = relation.object if relation.object in LITERALS else world.entities[fact.object].kind
        if world.entities[fact.subject].kind not in relation.subjects or kind != relation.object:
            raise ValueError(f"{fact} does not fit the relation's kinds")
