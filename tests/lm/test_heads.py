"""Trainer and PEFT train all three heads as their documentation says."""

import pytest
import torch
from tests.lm.conftest import build_model
from torch.nn import functional
from transformers import Trainer, TrainingArguments

from statemix.lm import (
    StatemixConfig,
    StatemixForCausalLM,
    StatemixForSequenceClassification,
    StatemixForTokenClassification,
)

pytest.importorskip("accelerate")

IDS = torch.randint(1, 40, (8, 6), generator=torch.Generator().manual_seed(0))
# Batches of two rows have unequal numbers of labels.
SOME = torch.arange(48).view(8, 6) % 7 < torch.arange(8)[:, None]


class Own(StatemixForCausalLM):
    """A model of a user."""


HEADS = {
    "language": (StatemixForCausalLM, IDS.masked_fill(SOME, -100)),
    "subclass": (Own, IDS.masked_fill(SOME, -100)),
    "classes": (StatemixForSequenceClassification, IDS[:, 0] % 3),
    "numbers": (StatemixForSequenceClassification, IDS[:, :1] / 40),
    "integers": (StatemixForSequenceClassification, IDS[:, :1]),
    "sets": (StatemixForSequenceClassification, (IDS[:, :3] % 2).float()),
    "tokens": (StatemixForTokenClassification, (IDS % 3).masked_fill(SOME, -100)),
}


def test_an_empty_sequence_has_no_class():
    model = StatemixForSequenceClassification(StatemixConfig(vocab_size=40, hidden_size=8))
    assert model(IDS[:1], cu_seqlens=torch.tensor([0, 2, 6])).logits.shape[0] == 2
    with pytest.raises(ValueError, match="cu_seqlens must have a token in every sequence"):
        model(IDS[:1], cu_seqlens=torch.tensor([0, 2, 2, 6]))


@pytest.fixture(params=HEADS)
def head(request):
    """A head with random weights and without dropout, and its labels."""
    kind, labels = HEADS[request.param]
    torch.manual_seed(0)
    number = 1 if request.param in ("numbers", "integers") else 3
    sizes = {"intermediate_size": 32, "pad_token_id": 0, "num_labels": number}
    return kind(StatemixConfig(40, 16, 1, **sizes, classifier_dropout=0.0)), labels


def trainer(model, labels, folder, **options):
    arguments = TrainingArguments(
        str(folder), max_steps=1, learning_rate=1.0, optim="sgd", lr_scheduler_type="constant",
        max_grad_norm=0.0, logging_steps=1, save_strategy="no", report_to=[], use_cpu=True,
        disable_tqdm=True, **options,
    )  # fmt: skip
    rows = [{"input_ids": row, "labels": label} for row, label in zip(IDS, labels, strict=True)]
    return Trainer(model, arguments, train_dataset=rows, eval_dataset=rows)


@pytest.mark.parametrize("accumulate", [1, 4])
def test_accumulated_batches_move_the_weights_as_one_batch_does(head, accumulate, tmp_path):
    model, labels = head
    loss = model(IDS, labels=labels).loss
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    wanted = [(p - g).detach() for p, g in zip(model.parameters(), gradients, strict=True)]
    options = {"per_device_train_batch_size": 8 // accumulate}
    whole = trainer(model, labels, tmp_path, gradient_accumulation_steps=accumulate, **options)
    whole.train()
    assert whole.state.log_history[0]["loss"] == pytest.approx(loss.item(), rel=1e-3)
    torch.testing.assert_close(list(model.parameters()), wanted)
    assert whole.evaluate()["eval_loss"] > 0
    assert whole.predict(whole.eval_dataset).predictions.shape[0] == 8


@torch.no_grad()
def test_smoothed_labels_are_those_that_the_loss_scores(head, tmp_path):
    model, labels = head
    if labels.is_floating_point() or model.config.num_labels == 1:
        pytest.skip("smoothing is of classes")
    batch = {"input_ids": IDS, "labels": labels}
    found = trainer(model.eval(), labels, tmp_path, label_smoothing_factor=0.1).compute_loss(
        model, batch
    )
    logits = model(IDS).logits
    if isinstance(model, StatemixForCausalLM):
        logits, labels = logits[:, :-1], labels[:, 1:]
    wanted = functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), label_smoothing=0.1)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_a_sequence_is_classified_by_its_last_token(side):
    """The end of a text, token 0, is also the padding."""
    model = StatemixForSequenceClassification(build_model("bd_lru", pad_token_id=0).config).eval()
    rows, mask = IDS[:2].clone(), torch.ones(2, 6)
    rows[:, -1] = 0
    wanted = torch.cat([model(rows[:1], mask[:1]).logits, model(rows[1:, 2:], mask[1:, 2:]).logits])
    hidden = model.model(rows[:1]).last_hidden_state
    torch.testing.assert_close(wanted[:1], model.score(hidden[:, -1]))
    text, padding = rows[1, 2:], torch.zeros(2, dtype=torch.int64)
    rows[1] = torch.cat([padding, text] if side == "left" else [text, padding])
    mask[1] = torch.cat([padding, text + 1] if side == "left" else [text + 1, padding]) > 0
    embedded = model.get_input_embeddings()(rows)
    for inputs in ({"input_ids": rows}, {"inputs_embeds": embedded}):
        torch.testing.assert_close(model(**inputs, attention_mask=mask.bool()).logits, wanted)
    # Without a mask, the model reads the padding, too.
    rows[rows[:, -1] == 0, -1] = 5 if side == "left" else 0
    rows[0, -1] = 5
    hidden = model.model(rows).last_hidden_state
    wanted = model.score(hidden[[0, 1], [5, 5 if side == "left" else 2]])
    torch.testing.assert_close(model(rows).logits, wanted)


