"""Wordings of common relations, with their direction.

Each predicate lists wordings read from subject to object (`forward`) and wordings read from object to subject
(`inverse`); a symmetric predicate has only one list. The wordings are normalised like any relation when they are looked
up, so tense, auxiliaries, articles and inflection need no entry of their own. A bare noun follows the habit of knowledge bases:
"X | director | Y" says that the director of X is Y.
"""

from __future__ import annotations

from typing import NamedTuple


class Predicate(NamedTuple):
    """One relation: wordings in both directions. `symmetric` means that they are the same direction."""

    name: str
    forward: tuple[str, ...]
    inverse: tuple[str, ...] = ()
    symmetric: bool = False


def _predicate(name: str, forward: str, inverse: str = "", symmetric: bool = False) -> Predicate:
    split = [tuple(phrase.strip() for phrase in text.split(";") if phrase.strip()) for text in (forward, inverse)]
    return Predicate(name, split[0], split[1], symmetric)


PREDICATES: tuple[Predicate, ...] = (
    # works and their makers
    _predicate("direct", "directed; director of; film director of; was director of; directed the film; directed the movie; directed film; helmed",
               "directed by; director; film director; has director; under the direction of; had as director; helmed by; director was"),
    _predicate("write", "wrote; author of; writer of; authored; penned; wrote the book; wrote the novel; wrote book; wrote novel; has written",
               "written by; author; writer; authored by; penned by; has author; book by; novel by; a novel by; a book by; author was"),
    _predicate("compose", "composed; composer of; composed the music for; wrote the music for; wrote the score for; scored",
               "composed by; composer; music by; scored by; music composed by; has composer; score by"),
    _predicate("produce", "produced; producer of", "produced by; producer; has producer"),
    _predicate("publish", "published; publisher of; brought out", "published by; publisher; has publisher; brought out by"),
    _predicate("perform", "performed; performer of; sang; singer of; recorded; recorded the song; sang the song; released; released the album",
               "performed by; performer; sung by; singer; recorded by; released by; song by; album by; is an album by; is a song by"),
    _predicate("act in", "starred in; stars in; acted in; appeared in; played in the film; cast member of; is an actor in; featured in; had a role in",
               "starring; stars; starred; cast member; cast includes; features; has cast member; featured actor"),
    _predicate("paint", "painted; painter of", "painted by; painter; painting by"),
    _predicate("design", "designed; designer of; architect of; was the architect of", "designed by; designer; architect; has architect; architect was"),
    _predicate("create", "created; creator of; came up with", "created by; creator; creation of"),
    _predicate("invent", "invented; inventor of", "invented by; inventor; invention of"),
    _predicate("discover", "discovered; discoverer of", "discovered by; discoverer"),
    _predicate("develop", "developed; developer of", "developed by; developer"),
    _predicate("build", "built; builder of; constructed", "built by; builder; constructed by"),
    _predicate("manufacture", "manufactured; manufacturer of; manufactures; makes; maker of", "manufactured by; manufacturer; made by; maker"),
    _predicate("translate", "translated; translator of", "translated by; translator"),
    _predicate("edit", "edited; editor of", "edited by; editor"),
    _predicate("based on", "based on; adapted from; adaptation of; adaptation from; is an adaptation of; derived from", "basis for; source for; basis of; adapted into; inspired; was the basis for; adapted as"),
    # people and places
    _predicate("born in", "born in; born at; birthplace; place of birth; came from; comes from; hails from; originates from; originated from; "
               "is originally from; originally from; native of; is a native of; was born and raised in; birth place; has birthplace; "
               "has place of birth; is from; born in the city of; born in the town of; saw the light of day in",
               "birthplace of; place of birth of; is where was born; hometown of; home town of; native city of; native town of; birth place of"),
    _predicate("born on", "born on; date of birth; birth date; birthdate; birthday; has date of birth; birth year; year of birth; born in the year", "birth date of; birth year of; date of birth of"),
    _predicate("died in", "died in; died at; place of death; death place; passed away in; passed away at; deathplace; met death in", "place of death of; death place of; deathplace of"),
    _predicate("died on", "died on; date of death; death date; passed away on; deathdate; year of death", "death date of; date of death of"),
    _predicate("buried in", "buried in; buried at; place of burial; burial place; interred in; interred at; laid to rest in; laid to rest at", "burial place of; place of burial of; resting place of; final resting place of"),
    _predicate("lives in", "lives in; lived in; resides in; resided in; residence; place of residence; resident of; dwells in; inhabits; makes home in; has residence", "residence of; home of; home to; place of residence of; inhabited by"),
    _predicate("citizen of", "citizen of; citizenship; country of citizenship; holds citizenship of; national of; nationality; has nationality; holds the citizenship of"),
    _predicate("educated at", "educated at; studied at; attended; went to college at; graduated from; alma mater; graduate of; alumnus of; alumna of; student at; "
               "was a student at; received education at; received degree from; earned a degree from; earned degree from; enrolled at; obtained degree from; went to school at; studied in; was educated in; trained at; "
               "has alma mater", "alma mater of; educated; alumni include; notable alumnus; notable alumni; has alumnus; counts among its alumni; trained"),
    _predicate("works for", "works for; worked for; works at; worked at; employer; employed by; employee of; is employed at; is on the staff of; employed at; has employer; "
               "job at; works as an employee of; holds a job at", "employs; employer of; employed; has employee; employee"),
    _predicate("teaches at", "teaches at; taught at; professor at; lecturer at; lectures at; lectured at; was a professor at; is a professor at; on the faculty of"),
    _predicate("plays for", "plays for; played for; player of; player for; plays with"),
    _predicate("coach", "coached; coach of; head coach of; trainer of; managed the team", "coached by; coach; head coach"),
    # family
    _predicate("parent of", "parent of; parents of; child; children; has child; has children; is a parent of; offspring", "child of; children of; offspring of; parent; parents; has parent; born to; is a child of"),
    _predicate("father of", "father of; fathered; dad of; is the father of", "father; has father; dad"),
    _predicate("mother of", "mother of; mum of; mom of", "mother; has mother; mom"),
    _predicate("son of", "son of; is a son of", "son; has son; sons"),
    _predicate("daughter of", "daughter of; is a daughter of", "daughter; has daughter; daughters"),
    _predicate("married to", "married to; married; spouse; spouse of; wed; wedded to; is married with; was wed to; has spouse; got married to; tied the knot with; partner in marriage; husband and wife with", symmetric=True),
    _predicate("wife of", "wife of; husband", "wife; husband of; has wife"),
    _predicate("sibling of", "sibling of; sibling; siblings; has sibling; siblings with", symmetric=True),
    _predicate("brother of", "brother of", "brother; has brother"),
    _predicate("sister of", "sister of", "sister; has sister"),
    _predicate("twin of", "twin of; twin; twin brother of; twin sister of; twin sibling of", symmetric=True),
    _predicate("descends from", "descends from; descended from; descendant of; heir of", "ancestor of; forebear of"),
    # organisations
    _predicate("found", "founded; founder of; established; set up; started; launched; started the company; is a founder of",
               "founded by; founder; established by; set up by; started by; launched by; has founder; founders; brainchild of"),
    _predicate("founded in", "founded in; established in; formed in; set up in; inception; founding year; year of foundation; foundation date; date of foundation; dates from; started in; inaugurated in; "
               "incorporated in; year founded; founding date; formation year; founded on; was founded in the year; was established in the year; dates back to",
               "year of foundation of; founding year of; founding date of"),
    _predicate("own", "owns; owner of; owned; proprietor of; holds ownership of; has ownership of", "owned by; owner; belongs to; property of; has owner; in the possession of; proprietor"),
    _predicate("parent company", "parent company of; parent organization of; parent organisation of; has subsidiary; subsidiary", "subsidiary of; parent company; parent organization; parent organisation; is a subsidiary of; division of"),
    _predicate("acquire", "acquired; bought; purchased; took over; buyer of; acquirer of", "acquired by; bought by; purchased by; taken over by; sold to"),
    _predicate("lead", "leads; led; leader of; heads; headed; head of; runs; chief executive of; ceo of; chief executive officer of; chairs; is at the helm of",
               "led by; leader; headed by; head; ceo; chief executive; run by; chief executive officer; has ceo; headed up by; chaired by"),
    _predicate("president of", "president of; was president of; presided over; serves as president of; served as president of", "president; has president"),
    _predicate("mayor of", "mayor of; serves as mayor of; served as mayor of; governs the city of", "mayor; has mayor"),
    _predicate("governor of", "governor of; serves as governor of; served as governor of", "governor; has governor"),
    _predicate("prime minister of", "prime minister of; served as prime minister of; premier of", "prime minister; has prime minister"),
    _predicate("king of", "king of; reigned as king of; monarch of; ruled; ruler of; reigned over; rules", "king; ruled by; monarch; ruler"),
    _predicate("govern", "governs; governed", "governed by"),
    _predicate("manage", "manages; managed; manager of", "managed by; manager"),
    _predicate("member of", "member of; belongs to the band; is part of the band; was a member of; bandmate in; plays in; is in the band; member in; part of the group; "
               "joined; members of; is among the members of; is a musician in; belonged to", "has member; members include; member; members; includes among its members; counts among its members; has as a member; includes the musician"),
    _predicate("headquartered in", "headquartered in; headquarters; based in; headquarters location; has headquarters in; has its headquarters in; head office in; hq; has its head office in; is based at; "
               "headquarters in; main office in; has its seat in; has headquarters; seat; headquarters located in; headquarters are in; operates from; runs its business from", "headquarters of; seat of; hosts the headquarters of; home base of; is home to the headquarters of; houses the headquarters of; location of headquarters of"),
    _predicate("succeed", "succeeded; successor of; successor to; followed; came after; replaced; took over from; replaces", "succeeded by; successor; followed by; preceded; predecessor of; came before; replaced by; precedes"),
    _predicate("sponsor", "sponsors; sponsor of; sponsored", "sponsored by; sponsor"),
    _predicate("fund", "funds; funded; financed; finances", "funded by; financed by"),
    _predicate("host", "hosted; host of; presenter of; presented", "hosted by; host; presenter; presented by"),
    # places
    _predicate("located in", "located in; situated in; lies in; is in; in; location; found in; sits in; stands in; located within; lies within; located at; situated at; is a city in; city in; town in; is a town in; "
               "is a village in; country; part of; is part of; belongs to the country; is a city of; can be found in; forms part of; located in the country; is a part of; contained in; situated within; village in",
               "contains; includes; is the location of; location of; comprises; contains the city of; is the site of; encompasses; has within it; has part; site of; has the city; country of; encompasses the city of"),
    _predicate("capital of", "capital of; capital city of; is the capital of; seat of government of; serves as the capital of; serves as capital of; functions as the capital of", "capital; capital city; has capital; has as its capital; has its capital at; seat of government; has its capital in"),
    _predicate("borders", "borders; shares a border with; bordered by; shares border with; borders on; borders with; adjacent to; adjoins; neighbors; neighbours; next to; neighbor of; neighbour of; is a neighbour of; neighbouring", symmetric=True),
    _predicate("flows through", "flows through; runs through; passes through; crosses", "crossed by; traversed by"),
    _predicate("flows into", "flows into; empties into; drains into; mouth; discharges into", "mouth of"),
    _predicate("capital type", "largest city of; largest city in", "largest city"),
    _predicate("population", "has a population of; population; has population; had a population of; population is; is home to; is inhabited by; number of inhabitants; counts inhabitants; population count; inhabitants; "
               "is populated by; total population; number of residents; has a population of about; has inhabitants", "population of"),
    _predicate("area", "covers an area of; area; has an area of; total area; spans; spans an area of; has a total area of; surface area"),
    _predicate("elevation", "elevation; has an elevation of; stands at a height of; height; is tall; rises to; has a height of; height is"),
    # time
    _predicate("released in", "released in; came out in; release date; was released on; premiered in; publication date; release year; released on; year of release; came out on; published in; appeared in the year; first shown in; was published in; first published in; "
               "year of publication; premiered on; debuted in; hit theaters in; was released in the year; first released in; came out in the year; publication year", "release year of; year of release of; publication year of"),
    _predicate("built in", "built in; constructed in; completed in; construction completed in; was finished in; erected in"),
    _predicate("opened in", "opened in; opening date; was opened in; inaugurated on; opened on"),
    _predicate("took place in", "took place in; held in; occurred in; happened in; was held at; took place at; took place on; happened on; occurred on; was fought in; fought at; point in time"),
    # deeds
    _predicate("win", "won; winner of; was awarded; received; award received; received the award; recipient of; got; was honored with; was honoured with; took home; given the; earned; is the winner of; was the recipient of; was given; won the award; awarded; has won; laureate of; honored with; honoured with",
               "won by; winner; awarded to; received by; recipient; was given to; was presented to; conferred on; went to; awarded by jury to; was conferred on; bestowed on"),
    _predicate("nominated for", "nominated for; nominee for; was a nominee for; received a nomination for; shortlisted for"),
    _predicate("lose", "lost; lost the; loser of", "lost by"),
    _predicate("defeat", "defeated; beat; won against; victory over; triumphed over; overcame; prevailed over; vanquished; conqueror of; got the better of; bested", "defeated by; beaten by; lost to; was overcome by; lost against; was vanquished by; bested by"),
    _predicate("kill", "killed; murdered; assassinated; killer of; murderer of; assassin of", "killed by; murdered by; assassinated by; died at the hands of"),
    _predicate("conquer", "conquered; invaded; captured; occupied; seized", "conquered by; invaded by; captured by; occupied by; seized by"),
    _predicate("attack", "attacked; attacker of", "attacked by"),
    _predicate("influence", "influenced; was an influence on; influence on; inspiration for; inspiration of", "influenced by; inspired by; was under the influence of; took inspiration from; drew inspiration from"),
    _predicate("teach", "taught; teacher of; tutored; tutor of; mentored; mentor of; instructed; instructor of; doctoral advisor of; supervised", "taught by; student of; pupil of; studied under; teacher; disciple of; mentored by; tutored by; was a student of; protégé of; learned from; doctoral advisor; apprentice of"),
    _predicate("play role", "portrayed; played the role of; played; plays the role of; plays; portrays; played the part of", "portrayed by; played by"),
    _predicate("named after", "named after; named for; takes its name from; eponym; owes its name to; was named in honor of; was named in honour of", "namesake of; gave its name to; eponym of; gave name to; lent its name to"),
    _predicate("known as", "known as; also known as; nicknamed; aka; called; alias; also called; alternate name; goes by the name; goes by", symmetric=True),
    _predicate("occupation", "works as; occupation; profession; is a; by profession; job; earns living as; is by profession; worked as; makes a living as; career as; is employed as; was a; is an"),
    _predicate("genre", "genre; belongs to the genre; is in the genre; has genre; falls under the genre"),
    _predicate("speaks", "speaks; language spoken; speaker of; native language; mother tongue; speaks the language", "spoken by; native language of"),
    _predicate("official language", "official language; has official language; has as official language; official tongue; has as its official language", "official language of; official tongue of"),
    _predicate("currency", "currency; uses the currency; has currency; uses as currency; official currency; has as its currency", "currency of; is used as currency in; official currency of; is the legal tender of; is used in as currency"),
    _predicate("collaborate", "collaborated with; worked with; worked together with; cooperated with; partnered with; teamed up with; in collaboration with; collaborator of", symmetric=True),
    _predicate("friend", "friend of; friends with; is friends with; was friends with; a friend of; befriended", symmetric=True),
    _predicate("rival", "rival of; rivals; rivals with; is a rival of; competes with; competed with; rival; competitor of; has a rivalry with; competes against", symmetric=True),
    _predicate("twinned", "twinned with; sister city of; twin town of; twin city of; sister city; twin town; is a sister city of", symmetric=True),
    _predicate("at war", "fought against; at war with; was at war with; waged war against; waged war on", symmetric=True),
    _predicate("same as", "same as; identical to; equal to; equivalent to", symmetric=True),
    _predicate("relative", "related to; relative of; is a relative of; cousin of; cousin; cousins with", symmetric=True),
    _predicate("allied", "allied with; ally of; is an ally of", symmetric=True),
    _predicate("met", "met; met with; encountered; had a meeting with", symmetric=True),
    _predicate("engaged to", "engaged to; fiancé of; fiancée of; fiancé; fiancée; betrothed to", symmetric=True),
    _predicate("divorced", "divorced; divorced from; ex-spouse of", symmetric=True),
    _predicate("partner", "partner of; dated; in a relationship with; dating; romantic partner of; partner", symmetric=True),
    _predicate("colleague", "colleague of; colleagues with; coworker of; classmate of; classmates with; roommate of; neighbour to; teammate of; teammates with; contemporary of", symmetric=True),
    _predicate("merged with", "merged with; amalgamated with; combined with", symmetric=True),
    _predicate("larger than", "larger than; bigger than; exceeds in size", "smaller than"),
    _predicate("older than", "older than; was born before; born earlier than", "younger than; was born after; born later than"),
    _predicate("taller than", "taller than; higher than", "shorter than; lower than"),
    _predicate("north of", "north of; lies north of; located north of; situated north of; to the north of", "south of; lies south of; located south of; situated south of; to the south of"),
    _predicate("east of", "east of; lies east of; located east of; situated east of; to the east of", "west of; lies west of; located west of; situated west of; to the west of"),
    _predicate("before", "before; earlier than; happened before", "after; later than; happened after"),
    _predicate("cause", "caused; causes; led to; resulted in; brought about; gave rise to; cause of", "caused by; resulted from; brought about by; result of; due to; effect of; cause"),
    _predicate("supply", "supplies; supplier of; supplied", "supplied by; supplier"),
    _predicate("serve", "served in; served with; fought in; took part in; participated in; participant in; took part at; participated at; competed in; competed at", "participant; participants; had among its participants"),
    _predicate("signed", "signed; signatory of; signatory to", "signed by; signatory"),
    _predicate("sold", "sold; seller of", "sold by; seller"),
    _predicate("elected by", "elected; appointed; named; appointer of", "elected by; appointed by; named by"),
    _predicate("employment start", "started work in; began career in; active since"),
)  # fmt: skip
