"""Registries: entries by name, options from signatures, specifications that nest."""

import pickle
from types import SimpleNamespace

import pytest
import torch

from statemix.errors import OptionError, SettingError
from statemix.layers import LAYERS, LayerSpec
from statemix.models import MixerSpec
from statemix.registry import REQUIRED, Registry
from statemix.training.settings import checked, read_spec


@pytest.fixture
def colours():
    return Registry("colour", [SimpleNamespace(name="red"), SimpleNamespace(name="blue")])


def test_an_entry_can_be_added_once_and_removed(colours):
    assert list(colours) == ["red", "blue"]
    assert len(colours) == 2
    assert colours["red"].name == colours.find("red").name == "red"
    green = SimpleNamespace(name="green")
    assert colours.register(green) is green
    assert colours.find("green") is green
    with pytest.raises(ValueError, match="colour must have a unique name, got a second 'green'"):
        colours.register(SimpleNamespace(name="green"))
    colours.remove("green")
    assert list(colours) == ["red", "blue"]


@pytest.mark.parametrize("name", ["pink", ["red"]])
def test_unknown_names_are_listed_with_the_choices(colours, name):
    with pytest.raises(SettingError) as caught:
        colours.find(name)
    assert str(caught.value) == f"colour must be one of ['red', 'blue'], got {name!r}"


class Wrapped:
    """Holds another layer, given as an option."""

    name = "wrapped"

    def __init__(
        self,
        hidden_size: int,
        inner: LayerSpec,
        *,
        times: int = 2,
        beside: LayerSpec | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.inner = inner.build(hidden_size=hidden_size, device=device, dtype=dtype)


@pytest.fixture
def wrapped():
    LAYERS.register(Wrapped)
    yield
    LAYERS.remove("wrapped")


INNER = LayerSpec("bd_lru", num_blocks=2, block_size=3)


def test_options_are_the_parameters_of_the_constructor(wrapped):
    assert LAYERS.options("wrapped") == {
        "inner": (LayerSpec, REQUIRED),
        "times": (int, 2),
        "beside": (LayerSpec | None, None),
    }


def test_nested_specifications_survive_plain_data_and_pickling(wrapped):
    spec = LayerSpec("wrapped", inner=LayerSpec("wrapped", inner=INNER, beside=LayerSpec("lstm")))
    plain = spec.to_plain()
    assert plain == {
        "name": "wrapped",
        "inner": {
            "name": "wrapped",
            "inner": {"name": "bd_lru", "num_blocks": 2, "block_size": 3},
            "beside": {"name": "lstm"},
        },
    }
    assert read_spec(LayerSpec, plain) == spec
    copy = pickle.loads(pickle.dumps(spec))  # noqa: S301  our own bytes
    assert copy == spec
    assert hash(copy) == hash(spec)


def test_errors_inside_nested_specifications_give_the_dotted_name(wrapped):
    plain = {"name": "wrapped", "inner": {"name": "bd_lru", "num_blocks": 2, "block_size": "3"}}
    with pytest.raises(SettingError, match=r"^layers.0.inner.block_size must be a valid integer"):
        checked(tuple[LayerSpec, ...], [plain], "layers")
    with pytest.raises(SettingError, match=r"^layers.0.inner.name: layer must be one of"):
        checked(tuple[LayerSpec, ...], [{"name": "wrapped", "inner": "gru"}], "layers")


def test_what_equals_its_default_makes_no_difference(wrapped):
    short, long = INNER, INNER.complete()
    assert long.options["gate"] == "softmax"
    assert short == long
    assert hash(short) == hash(long)
    assert short.asked() == long.asked() == {"name": "bd_lru", "num_blocks": 2, "block_size": 3}
    assert LayerSpec("wrapped", inner=short) == LayerSpec("wrapped", inner=long, times=2)
    assert len({short, long}) == 1


def test_other_options_names_and_kinds_are_unequal(wrapped):
    assert LayerSpec("bd_lru", num_blocks=2, block_size=4) != INNER
    assert LayerSpec("wrapped", inner=INNER) != LayerSpec("wrapped", inner=LayerSpec("lstm"))
    assert LayerSpec("lstm") != LayerSpec("wrapped", inner=LayerSpec("lstm"))
    assert LayerSpec("lstm") != "lstm"


def test_a_value_takes_the_type_of_its_option_where_it_is_read():
    spec = LayerSpec("bd_lru", num_blocks=2, block_size=3, gate_temperature=1)
    assert read_spec(LayerSpec, spec) == INNER
    assert type(read_spec(LayerSpec, spec).options["gate_temperature"]) is float
    with pytest.raises(SettingError, match=r"^num_blocks must be a valid integer, got True"):
        read_spec(LayerSpec, LayerSpec("bd_lru", num_blocks=True, block_size=3))


def test_the_constructor_refuses_values_that_nobody_read():
    with pytest.raises(OptionError, match=r"^num_blocks must be an int, got True"):
        LayerSpec("bd_lru", num_blocks=True, block_size=3).build(hidden_size=4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_block": 2, "block_size": 3}, "got 'num_block'; did you mean 'num_blocks'?"),
        ({"num_blocks": 2}, "block_size of layer 'bd_lru' must be given"),
    ],
)
def test_names_of_options_are_checked_at_once(options, message):
    with pytest.raises(OptionError) as caught:
        LayerSpec("bd_lru", **options)
    assert str(caught.value).endswith(message)


def test_a_specification_is_immutable_and_shows_what_was_given():
    with pytest.raises(AttributeError, match="LayerSpec is immutable"):
        INNER.name = "lstm"
    with pytest.raises(TypeError):
        INNER.options["num_blocks"] = 3
    assert repr(INNER) == "LayerSpec('bd_lru', num_blocks=2, block_size=3)"
    assert repr(MixerSpec("mlp")) == "MixerSpec('mlp')"


def test_values_that_are_equal_to_python_may_be_other_options():
    def spec(**options):
        return LayerSpec("attention", **{"num_heads": 2} | options)

    assert spec(rope=True) == spec(rope=True) != spec(rope=1)
    assert spec(num_heads=2.0) != spec()
    assert spec(num_heads=(2, 3)) == spec(num_heads=(2, 3)) != spec(num_heads=(2, 3.0))
