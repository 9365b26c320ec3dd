"""A scenario in a run: each task's own augmentation, heads as the scenario makes them, the same bits again."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import torch
from torch import Tensor, nn

from nacre import CACL, Learner, Recipe
from nacre.experiments.run import Plan, run
from nacre.scenarios import Scenario, ScenarioTask
from nacre.trees import Tree


class Dimming:
    """An augmentation that remembers how many images it was given."""

    def __init__(self) -> None:
        self.images = 0

    def __call__(self, images: Tree, draw: torch.Generator) -> Tensor:
        assert isinstance(images, Tensor)
        self.images += len(images)
        return images * torch.rand(1, generator=draw)


def head(classes: int) -> nn.Sequential:
    return nn.Sequential(OrderedDict(fc1=nn.Linear(8, 4), relu1=nn.ReLU(), fc2=nn.Linear(4, classes)))


def backbone() -> nn.Sequential:
    return nn.Sequential(OrderedDict(fc=nn.Linear(6, 8), act=nn.Tanh()))


def scenario(augment: Dimming) -> Scenario:
    def examples(seed: int, classes: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(24, 6, generator=torch.Generator().manual_seed(seed))
        return x, torch.arange(24) % classes

    return Scenario(
        "mine",
        [
            ScenarioTask("plain", examples(0, 2), examples(1, 2), ("a", "b")),
            ScenarioTask("augmented", lambda: examples(2, 3), examples(3, 3), ("a", "b", "c"), augment),
        ],
        backbone,
        head,
    )


def test_a_run_takes_augmentation_and_heads_from_the_scenario(tmp_path: Path) -> None:
    augment, recipe = Dimming(), Recipe(epochs=3, batch_size=8, precision="float32")
    for out in ("once", "again"):
        run(Plan(scenario(augment), CACL(), recipe), tmp_path / out, progress=False)
    assert augment.images == 2 * 3 * 24
    learners = [
        Learner.load(tmp_path / out / "seed-0/life.nacre", device="cpu", progress=False) for out in ("once", "again")
    ]
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(9))
    for name, classes in (("plain", 2), ("augmented", 3)):
        one, other = (learner.predict(x, task=name) for learner in learners)
        assert one.shape == (5, classes)
        assert torch.equal(one, other)
        linear = [module for module in learners[0].network(name).modules() if isinstance(module, nn.Linear)]
        assert [layer.out_features for layer in linear] == [8, 4, classes]
