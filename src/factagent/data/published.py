"""What `factagent data prepare` fetches: the published files, their splits, and how many rows they hold.

Questions come from FlashRAG's collection, in the splits that Search-R1 trains and evaluates on (methods.md, section
2.1); Wiki-18 and its E5 vectors are Search-R1's.
"""

from __future__ import annotations

from dataclasses import dataclass

from factagent.errors import UsageError

QUESTIONS = "RUC-NLPIR/FlashRAG_datasets"
CORPUS = "PeterJinGo/wiki-18-corpus"
INDEX = "PeterJinGo/wiki-18-e5-index"


@dataclass(frozen=True, slots=True)
class Original:
    """A file of a data set repository of the hub; `rows` is what it must hold, None where it has no rows."""

    repository: str
    path: str
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """A question file to be written: the rows of its originals, in order.

    Files that merge several originals qualify each id with the name of its data set (`nq:train_0`), because every
    original counts from 0.
    """

    name: str
    file: str
    originals: tuple[Original, ...]


@dataclass(frozen=True, slots=True)
class Corpus:
    """A packed corpus, which is unpacked and checked row by row."""

    name: str
    file: str
    original: Original


@dataclass(frozen=True, slots=True)
class Vectors:
    """A published file that is kept as it is."""

    name: str
    file: str
    original: Original


Item = QuestionSet | Corpus | Vectors


def _questions(name: str, split: str, rows: int) -> Original:
    return Original(QUESTIONS, f"{name}/{split}.jsonl", rows)


def _evaluation(name: str, split: str, rows: int) -> QuestionSet:
    return QuestionSet(name, f"{name}.{split}.jsonl", (_questions(name, split, rows),))


TRAIN = QuestionSet(
    "train", "nq_hotpotqa.train.jsonl", (_questions("nq", "train", 79_168), _questions("hotpotqa", "train", 90_447))
)
"""169,615 questions, those of NQ first."""

EVALUATION = (
    _evaluation("nq", "test", 3_610),
    _evaluation("triviaqa", "test", 11_313),
    _evaluation("popqa", "test", 14_267),
    _evaluation("hotpotqa", "dev", 7_405),
    _evaluation("2wikimultihopqa", "dev", 12_576),
    _evaluation("musique", "dev", 2_417),
    _evaluation("bamboogle", "test", 125),
)
"""The seven sets, in the order of the paper's tables: the split `test` where it has answers, else `dev`."""

WIKI_18 = Corpus("wiki-18", "wiki-18/wiki-18.jsonl", Original(CORPUS, "wiki-18.jsonl.gz", 21_015_324))

WIKI_18_INDEX = tuple(
    Vectors("wiki-18-index", f"wiki-18/{part}", Original(INDEX, part)) for part in ("part_aa", "part_ab")
)
"""The vectors, in the pieces in which they are published; they open beside the corpus as they are."""

PUBLISHED: tuple[Item, ...] = (TRAIN, *EVALUATION, WIKI_18, *WIKI_18_INDEX)
"""Everything, in the order in which it is prepared."""


def originals_of(item: Item) -> tuple[Original, ...]:
    """The published files that an item is made from."""
    return item.originals if isinstance(item, QuestionSet) else (item.original,)


def choose(
    items: tuple[Item, ...], only: tuple[str, ...] = (), *, corpus: bool = True, index: bool = False
) -> list[Item]:
    """The items to prepare: those named in `only`, else all, without the corpus or the vectors unless they are wanted.

    Raises:
        UsageError: a name of `only` is unknown.
    """
    names = list(dict.fromkeys(item.name for item in items))
    for name in only:
        if name not in names:
            raise UsageError(f"--only {name}: no such set; choose among {', '.join(names)}")
    kinds = (QuestionSet, *((Corpus,) if corpus else ()), *((Vectors,) if index else ()))
    return [item for item in items if (item.name in only if only else isinstance(item, kinds))]
