"""The model in the packages around transformers: PEFT, Trainer, TRL, torchao, lm-eval.

The large packages are not installed for development: run `make test-ecosystem`.
"""

import copy
import json

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)

from statemix.lm import StatemixConfig, StatemixForCausalLM
from statemix.lm.text_tokenizers import bytes_tokenizer, save_tokenizer

TEXTS = ["def f(x): return x", "import os", "class A: pass", "x = 1"] * 6
IDS = torch.randint(0, 256, (2, 9), generator=torch.Generator().manual_seed(0))

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def tokenizer(tmp_path):
    save_tokenizer(bytes_tokenizer(), tmp_path)
    return AutoTokenizer.from_pretrained(tmp_path)


@pytest.fixture
def model(tokenizer):
    torch.manual_seed(0)
    end, padding = tokenizer.eos_token_id, tokenizer.pad_token_id
    config = StatemixConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, intermediate_size=64,
        pad_token_id=padding, eos_token_id=end, bos_token_id=end, conv_size=3, output_gate=True,
        num_labels=1,
    )  # fmt: skip
    return StatemixForCausalLM(config)


def test_every_adapter_of_peft_learns_and_can_be_merged(model):
    adapted = get_peft_model(
        model, LoraConfig(task_type="CAUSAL_LM", r=4, target_modules="all-linear")
    )
    adapted.train()
    optimizer = torch.optim.SGD([p for p in adapted.parameters() if p.requires_grad], 0.5)
    for _ in range(3):
        optimizer.zero_grad()
        adapted(input_ids=IDS, labels=IDS).loss.backward()
        optimizer.step()
    adapters = {name: p for name, p in adapted.named_parameters() if "lora_" in name}
    # Gate, value and output projection, output gate, and three maps of the MLP.
    assert len(adapters) == 2 * 2 * 7
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in adapters.values())
    adapted.eval()
    with torch.no_grad():
        logits = adapted(input_ids=IDS).logits
        tokens = adapted.generate(input_ids=IDS, max_new_tokens=6, do_sample=False)
        merged = adapted.merge_and_unload()
        torch.testing.assert_close(merged(input_ids=IDS).logits, logits)
        assert torch.equal(merged.generate(IDS, max_new_tokens=6, do_sample=False), tokens)
        assert not torch.allclose(merged(input_ids=IDS).logits, model_logits(merged), atol=1e-3)


def model_logits(model):
    """Logits of new weights."""
    return StatemixForCausalLM(model.config)(IDS).logits


def test_the_trainer_of_transformers_trains_and_resumes(model, tokenizer, tmp_path):
    rows = [{"input_ids": tokenizer(text)["input_ids"]} for text in TEXTS]
    arguments = TrainingArguments(
        output_dir=str(tmp_path), max_steps=6, per_device_train_batch_size=4, save_steps=3,
        gradient_accumulation_steps=2, gradient_checkpointing=True, logging_steps=1, report_to=[],
        use_cpu=True, learning_rate=1e-2, disable_tqdm=True,
    )  # fmt: skip
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)

    def trainer(net):
        return Trainer(
            net, arguments, train_dataset=rows, eval_dataset=rows, data_collator=collator
        )

    whole = trainer(copy.deepcopy(model))
    assert whole.model_accepts_loss_kwargs
    whole.train()
    losses = [row["loss"] for row in whole.state.log_history if "loss" in row]
    assert losses[-1] < losses[0]
    assert whole.evaluate()["eval_loss"] < losses[0]
    resumed = trainer(copy.deepcopy(model))
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    for one, other in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("packing", [False, True])
def test_trl_fine_tunes(model, tokenizer, tmp_path, packing):
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    seen = {}
    model.register_forward_pre_hook(
        lambda module, arguments, options: seen.update(options), with_kwargs=True
    )
    arguments = trl.SFTConfig(
        output_dir=str(tmp_path), max_steps=2, per_device_train_batch_size=2, packing=packing,
        max_length=64, report_to=[], use_cpu=True, bf16=False, disable_tqdm=True,
    )  # fmt: skip
    rows = datasets.Dataset.from_dict({"text": TEXTS})
    trainer = trl.SFTTrainer(model, arguments, train_dataset=rows, processing_class=tokenizer)
    assert trainer.train().training_loss > 0
    assert packing == (seen.get("attention_mask") is None)
    # Each text has its end, and the collator scores it.
    batch = next(iter(trainer.get_train_dataloader()))
    ends = batch["input_ids"] == tokenizer.eos_token_id
    assert ends.sum() >= 2
    assert torch.equal(batch["labels"][ends], batch["input_ids"][ends])


