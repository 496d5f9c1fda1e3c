"""check_layer accepts every layer of the library, and names the call in which another errs."""

import pytest
import torch
from torch import nn

from statemix.errors import RequestError
from statemix.layers import LAYERS, Bidirectional, Layer, LayerSpec, check_layer
from statemix.layers.checking import check_once
from statemix.models import Backbone


class Average(Layer):
    """A running average of the input; ``wrong`` names what it gets wrong."""

    name = "average"

    def __init__(self, hidden_size: int, *, wrong: str = "", device=None, dtype=None):
        super().__init__()
        self.hidden_size, self.wrong = hidden_size, wrong
        self.scale = nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self, generator=None):
        del generator
        nn.init.ones_(self.scale)

    def init_state(self, batch_size, device=None, dtype=None):
        one = self.scale.new_zeros(batch_size, self.hidden_size, device=device, dtype=dtype)
        return one + (self.wrong == "initial")

    def forward(self, x, state=None, cu_seqlens=None):
        rows = x if cu_seqlens is None else torch.split(x[0], cu_seqlens.diff().tolist())
        if self.wrong == "unaware":
            rows = x
        h = self.scale.new_zeros(len(rows), x.shape[-1])
        if state is not None and self.wrong != "pieces":
            h = state
        outputs, after = [], []
        for n, row in enumerate(rows):
            one = h[n]
            # A sequence that begins where the one before it has ended.
            if self.wrong == "carried" and cu_seqlens is not None and after:
                one = after[-1]
            for x_t in row:
                one = 0.5 * one + 0.5 * x_t
                outputs.append(one * self.scale)
            if self.wrong == "empty" and not len(row):
                one = torch.zeros_like(one)
            after.append(one)
        y = torch.stack(outputs).view_as(x)
        if self.wrong == "backward":
            y = y + x.flip(1).cumsum(1).flip(1)
        if self.wrong == "batch":
            y = y + x.mean(0)
        if self.wrong == "narrow":
            y = y[..., :4]
        if self.wrong == "nan":
            y[0, 0, 0] = torch.nan
        after = torch.stack(after)
        if self.wrong == "table":
            return y, {"h": after}
        return y, after[-1:] if self.wrong == "rows" else after

    def step(self, x_t, state):
        if self.wrong == "step":
            return x_t, self.init_state(len(x_t))
        y, state = self(x_t.unsqueeze(1), state)
        return y.squeeze(1), state


class Careless(Average):
    """A running average with right outputs, whose calls share memory as ``wrong`` says."""

    def __init__(self, hidden_size, *, wrong):
        super().__init__(hidden_size, wrong=wrong)
        self.start = nn.Parameter(torch.zeros(9, hidden_size))
        self.kept = torch.zeros(9, hidden_size)

    def init_state(self, batch_size, device=None, dtype=None):
        h = super().init_state(batch_size, device, dtype)
        return {
            "given": (h, h.clone()),
            "parts": (h, h.clone()),
            "kept": self.kept[:batch_size],
            "weights": self.start.detach()[:batch_size],
            "expanded": h[:1].expand(batch_size, -1),
        }.get(self.wrong, h)

    def forward(self, x, state=None, cu_seqlens=None):
        if self.wrong in ("given", "parts"):
            h, other = (None, None) if state is None else state
            y, h = super().forward(x, h, cu_seqlens)
            return y, (h, h if self.wrong == "parts" else h.clone() if other is None else other)
        y, h = super().forward(x, state, cu_seqlens)
        if self.wrong == "input" and cu_seqlens is None:
            return x.clone(), x[:, -1]
        if self.wrong == "outputs" and cu_seqlens is None:
            return y, y[:, -1]
        return y, h

    def step(self, x_t, state):
        y_t, after = super().step(x_t, state)
        if self.wrong == "written" and state is not None:
            return y_t, state.copy_(after)
        if self.wrong == "x":
            x_t.zero_()
        return y_t, after


@pytest.fixture(autouse=True)
def average():
    LAYERS.register(Average)
    yield
    LAYERS.remove("average")


def test_every_layer_keeps_the_contract(build_first):
    layer = build_first().train()
    before = torch.get_rng_state()
    check_layer(layer)
    assert all(part.training for part in layer.modules())
    assert torch.equal(torch.get_rng_state(), before)


def test_a_right_layer_is_accepted_in_every_dtype(make):
    for dtype in (torch.float32, torch.bfloat16):
        check_layer(Average(8, dtype=dtype))
        layer = make(dtype=dtype)
        if not layer.iterative:
            check_layer(layer)


