"""Checkpoints: bitwise round trip, verification of every byte, retention, random states."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch

from factagent.errors import CorruptError, DataError, UsageError
from factagent.train.checkpoint import Part, checkpoint_steps, discard_after, latest, load_checkpoint, save_checkpoint
from factagent.train.random_states import random_states, restore_random_states


def make_model(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))


def make_optimizer(model):
    first, *rest = model.parameters()
    groups = [{"params": [first], "weight_decay": 0.0}, {"params": rest, "lr": 0.3}]
    return torch.optim.AdamW(groups, lr=0.1, betas=(0.9, 0.95))


def train(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(5, 3)).square().sum().backward()
        optimizer.step()


def tensors_of(optimizer):
    state = optimizer.state_dict()["state"]
    return {f"{i}.{key}": value for i, values in state.items() for key, value in values.items()}


def test_round_trip_is_bitwise_and_training_goes_on_alike(tmp_path):
    model = make_model()
    optimizer = make_optimizer(model)
    train(model, optimizer, 3)
    state = {"cursor": 7, "alarms": {"parse": [0.1, 1 / 3]}, "random": random_states()}
    path = save_checkpoint(tmp_path, 3, weights=model.state_dict(), optimizer=optimizer, state=state)
    assert path == tmp_path / "step-3"
    train(model, optimizer, 4)

    checkpoint = load_checkpoint(latest(tmp_path))
    assert (checkpoint.step, checkpoint.state) == (3, state)
    other = make_model(99)
    other.load_state_dict(checkpoint.weights())
    resumed = make_optimizer(other)
    checkpoint.restore_optimizer(resumed)
    assert resumed.param_groups[0]["betas"] == (0.9, 0.95)
    assert [group["lr"] for group in resumed.param_groups] == [0.1, 0.3]
    restore_random_states(checkpoint.state["random"])
    train(other, resumed, 4)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name
    mine, theirs = tensors_of(optimizer), tensors_of(resumed)
    assert mine.keys() == theirs.keys()
    assert len(mine) == 12
    assert all(torch.equal(mine[key], theirs[key]) and mine[key].dtype == theirs[key].dtype for key in mine)


def test_equal_states_give_equal_bytes(tmp_path):
    for folder in ("a", "b"):
        model = make_model()
        optimizer = make_optimizer(model)
        train(model, optimizer, 2)
        save_checkpoint(
            tmp_path / folder, 2, weights=model.state_dict(), optimizer=optimizer, state={"r": random_states()}
        )
    first, second = (tmp_path / folder / "step-2" / "manifest.json" for folder in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()


def test_a_flipped_byte_in_any_file_is_refused_by_name(tmp_path):
    model = make_model()
    optimizer = make_optimizer(model)
    train(model, optimizer, 1)
    path = save_checkpoint(
        tmp_path, 1, weights=model.state_dict(), optimizer=optimizer, state={"n": 1}, extra_files={"config.json": b"{}"}
    )
    files = sorted(path.iterdir())
    assert [file.name for file in files] == [
        "config.json",
        "manifest.json",
        "model.safetensors",
        "optimizer.json",
        "optimizer.safetensors",
        "state.json",
    ]
    for file in files:
        original = file.read_bytes()
        places = range(len(original)) if file.name in ("manifest.json", "state.json") else [0, 9, len(original) - 1]
        for place in places:
            damaged = bytearray(original)
            damaged[place % len(damaged)] ^= 1
            file.write_bytes(damaged)
            with pytest.raises(CorruptError, match=file.name):
                load_checkpoint(path)
        file.write_bytes(original + b" ")
        with pytest.raises(CorruptError, match=file.name):
            load_checkpoint(path)
        file.unlink()
        with pytest.raises(CorruptError, match=file.name):
            load_checkpoint(path)
        file.write_bytes(original)
    assert load_checkpoint(path).state == {"n": 1}


def test_a_damaged_latest_is_not_replaced_by_an_older_one(tmp_path):
    for step in (1, 2):
        save_checkpoint(tmp_path, step, weights={"w": torch.ones(2)})
    (tmp_path / "step-2" / "model.safetensors").write_bytes(b"")
    assert latest(tmp_path) == tmp_path / "step-2"
    with pytest.raises(CorruptError, match=r"step-2/model\.safetensors: has 0 bytes"):
        load_checkpoint(latest(tmp_path))


def test_retention_keeps_the_newest_and_the_protected(tmp_path):
    for step in range(1, 8):
        save_checkpoint(tmp_path, step, weights={"w": torch.ones(1)}, keep_last=2, protect={3})
    assert checkpoint_steps(tmp_path) == [3, 6, 7]
    save_checkpoint(tmp_path, 10, weights={"w": torch.ones(1)}, keep_last=1, protect={6})
    assert checkpoint_steps(tmp_path) == [6, 10]
    save_checkpoint(tmp_path, 11, weights={"w": torch.ones(1)}, keep_last=0)
    assert checkpoint_steps(tmp_path) == [6, 10, 11]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["step-10", "step-11", "step-6"]


def test_latest_orders_by_number_and_ignores_what_is_no_checkpoint(tmp_path):
    assert latest(tmp_path / "absent") is None
    assert latest(tmp_path) is None
    for name in ("step-9", "step-10", "step-11.tmp", "step-x", "notes"):
        (tmp_path / name).mkdir()
    assert latest(tmp_path).name == "step-10"


def test_stale_temporaries_go_with_the_next_save(tmp_path):
    (tmp_path / "step-5.tmp").mkdir()
    (tmp_path / "step-5.tmp" / "model.safetensors").write_bytes(b"half")
    save_checkpoint(tmp_path, 5, weights={"w": torch.ones(1)})
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-5"]


def test_an_existing_checkpoint_is_not_overwritten_until_discarded(tmp_path):
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, step, weights={"w": torch.full((1,), float(step))}, keep_last=0)
    with pytest.raises(UsageError, match="step-2 exists already"):
        save_checkpoint(tmp_path, 2, weights={"w": torch.zeros(1)})
    discard_after(tmp_path, 1)
    assert checkpoint_steps(tmp_path) == [1]
    save_checkpoint(tmp_path, 2, weights={"w": torch.zeros(1)})
    assert load_checkpoint(tmp_path / "step-2").weights()["w"].item() == 0.0


def test_tied_tensors_are_written_once_and_come_back_under_both_names(tmp_path):
    tied = torch.arange(2000.0)
    path = save_checkpoint(tmp_path, 0, weights={"embed": tied, "head": tied, "other": tied.clone()})
    assert (path / "model.safetensors").stat().st_size < 2.2 * tied.nbytes
    weights = load_checkpoint(path).weights()
    assert all(torch.equal(weights[name], tied) for name in ("embed", "head", "other"))


def test_a_callable_writes_a_hugging_face_directory(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen2Config(
        vocab_size=11, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, tie_word_embeddings=True,
    )  # fmt: skip
    model = transformers.Qwen2ForCausalLM(config)
    by_callable = save_checkpoint(tmp_path, 1, weights=model.save_pretrained)
    by_tensors = save_checkpoint(
        tmp_path, 2, weights=model.state_dict(), extra_files={"config.json": config.to_json_string().encode()}
    )
    for path in (by_callable, by_tensors):
        load_checkpoint(path)
        loaded = transformers.Qwen2ForCausalLM.from_pretrained(path)
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), loaded.parameters(), strict=True))
    with pytest.raises(DataError, match="holds no optimizer"):
        load_checkpoint(by_callable).restore_optimizer(torch.optim.AdamW(model.parameters()))


def test_an_optimizer_of_another_model_is_refused(tmp_path):
    model = make_model()
    optimizer = make_optimizer(model)
    train(model, optimizer, 1)
    checkpoint = load_checkpoint(save_checkpoint(tmp_path, 1, weights=model.state_dict(), optimizer=optimizer))
    with pytest.raises(DataError, match="parameters"):
        checkpoint.restore_optimizer(torch.optim.AdamW(model.parameters()))
    wider = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    with pytest.raises(DataError, match=r"0\.exp_avg"):
        checkpoint.restore_optimizer(make_optimizer(wider))


def test_bad_arguments_and_absent_checkpoints_are_named(tmp_path):
    with pytest.raises(UsageError, match="steps count from 0"):
        save_checkpoint(tmp_path, -1, weights={})
    for name in ("../evil", "state.json", "a/b"):
        with pytest.raises(UsageError, match="extra file"):
            save_checkpoint(tmp_path, 1, weights={"w": torch.ones(1)}, extra_files={name: b""})
    assert latest(tmp_path) is None
    with pytest.raises(DataError, match="no such checkpoint"):
        load_checkpoint(tmp_path / "step-1")


def test_a_newer_format_is_refused_with_advice(tmp_path, monkeypatch):
    monkeypatch.setattr("factagent.train.checkpoint.FORMAT", 2)
    path = save_checkpoint(tmp_path, 1, weights={"w": torch.ones(1)})
    monkeypatch.undo()
    with pytest.raises(DataError, match="format 2, this version reads 1; update factagent"):
        load_checkpoint(path)


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.MT19937, np.random.Philox])
def test_random_states_survive_json(kind):
    named = {"numpy": np.random.Generator(kind(5)), "torch": torch.Generator().manual_seed(5)}
    named["numpy"].normal(size=3)
    random.gauss(0, 1)
    np.random.standard_normal()

    def draw():
        return (
            random.random(),
            random.gauss(0, 1),
            np.random.standard_normal(3).tolist(),
            torch.rand(3).tolist(),
            named["numpy"].integers(0, 2**63, size=5).tolist(),
            named["numpy"].normal(),
            torch.rand(3, generator=named["torch"]).tolist(),
        )

    states = json.loads(json.dumps(random_states(named)))
    first = draw()
    assert draw() != first
    restore_random_states(states, named)
    assert draw() == first
    with pytest.raises(DataError, match="no random state named 'absent'"):
        restore_random_states(states, {"absent": torch.Generator()})


def test_a_further_model_is_kept_beside_the_policy_bit_for_bit(tmp_path):
    policy, critic = make_model(), make_model(1)
    optimizers = make_optimizer(policy), make_optimizer(critic)
    for model, optimizer in zip((policy, critic), optimizers, strict=True):
        train(model, optimizer, 3)
    parts = {"critic": Part(critic.state_dict(), optimizers[1])}
    path = save_checkpoint(tmp_path, 3, weights=policy.state_dict(), optimizer=optimizers[0], parts=parts)
    checkpoint = load_checkpoint(path)
    assert {name for name in checkpoint.files if name.startswith("critic/")} == {
        "critic/model.safetensors",
        "critic/optimizer.json",
        "critic/optimizer.safetensors",
    }
    for part, model, optimizer in (("", policy, optimizers[0]), ("critic", critic, optimizers[1])):
        weights = checkpoint.weights(part)
        assert weights.keys() == model.state_dict().keys()
        assert all(torch.equal(weights[name], tensor) for name, tensor in model.state_dict().items())
        other = make_model(99)
        resumed = make_optimizer(other)
        checkpoint.restore_optimizer(resumed, part)
        mine, theirs = tensors_of(optimizer), tensors_of(resumed)
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)


def test_damage_to_a_further_model_is_refused_by_name(tmp_path):
    model = make_model()
    optimizer = make_optimizer(model)
    train(model, optimizer, 1)
    path = save_checkpoint(
        tmp_path, 1, weights={"w": torch.ones(2)}, parts={"critic": Part(model.state_dict(), optimizer)}
    )
    for name in ("model.safetensors", "optimizer.safetensors", "optimizer.json"):
        file = path / "critic" / name
        original = file.read_bytes()
        file.write_bytes(bytes([original[0] ^ 1]) + original[1:])
        with pytest.raises(CorruptError, match=f"critic/{name}: SHA-256"):
            load_checkpoint(path)
        file.unlink()
        with pytest.raises(CorruptError, match=f"critic/{name}: listed in the manifest but missing"):
            load_checkpoint(path)
        file.write_bytes(original)
    assert set(load_checkpoint(path).weights("critic")) == set(model.state_dict())


def test_a_part_that_is_not_there_and_a_name_that_is_not_plain(tmp_path):
    model = make_model()
    optimizer = make_optimizer(model)
    path = save_checkpoint(tmp_path, 1, weights={"w": torch.ones(2)})
    with pytest.raises(DataError, match=r"step-1: holds no 'critic'"):
        load_checkpoint(path).weights("critic")
    with pytest.raises(DataError, match=r"step-1: holds no 'critic'"):
        load_checkpoint(path).restore_optimizer(optimizer, "critic")
    for name in ("", "a/b", "..", "model.safetensors"):
        with pytest.raises(UsageError, match="give a plain name that is not taken"):
            save_checkpoint(
                tmp_path, 2, weights={"w": torch.ones(2)}, parts={name: Part(model.state_dict(), optimizer)}
            )
    assert checkpoint_steps(tmp_path) == [1]
