"""A suite of runs: networks x seeds under one protocol."""

import itertools
import re
from dataclasses import dataclass
from pathlib import Path

from statemix.errors import RequestError
from statemix.layers import LayerSpec
from statemix.layers.registry import LAYERS
from statemix.studies.recipes import RECIPES
from statemix.studies.runner import Job
from statemix.training import RunConfig
from statemix.training.folder import CONFIG, resolve_config
from statemix.training.request import request


@dataclass(frozen=True)
class Network:
    """One network of a comparison.

    Attributes:
        layers: sequence layers. The first one sets the colour of the network in figures.
        label: name in tables and figures; empty means the labels of the layers.
        recipe: name of the recipe by which it is trained instead of the suite's protocol
            (:data:`statemix.studies.recipes.RECIPES`); empty means the protocol.

    Example:
        >>> network = Network((LayerSpec("bd_lru", num_blocks=64, block_size=3),))
        >>> network.label, network.name
        ('BD-LRU m=3', 'bd_lru-m3')
    """

    layers: tuple[LayerSpec, ...]
    label: str = ""
    recipe: str = ""

    def __post_init__(self) -> None:
        if not self.label:
            labels = [LAYERS[layer.name].label(layer.options) for layer in self.layers]
            object.__setattr__(self, "label", " + ".join(dict.fromkeys(labels)))

    @property
    def name(self) -> str:
        """The label as part of a file name, with layers as users write them."""
        name = self.label
        for layer in self.layers:
            name = name.replace(LAYERS[layer.name].display_name, layer.name)
        return re.sub(r"[^\w.]+", "-", name.replace("=", "")).strip("-")

    @property
    def schedulable(self) -> frozenset[str]:
        """Attributes that a schedule can change in at least one of the layers."""
        return frozenset(
            attribute for layer in self.layers for attribute in LAYERS[layer.name].schedulable
        )

    def configured(self, protocol: RunConfig, seed: int) -> RunConfig:
        """Configure one run: the protocol with this network and this seed.

        Attributes that this network cannot schedule are left out. With a recipe, only the task, the
        evaluation and the runtime are the protocol's.
        """
        if self.recipe:
            return RECIPES[self.recipe](protocol.task).replace(
                evaluation=protocol.evaluation, runtime=protocol.runtime, seed=seed
            )
        schedules, evaluation = protocol.schedules, protocol.evaluation
        followed = tuple(s for s in schedules.attributes if s.attribute in self.schedulable)
        values = {k: v for k, v in evaluation.attributes.items() if k in self.schedulable}
        return protocol.replace(
            model=protocol.model.replace(layers=self.layers),
            schedules=schedules.replace(attributes=followed),
            evaluation=evaluation.replace(attributes=type(evaluation.attributes)(values)),
            seed=seed,
        )


@dataclass(frozen=True)
class Suite:
    """Networks and seeds under one protocol.

    Attributes:
        networks: networks to compare.
        seeds: seeds of the initial weights, the order of batches and, unless the protocol's task
            has its own seed, the data.
        protocol: configuration of all runs, apart from network and seed.

    Raises:
        ValueError: if two networks have the same name.
    """

    networks: tuple[Network, ...]
    seeds: tuple[int, ...]
    protocol: RunConfig

    def __post_init__(self) -> None:
        names = [network.name for network in self.networks]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(
                f"networks must have distinct names, got {twice[0]!r} twice; give one a label"
            )

    @property
    def members(self) -> list[tuple[Network, int]]:
        """Network and seed of every run, in the order of :meth:`jobs`: one seed after another."""
        return [(network, seed) for seed, network in itertools.product(self.seeds, self.networks)]

    def jobs(self, folder: Path) -> list[Job]:
        """Return the runs, each with its own folder inside ``folder``."""
        found = []
        for network, seed in self.members:
            name = f"{network.name}-seed{seed}"
            found.append(Job(name, network.configured(self.protocol, seed), folder / name))
        return found


def check_folders(jobs: list[Job]) -> None:
    """Check before training that the folders hold no other runs than these.

    Raises:
        RequestError: if a folder holds another run, a run of an older version, or other files.
    """
    for job in jobs:
        try:
            resolve_config(job.folder, request(job.config))
        except RequestError as error:
            # A fresh start removes only folders that hold a run.
            cure = "; --fresh (fresh=True) removes it" if (job.folder / CONFIG).exists() else ""
            raise RequestError(f"{error}{cure}") from error
