"""cifar100, miniimagenet, five-datasets: which pictures a task has, in which numbers they reach the network."""

from __future__ import annotations

import json
import pickle
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from nacre import NacreError
from nacre.scenarios import SCENARIOS, Choices, CropFlip, ScenarioTask

if TYPE_CHECKING:
    from tests.scenarios.conftest import Disk, Pixels

CIFAR = ((0.507, 0.487, 0.441), (0.267, 0.256, 0.276))
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
FIVE = {  # of /work/shared/notes: the published code's
    "svhn": ((0.4377, 0.4438, 0.4728), (0.198, 0.201, 0.197)),
    "cifar10": ((125.3 / 255, 123.0 / 255, 113.9 / 255), (63.0 / 255, 62.1 / 255, 66.7 / 255)),
    "notmnist": ((0.4254,), (0.4501,)),
    "fashion-mnist": ((0.2190,), (0.3318,)),
    "mnist": ((0.1,), (0.2752,)),
}
Numbers = tuple[tuple[float, ...], tuple[float, ...]]


def normalised(pixels: Pixels, numbers: Numbers) -> NDArray[np.float64]:
    """[n, h, w, c] of 0 to 255 as [n, c, h, w] around 0."""
    mean, std = (np.array(values) for values in numbers)
    around_zero: NDArray[np.float64] = (pixels.reshape(*pixels.shape[:3], -1) / 255 - mean) / std
    return around_zero.transpose(0, 3, 1, 2)


def assert_pictures(images: Tensor, expected: NDArray[np.float64]) -> None:
    assert images.dtype == torch.float32
    np.testing.assert_allclose(images.numpy(), expected, rtol=0, atol=2e-6)


def as_set(images: Tensor) -> set[bytes]:
    return {image.numpy().tobytes() for image in images}


