"""One file with the model's code, for `trust_remote_code` where Statemix is not installed."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from statemix.errors import RequestError
from statemix.files import read_json, write_file
from statemix.layers import LAYERS
from statemix.lm import hub_blocks, hub_config, hub_model, portable_layers, state_cache
from statemix.lm.prepared import model_folder
from statemix.training.folder import lock_folder

FILE = "modeling_statemix.py"
_CLASSES = {
    "AutoConfig": "StatemixConfig",
    "AutoModel": "StatemixModel",
    "AutoModelForCausalLM": "StatemixForCausalLM",
    "AutoModelForSequenceClassification": "StatemixForSequenceClassification",
    "AutoModelForTokenClassification": "StatemixForTokenClassification",
}
# From an import of this library to the end of its statement.
_OWN_IMPORT = re.compile(r"^from statemix\S* import (?:\([^)]*\)|[^\n]*)\n", re.MULTILINE)


def self_contained_source() -> str:
    """Return the source of the model as one module that imports PyTorch and transformers alone."""
    parts = [portable_layers, hub_config, state_cache, hub_blocks, hub_model]
    sources = [Path(str(part.__file__)).read_text(encoding="utf-8") for part in parts]
    return "\n\n".join(_OWN_IMPORT.sub("", source) for source in sources)


def export_remote_code(folder: Path | str) -> Path:
    """Put the model's code into a folder that ``save_pretrained`` has made, and name it there.

    ``AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)`` then works without
    Statemix. The layers run in plain PyTorch, which is slower than the kernels of this library.

    Args:
        folder: folder with ``config.json``, or of a run of ``statemix lm train``.

    Returns:
        The file of the code.

    Raises:
        RequestError: if there is no configuration of a Statemix model, or a layer of it cannot
            travel alone.
    """
    folder = model_folder(Path(folder))
    path = folder / "config.json"
    if not path.is_file():
        raise RequestError(f"{path} must exist; save the model first")
    config = read_json(path, "the configuration of a model")
    if config.get("model_type") != hub_config.StatemixConfig.model_type:
        raise RequestError(f"{path} must be of a Statemix model, got {config.get('model_type')!r}")
    mixers = hub_config.StatemixConfig.from_dict(config).block_mixers
    names = {table["name"] for table in mixers}
    if names - set(portable_layers.LAYERS):
        known = ", ".join(portable_layers.LAYERS)
        raise RequestError(f"layers must be among {known} to travel alone, got {sorted(names)}")
    for place, table in enumerate(mixers):
        if table not in mixers[:place]:
            _check_alike(table, config["hidden_size"])
    module = FILE.removesuffix(".py")
    config["auto_map"] = {auto: f"{module}.{name}" for auto, name in _CLASSES.items()}
    with lock_folder(folder):
        write_file(folder / FILE, self_contained_source().encode())
        write_file(path, (json.dumps(config, indent=2) + "\n").encode())
    return folder / FILE


@torch.no_grad()
def _check_alike(table: Mapping[str, Any], hidden_size: int) -> None:
    """Check that the layer that travels alone does what the layer of the library does.

    Raises:
        RequestError: if it lacks an option, or its weights or its output are others.
    """
    options = dict(table)
    name = options.pop("name")
    # In training, noise in the gates and dropped blocks differ from call to call.
    layer = LAYERS[name](hidden_size, **options).eval()
    x = torch.randn(1, 4, hidden_size, generator=torch.Generator().manual_seed(0))
    try:
        alone = portable_layers.LAYERS[name](hidden_size, **options).eval()
        alone.load_state_dict(layer.state_dict())
        torch.testing.assert_close(alone(x)[0], layer(x)[0], rtol=1e-3, atol=1e-4)
    # It raises many kinds of errors for options that it does not know.
    except Exception as error:
        raise RequestError(f"{name} with {options} cannot travel alone: {error}") from error
