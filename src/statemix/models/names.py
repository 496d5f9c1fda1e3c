"""Names of a model's parts in runs that earlier versions stored."""

_BLOCK_PARTS = {"mixer": "layer", "channel_mixer": "mixer", "channel_norm": "mixer_norm"}


def earlier_name(name: str) -> str:
    """Return the name that a parameter, module or attribute had before there was a backbone.

    Whatever reads weights, attributes or patterns of names from a stored run accepts both names.

    Example:
        >>> earlier_name("backbone.blocks.0.mixer.gate_temperature")
        'blocks.0.layer.gate_temperature'
    """
    first, *parts = name.split(".")
    if first != "backbone" or not parts:
        return name
    if parts[0] == "blocks" and len(parts) > 2:
        parts[2] = _BLOCK_PARTS.get(parts[2], parts[2])
    return ".".join(parts)