@torch.no_grad()
def test_rows_of_a_model_without_padding_end_with_their_last_token():
    model = StatemixForSequenceClassification(build_model("bd_lru").config).eval()
    hidden = model.model(IDS).last_hidden_state
    torch.testing.assert_close(model(IDS).logits, model.score(hidden[:, -1]))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", ["PromptTuningConfig"])
def test_soft_prompts_of_peft_are_read_before_each_text(method, model):
    peft = pytest.importorskip("peft")
    options = getattr(peft, method)(task_type="CAUSAL_LM", num_virtual_tokens=4)
    adapted = peft.get_peft_model(model, options).eval()
    for parameter in adapted.prompt_encoder.parameters():
        torch.nn.init.normal_(parameter)
    prompt = torch.tensor([[5, 6, 7]])
    rows, mask = torch.cat([torch.zeros_like(prompt), prompt], 1), torch.tensor([[0] * 3 + [1] * 3])
    soft, words = adapted.get_prompt(batch_size=1), model.get_input_embeddings()
    adapted(input_ids=rows, attention_mask=mask, labels=rows).loss.backward()
    assert all(p.grad.any() for p in adapted.parameters() if p.requires_grad)
    with torch.no_grad():
        logits = adapted(input_ids=rows, attention_mask=mask).logits
        known = prompt
        for _ in range(5):
            whole = model(inputs_embeds=torch.cat([soft, words(known)], 1), use_cache=False).logits
            if known is prompt:
                torch.testing.assert_close(logits[:, -3:], whole[:, -3:])
            known = torch.cat([known, whole[:, -1:].argmax(-1)], 1)
        sampling = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        given = {"input_ids": prompt, "attention_mask": torch.ones_like(prompt)}
        for use_cache in (True, False):
            found = adapted.generate(**given, max_new_tokens=5, use_cache=use_cache, **sampling)
            assert torch.equal(found, known), use_cache


def test_a_head_of_another_name_has_the_same_loss(head):
    model, labels = head
    named = type("Named", (type(model),), {})(model.config)
    named.load_state_dict(model.state_dict())
    assert torch.equal(named(IDS, labels=labels).loss, model(IDS, labels=labels).loss)


def test_packed_sequences_are_classified_each():
    config = StatemixConfig(40, 16, 1, intermediate_size=32, num_labels=3)
    model = StatemixForSequenceClassification(config).eval()
    texts, row = [IDS[0, :2], IDS[1], IDS[2, :3]], torch.cat([IDS[0, :2], IDS[1], IDS[2, :3]])[None]
    alone = torch.cat([model(text[None]).logits for text in texts])
    for given in (
        {"cu_seqlens": torch.tensor([0, 2, 8, 11])},
        {"position_ids": torch.cat([torch.arange(len(text)) for text in texts])[None]},
    ):
        torch.testing.assert_close(model(row, **given).logits, alone)
