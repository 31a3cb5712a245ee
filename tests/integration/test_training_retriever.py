"""Training that searches a given index, or a server of it, instead of the corpus in memory: the same run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("uvicorn")
torch.set_num_threads(1)

from factagent.cli import main  # noqa: E402
from factagent.configuration import load_config  # noqa: E402
from factagent.errors import ConfigError  # noqa: E402
from factagent.runs import metrics_digest  # noqa: E402
from factagent.train.config import RunConfig  # noqa: E402
from factagent.train.evaluate import config_of_run  # noqa: E402
from factagent.train.run import start_training  # noqa: E402
from factagent.train.setup import data_paths  # noqa: E402

SHORT = ("schedule.steps=1", "schedule.questions_per_step=2", "schedule.eval_questions=2", "schedule.eval_every=1")


@pytest.fixture(scope="module")
def index(config_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BM25 index of the world's passages."""
    corpus = data_paths(load_config(RunConfig, config_file).data).needed_corpus
    out = tmp_path_factory.mktemp("retriever") / "index"
    assert main(["index", "build", "--corpus", str(corpus), "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def url(index: Path) -> Iterator[str]:
    """A server of that index."""
    command = [sys.executable, "-m", "factagent.cli", "serve", "retrieval", "--index", str(index), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().split()[1]
        finally:
            server.terminate()


def test_an_index_and_a_server_of_it_give_the_run_of_its_corpus(
    config_file: Path, index: Path, url: str, tmp_path: Path
) -> None:
    digests = set()
    for name, spec in (("corpus", None), ("index", str(index)), ("server", url)):
        overrides = (*SHORT, *([f"data.retriever.spec={spec}"] if spec else []))
        start_training(load_config(RunConfig, config_file, overrides), tmp_path / name)
        digests.add(metrics_digest(tmp_path / name))
    assert len(digests) == 1
    assert config_of_run(tmp_path / "server").retriever.spec == url
    assert config_of_run(tmp_path / "corpus").retriever.corpus is not None


def test_a_run_over_a_retriever_needs_no_corpus(config_file: Path, index: Path, tmp_path: Path) -> None:
    paths = data_paths(load_config(RunConfig, config_file).data)
    overrides = ("data.world=null", "data.directory=null", f"data.train={paths.train}", f"data.dev={paths.dev}")
    config = load_config(RunConfig, config_file, (*SHORT, *overrides, f"data.retriever.spec={index}"))
    assert start_training(config, tmp_path / "run")["steps"] == 1
    with pytest.raises(ConfigError, match=r"data\.retriever takes the place of data\.corpus"):
        _ = data_paths(config.data).needed_corpus


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("data.retriever.corpus=c.jsonl", "'retriever.corpus' is the key 'corpus' here"),
        ("data.retriever={spec='x', corpus='y'}", "give either 'spec'"),
        ("engine=verl", "engine 'verl' asks 'cluster.servers'"),
    ],
)
def test_what_cannot_be_searched_is_refused(override: str, problem: str, config_file: Path) -> None:
    given = (override,) if "retriever" in override else (override, "data.retriever.spec=x")
    with pytest.raises(ConfigError, match=problem):
        load_config(RunConfig, config_file, given)
