"""Settings: types alone define the values a field accepts, and requests can be compared."""

import json
import pickle
from typing import Annotated, Literal

import pytest
from annotated_types import Ge, Gt, MinLen
from pydantic import create_model

from statemix.errors import ABSENT, OptionError, RequestError, SettingError
from statemix.layers import LAYERS, LayerSpec
from statemix.models import MixerSpec
from statemix.training import RunConfig, config_from_plain
from statemix.training.settings import (
    SPEC,
    Assignments,
    Settings,
    Text,
    built,
    checked,
    differences,
    to_plain,
)


class Inner(Settings):
    name: str
    count: Annotated[int, Ge(1)] = 3
    pair: tuple[Annotated[float, Ge(0)], float] = (0.5, 1.0)

    def check(self) -> None:
        if self.name == "odd" and self.count % 2 == 0:
            raise SettingError("count", "must be odd with name='odd'", self.count)


class Outer(Settings):
    inner: Inner = Inner("usual")
    several: tuple[Inner, ...] = ()
    maybe: Inner | None = None
    choice: Literal["a", "b"] = "a"
    rate: Annotated[float, Gt(0)] | None = None
    flag: bool = False
    layers: Annotated[tuple[Annotated[LayerSpec, SPEC], ...], MinLen(1)] = (LayerSpec("lstm"),)
    mixer: Annotated[MixerSpec, SPEC] | None = None
    values: Assignments = Assignments()
    words: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        (int, True, "x must be a valid integer, got True"),
        (float, "0.5", "x must be a valid number, got '0.5'"),
        (float, float("nan"), "x must be a finite number, got nan"),
        (Annotated[float, Gt(0)] | None, 0.0, r"x must be greater than 0, got 0\.0"),
        (Literal[True, False, "p"], 2, "x must be .*'p', got 2"),
        (tuple[int, ...], (1, "2"), r"x\.1 must be a valid integer, got '2'"),
        (Annotated[tuple[int, ...], MinLen(1)], (), r"x must .*at least 1 item.*, got \(\)"),
        (LayerSpec, "lsmt", "x.name: layer must be one of .*got 'lsmt'; did you mean 'lstm'."),
        (Inner, {"nam": "a"}, "x.name must be given"),
    ],
)
def test_a_value_of_another_type_is_named(annotation, value, message):
    with pytest.raises(SettingError, match=f"^{message}$"):
        checked(annotation, value, "x")


@pytest.mark.parametrize(
    ("plain", "path", "message"),
    [
        ({"wrong": 1}, "wrong", "wrong must be one of inner, several, .*, got 'wrong'"),
        ({"inner": {}}, "inner.name", "inner.name must be given$"),
        ({"inner": {"name": "odd", "count": 2}}, "inner.count", "inner.count must be odd with"),
        ({"several": [{"name": "b", "count": 0}]}, "several.0.count", "several.0.count must be"),
        ({"layers": [{"name": "lstm", "gate": "x"}]}, "layers.0", "layers.0: options .* 'gate'"),
        ({"layers": [{"num_blocks": 2}]}, "layers.0", "layers.0 must be a table with a name, got"),
        ({"values": [1]}, "values", r"values must be a table of names and values, got \(1,\)"),
    ],
)
def test_errors_give_the_dotted_name(plain, path, message):
    with pytest.raises(SettingError, match=f"^{message}") as caught:
        Outer(**plain)
    assert caught.value.path == path


def test_a_setting_error_is_a_request_error_and_survives_pickling():
    with pytest.raises(SettingError) as caught:
        Outer(layers=[{"name": "gru"}])
    error = caught.value
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301  our own bytes
    assert isinstance(copy, RequestError)
    assert (str(copy), copy.path, copy.value) == (str(error), "layers.0.name", "gru")


def refuse(value):
    if value < 1:
        raise OptionError(f"size must be at least 1, got {value}")


def test_what_a_part_refuses_is_a_request_error():
    with pytest.raises(RequestError, match=r"^part: size must be at least 1, got 0$"):
        built("part", refuse, 0)
    # A defect keeps its error.
    with pytest.raises(TypeError):
        built("part", refuse, None)
    with pytest.raises(ValueError, match="invalid literal") as caught:
        built("part", int, "x")
    assert not isinstance(caught.value, RequestError)


