"""What a suite leaves behind, as plain data that any reader of JSON understands."""

from typing import Any, Literal, TypedDict


class Run(TypedDict):
    """One trained network: its name, its block size or order (null for an LSTM), and its scores."""

    model: str
    m: int | None
    seed: int
    # Word length, as text, to token accuracy.
    accuracy: dict[str, float]


class Network(TypedDict):
    """What stands in the place of the tested layer, and with which options."""

    model: str
    m: int | None
    options: dict[str, bool | int | float | str | None]


class Curve(TypedDict):
    """How the token accuracy of one run on test words grew during training."""

    model: str
    m: int | None
    seed: int
    # Epochs or steps done, as the setting's ``unit`` says.
    position: list[float]
    accuracy: list[float]


class Setting(TypedDict):
    """The task, and how long the training was, in words' lengths, examples and epochs or steps."""

    group: str
    train_size: int | None
    train_length: int
    chance: float
    unit: Literal["epoch", "step"]
    duration: int
    # The gates sharpen between the first two positions, up to the third: an inverse temperature.
    sharpen: tuple[float, float, float]
    # Word length, as text, to the number of test words.
    test_words: dict[str, int]


class PublishedRow(TypedDict):
    """A paper's number for one network, at the training length."""

    model: str
    m: int | None
    accuracy: float


class Published(TypedDict):
    """A paper's numbers for one setting, and where they stand."""

    source: str
    metric: str
    setting: str
    rows: list[PublishedRow]


class Summary(TypedDict):
    """Everything that the figures, the table and the page are made from."""

    runs: list[Run]
    curves: list[Curve]
    setting: Setting
    networks: list[Network]
    # The configuration that all runs share, by field.
    protocol: dict[str, Any]
    published: Published
    environment: dict[str, Any]
    time_s: float
