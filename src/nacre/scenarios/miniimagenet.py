"""miniimagenet: the 100 classes of miniImageNet (84 x 84 pixels) as twenty tasks of five."""

from __future__ import annotations

from nacre.scenarios.augment import CropFlip
from nacre.scenarios.choices import Choices
from nacre.scenarios.loading import load_set
from nacre.scenarios.pictures import PictureSet
from nacre.scenarios.scenario import Scenario
from nacre.scenarios.splitting import check_order, consecutive, facts_of, of_classes

SIZE = 5
MINIIMAGENET = PictureSet(
    "timm/mini-imagenet",  # on the hub this name holds other classes than the classic 100, so it has no revision here
    classes=100,
    side=84,
    channels=3,
    mean=(0.485, 0.456, 0.406),  # ImageNet's
    std=(0.229, 0.224, 0.225),
    folder="miniimagenet",
    resized=True,
)


def miniimagenet(choices: Choices | None = None) -> Scenario:
    """Classes 0-4, 5-9, ...; training images mirrored or not."""
    choices = choices or Choices()
    check_order("miniimagenet", choices, "consecutive", "random")
    loaded = load_set(MINIIMAGENET, choices, CropFlip(0))
    facts = facts_of(choices, loaded.network, "flip" if choices.augment else None, {MINIIMAGENET.name: loaded.facts})
    groups = consecutive(MINIIMAGENET.classes, SIZE)
    return of_classes("miniimagenet", choices, groups, loaded.task, loaded.network, facts)
