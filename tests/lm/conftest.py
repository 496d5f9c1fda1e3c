"""Small language models of every kind of block, and the command that trains them."""

import shlex

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from statemix.cli.main import main  # noqa: E402
from statemix.lm import StatemixConfig, StatemixForCausalLM  # noqa: E402
from statemix.lm.shards import TokenWriter  # noqa: E402

KINDS = {
    "bd_lru": {},
    "h_lru-conv-gate": {
        "mixers": {"name": "h_lru", "num_channels": 16, "order": 3},
        "conv_size": 4,
        "output_gate": True,
    },
    "hybrid": {
        "layer_types": ["linear_attention", "full_attention"],
        "mixers": {"full_attention": {"name": "attention", "num_heads": 2, "rope": True}},
    },
    "delta_net": {"mixers": {"name": "delta_net", "num_heads": 2}},
}


def build_model(kind, **options):
    """A model of two blocks with random weights, float32, in evaluation mode."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    model = StatemixForCausalLM(StatemixConfig(**{**sizes, **KINDS[kind], **options}))
    with torch.no_grad():
        # With the first weights, earlier tokens hardly change the logits, and greedy text repeats a
        # single token.
        model.model.embed_tokens.weight.normal_(std=0.3)
        for block in model.model.layers:
            for parameter in block.mixer.parameters():
                if parameter.ndim > 1:
                    parameter.mul_(3 if kind == "delta_net" else 6)
    return model.eval()


class Killed(BaseException):
    """The process ends at once: no hook acts any more, and nothing is removed."""


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def model(kind):
    return build_model(kind)


TINY = shlex.split(
    """
    --num-layers 1 --hidden-size 16 --layer bd_lru num_blocks=4 block_size=2 --length 16
    --batch-size 4 --learning-rate 1e-2 --device cpu --seed 3
    """
)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """Folder of the tokens of a small corpus."""
    folder = tmp_path_factory.mktemp("lm")
    for place in range(12):
        (folder / "texts" / f"p{place}").mkdir(parents=True)
        lines = [f"def f{n}(x):\n    return x + {n * place}\n" for n in range(60)]
        (folder / "texts" / f"p{place}" / "m.py").write_text("".join(lines))
    arguments = ["lm", "prepare", str(folder / "texts"), "--output", str(folder / "tokens")]
    assert main([*arguments, "--tokenizer", "bpe:300"]) == 0
    return folder / "tokens"


@pytest.fixture
def train_tiny(prepared, tmp_path):
    """Function that runs the command with further words, in the folder "run" of ``tmp_path``."""
    folder, tokens = str(tmp_path / "run"), str(prepared)
    command = ["lm", "train", "--folder", folder, "--tokens", tokens, *TINY]
    return lambda *words: main([*command, *words])


def write_documents(stem, vocab_size, documents, info):
    """Write documents, each with its token ids and the bytes of its text; return the ``.bin``."""
    path = stem.with_name(f"{stem.name}.bin")
    writer = TokenWriter(path, vocab_size)
    for ids, num_bytes in documents:
        writer.add(ids, num_bytes)
    writer.finish(info)
    return path