WRONG = {
    "unaware": "a change of one packed sequence changes the outputs of another by",
    "carried": "a change of one packed sequence changes the outputs of another by",
    "backward": "a change of one packed sequence changes the outputs of another by",
    "rows": r"state after 3 packed sequences must have a row for each, got shape \(1, 8\)",
    "narrow": r"outputs must have the shape and dtype of the input, got \(3, 9, 4\)",
    "batch": "a batch and each whole sequence alone differ by",
    "initial": "a batch from init_state and each whole sequence alone differ by",
    "step": "steps and each whole sequence alone differ by",
    "pieces": "steps and each whole sequence alone differ by",
    "empty": "the state after packed sequences from a state and each whole sequence alone differ",
    "nan": "outputs of packed sequences must be finite, got nan",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_layer_that_errs_is_refused_by_the_first_wrong_call(wrong):
    message = f"^layer 'average' breaks the contract of layers: {WRONG[wrong]}"
    with pytest.raises(RequestError, match=message):
        check_layer(Average(8, wrong=wrong))


OWN = "must own its memory, but shares it with"
CARELESS = {
    "input": f"state after each whole sequence alone {OWN} x",
    "outputs": f"state after each whole sequence alone {OWN} the outputs",
    "given": rf"state\.1 after a batch from init_state {OWN} the given state\.1",
    "parts": rf"state\.0 after each whole sequence alone {OWN} state\.1",
    "kept": f"state from init_state {OWN} state from another init_state",
    "weights": f"state from init_state {OWN} start",
    "expanded": "state from init_state must own its memory, but several entries share it",
    "written": "steps must not change the given state in place",
    "x": "steps must not change x in place",
}


@pytest.mark.parametrize("wrong", CARELESS)
def test_a_layer_whose_states_share_memory_is_refused(wrong):
    layer = Careless(8, wrong=wrong)
    message = f"^layer 'average' breaks the contract of layers: {CARELESS[wrong]}"
    with pytest.raises(RequestError, match=message):
        check_layer(layer)
    assert not layer.start.any()


@pytest.mark.parametrize("wrong", ["", "unaware", "carried", "rows", "step"])
def test_a_model_refuses_a_layer_that_mixes_packed_sequences(wrong):
    model = Backbone(5, 8, [LayerSpec("average", wrong=wrong)], dtype=torch.bfloat16)
    tokens, bounds = torch.arange(5).unsqueeze(0), torch.tensor([0, 2, 5])
    mask = torch.ones_like(tokens)
    model(tokens)  # needs no bounds
    for options in ({"cu_seqlens": bounds}, {"attention_mask": mask}):
        if wrong in ("", "step"):
            model(tokens, **options)
            continue
        for _ in range(2):
            with pytest.raises(RequestError, match="layer 'average' breaks the contract"):
                model(tokens, **options)


@pytest.mark.parametrize("place", [0, 1])
def test_two_directions_refuse_a_layer_that_mixes_packed_sequences(place):
    parts = [Average(8), Average(8)]
    parts[place] = Average(8, wrong="unaware")
    mask = torch.tensor([[1, 0, 0], [1, 1, 1]])
    with pytest.raises(RequestError, match="layer 'average' breaks the contract"):
        Bidirectional(*parts)(torch.randn(2, 3, 8), attention_mask=mask)


def test_a_layer_is_checked_once_and_only_if_it_is_foreign(monkeypatch, make):
    checked = []
    monkeypatch.setattr("statemix.layers.checking.refuse_mixing", lambda *one: checked.append(one))
    ours, foreign = make(), Average(8)
    for layer in (ours, foreign):
        for _ in range(2):
            check_once(layer, torch.zeros(1, 3, 8))
    assert [layer for layer, _ in checked] == [foreign]


UNCHECKED = {
    "compiled": lambda *given: torch.compile(check_once, backend="eager", fullgraph=True)(*given),
    "without numbers": lambda layer, x: check_once(layer, x.to("meta")),
    "transformed": lambda layer, x: torch.func.vmap(lambda x: check_once(layer, x) or x)(x),
}


@pytest.mark.parametrize("situation", UNCHECKED)
def test_a_layer_is_not_checked_where_others_would_see_it_but_later(situation):
    layer, x = Average(8, wrong="unaware"), torch.zeros(1, 3, 8)
    UNCHECKED[situation](layer, x)
    with pytest.raises(RequestError, match="breaks the contract"):
        check_once(layer, x)


def test_another_module_or_state_is_refused():
    with pytest.raises(TypeError, match="layer must be a Layer, got Linear"):
        check_layer(torch.nn.Linear(8, 8))
    with pytest.raises(TypeError, match="state must be a tensor or a NamedTuple, got dict"):
        check_layer(Average(8, wrong="table"))
