"""The models and entries of the language studies: Figure 4, and the duel."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

from statemix.layers import LAYERS, LayerSpec
from statemix_lab.studies.language.language_runs import LanguageRun, StudyCorpus
from statemix_lab.studies.study_entries import SizeName, StudyEntry, Trials

RECURRENT, ATTENTION = "linear_attention", "full_attention"

RATES = (1e-3, 3e-3, 1e-2)
"""Learning rates that every contender of the duel chooses from."""

SEEDS = (0, 1, 2)


class LanguageContender(NamedTuple):
    """A model of a comparison: name, and arguments of ``StatemixConfig``."""

    name: str
    model: Mapping[str, Any]

    @property
    def layers(self) -> tuple[LayerSpec, ...]:
        """Its sequence layers, the first kind first."""
        tables = [dict(self.model["mixers"][kind]) for kind in self.model["layer_types"]]
        return tuple(dict.fromkeys(LayerSpec(one.pop("name"), **one) for one in tables))


class _Setting(NamedTuple):
    """Text and training of a size; the budget is the parameters of all mixers of a model."""

    corpus: StudyCorpus
    hidden_size: int
    num_layers: int
    tied: bool
    budget: int
    training: Mapping[str, Any]
    widths: tuple[int, ...]
    rates: tuple[float, ...]
    precision: Any = "32-true"
    num_threads: int | None = 1

    def model(self, mixer: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
        """Return a model of this size with a mixer, or with changes of its arguments."""
        size = {"hidden_size": self.hidden_size, "num_layers": self.num_layers, "tied": self.tied}
        return _model(mixer, **{**size, **changes})


_FINEWEB = StudyCorpus(
    ("hub:HuggingFaceFW/fineweb:sample-10BT",), "EleutherAI/gpt-neox-20b", most_documents=4_000_000
)
_SETTINGS: Mapping[SizeName, _Setting] = {
    # Two million tokens, nearly an epoch. The mixers have as many parameters as four blocks of 16.
    "laptop": _Setting(
        StudyCorpus(),
        hidden_size=160,
        num_layers=3,
        tied=True,
        budget=586_944,
        training={"length": 128, "batch_size": 16, "steps": 1_000, "evaluate_every": 125},
        widths=(96, 160, 224),
        rates=(1e-3, 3e-3, 1e-2, 3e-2),
    ),
    # plainLM's defaults, with mixers that make 140M parameters.
    "paper": _Setting(
        _FINEWEB,
        hidden_size=768,
        num_layers=12,
        tied=False,
        budget=6_300_000,
        training={
            "length": 2048,
            "batch_size": 256,
            "steps": 4_800,
            "evaluate_every": 200,
            "accumulate": 8,
        },
        widths=(512, 768, 1024),
        rates=(1e-3, 3e-3, 1e-2),
        precision="bf16-mixed",
        num_threads=None,
    ),
}
_RATE = 3e-3
# The tokens of GPT-NeoX, in a multiple of 64.
_VOCABULARY = 50_304


def _model(
    mixer: Mapping[str, Any],
    *,
    hidden_size: int,
    num_layers: int,
    inner: int | None = None,
    tied: bool = True,
    kinds: Sequence[str] | None = None,
    attention: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    kinds = kinds or [RECURRENT] * num_layers
    # The inner width of the gated MLP is by default 8/3 of the width in multiples of 64.
    inner = inner or -(-8 * hidden_size // 3 // 64) * 64
    mixers = {RECURRENT: dict(mixer), ATTENTION: dict(attention or {})}
    return {
        "hidden_size": hidden_size,
        "num_hidden_layers": num_layers,
        "intermediate_size": inner,
        "mixers": {kind: mixers[kind] for kind in dict.fromkeys(kinds)},
        "layer_types": list(kinds),
        "tie_word_embeddings": tied,
    }


@cache
def _parameters(name: str, hidden_size: int, options: tuple[tuple[str, int], ...]) -> int:
    layer = LAYERS.build(name, hidden_size=hidden_size, device="meta", **dict(options))
    return sum(parameter.numel() for parameter in layer.parameters())


def _lru(
    setting: _Setting, name: str, m: int, width: int | None = None, **options: int
) -> dict[str, Any]:
    """Return a model of BD-LRU or H-LRU with blocks or channels that meet the budget."""
    width = width or setting.hidden_size
    is_block = name == "bd_lru"
    unit, option = ("num_blocks", "block_size") if is_block else ("num_channels", "order")
    most = round(setting.budget / setting.num_layers * (width / setting.hidden_size) ** 2)
    sizes = {option: m, **options}
    # The parameters are linear in the number of blocks or channels.
    one, two = (_parameters(name, width, ((unit, count), *sizes.items())) for count in (1, 2))
    count = max(1, 1 + round((most - one) / (two - one)))
    return setting.model({"name": name, unit: count, **sizes}, hidden_size=width)


def _run(
    setting: _Setting, model: Mapping[str, Any], rate: float = _RATE, **more: Any
) -> LanguageRun:
    training = {**setting.training, "learning_rate": rate, **more}
    machine: dict[str, Any] = {"precision": setting.precision, "num_threads": setting.num_threads}
    return LanguageRun(setting.corpus, model, training, **machine)


BLOCKS, LARGER = "block size", "block size, 210M"
WIDTH, RATE, FIXED_POINTS = "width", "learning rate", "fixed points"
"""The parts of Figure 4 of Dubinin et al., and the table of Movahedi et al."""

# Parameters of all mixers of the preset 210M.
_LARGER_BUDGET = 76_200_000

_NAMES = {"bd_lru": "BD-LRU", "h_lru": "H-LRU"}
BLOCK_SIZES = (("bd_lru", (1, 2, 4, 8, 16)), ("h_lru", (4, 16)))


@cache
def figure_entries(_: str, size: SizeName) -> tuple[StudyEntry, ...]:
    """Return the entries of Figure 4 at a size."""
    setting = _SETTINGS[size]

    def entry(column: str, model: str, run: LanguageRun, at: float) -> StudyEntry:
        layers, labels = LanguageContender(model, run.model).layers, {"at": at}
        trials = Trials.seeded(run, SEEDS)
        return StudyEntry(column, model, trials, size=size, layers=layers, labels=labels)

    columns = {BLOCKS: setting}
    if size == "paper":
        columns[LARGER] = setting._replace(budget=_LARGER_BUDGET)
    pairs = [(name, m) for name, sizes in BLOCK_SIZES for m in sizes]
    block = partial(_lru, setting, "bd_lru")
    fewer = {"steps": 400, "evaluate_every": 100} if size == "laptop" else {}
    return (
        *(
            entry(column, f"{_NAMES[name]} m={m}", _run(own, _lru(own, name, m)), m)
            for column, own in columns.items()
            for name, m in pairs
        ),
        *(
            entry(WIDTH, f"BD-LRU m={m}", _run(setting, block(m, width)), width)
            for width in setting.widths
            for m in (1, 4)
        ),
        *(
            entry(RATE, f"BD-LRU m={m}", _run(setting, block(m), rate), rate)
            for rate in setting.rates
            for m in (1, 4)
        ),
        *(
            # An iterated step costs up to ten times the time: a laptop reads fewer tokens.
            entry(FIXED_POINTS, one.name, _run(setting, one.model, **fewer), 0.0)
            for one in _fixed_points(setting)
        ),
    )


def _fixed_points(setting: _Setting) -> list[LanguageContender]:
    """Return Mamba and FP-Mamba: Mamba is wider, as its mixer has fewer parameters."""
    once: dict[str, Any] = {"max_iterations": 1, "mixer_inputs": "token"}
    if setting is _SETTINGS["laptop"]:
        sizes = {"Mamba": (144, 448), "Kronecker": (120, 364), "Householder": (120, 424)}
        # A laptop has no time for more: the iteration stops earlier where it converges.
        iterated: dict[str, Any] = {"max_iterations": 10, "tolerance": 0.1, "quantile": 0.75}
    else:
        sizes = {"Mamba": (768, 2048), "Kronecker": (640, 1536), "Householder": (640, 1792)}
        iterated = {"max_iterations": 100, "tolerance": 0.1, "quantile": 0.75}
    layers = {
        "Mamba": once,
        "Kronecker": {"mixer": "kronecker", **iterated},
        "Householder": {"mixer": "householder", **iterated},
    }
    return [
        LanguageContender(
            kind if kind == "Mamba" else f"FP-Mamba1 {kind}",
            setting.model({"name": "fp_mamba1", **layers[kind]}, hidden_size=width, inner=inner),
        )
        for kind, (width, inner) in sizes.items()
    ]


def contenders() -> tuple[LanguageContender, ...]:
    """Return the models of the duel, of equal parameters."""
    setting = _SETTINGS["laptop"]
    attention = {"name": "attention", "num_heads": 4, "rope": True}
    delta = {
        "name": "delta_net",
        "num_heads": 4,
        "use_forget_gate": True,
        "use_output_gate": True,
        "allow_neg_eigval": False,
    }
    mamba2 = {"name": "mamba2", "d_state": 64, "head_dim": 32}
    blocks = {"name": "bd_lru", "num_blocks": 38, "block_size": 4}
    kinds = [RECURRENT, RECURRENT, RECURRENT, ATTENTION]
    hybrid = setting.model(blocks, num_layers=4, inner=320, kinds=kinds, attention=attention)
    transformer = setting.model(
        {}, inner=640, kinds=[ATTENTION] * setting.num_layers, attention=attention
    )
    return (
        LanguageContender("BD-LRU m=4", _lru(setting, "bd_lru", 4)),
        LanguageContender("H-LRU m=4", _lru(setting, "h_lru", 4)),
        LanguageContender("m=1 (minGRU)", _lru(setting, "bd_lru", 1)),
        *(
            LanguageContender(
                f"BD-LRU m=4 C={channels}", _lru(setting, "bd_lru", 4, value_channels=channels)
            )
            for channels in (4, 8, 16)
        ),
        LanguageContender("Mamba-2", setting.model(mamba2, inner=480)),
        LanguageContender("Gated DeltaNet", setting.model(delta, inner=584)),
        LanguageContender("LSTM", setting.model({"name": "lstm"}, inner=432)),
        LanguageContender("Transformer", transformer),
        LanguageContender("BD-LRU and attention 3:1", hybrid),
    )


@cache
def duel_entries(_: str, size: SizeName) -> tuple[StudyEntry, ...]:
    """Return the entries of the duel: a trial for each learning rate."""
    setting = _SETTINGS[size]

    def at_rate(model: Mapping[str, Any], rate: float, seed: int) -> LanguageRun:
        return replace(_run(setting, model, rate), seed=seed)

    return tuple(
        StudyEntry(
            "duel",
            one.name,
            Trials.at_rates(partial(at_rate, one.model), RATES, SEEDS),
            size=size,
            layers=one.layers,
        )
        for one in contenders()
    )


def timed_models(size: SizeName) -> dict[str, Mapping[str, Any]]:
    """Return models of equal size by name, which ``statemix bench language`` times side by side."""
    setting = _SETTINGS[size]
    if size == "laptop":
        more, models = {}, {one.name: one.model for one in contenders()}
    else:
        more = {"vocab_size": _VOCABULARY}
        attention = {"name": "attention", "num_heads": 12, "rope": True}
        kinds = [ATTENTION] * setting.num_layers
        transformer = setting.model({}, kinds=kinds, attention=attention)
        models = {"Transformer": transformer | more}
    known = list(models.values())
    for name, sizes in BLOCK_SIZES:
        for m in sizes:
            if (model := _lru(setting, name, m)) not in known:
                models[f"{_NAMES[name]} m={m}"] = model | more
    return models
