"""Language models: a Hugging Face model whose layers are those of Statemix."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from statemix.lm.conformity import ConformityResult, conform
from statemix.lm.hub_config import StatemixConfig
from statemix.lm.hub_model import (
    StatemixForCausalLM,
    StatemixForSequenceClassification,
    StatemixForTokenClassification,
    StatemixModel,
    StatemixPreTrainedModel,
    as_classifier,
)
from statemix.lm.state_cache import StateCache

AutoConfig.register(StatemixConfig.model_type, StatemixConfig, exist_ok=True)
AutoModel.register(StatemixConfig, StatemixModel, exist_ok=True)
AutoModelForCausalLM.register(StatemixConfig, StatemixForCausalLM, exist_ok=True)
AutoModelForSequenceClassification.register(
    StatemixConfig, StatemixForSequenceClassification, exist_ok=True
)
AutoModelForTokenClassification.register(
    StatemixConfig, StatemixForTokenClassification, exist_ok=True
)

__all__ = [
    "ConformityResult",
    "StateCache",
    "StatemixConfig",
    "StatemixForCausalLM",
    "StatemixForSequenceClassification",
    "StatemixForTokenClassification",
    "StatemixModel",
    "StatemixPreTrainedModel",
    "as_classifier",
    "conform",
]
