"""The table of relations: text, to be read as a table. The meaning of the columns is in schema.py."""

from __future__ import annotations

from factagent.data.world.schema import FIELD, NUMBER, PERSON, YEAR, Relation, Wording, relation

# fmt: off
FILMS_AND_MUSIC = (
    relation(
        "directed_by", "film", PERSON, ">was directed by; <directed; <is the director of; >had as its director",
        "Who directed {x}?; Who is the director of {x}?", "the director of {x}; the person who directed {x}",
        negation="was not directed by", ask_in="Which film did {x} direct?", noun_in="the film directed by {x}",
    ),
    relation(
        "starring", "film", PERSON, ">starred; <starred in; <had a role in; >has in its cast", many=True,
        negation="did not star",
    ),
    relation(
        "released_in", "film album", YEAR,
        ">was released in; >came out in; <was the release year of; >had its release in",
        "In which year was {x} released?; When did {x} come out?", "the release year of {x}",
        negation="was not released in",
    ),
    relation(
        "produced_by", "film", "company", ">was produced by; <produced; <was the producer of; >is a production of",
        "Which company produced {x}?; Who was the producer of {x}?",
        "the company that produced {x}; the producer of {x}",
        negation="was not produced by",
    ),
    relation(
        "filmed_in", "film", "city",
        ">was filmed in; <was the filming place of; >was shot in; <was the place of the shooting of",
        "In which city was {x} filmed?; Where was {x} shot?", "the city where {x} was filmed",
        negation="was not filmed in",
    ),
    relation(
        "music_by", "film", PERSON,
        ">has music by; <composed the music of; <was the composer of; >was set to music by",
        "Who composed the music of {x}?; Who was the composer of {x}?", "the composer of {x}",
    ),
    relation(
        "based_on", "film", "book", ">is based on; <inspired; <was the source of; >is an adaptation of",
        "On which book is {x} based?; Which book inspired {x}?", "the book that inspired {x}",
        negation="is not based on",
        noun_in="the film based on {x}", ask_in="Which film is based on {x}?",
    ),
    relation(
        "member", "band", PERSON, ">had the member; <played in; <was a member of; >had in its lineup", many=True,
        negation="never had the member",
    ),
    relation(
        "formed_in", "band", "city",
        ">was formed in; <was the home of; >started in; <was the birthplace of the band",
        "In which city was {x} formed?; Where did {x} start?", "the city where {x} was formed",
        negation="was not formed in",
    ),
    relation(
        "signed_to", "band", "company", ">was signed to; <signed; <was the label of; >had a contract with",
        "Which company signed {x}?; What was the label of {x}?", "the label of {x}",
    ),
    relation(
        "recorded_by", "album", "band", ">was recorded by; <recorded; <is the band behind; >is an album by",
        "Which band recorded {x}?; Who is the band behind {x}?", "the band that recorded {x}",
        negation="was not recorded by",
    ),
    relation("premiered_in", "film album", "city",
    ">was first shown in; <saw the first showing of; >was presented in"),
    relation("edited_by", "film", PERSON, ">was edited by; <edited; <was the editor of"),
    relation("toured_in", "band", "country", ">toured in; <welcomed a tour of; >played concerts in"),
)

BOOKS_AND_PEOPLE = (
    relation(
        "written_by", "book", PERSON, ">was written by; <wrote; <is the author of; >came from the pen of",
        "Who wrote {x}?; Who is the author of {x}?", "the author of {x}; the person who wrote {x}",
        negation="was not written by", ask_in="Which book did {x} write?", noun_in="the book written by {x}",
    ),
    relation(
        "published_in", "book", YEAR,
        ">was published in; >appeared in; <was the publication year of; >had its publication in",
        "In which year was {x} published?; When did {x} appear?", "the publication year of {x}",
        negation="was not published in",
    ),
    relation(
        "published_by", "book", "company",
        ">was published by; <published; <was the publisher of; >had as its publisher",
        "Which company published {x}?; Who was the publisher of {x}?",
        "the publisher of {x}; the company that published {x}",
        negation="was not published by",
    ),
    relation("set_in", "book", "city", ">is set in; <is the setting of; >takes place in"),
    relation("dedicated_to", "book", PERSON, ">was dedicated to; <received the dedication of; >is in honor of"),
    relation(
        "born_in", PERSON, "city", ">was born in; <was the birthplace of; >comes from; <is the home town of",
        "In which city was {x} born?; Where was {x} born?", "the birthplace of {x}; the city where {x} was born",
        negation="was not born in",
    ),
    relation(
        "born_year", PERSON, YEAR,
        ">was born in the year; <was the birth year of; >had the birth year; <saw the birth of",
        "In which year was {x} born?; What was the birth year of {x}?", "the birth year of {x}",
        negation="was not born in the year",
    ),
    relation(
        "educated_at", PERSON, "university", ">studied at; <educated; >was educated at; <was the school of",
        "Where did {x} study?; At which school did {x} study?", "the school of {x}; the school where {x} studied",
        negation="did not study at",
    ),
    relation(
        "spouse", PERSON, PERSON, ">was married to; >married; >was the spouse of; >shared a home with",
        "Who was the spouse of {x}?; To whom was {x} married?", "the spouse of {x}", symmetric=True,
        negation="was never married to",
    ),
    relation(
        "parent", PERSON, PERSON, ">was the child of; <was the parent of; >was raised by; <raised",
        "Who was the parent of {x}?; Who raised {x}?", "the parent of {x}", negation="was not the child of",
    ),
    relation(
        "won", PERSON, "award", ">won; <was won by; <went to; >was honored with the",
        "Which award did {x} win?; With which award was {x} honored?", "the award won by {x}",
        negation="did not win",
    ),
    relation("occupation", PERSON, FIELD, ">worked in; >had a career in; >was known for"),
    relation("died_in", PERSON, "city", ">died in; <was the place of the death of; >is buried in"),
    relation("lived_in", PERSON, "city", ">lived in; <was for years the home of; >had a house in"),
)

