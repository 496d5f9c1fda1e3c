"""Generation through transformers equals recomputation from the whole text, however it is cut."""

import copy

import pytest
import torch
import torch._dynamo.testing
from tests.lm.conftest import build_model
from transformers import CompileConfig, DynamicCache

from statemix.lm import StateCache, StatemixConfig, StatemixForCausalLM
from statemix.lm.hub_model import CACHE

OPTIONS = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
IDS = torch.randint(1, 50, (2, 7), generator=torch.Generator().manual_seed(1))


def greedy(model, ids, mask=None, count=12):
    """Greedy tokens, each from a pass over everything before it."""
    for _ in range(count):
        logits = model(ids, attention_mask=mask, use_cache=False).logits[:, -1]
        ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], 1)
        if mask is not None:
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
    return ids


@torch.no_grad()
def test_cached_tokens_are_those_without_a_cache(model):
    assert torch.equal(model.generate(IDS, **OPTIONS), greedy(model, IDS))


@pytest.mark.parametrize("name", ["past_key_values", "cache"])
@torch.no_grad()
def test_a_cache_is_taken_under_both_names(model, name):
    cache = model(IDS[:, :4], use_cache=True)[CACHE]
    output = model(IDS[:, 4:], use_cache=True, **{name: cache})
    torch.testing.assert_close(output.logits, model(IDS, use_cache=False).logits[:, 4:])
    assert cache.get_seq_length() == 7


@pytest.mark.parametrize("cuts", [(1, 6), (3, 0, 4), (1,) * 7], ids=str)
@torch.no_grad()
def test_prompts_cut_anywhere_give_the_same_logits(model, cuts):
    cache = StateCache(2)
    parts = torch.split(IDS, cuts, dim=1)
    logits = [model(part, use_cache=True, **{CACHE: cache}).logits for part in parts]
    torch.testing.assert_close(torch.cat(logits, 1), model(IDS, use_cache=False).logits)


@pytest.mark.parametrize(
    ("places", "dtype"),
    [([0, 1, 2], torch.bool), ([4, 5, 6], torch.int64), ([0, 3, 5], torch.float32)],
    ids=["left", "right", "anywhere"],
)
@torch.no_grad()
def test_padding_changes_neither_logits_nor_states(model, places, dtype):
    mask = torch.ones(2, 7, dtype=dtype)
    mask[1, places] = 0
    output = model(IDS, attention_mask=mask, use_cache=True)
    alone = model(IDS[1:, mask[1].bool()], use_cache=True)
    torch.testing.assert_close(output.logits[1, mask[1].bool()], alone.logits[0])
    following = torch.tensor([[3, 4]])
    after = model(following.expand(2, -1), use_cache=True, **{CACHE: output[CACHE]}).logits[1]
    wanted = model(following, use_cache=True, **{CACHE: alone[CACHE]}).logits[0]
    torch.testing.assert_close(after, wanted)


@pytest.mark.parametrize(("batch_size", "size"), [(1, 4), (3, 4), (3, 1)], ids=["1", "3", "steps"])
@torch.no_grad()
def test_padding_may_be_in_every_piece_of_a_prompt(model, batch_size, size):
    ids = torch.randint(1, 50, (batch_size, 12), generator=torch.Generator().manual_seed(3))
    # In every piece of four columns, one of three rows has one, two or three tokens.
    patterns = torch.tensor([[0, 1, 1, 0], [1, 0, 1, 1], [0, 0, 0, 1]])
    rows = [torch.cat([patterns[(row + n) % 3] for n in range(3)]) for row in range(batch_size)]
    mask, cache = torch.stack(rows), StateCache(2)
    parts = []
    for t in range(0, 12, size):
        end = t + size
        given = {"attention_mask": mask[:, :end], "use_cache": True, CACHE: cache}
        parts.append(model(ids[:, t:end], **given).logits)
    logits = torch.cat(parts, 1)
    for row, kept in enumerate(mask.bool()):
        alone = model(ids[row : row + 1, kept], use_cache=False).logits[0]
        torch.testing.assert_close(logits[row, kept], alone)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.ones(2, 8), r"\(B=2, T=7\), got \(2, 8\)"),
        (torch.ones(1, 7), r"\(B=2, T=7\), got \(1, 7\)"),
        (torch.tensor([[1, 1, 1, 2, 2, 2, 2]] * 2), "1 for tokens and 0 for padding"),
    ],
)
def test_bad_masks_are_refused(mask, message):
    model = build_model("bd_lru")
    with pytest.raises(ValueError, match=f"^attention_mask must .*{message}"):
        model(IDS, attention_mask=mask)