@pytest.mark.parametrize(
    ("annotation", "natural", "expected"),
    [(int, 3, 3), (str, 3, "3"), (int | None, None, None), (tuple[int, ...], [1, 2], (1, 2))],
)
def test_the_type_decides_how_a_text_is_read(annotation, natural, expected):
    assert checked(annotation, Text("3", natural), "x") == expected


def test_a_changed_copy_is_checked():
    outer = Outer(flag=True)
    assert outer.replace(rate=2) == Outer(flag=True, rate=2.0)
    with pytest.raises(SettingError, match=r"^rate must be greater than 0, got 0\.0$"):
        outer.replace(rate=0.0)


BD_LRU = LayerSpec("bd_lru", num_blocks=2, block_size=3, selective="pointwise")
RATES = {"betas": (0.5, 0.9), "groups": [{"parameters": "*.bias", "weight_decay": 0.0}]}
SCHEDULES = {"attributes": [{"attribute": "gain", "end": 0.5, "curve": "geometric"}]}
CONFIGURATIONS = [
    RunConfig(),
    RunConfig(model={"layers": ["lstm", BD_LRU], "channel_mixer": "mlp"}),
    RunConfig(schedules=SCHEDULES, optimizer=RATES, seed=2**63 - 1),
    RunConfig(evaluation={"lengths": (9, 40), "attributes": {"gain": 2}}),
]


@pytest.mark.parametrize("config", CONFIGURATIONS)
def test_configurations_survive_plain_data_and_pickling(config):
    plain = config.to_plain()
    assert json.loads(json.dumps(plain)) == plain
    assert config_from_plain(plain) == config
    assert config_from_plain(config.asked()) == config
    copy = pickle.loads(pickle.dumps(config))  # noqa: S301  our own bytes
    assert copy == config
    assert hash(copy) == hash(config)
    assert copy.to_plain() == plain


def test_nothing_asked_is_nothing_stored():
    assert RunConfig().asked() == {}
    assert Outer().asked() == {}
    assert Outer(inner=Inner("usual", count=4)).asked() == {"inner": {"name": "usual", "count": 4}}


def test_a_new_field_with_a_default_changes_no_request():
    later = create_model("Later", __base__=Inner, added=(int, 7))
    before, after = Inner("a", count=4).asked(), later("a", count=4).asked()
    assert before == after
    assert list(differences(before, later("a", count=4, added=8).asked())) == [("added", ABSENT, 8)]


def test_a_new_option_with_a_default_changes_no_request(monkeypatch):
    before = LayerSpec("lstm").asked()

    def later(self, hidden_size: int, *, peepholes: bool = False, device=None, dtype=None):
        raise NotImplementedError

    monkeypatch.setattr(LAYERS["lstm"], "__init__", later)
    assert LayerSpec("lstm").asked() == LayerSpec("lstm", peepholes=False).asked() == before
    assert LayerSpec("lstm", peepholes=True).asked() == {"name": "lstm", "peepholes": True}


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ({"a": 1}, {"a": 1}, None),
        ({"a": 1}, {"a": 1.0}, ("a", 1, 1.0)),
        ({"a": 1}, {}, ("a", 1, ABSENT)),
        ({"a": None}, {}, ("a", None, ABSENT)),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}, ("a.c", 2, 3)),
        ({}, {"a": {"b": {"c": 1}}}, ("a.b.c", ABSENT, 1)),
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, ("a.1.b", 2, 3)),
        ({"a": [1]}, {"a": [1, 2]}, ("a", [1], [1, 2])),
        ({"a": [1]}, {"a": {"b": 1}}, ("a", [1], {"b": 1})),
    ],
)
def test_the_first_difference_is_named_with_both_values(ours, theirs, expected):
    found = next(differences(ours, theirs), None)
    assert found == expected
    assert found is None or [type(part) for part in found] == [type(part) for part in expected]


def test_assignments_are_mappings_that_compare_by_their_items():
    one, other = Assignments({"a": 1, "b": 2}), Assignments(b=2, a=1)
    assert one == other
    assert hash(one) == hash(other)
    assert to_plain(one) == {"a": 1, "b": 2}