PLACES_AND_ORGANISATIONS = (
    relation(
        "founded_by", "company", PERSON, ">was founded by; <founded; <is the founder of; >had as its founder",
        "Who founded {x}?; Who is the founder of {x}?", "the founder of {x}; the person who founded {x}",
        negation="was not founded by", ask_in="Which company did {x} found?", noun_in="the company founded by {x}",
    ),
    relation(
        "founded_year", "company university museum team band award", YEAR,
        ">was founded in; >was established in; <was the founding year of; >began in",
        "In which year was {x} founded?; When was {x} established?", "the founding year of {x}",
        negation="was not founded in",
    ),
    relation(
        "headquartered_in", "company", "city",
        ">is headquartered in; <hosts the headquarters of; >is run from; <is the seat of",
        "In which city is {x} headquartered?; Where is {x} run from?",
        "the seat of {x}; the city where {x} is headquartered",
        negation="is not headquartered in",
    ),
    relation(
        "led_by", "company university", PERSON, ">is led by; <leads; <is the head of; >has as its head",
        "Who leads {x}?; Who is the head of {x}?", "the head of {x}; the person who leads {x}",
        negation="is not led by",
    ),
    relation("branch_in", "company", "city", ">has a branch in; <hosts a branch of; >opened a factory in"),
    relation(
        "located_in", "university museum", "city", ">is located in; <is the location of; >stands in; <is home to",
        "In which city is {x}?; Where is {x} located?", "the city where {x} stands; the location of {x}",
        negation="is not located in",
    ),
    relation(
        "designed_by", "museum", PERSON, ">was designed by; <designed; <is the architect of; >was the work of",
        "Who designed {x}?; Who is the architect of {x}?", "the architect of {x}; the person who designed {x}",
        negation="was not designed by",
    ),
    relation(
        "based_in", "team", "city", ">is based in; <is the base of; >plays its games in; <is the town of the team",
        "In which city is {x} based?; Where does {x} play its games?", "the city where {x} is based",
        negation="is not based in",
    ),
    relation(
        "coached_by", "team", PERSON, ">is coached by; <coaches; <is the coach of; >has as its coach",
        "Who coaches {x}?; Who is the coach of {x}?", "the coach of {x}", negation="is not coached by",
    ),
    relation("sponsored_by", "team museum", "company", ">is sponsored by; <sponsors; <is the sponsor of"),
    relation(
        "country", "city", "country", ">is a city in; <contains the city; >lies in; <includes",
        "In which country is {x}?; In which country does {x} lie?", "the country of {x}",
        negation="does not lie in",
    ),
    relation(
        "population", "city", NUMBER,
        ">has a population of; <is the population of; >has a number of residents of; <people live in",
        "What is the population of {x}?; How many people live in {x}?", "the population of {x}",
    ),
    relation(
        "mayor", "city", PERSON, ">has the mayor; <is the mayor of; <governs; >is governed by",
        "Who is the mayor of {x}?; Who governs {x}?", "the mayor of {x}", negation="is not governed by",
    ),
    relation(
        "river", "city", "river", ">is on the; <flows through; <is the river of; >was built on the river",
        "Which river flows through {x}?; On which river does {x} stand?", "the river that flows through {x}",
    ),
    relation("twinned", "city", "city", ">is twinned with; >is a partner of; >exchanges visits with",
    symmetric=True),
    relation(
        "capital", "country", "city", ">has the capital; <is the capital of; >is ruled from; <is the first city of",
        "What is the capital of {x}?; Which city is the capital of {x}?", "the capital of {x}",
    ),
    relation(
        "leader", "country", PERSON, ">has the president; <is the president of; >elected as president; <rules",
        "Who is the president of {x}?; Who rules {x}?", "the president of {x}",
        negation="does not have the president",
    ),
    relation(
        "length", "river", NUMBER,
        ">has a length of; <is the length of; >runs for a distance of; <is the distance covered by",
        "What is the length of {x}?", "the length of {x}",
    ),
    relation(
        "source", "river", "country",
        ">rises in; <has the source of; >begins its course in; <is where one finds the source of",
        "In which country does {x} rise?; Which country has the source of {x}?", "the country where {x} rises",
        negation="does not rise in",
    ),
    relation(
        "awarded_in", "award", "city",
        ">is awarded in; <hosts the ceremony of; >is given every year in; <is the venue of",
        "In which city is {x} awarded?; Which city hosts the ceremony of {x}?", "the city where {x} is awarded",
    ),
)
# fmt: on

RELATIONS: dict[str, Relation] = {
    entry.name: entry for entry in FILMS_AND_MUSIC + BOOKS_AND_PEOPLE + PLACES_AND_ORGANISATIONS
}
"""Every relation by name."""

RELATION_OF_PHRASE: dict[str, tuple[Relation, Wording]] = {
    wording.phrase: (entry, wording) for entry in RELATIONS.values() for wording in entry.wordings
}
"""From a phrase to its relation: phrases are unique over the whole schema (negated ones are not in here)."""
