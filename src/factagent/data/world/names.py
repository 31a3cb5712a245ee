"""The fixed word lists that every name of the world is made of.

A small policy copies whole words, so the vocabulary must stay small (about 1,900 words with years and numbers).
Invented words are products of two syllable lists; the lists share no word, so that a word tells its role.
"""

from __future__ import annotations

from itertools import product


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _joined(heads: str, tails: str) -> tuple[str, ...]:
    return tuple(head + tail for head, tail in product(heads.split(), tails.split()))


FIRST_NAMES = _words(
    "Alden Anya Astrid Basil Beatrix Bruno Carla Cedric Clara Conrad Dana Delia Desmond Edith Elias Elsa Emil Esther "
    "Felix Fiona Flora Gideon Greta Hanna Harvey Hector Helena Hugo Ida Imogen Ines Ivor Jasper Joan Jonas "
    "Judith Karin "
    "Kaspar Lars Laura Leo Lydia Magnus Marta Milo Miriam Nadia Nils Nora Olga Oscar Otto Paula Petra Rufus Sabina "
    "Silas Tessa Ursula Victor"
)
LAST_NAMES = _joined(
    "Ash Brad Cald Dray El Farn Gran Hart Kel Lang Mel Nor Pres Rad Stan Wil",
    "ton man ley son well cott ner by row combe",
)
CITIES = _joined(
    "Tar Bel Cor Dun Fen Gal Hol Kes Lor Mar Oss Pel Quin Rav Vel",
    "vik mere stad una port holm ago ira esk anza",
)
COUNTRIES = _words(
    "Arvenia Balmoria Cestria Doravia Elandia Freland Garonia Halvania Istoria Jorland Kalmeria Lorania "
    "Mardovia Nerland "
    "Ostania Pelagia Quenia Rovaria Sardovia Tirania Ulvania Valdoria Westia Xandria Yoland Zemlia Brunland "
    "Crania Dulmia Ervonia"
)
RIVERS = _joined("Aru Bo Ci Du Imi Ona Su Zu", "bra dera lin mas wen")
COMPANY_WORDS = _joined("Acto Bexa Cyno Delo Hexa Nova Orbi Pyro Vero Zeno", "dyne lux mark tek")
ADJECTIVES = _words(
    "Silent Golden Broken Hidden Crimson Distant Frozen Hollow Wild Burning Gentle Lonely Velvet Bitter Silver "
    "Endless "
    "Sacred Secret Quiet Restless Scarlet Shining Stolen Sudden Tender Twisted Ancient Blind Bold Brave Bright "
    "Cold Cruel "
    "Dark Deep Electric Empty Eternal Faded Fallen False Final Flying Foreign Forgotten Fragile Gilded Glass "
    "Grand Great "
    "Green Happy Heavy Holy Humble Icy Idle Iron Jade Little Lost Lucky Marble Midnight Modern Narrow Noble "
    "Northern Pale "
    "Paper Perfect Proud Purple Royal Rusty Simple Southern Strange Tiny Wooden"
)
NOUNS = _words(
    "Bay Harbor Mountain Garden Winter Summer Shadow Mirror Lantern Bridge Castle Forest Island Ocean Desert "
    "Valley Tower "
    "Window Door Candle Feather Anchor Arrow Autumn Ballad Beacon Canyon Carnival Cathedral Chapel Circus "
    "Cloud Compass "
    "Crown Dagger Dream Dust Echo Ember Empire Engine Evening Falcon Field Flame Fortune Fountain Ghost "
    "Glacier Horizon "
    "Journey Kingdom Ladder Letter Lion Market Meadow Memory Moon Morning Music Night Orchard Palace Path "
    "Pearl Pilot "
    "Planet Prison Promise Rain Raven Road Rose Season Song Storm Stranger Thunder Willow"
)
PLURALS = _words(
    "Wolves Tigers Sparrows Owls Pirates Kings Queens Riders Drifters Dreamers Sailors Rebels Foxes Hawks "
    "Comets Stars Diamonds "
    "Wheels Gardeners Miners Painters Poets Robots Saints Sisters Brothers Soldiers Strangers Travelers Vipers"
)
FILM_COMPANIES = ("Pictures", "Studios")
LABELS = ("Records", "Sound")
PUBLISHERS = ("Press", "Books")
OTHER_COMPANIES = ("Group", "Industries", "Motors", "Foods")
TEAM_WORDS = ("United", "Rovers", "Athletic", "Wanderers")
AWARD_WORDS = ("Prize", "Medal", "Award")
COLLEGE_WORDS = ("College", "Institute")
MUSEUM_WORDS = ("Museum", "Gallery")

OCCUPATIONS = {
    "actor": "acting",
    "director": "directing",
    "writer": "writing",
    "musician": "singing",
    "founder": "business",
    "politician": "politics",
    "architect": "architecture",
    "coach": "coaching",
    "scholar": "teaching",
}
"""A person's role (used in a namesake's title) and the field in which a page says that the person worked."""

YEARS = tuple(str(year) for year in range(1900, 2000))
POPULATIONS = tuple(str(10_000 * count) for count in range(1, 100))
LENGTHS = tuple(str(10 * count) for count in range(10, 60))