@torch.no_grad()
def test_chunked_prefill_of_padded_prompts_gives_the_same_tokens(model):
    mask = torch.ones(2, 7, dtype=torch.int64)
    mask[1, :3] = 0
    found = model.generate(IDS, attention_mask=mask, prefill_chunk_size=3, **OPTIONS)
    assert torch.equal(found, greedy(model, IDS, mask))
    single = model.generate(IDS[1:, 3:], **OPTIONS)
    assert torch.equal(found[1, 7:], single[0, 4:])


@pytest.mark.parametrize("contract", ["cu_seqlens", "cu_seq_lens_q", "seq_idx", "position_ids"])
def test_packed_documents_do_not_leak(model, contract):
    first, second = IDS[:1, :3], IDS[1:, :5]
    bounds = torch.tensor([0, 3, 8], dtype=torch.int32)
    given = {
        "cu_seqlens": {"cu_seqlens": bounds},
        "cu_seq_lens_q": {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": 5},
        "seq_idx": {"seq_idx": torch.tensor([[0] * 3 + [1] * 5])},
        "position_ids": {"position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]])},
    }[contract]
    packed = model(torch.cat([first, second], 1), **given).logits
    alone = torch.cat([model(part).logits for part in (first, second)], 1)
    weights = [p for p in model.parameters() if p.requires_grad]
    found, wanted = (
        [logits, *torch.autograd.grad(logits.square().mean(), weights)]
        for logits in (packed, alone)
    )
    torch.testing.assert_close(found, wanted)


@torch.no_grad()
def test_documents_are_packed_in_several_rows(model):
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3], [0, 1, 2, 3, 4, 0, 1]])
    found = model(IDS, position_ids=positions).logits
    for row, cut in enumerate((3, 5)):
        parts = [model(part).logits[0] for part in IDS[row : row + 1].tensor_split([cut], 1)]
        torch.testing.assert_close(found[row], torch.cat(parts))


@torch.no_grad()
def test_explicit_bounds_count_instead_of_positions(model):
    bounds, positions = torch.tensor([0, 3, 7]), torch.tensor([[0, 1, 2, 3, 0, 1, 2]])
    found = model(IDS[:1], cu_seqlens=bounds, position_ids=positions).logits
    assert torch.equal(found, model(IDS[:1], cu_seqlens=bounds).logits)


def test_bounds_that_disagree_are_refused():
    model = build_model("bd_lru")
    bounds = torch.tensor([0, 3, 7])
    with pytest.raises(ValueError, match="must have the same bounds"):
        model(IDS[:1], cu_seqlens=bounds, cu_seq_lens_q=torch.tensor([0, 4, 7]))
    with pytest.raises(ValueError, match="must have no padding with packed sequences"):
        model(IDS[:1], cu_seqlens=bounds, attention_mask=torch.tensor([[0] + [1] * 6]))
    with pytest.raises(ValueError, match="must be one row, got 2"):
        model(IDS, cu_seqlens=bounds)
    with pytest.raises(ValueError, match="must come without a cache"):
        model(IDS[:1], cu_seqlens=bounds, cache=StateCache(2))
    with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
        model()
    with pytest.raises(TypeError, match="must be tensors"):
        model(IDS[:1], cu_seqlens=[0, 3, 7])
    for name in ("seq_idx", "position_ids"):
        with pytest.raises(ValueError, match=rf"{name} must have shape \(B=1, T=7\), got \(1, 6\)"):
            model(IDS[:1], **{name: torch.zeros(1, 6, dtype=torch.int64)})


