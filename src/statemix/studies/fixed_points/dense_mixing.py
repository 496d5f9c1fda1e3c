"""The study fp-a5: dense state mixing by fixed points, beside BD-LRU and others, on A_5 and S_5."""

from statemix.layers import LayerSpec
from statemix.studies.fixed_points.movahedi import state_tracking
from statemix.studies.fixed_points.scales import Scale, Scales, fp_mamba, words
from statemix.studies.study_entries import Number, ProtocolName, SizeName, StudyEntry

_GROUPS = ("A_5", "S_5")
_SCALES: Scales = {
    "laptop": Scale(64, 4, 64, 1500, 2e-3, seeds=(0, 1, 2), test_iterations=256),
    "workstation": Scale(128, 16, 128, 20_000, 1e-3, seeds=(0, 1, 2)),
    "paper": Scale(512, 16, 512, 20_000, 1e-4, seeds=(0, 1, 2)),
}
# Longest words of training; the paper tests at four times the longer of its two.
_LENGTHS: dict[SizeName, int] = {"laptop": 16, "workstation": 128, "paper": 128}
_PUBLISHED_AT = 512
# Model -> width with which its layer has as many parameters as others of the usual width; in the
# paper all have one width.
_WIDTHS = {
    "FP-Mamba1 Kronecker": 60,
    "FP-Mamba1 Householder_4": 42,
    "FP-Mamba2 Householder": 44,
    "LSTM": 98,
}
# Model -> steps that take a laptop as long as 1,500 of FP-Mamba1 with one reflection, to two digits
# (results/fixed_point/step-times.jsonl).
_STEPS = {
    "FP-Mamba1 Kronecker": 640,
    "BD-LRU m=5 softmax": 7700,
    "LSTM": 9500,
    "DeltaProduct_4": 1000,
    "BD-LRU m=5 signed": 7800,
    "BD-LRU m=5 householder": 7300,
    "FP-Mamba1 Householder_4": 990,
    "GatedDeltaProduct_4": 890,
    "FP-Mamba2 Kronecker": 1100,
    "FP-Mamba2 Householder": 1600,
}


def _layers(scale: Scale, length: int) -> dict[str, LayerSpec]:
    """Return the models, those of the paper by its names."""
    iterated = {"d_conv": 0, "max_iterations": length}
    width = scale.hidden_size
    # As many parameters as FP-Mamba1 with one reflection, which has about 19 times the square of
    # the width.
    blocks = {"num_blocks": round(width * 0.47), "block_size": 5}
    heads = {"num_heads": width // 16, "head_dim": 32, "conv_size": 0}
    return {
        "FP-Mamba1 Kronecker": fp_mamba(1, scale, mixer="kronecker", **iterated),
        "BD-LRU m=5 softmax": LayerSpec("bd_lru", **blocks),
        "LSTM": LayerSpec("lstm"),
        "FP-Mamba1 Householder_1": fp_mamba(1, scale, **iterated),
        "DeltaProduct_4": LayerSpec("delta_product", **heads),
        "BD-LRU m=5 signed": LayerSpec("bd_lru", **blocks, gate="signed"),
        "BD-LRU m=5 householder": LayerSpec("bd_lru", **blocks, gate="householder"),
        "FP-Mamba1 Householder_4": fp_mamba(1, scale, rank=4, **iterated),
        "GatedDeltaProduct_4": LayerSpec("delta_product", **heads, use_forget_gate=True),
        "FP-Mamba2 Kronecker": fp_mamba(2, scale, mixer="kronecker", **iterated),
        "FP-Mamba2 Householder": fp_mamba(2, scale, rank=4, **iterated),
    }


def tracking_entries(protocol: ProtocolName, size: SizeName) -> tuple[StudyEntry, ...]:
    """Return the entries of a size; the paper has one protocol."""
    del protocol
    scale, length, numbers = _SCALES[size], _LENGTHS[size], state_tracking()
    found = []
    for group in _GROUPS:
        task = words(group, length, size)
        lengths = [factor * length for factor in (2, 4, 8)]
        for model, layer in _layers(scale, length).items():
            known = numbers.get(model)
            published = {_PUBLISHED_AT: Number(known[group])} if known else {}
            width, steps = None, None
            if size == "laptop":
                width, steps = _WIDTHS.get(model), _STEPS.get(model)
            runs = scale.runs(task, layer, lengths, bos=True, hidden_size=width, num_steps=steps)
            column = task.build().title
            found.append(
                StudyEntry(
                    column,
                    model,
                    runs,
                    size=size,
                    published=published,
                    published_for="words of all elements" if size == "laptop" else "",
                    layers=(layer,),
                )
            )
    return tuple(found)
