"""cifar100: 100 classes as twenty tasks of five, in the published order, at random, or by superclass."""

from __future__ import annotations

from nacre.errors import NacreError
from nacre.scenarios.augment import CropFlip
from nacre.scenarios.choices import Choices
from nacre.scenarios.loading import LoadedSet, load_set
from nacre.scenarios.pictures import PictureSet
from nacre.scenarios.scenario import Scenario
from nacre.scenarios.splitting import Groups, by_superclass, consecutive, facts_of, of_classes

SIZE = 5
CIFAR100 = PictureSet(
    "uoft-cs/cifar100",
    classes=100,
    side=32,
    channels=3,
    mean=(0.507, 0.487, 0.441),
    std=(0.267, 0.256, 0.276),
    revision="aadb3af77e9048adbea6b47c21a81e47dd092ae5",
    below="cifar100",
    image="img",
    label="fine_label",
    superclass="coarse_label",
)


def cifar100(choices: Choices | None = None) -> Scenario:
    """Fine labels 0-4, 5-9, ...; training images cropped at a place drawn, padded by 4, and mirrored."""
    choices = choices or Choices()
    loaded = load_set(CIFAR100, choices, CropFlip(4, fill=CIFAR100.black()))
    augment = "crop with padding 4, flip" if choices.augment else None
    facts = facts_of(choices, loaded.network, augment, {CIFAR100.name: loaded.facts})
    return of_classes("cifar100", choices, _groups(choices, loaded), loaded.task, loaded.network, facts)


def _groups(choices: Choices, loaded: LoadedSet) -> Groups:
    if choices.class_order != "superclass":
        return consecutive(CIFAR100.classes, SIZE)
    train = loaded.pictures.train
    if train.superclasses is None:
        raise NacreError(f"the class order superclass needs the column {CIFAR100.superclass}, which these data lack")
    return by_superclass(train.labels, train.superclasses, loaded.pictures.superclasses)