def test_cifar100_has_the_pictures_of_five_neighbouring_labels_in_each_task(disk: Disk) -> None:
    made = disk.cifar100()
    scenario = SCENARIOS["cifar100"](Choices(data=disk.root))
    assert [task.name for task in scenario.tasks[:3]] == ["00-04", "05-09", "10-14"]
    assert len(scenario.tasks) == 20
    for number, task in enumerate(scenario.tasks):
        for split, (images, labels) in (("train", task.train), ("test", task.test)):
            pixels, fine = made[split]
            rows = [row for row, label in enumerate(fine) if label // 5 == number]
            assert_pictures(images, normalised(pixels[rows], CIFAR))
            assert labels.tolist() == [fine[row] % 5 for row in rows]
            assert labels.dtype == torch.int64
        assert task.classes == tuple(f"fine_label {label}" for label in range(5 * number, 5 * number + 5))


def test_cifar100_crops_with_black_and_flips_unless_told_not_to(disk: Disk) -> None:
    disk.cifar100()
    (task,) = SCENARIOS["cifar100"](Choices(data=disk.root)).first(1).tasks
    assert isinstance(task.augment, CropFlip)
    assert (task.augment.padding, task.augment.flip) == (4, True)
    mean, std = (torch.tensor(values) for values in CIFAR)
    assert torch.equal(torch.tensor(task.augment.fill), (torch.zeros(3) / 255 - mean) / std)
    plain = SCENARIOS["cifar100"](Choices(data=disk.root, augment=False))
    assert all(task.augment is None for task in plain.tasks)
    assert plain.facts["augment"] is None


def test_random_classes_are_a_permutation_that_the_seed_draws(disk: Disk) -> None:
    made = disk.cifar100()
    scenario = SCENARIOS["cifar100"](Choices(data=disk.root, class_order="random"))
    drawn = [scenario.ordered(seed) for seed in (0, 0, 1)]
    for each in drawn:
        assert [task.name for task in each.tasks] == [f"random-{at:02d}" for at in range(20)]
        assert {name for task in each.tasks for name in task.classes} == {f"fine_label {at}" for at in range(100)}
        assert each.facts["classes"] == {task.name: list(task.classes) for task in each.tasks}
    classes = [[task.classes for task in each.tasks] for each in drawn]
    assert classes[0] == classes[1] != classes[2]
    assert [task.classes for task in scenario.first(3).ordered(1).tasks] == classes[2][:3]
    task = drawn[2].tasks[4]
    labels = [int(name.split()[1]) for name in task.classes]
    rows = [row for row, label in enumerate(made["test"][1]) if label in labels]
    assert_pictures(task.test[0], normalised(made["test"][0][rows], CIFAR))
    assert task.test[1].tolist() == [labels.index(made["test"][1][row]) for row in rows]


def test_superclasses_are_the_coarse_labels(disk: Disk) -> None:
    disk.cifar100()
    scenario = SCENARIOS["cifar100"](Choices(data=disk.root, class_order="superclass"))
    assert [task.name for task in scenario.tasks] == [f"coarse_label {at}" for at in range(20)]
    for number, task in enumerate(scenario.tasks):
        assert task.classes == tuple(f"fine_label {label}" for label in range(100) if disk.coarse[label] == number)
        assert len(task.train[1]) == 10


def test_superclasses_need_their_column(disk: Disk) -> None:
    for split in ("train", "test"):
        pixels = np.arange(100, dtype=np.uint8)[:, None, None, None].repeat(32, 1).repeat(32, 2).repeat(3, 3)
        disk.parquet("uoft-cs/cifar100", split, pixels, {"img": [], "fine_label": range(100)}, names=False)
    with pytest.raises(NacreError, match="needs the column coarse_label"):
        SCENARIOS["cifar100"](Choices(data=disk.root, class_order="superclass"))
    scenario = SCENARIOS["cifar100"](Choices(data=disk.root))
    assert scenario.tasks[1].classes == ("5", "6", "7", "8", "9")  # the file names none
    assert scenario.facts["data"]["uoft-cs/cifar100"]["duplicates"] == 100


@pytest.mark.parametrize(("share", "held_out"), [(0.15, 1), (0.5, 4), (0.99, 7)])
def test_held_out_images_are_the_same_share_of_every_class_and_in_no_training_set(
    disk: Disk, share: float, held_out: int
) -> None:
    disk.cifar100(each=8)
    whole = SCENARIOS["cifar100"](Choices(data=disk.root)).tasks
    for task, all_of_it in zip(SCENARIOS["cifar100"](Choices(data=disk.root, holdout=share)).tasks, whole, strict=True):
        assert task.val is not None
        assert task.val[1].bincount().tolist() == [held_out] * 5
        assert task.train[1].bincount().tolist() == [8 - held_out] * 5
        kept, held = as_set(task.train[0]), as_set(task.val[0])
        assert not kept & held
        assert kept | held == as_set(all_of_it.train[0])
        assert torch.equal(task.test[0], all_of_it.test[0])


def test_test_images_that_are_training_images_too_are_counted_and_said(
    disk: Disk, capsys: pytest.CaptureFixture[str]
) -> None:
    made = disk.cifar100()
    pixels, labels = made["test"]
    pixels = pixels.copy()
    pixels[[3, 50]] = made["train"][0][[17, 99]]
    pixels[51] = pixels[52]  # twice among the test images is no leak
    disk.parquet("uoft-cs/cifar100", "test", pixels, {"img": [], "fine_label": labels, "coarse_label": [0] * 100})
    for _ in range(2):  # decoded, then from the cache
        scenario = SCENARIOS["cifar100"](Choices(data=disk.root))
        assert scenario.facts["data"]["uoft-cs/cifar100"]["duplicates"] == 2
        assert "2 of 100 test images are training images too" in capsys.readouterr().err


def test_no_image_of_a_test_set_is_in_a_training_set(disk: Disk, capsys: pytest.CaptureFixture[str]) -> None:
    disk.cifar100()
    disk.five()
    for name in ("cifar100", "five-datasets"):
        tasks = SCENARIOS[name](Choices(data=disk.root)).tasks
        assert not set.union(*(as_set(task.train[0]) for task in tasks)) & as_set(tasks[0].test[0])
        for one, other in combinations(tasks[:5], 2):
            assert not as_set(one.train[0]) & as_set(other.train[0])
    assert capsys.readouterr().err == ""


def test_miniimagenet_is_a_folder_of_images_mirrored_or_not(disk: Disk) -> None:
    made = disk.miniimagenet()
    scenario = SCENARIOS["miniimagenet"](Choices(data=disk.root))
    assert len(scenario.tasks) == 20
    for number in (0, 19):
        task = scenario.tasks[number]
        assert_pictures(task.train[0], normalised(made["train"][5 * number : 5 * number + 5], IMAGENET))
        assert_pictures(task.test[0], normalised(made["test"][5 * number : 5 * number + 5], IMAGENET))
        assert task.train[1].tolist() == [0, 1, 2, 3, 4]
        assert task.classes[0] == f"n{5 * number:08d}"
    assert scenario.tasks[0].augment == CropFlip(0)
    assert scenario.facts["data"]["timm/mini-imagenet"]["scaled"] == 0


def test_miniimagenet_scales_pictures_of_other_sizes_and_says_so(disk: Disk) -> None:
    disk.miniimagenet()
    disk.picture("miniimagenet/train/n00000001/train.png", np.full((40, 90, 3), 200, dtype=np.uint8))
    scenario = SCENARIOS["miniimagenet"](Choices(data=disk.root))
    grey = normalised(np.full((1, 84, 84, 3), 200, dtype=np.uint8), IMAGENET)
    assert_pictures(scenario.tasks[0].train[0][1:2], grey)
    assert scenario.facts["data"]["timm/mini-imagenet"]["scaled"] == 1


def test_the_five_data_sets_are_padded_with_black_to_32_pixels_in_colour(disk: Disk) -> None:
    made = disk.five()
    scenario = SCENARIOS["five-datasets"](Choices(data=disk.root))
    assert [task.name for task in scenario.tasks] == list(FIVE)
    for task in scenario.tasks:
        for split, (images, labels) in (("train", task.train), ("test", task.test)):
            pixels = made[task.name][split]
            padding = (32 - pixels.shape[1]) // 2
            around = [(0, 0), (padding, padding), (padding, padding), (0, 0)][: pixels.ndim]
            expected = normalised(np.pad(pixels, around), FIVE[task.name])
            assert_pictures(images, np.broadcast_to(expected, (len(pixels), 3, 32, 32)))
            assert labels.tolist() == sorted(labels.tolist())
        assert len(task.classes) == 10
        assert task.augment is None


def test_colour_pictures_of_a_grey_set_are_made_grey(disk: Disk) -> None:
    disk.five()
    for split in ("train", "test"):
        for path in sorted((disk.root / "anubhavmaity/notMNIST").glob(f"{split}*")):
            path.unlink()
        for at, letter in enumerate("ABCDEFGHIJ"):
            level = 100 + at + 50 * (split == "test")
            disk.picture(f"notmnist/{split}/{letter}/a.png", np.full((28, 28, 3), level, dtype=np.uint8))
    task = SCENARIOS["five-datasets"](Choices(data=disk.root)).tasks[2]
    expected = (np.arange(100, 110) / 255 - 0.4254) / 0.4501
    np.testing.assert_allclose(task.train[0][:, 0, 16, 16].numpy(), expected, rtol=0, atol=1e-6)
    assert task.classes == tuple("ABCDEFGHIJ")


def test_the_network_asked_for_makes_backbone_and_head(disk: Disk) -> None:
    disk.five()
    scenario = SCENARIOS["five-datasets"](Choices(data=disk.root, network="vgg16_bn"))
    assert scenario.head is not None
    backbone, head = scenario.backbone().eval(), scenario.head(10)
    with torch.no_grad():
        assert head(backbone(scenario.tasks[4].test[0][:2])).shape == (2, 10)
    assert scenario.facts["network"] == "vgg16_bn"
    assert SCENARIOS["five-datasets"](Choices(data=disk.root)).head is None


def test_facts_are_json_and_say_nothing_of_this_machine(disk: Disk, tmp_path: Path) -> None:
    disk.cifar100()
    facts = dict(SCENARIOS["cifar100"](Choices(data=disk.root, holdout=0.5)).first(2).facts)
    assert json.loads(json.dumps(facts)) == facts
    assert str(tmp_path) not in json.dumps(facts)
    assert list(facts["classes"]) == ["00-04", "05-09"]
    data = facts["data"]["uoft-cs/cifar100"]
    assert (data["train"], data["test"], data["duplicates"], data["revision"]) == (200, 100, 0, None)
    assert len(data["sha256"]) == 64
    expected = {"class_order": "consecutive", "holdout": 0.5, "network": "conv5", "side": 32}
    assert expected.items() <= facts.items()


def test_tasks_travel_to_other_processes(disk: Disk) -> None:
    """A grid may hand them on: they hold no function that cannot be pickled."""
    disk.five()
    scenario = SCENARIOS["five-datasets"](Choices(data=disk.root))
    task: ScenarioTask = pickle.loads(pickle.dumps(scenario)).tasks[3]
    assert torch.equal(task.train[0], scenario.tasks[3].train[0])
