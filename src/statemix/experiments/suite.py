"""A suite of runs: networks x seeds under one protocol."""

import dataclasses
import itertools
import re
from dataclasses import dataclass
from pathlib import Path

from statemix.experiments.runner import Job
from statemix.layers import LayerSpec
from statemix.layers.registry import LAYERS
from statemix.settings import RequestError
from statemix.training import RunConfig
from statemix.training.folder import CONFIG, settled
from statemix.training.run import request


@dataclass(frozen=True)
class Network:
    """One network of a comparison.

    Attributes:
        layers: its sequence layers. The first gives a series of a figure its colour.
        label: its name in tables and figures; empty means the labels of its layers.

    Example:
        >>> network = Network((LayerSpec("bd_lru", num_blocks=64, block_size=3),))
        >>> network.label, network.name
        ('BD-LRU m=3', 'bd_lru-m3')
    """

    layers: tuple[LayerSpec, ...]
    label: str = ""

    def __post_init__(self) -> None:
        if not self.label:
            labels = [LAYERS[layer.name].label(layer.options) for layer in self.layers]
            object.__setattr__(self, "label", " + ".join(dict.fromkeys(labels)))

    @property
    def name(self) -> str:
        """The label as a part of a file's name, with layers as users write them."""
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

        Schedules of attributes that no layer of this network has are left out.
        """
        schedules, evaluation = protocol.schedules, protocol.evaluation
        followed = tuple(s for s in schedules.attributes if s.attribute in self.schedulable)
        values = {k: v for k, v in evaluation.attributes.items() if k in self.schedulable}
        return dataclasses.replace(
            protocol,
            model=dataclasses.replace(protocol.model, layers=self.layers),
            schedules=dataclasses.replace(schedules, attributes=followed),
            evaluation=dataclasses.replace(
                evaluation, attributes=type(evaluation.attributes)(values)
            ),
            seed=seed,
        )


@dataclass(frozen=True)
class Suite:
    """Networks and seeds under one protocol.

    Attributes:
        networks: the networks to compare.
        seeds: seeds of the initial weights, of the order of batches and, unless the protocol's task
            has a seed of its own, of the data.
        protocol: the configuration of all runs, apart from network and seed.

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
        """Network and seed of every run, all networks with the first seed before any with the next.

        The runs of :meth:`jobs` have this order.
        """
        return [(network, seed) for seed, network in itertools.product(self.seeds, self.networks)]

    def jobs(self, folder: Path) -> list[Job]:
        """List the runs, each in a folder of its own inside ``folder``."""
        found = []
        for network, seed in self.members:
            name = f"{network.name}-seed{seed}"
            found.append(Job(name, network.configured(self.protocol, seed), folder / name))
        return found


def check_folders(jobs: list[Job]) -> None:
    """Check that the folders hold no other runs than these, before any run is trained.

    Raises:
        RequestError: if a folder holds another run, a run of an older version, or other files.
    """
    for job in jobs:
        try:
            settled(job.folder, request(job.config))
        except RequestError as error:
            # Only a folder that holds a run is removed by a fresh start.
            cure = "; --fresh (fresh=True) removes it" if (job.folder / CONFIG).exists() else ""
            raise RequestError(f"{error}{cure}") from error