@pytest.mark.parametrize("name", ["DPO", "Reward"])
def test_trl_learns_preferences(name, model, tokenizer, tmp_path):
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    model.save_pretrained(tmp_path / "model")
    pairs = {"prompt": TEXTS, "chosen": ["a", "bb"] * 12, "rejected": ["ccc", "d"] * 12}
    arguments = getattr(trl, f"{name}Config")(
        output_dir=str(tmp_path), max_steps=8, per_device_train_batch_size=4, report_to=[],
        gradient_accumulation_steps=2, use_cpu=True, bf16=False, disable_tqdm=True,
        learning_rate=1e-2, logging_steps=1,
    )  # fmt: skip
    trainer = getattr(trl, f"{name}Trainer")(
        str(tmp_path / "model"), args=arguments, train_dataset=datasets.Dataset.from_dict(pairs),
        processing_class=tokenizer,
    )  # fmt: skip
    trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    # The loss of a model that prefers neither.
    assert losses[0] == pytest.approx(0.69, abs=0.15)
    assert losses[-1] < losses[0] / 2


def test_weights_of_8_bits_give_nearly_the_same_logits(model):
    torchao = pytest.importorskip("torchao.quantization")
    model.eval()
    with torch.no_grad():
        wanted = model(IDS).logits
        torchao.quantize_(model, torchao.Int8WeightOnlyConfig())
        found = model(IDS).logits
        assert 0 < (found - wanted).abs().max() < 0.05 * wanted.abs().max()
        assert model.generate(IDS, max_new_tokens=3).shape == (2, 12)


def test_device_map_and_dtype_are_taken(model, tmp_path):
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, device_map="auto", dtype=torch.bfloat16)
    assert loaded.dtype == torch.bfloat16
    assert loaded.generate(IDS, max_new_tokens=3).shape == (2, 12)


def test_lm_eval_counts_the_same_bits_in_any_batch(model, tokenizer, tmp_path):
    lm_eval = pytest.importorskip("lm_eval")
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    pages = [json.dumps({"page": f"def f(x):\n    return x + {n}\n" * (n + 1)}) for n in range(4)]
    (tmp_path / "pages.jsonl").write_text("\n".join(pages))
    (tmp_path / "bits.yaml").write_text(
        f"task: bits\ndataset_path: json\ndataset_kwargs:\n  data_files:\n"
        f"    test: {tmp_path}/pages.jsonl\noutput_type: loglikelihood_rolling\ntest_split: test\n"
        "doc_to_text: ''\ndoc_to_target: '{{page}}'\nmetric_list:\n  - metric: bits_per_byte\n"
    )
    found = []
    for batch_size in (1, 3):
        network = HFLM(
            pretrained=str(tmp_path / "model"), device="cpu", batch_size=batch_size, max_length=64
        )
        manager = TaskManager(include_path=str(tmp_path))
        results = lm_eval.simple_evaluate(
            network, tasks=["bits"], task_manager=manager, bootstrap_iters=0
        )
        found.append(results["results"]["bits"]["bits_per_byte,none"])
    assert found[0] == pytest.approx(found[1], rel=1e-4)
    # Eight bits of 257 random tokens.
    assert found[0] == pytest.approx(8, abs=0.5)