def test_a_cache_of_the_user_is_marked_and_excludes_another():
    model, cache = build_model("bd_lru"), StateCache(2)
    model.generate(IDS[:1], **OPTIONS, **{CACHE: cache})
    # With asynchronous stops, `generate` takes tokens that it does not return from such a cache.
    assert cache._is_user_defined
    with pytest.raises(ValueError, match="Passing both `cache_implementation`"):
        model.generate(IDS[:1], **OPTIONS, cache_implementation="static", **{CACHE: cache})


@torch.no_grad()
def test_beams_with_a_cache_are_those_without(model):
    options = {**OPTIONS, "num_beams": 3, "num_return_sequences": 2}
    found = model.generate(IDS, **options)
    assert torch.equal(found, model.generate(IDS, use_cache=False, **options))


@torch.no_grad()
def test_prompt_lookup_equals_greedy(model):
    found = model.generate(IDS[:1], prompt_lookup_num_tokens=3, **OPTIONS)
    assert torch.equal(found, greedy(model, IDS[:1]))


@pytest.mark.parametrize("noise", [0.02, 1.0])
@torch.no_grad()
def test_assisted_decoding_equals_greedy(model, noise):
    """With an assistant that is often or seldom right."""
    assistant = copy.deepcopy(model)
    torch.manual_seed(2)
    for parameter in assistant.parameters():
        parameter.add_(torch.randn_like(parameter) * noise)
    found = model.generate(IDS[:1], assistant_model=assistant, **OPTIONS)
    assert torch.equal(found, greedy(model, IDS[:1]))


@torch.no_grad()
def test_early_exit_drafts_with_the_first_blocks(model):
    calls = []
    for block in model.model.layers:
        block.register_forward_hook(lambda block, *_: calls.append(block))
    found = model.generate(IDS[:1], assistant_early_exit=1, **OPTIONS)
    first, second = (sum(one is block for one in calls) for block in model.model.layers)
    assert first > second
    assert torch.equal(found, greedy(model, IDS[:1]))


@pytest.mark.parametrize("removed", [0, 2, 5])
@torch.no_grad()
def test_any_number_of_recorded_tokens_may_be_removed_from_changed_sequences(model, removed):
    """The record holds three calls, and knows sequences that were repeated and selected."""
    cache = model(IDS[:, :1], use_cache=True)[CACHE]
    cache.activate_past_recording()
    for part in (IDS[:, 1:3], IDS[:, 3:4], IDS[:, 4:6]):
        model(part, use_cache=True, **{CACHE: cache})
    rows = torch.tensor([1, 0, 1])
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([2, 0, 3]))
    if removed:
        cache.crop(-removed)
    # What is kept and not yet read is changed, too.
    cache.batch_select_indices(torch.tensor([0, 1, 2, 0]))
    rows, length = rows[[0, 1, 2, 0]], 6 - removed
    output = model(IDS[rows, length:], use_cache=True, **{CACHE: cache})
    wanted = model(IDS[rows], use_cache=False).logits[:, length:]
    torch.testing.assert_close(output.logits, wanted)


@torch.no_grad()
def test_a_reset_cache_is_a_new_cache(model):
    cache = model(IDS[:, :4], use_cache=True)[CACHE]
    cache.reset()
    assert cache.get_seq_length() == 0
    output = model(IDS, use_cache=True, **{CACHE: cache})
    torch.testing.assert_close(output.logits, model(IDS, use_cache=False).logits)


@torch.no_grad()
def test_padding_counts_as_columns_but_not_as_tokens(model):
    """A mask may be as long as everything so far, and columns are removed from its end."""
    mask = torch.tensor([[1, 1, 0, 0, 1, 1, 1]])
    cache = model(IDS[:1, :3], attention_mask=mask[:, :3], use_cache=True)[CACHE]
    cache.activate_past_recording()
    model(IDS[:1, 3:6], attention_mask=mask[:, :6], use_cache=True, **{CACHE: cache})
    cache.crop(-1)
    assert cache.get_seq_length() == 5
    output = model(IDS[:1, 5:], attention_mask=mask, use_cache=True, **{CACHE: cache})
    wanted = model(IDS[:1, mask[0].bool()], use_cache=False).logits
    torch.testing.assert_close(output.logits, wanted[:, 3:])


