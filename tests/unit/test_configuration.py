"""Layered TOML: what wins, what is refused and with which words, and the way back to TOML."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from factagent.configuration import dump_toml, load_config
from factagent.errors import ConfigError


@dataclass(frozen=True)
class World:
    entities: int = 10
    hops: tuple[int, ...] = (1, 2)


class Learner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    learning_rate: float = Field(default=1e-5, gt=0)
    precision: Literal["fp32", "bf16"] = "bf16"
    betas: tuple[float, float] = (0.9, 0.999)


class Config(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = "run"
    steps: int = 5
    limit: int | None = None
    folder: Path | None = None
    learner: Learner = Learner()
    world: World | None = None


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_defaults_file_and_overrides_in_this_order(tmp_path: Path) -> None:
    assert load_config(Config, None) == Config()
    path = write(tmp_path / "c.toml", 'name = "file"\nsteps = 6\n[learner]\nprecision = "fp32"\n')
    config = load_config(Config, path, ["steps=7", "learner.betas=[0.5, 0.6]"])
    assert (config.name, config.steps) == ("file", 7)
    assert config.learner == Learner(precision="fp32", betas=(0.5, 0.6))


def test_extends_merges_tables_and_is_relative_to_its_file(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    write(
        tmp_path / "base" / "root.toml",
        'name = "root"\nsteps = 1\n[learner]\nlearning_rate = 0.5\nbetas = [0.1, 0.2]\n',
    )
    write(tmp_path / "base" / "mid.toml", 'extends = "root.toml"\nsteps = 2\n[world]\nentities = 3\n')
    path = write(tmp_path / "c.toml", 'extends = "base/mid.toml"\n[learner]\nprecision = "fp32"\nbetas = [0.3, 0.4]\n')
    config = load_config(Config, path)
    assert (config.name, config.steps, config.world) == ("root", 2, World(entities=3))
    assert config.learner == Learner(learning_rate=0.5, precision="fp32", betas=(0.3, 0.4))


def test_tables_go_over_the_file_and_under_the_command_line(tmp_path: Path) -> None:
    path = write(tmp_path / "c.toml", 'name = "file"\nsteps = 6\n[learner]\nprecision = "fp32"\n')
    tables = [("one", {"steps": 7, "learner": {"learning_rate": 0.5}}), ("two", {"steps": 8, "limit": 3})]
    config = load_config(Config, path, ["limit=4"], tables=tables)
    assert (config.name, config.steps, config.limit) == ("file", 8, 4)
    assert config.learner == Learner(precision="fp32", learning_rate=0.5)
    with pytest.raises(ConfigError, match=r"^two: unknown key 'learner\.learning_rat'"):
        load_config(Config, path, tables=[tables[0], ("two", {"learner": {"learning_rat": 1}})])
    with pytest.raises(ConfigError, match=r"^one: key 'steps' = 'x' is refused"):
        load_config(Config, path, tables=[("one", {"steps": "x"})])


class Named(BaseModel):
    model_config = ConfigDict(extra="forbid")
    entries: dict[str, Learner] = {}


def test_a_table_may_hold_tables_with_free_names(tmp_path: Path) -> None:
    path = write(tmp_path / "c.toml", "[entries.one]\nlearning_rate = 0.5\n[entries.two]\n")
    config = load_config(Named, path)
    assert config.entries == {"one": Learner(learning_rate=0.5), "two": Learner()}
    assert load_config(Named, write(tmp_path / "d.toml", dump_toml(config))) == config
    with pytest.raises(ConfigError, match=r"unknown key 'entries\.two\.learning_rat'; did you mean 'entries\.two\.l"):
        load_config(Named, write(path, "[entries.two]\nlearning_rat = 0.5\n"))
    with pytest.raises(ConfigError, match=r"key 'entries\.two\.learning_rate' = 0 is refused"):
        load_config(Named, write(path, "[entries.two]\nlearning_rate = 0\n"))


def test_a_circle_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.toml", 'extends = "b.toml"\n')
    write(tmp_path / "b.toml", 'extends = "./a.toml"\n')
    with pytest.raises(ConfigError, match=r"a\.toml: key 'extends' leads back to a\.toml"):
        load_config(Config, tmp_path / "a.toml")
    with pytest.raises(ConfigError, match="leads back to self"):
        load_config(Config, write(tmp_path / "self.toml", 'extends = "self.toml"\n'))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("steps = \n", "is not TOML"),
        ("extends = 3\n", "key 'extends' must be the path of a TOML file, found 3"),
        ('extends = "absent.toml"\n', r"absent\.toml cannot be read: No such file"),
        ("stepz = 3\n", r"c\.toml: unknown key 'stepz'; did you mean 'steps'\?"),
        ("learning_rate = 3\n", r"c\.toml: unknown key 'learning_rate'; did you mean 'learner\.learning_rate'\?"),
        ("lerning_rate = 3\n", r"unknown key 'lerning_rate'; did you mean 'learner\.learning_rate'\?"),
        ("zzz = 3\n", "unknown key 'zzz'; known here are name, steps, limit, folder, learner, world"),
        ("[learner]\nbeta = 3\n", r"unknown key 'learner\.beta'; did you mean 'learner\.betas'\?"),
        ("[world]\nentitys = 3\n", r"unknown key 'world\.entitys'; did you mean 'world\.entities'\?"),
        (
            "steps = true\n[learner]\nlearning_rate = 0\n",
            r"key 'learner\.learning_rate' = 0 is refused: input should be",
        ),
        ('[learner]\nprecision = "fp8"\n', r"c\.toml: key 'learner\.precision' = 'fp8' is refused: .*'fp32' or 'bf16'"),
        (
            "[learner]\nbetas = [1, 'x']\n",
            r"c\.toml: key 'learner\.betas\.1' = 'x' is refused: input should be a valid",
        ),
        ("learner = 3\n", r"c\.toml: key 'learner' = 3 is refused"),
    ],
)
def test_bad_files(tmp_path: Path, content: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        load_config(Config, write(tmp_path / "c.toml", content))
    assert caught.value.exit_code == 2


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not TOML"):
        load_config(Config, tmp_path / "c.toml")


def test_errors_name_the_layer_that_set_the_value(tmp_path: Path) -> None:
    base = write(tmp_path / "base.toml", "steps = 'x'\n[learner]\nlearning_rate = -1\n")
    path = write(tmp_path / "c.toml", 'extends = "base.toml"\nsteps = "y"\n')
    with pytest.raises(ConfigError) as caught:
        load_config(Config, path)
    first, second = str(caught.value).split("; ")
    assert first.startswith(f"{path}: key 'steps' = 'y' is refused: ")
    assert second.startswith(f"{base}: key 'learner.learning_rate' = -1 is refused: ")
    with pytest.raises(ConfigError, match="the command line: key 'steps' = 'z' is refused"):
        load_config(Config, None, ["steps=z"])


@pytest.mark.parametrize(
    ("override", "config"),
    [
        ("name=plain words", Config(name="plain words")),
        ('name="12"', Config(name="12")),
        ("name=a=b", Config(name="a=b")),
        (" steps = 3", Config(steps=3)),
        ("limit=null", Config(limit=None)),
        ("folder=some/where", Config(folder=Path("some/where"))),
        ("world.hops=[3]", Config(world=World(hops=(3,)))),
        ("world={entities = 2}", Config(world=World(entities=2))),
        ("learner.learning_rate=1e-6", Config(learner=Learner(learning_rate=1e-6))),
    ],
)
def test_overrides(override: str, config: Config) -> None:
    assert load_config(Config, None, [override]) == config


def test_later_overrides_win() -> None:
    assert load_config(Config, None, ["limit=3", "limit=null"]).limit is None
    assert load_config(Config, None, ["steps=3", "steps=4"]).steps == 4


@pytest.mark.parametrize("override", ["steps", "=3", "learner..betas=1", ".steps=1", ""])
def test_malformed_overrides(override: str) -> None:
    with pytest.raises(ConfigError, match=r"must look like table\.key=value"):
        load_config(Config, None, [override])


def test_toml_has_every_key() -> None:
    config = Config(world=World(), folder=Path("x/y"))
    assert dump_toml(config) == (
        'name = "run"\nsteps = 5\nfolder = "x/y"\n'
        '\n[learner]\nlearning_rate = 1e-05\nprecision = "bf16"\nbetas = [0.9, 0.999]\n'
        "\n[world]\nentities = 10\nhops = [1, 2]\n"
    )


def test_none_that_toml_cannot_say_is_refused() -> None:
    class Inner(BaseModel):
        limit: int | None = 3

    class Outer(BaseModel):
        inner: Inner = Inner()

    assert dump_toml(Outer()) == "[inner]\nlimit = 3\n"
    with pytest.raises(ConfigError, match=r"key 'inner\.limit' is none"):
        dump_toml(Outer(inner=Inner(limit=None)))


class Everything(BaseModel):
    text: str
    number: float
    whole: int
    flag: bool
    texts: list[str]
    tables: list[dict[str, str | None]]
    nested: dict[str, dict[str, float]]


TEXTS = st.text(max_size=8)
FLOATS = st.floats(allow_nan=False)


@given(
    st.builds(
        Everything,
        text=TEXTS,
        number=FLOATS,
        whole=st.integers(-(2**63), 2**63 - 1),
        flag=st.booleans(),
        texts=st.lists(TEXTS, max_size=3),
        tables=st.lists(st.dictionaries(TEXTS, TEXTS, max_size=3), max_size=2),
        nested=st.dictionaries(TEXTS, st.dictionaries(TEXTS, FLOATS, max_size=3), max_size=3),
    )
)
def test_toml_is_read_back(config: Everything) -> None:
    assert Everything.model_validate(tomllib.loads(dump_toml(config))) == config


def test_dumped_configuration_loads_again(tmp_path: Path) -> None:
    config = Config(name='ü \\ " \n \x7f', limit=3, world=World(hops=()), learner=Learner(precision="fp32"))
    assert load_config(Config, write(tmp_path / "c.toml", dump_toml(config))) == config
