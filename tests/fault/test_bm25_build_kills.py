"""A build that is killed goes on, and its index has the bytes of one that was not."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from factagent.errors import DataError, TryAgainError, UsageError
from factagent.retrieval.bm25_build import FILE_NAMES, write_index
from factagent.retrieval.building import ChangedBuildError, building_path, hold
from factagent.retrieval.manifest import MANIFEST_NAME, BM25Settings
from factagent.types import Passage

WORDS = [f"word{number}" for number in range(3000)]


def corpus(passages: int, length: int = 60, seed: int = 3) -> list[Passage]:
    draw = random.Random(seed)
    return [Passage(f"id{n}", f"Title {n}", " ".join(draw.choices(WORDS, k=length))) for n in range(passages)]


def bytes_of(directory: Path) -> dict[str, bytes]:
    return {name: (directory / name).read_bytes() for name in (*FILE_NAMES, MANIFEST_NAME)}


RUN = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_bm25_build_kills import corpus
from factagent.retrieval.bm25_build import write_index
passages = corpus(6000)
print("begun", flush=True)
write_index(passages, Path(sys.argv[2]), shard_words=10_000)
"""


def start(directory: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", RUN, str(Path(__file__).parent), str(directory)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    return process


def wait_for_progress(process: subprocess.Popen[str], state: Path) -> None:
    """Wait until the build records another finished part, or ends."""

    def recorded() -> int:
        return state.stat().st_mtime_ns if state.exists() else 0

    before = recorded()
    while recorded() == before and process.poll() is None:
        time.sleep(0.001)


def test_ten_kills_at_random_times(tmp_path: Path) -> None:
    write_index(corpus(6000), tmp_path / "whole", shard_words=10_000)
    state, draw, went_on = building_path(tmp_path / "i") / "state.json", random.Random(0), 0
    for _ in range(10):
        went_on += state.exists()
        process = start(tmp_path / "i")
        if draw.random() < 0.7:
            wait_for_progress(process, state)
        time.sleep(draw.uniform(0, 0.05))
        process.kill()
        assert process.wait() in (0, -9)
        process.stdout.close()
        if (tmp_path / "i").exists():
            assert bytes_of(tmp_path / "i") == bytes_of(tmp_path / "whole")
            break
    write_index(corpus(6000), tmp_path / "i", shard_words=10_000, overwrite=True)
    assert went_on > 0
    assert bytes_of(tmp_path / "i") == bytes_of(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["i", "whole"]


CRASHES = """
import os, pathlib, shutil, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_bm25_build_kills import bytes_of, corpus
from factagent.retrieval.bm25_build import write_index

passages, folder, calls = corpus(20, 30), Path(sys.argv[2]), 0
os.fsync = lambda handle: None  # a kill loses nothing that was written; power cuts are not tried here

def vanish_before(owner, name, number):
    action = getattr(owner, name)
    def wrapped(*arguments, **options):
        global calls
        calls += 1
        if calls == number:
            os._exit(9)
        return action(*arguments, **options)
    setattr(owner, name, wrapped)

def child(number, overwrite):
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    for owner, name in ((os, "fsync"), (pathlib.Path, "rename"), (pathlib.Path, "replace"), (shutil, "rmtree")):
        vanish_before(owner, name, number)
    write_index(passages, folder / "i", shard_words=400, overwrite=overwrite)
    os._exit(0)

write_index(passages, folder / "whole")
for overwrite in (False, True):
    number = 0
    while True:
        number += 1
        shutil.rmtree(folder / "i", ignore_errors=True)
        if overwrite:
            write_index(passages[:5], folder / "i")
        if child(number, overwrite) == 0:
            break
        assert child(0, overwrite) == 0, number
        assert bytes_of(folder / "i") == bytes_of(folder / "whole"), number
        assert sorted(os.listdir(folder)) == ["i", "whole"], number
    print(number)
"""


def test_a_kill_before_every_sync_rename_and_removal(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CRASHES, str(Path(__file__).parent), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(int(number) > 30 for number in done.stdout.split())


def interrupt(passages: list[Passage], directory: Path, settings: BM25Settings | None = None) -> None:
    """Leave a build with finished shards behind, as Ctrl-C does."""

    def stream():  # type: ignore[no-untyped-def]
        yield from passages
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_index(stream(), directory, settings, shard_words=500)
    assert (building_path(directory) / "state.json").exists()
    assert not directory.exists()


def test_only_unfinished_shards_are_counted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from factagent.retrieval import bm25_build

    passages, counted = corpus(40), []
    interrupt(passages[:30], tmp_path / "i")
    real = bm25_build.tokenise
    monkeypatch.setattr(bm25_build, "tokenise", lambda text, settings: counted.append(text) or real(text, settings))
    stages: list[tuple[str, int, int | None]] = []
    write_index(passages, tmp_path / "i", shard_words=10_000, report=lambda *stage: stages.append(stage))
    assert 10 <= len(counted) < 20
    assert ("comparing", 27, 27) in stages and stages[-1][0] == "scoring" and stages[-1][1] == stages[-1][2]
    write_index(passages, tmp_path / "whole")
    assert bytes_of(tmp_path / "i") == bytes_of(tmp_path / "whole")


def test_changed_settings_are_named_and_a_restart_obeys(tmp_path: Path) -> None:
    passages = corpus(40)
    interrupt(passages, tmp_path / "i")
    changed = BM25Settings(k1=1.2, stop_words="en")
    with pytest.raises(ChangedBuildError, match=r"k1 was 0\.9, is now 1\.2, stop_words was none, is now en.*--force"):
        write_index(passages, tmp_path / "i", changed)
    write_index(passages, tmp_path / "i", changed, restart=True)
    write_index(passages, tmp_path / "whole", changed)
    assert bytes_of(tmp_path / "i") == bytes_of(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["i", "whole"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: [*p[:7], Passage("id7", "Title 7", "other words"), *p[8:]], "another passage 8 .*id7"),
        (lambda p: p[1:], "another passage 1 .*id1"),
        (lambda p: p[:9], "now ends after 9"),
        (lambda p: [], "now ends after 0"),
    ],
)
def test_a_changed_corpus_is_named(tmp_path: Path, change, message: str) -> None:  # type: ignore[no-untyped-def]
    passages = corpus(40)
    interrupt(passages, tmp_path / "i")
    with pytest.raises(ChangedBuildError, match=message):
        write_index(change(passages), tmp_path / "i")
    write_index(passages, tmp_path / "i")


def test_a_corpus_repaired_behind_the_finished_shards_goes_on(tmp_path: Path) -> None:
    passages = corpus(40)
    with pytest.raises(DataError, match="passage 41: the id 'id2' occurs twice"):
        write_index([*passages, passages[2]], tmp_path / "i", shard_words=500)
    write_index(passages, tmp_path / "i")
    write_index(passages, tmp_path / "whole")
    assert bytes_of(tmp_path / "i") == bytes_of(tmp_path / "whole")


def test_a_torn_state_is_refused_and_a_restart_obeys(tmp_path: Path) -> None:
    interrupt(corpus(40), tmp_path / "i")
    (building_path(tmp_path / "i") / "state.json").write_text('{"version": 1')
    with pytest.raises(ChangedBuildError, match=r"state\.json"):
        write_index(corpus(40), tmp_path / "i")
    write_index(corpus(40), tmp_path / "i", restart=True)


def test_one_build_at_a_time(tmp_path: Path) -> None:
    with hold(building_path(tmp_path / "i")), pytest.raises(TryAgainError, match="another process"):
        write_index(corpus(3), tmp_path / "i")


def test_a_shard_holds_at_least_a_word(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="shard_words=0"):
        write_index(corpus(3), tmp_path / "i", shard_words=0)