@torch.no_grad()
def test_more_than_the_record_cannot_be_removed():
    """Rows of unequal lengths have none."""
    cache = StateCache(2)
    cache.activate_past_recording()
    mask = torch.tensor([[0, 1, 1], [1, 1, 1]])
    build_model("bd_lru")(IDS[:, :3], attention_mask=mask, use_cache=True, **{CACHE: cache})
    for each in (cache, StateCache(1)):
        with pytest.raises(ValueError, match=r"tokens_to_remove must be at least -0, .* got -1"):
            each.crop(-1)
    with pytest.raises(ValueError, match="tokens_to_remove must be at most 0, got 3"):
        cache.crop(3)


@pytest.mark.parametrize("whole", [True, False])
@torch.no_grad()
def test_a_returned_cache_continues_with_the_whole_prompt_or_with_the_new_tokens(model, whole):
    first = model.generate(IDS, return_dict_in_generate=True, **OPTIONS)
    cache = first[CACHE]
    longer = torch.cat([first.sequences, torch.tensor([[3, 4], [5, 6]])], 1)
    given = longer if whole else longer[:, cache.get_seq_length() :]
    options = {**OPTIONS, CACHE: cache, "attention_mask": torch.ones_like(longer)}
    found = model.generate(given, **options)
    assert torch.equal(found[:, -12:], greedy(model, longer)[:, -12:])


@pytest.mark.parametrize("length", [1, 2, 6])
@torch.no_grad()
def test_texts_branch_from_a_prefix_of_any_length(model, length):
    """Also from one that is shorter than the convolution, which has four taps."""
    kept = copy.deepcopy(model(IDS[:1, :length], use_cache=True)[CACHE])
    for text in ([5, 6, 7], [8, 9, 10]):
        cache, ids = copy.deepcopy(kept), torch.tensor([text])
        steps = [
            model(ids[:, t : t + 1], use_cache=True, **{CACHE: cache}).logits for t in range(3)
        ]
        wanted = model(torch.cat([IDS[:1, :length], ids], 1), use_cache=False).logits[:, length:]
        torch.testing.assert_close(torch.cat(steps, 1), wanted)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "asked"), [("bd_lru", None), ("bd_lru", "static"), ("hybrid", "static")]
)
@torch.no_grad()
def test_decoding_is_compiled_only_when_asked_for(model, asked, monkeypatch):
    """As on a GPU, where `generate` compiles without a configuration."""
    compiled = []
    compile_ = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda *args, **options: compiled.append(1) or compile_(*args, **options)
    )
    torch._dynamo.reset()
    options = CompileConfig(backend="eager", mode=None, fullgraph=True)
    options._compile_all_devices = True
    found = model.generate(IDS, cache_implementation=asked, compile_config=options, **OPTIONS)
    assert torch.equal(found, greedy(model, IDS))
    assert len(compiled) == (asked is not None)


@torch.no_grad()
def test_errors_of_16_bit_weights_do_not_grow_with_the_text():
    """A state of 16 bits would lose what small inputs add."""
    torch.manual_seed(0)
    mixer = {"name": "bd_lru", "num_blocks": 4, "block_size": 4, "memory": (500, 5000)}
    config = StatemixConfig(50, 16, 1, mixers=mixer, intermediate_size=32)
    model = StatemixForCausalLM(config).eval().bfloat16()
    exact = copy.deepcopy(model).double()
    ids = torch.randint(0, 50, (1, 4096))
    wanted = exact(ids, use_cache=True)[CACHE].layers[0].state
    cache = StateCache(1)
    for t in range(4096):
        model.model(ids[:, t : t + 1], use_cache=True, **{CACHE: cache})
    error = (cache.layers[0].state.double() - wanted).norm() / wanted.norm()
    # A state that is rounded to 16 bits has an error of .02.
    assert error < 0.008


@pytest.mark.parametrize("cache", [DynamicCache(), StateCache(3)])
def test_a_cache_of_another_model_is_named(cache):
    with pytest.raises(ValueError, match="a StateCache of 2 layers, got a"):
        build_model("bd_lru")(torch.tensor([[1, 2]]), past_key_values=cache)
