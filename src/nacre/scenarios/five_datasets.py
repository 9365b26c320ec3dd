"""five-datasets: SVHN, CIFAR-10, notMNIST, Fashion-MNIST and MNIST, one task each, ten classes, 32 x 32 in colour."""

from __future__ import annotations

from nacre.scenarios.choices import Choices
from nacre.scenarios.loading import load_set
from nacre.scenarios.pictures import PictureSet
from nacre.scenarios.scenario import Scenario
from nacre.scenarios.splitting import check_order, facts_of

SVHN = PictureSet(
    "ufldl-stanford/svhn",
    classes=10,
    side=32,
    channels=3,
    mean=(0.4377, 0.4438, 0.4728),
    std=(0.198, 0.201, 0.197),
    revision="f9e1717d73324ebbc1ece84267ccd80d0aca0690",
    below="cropped_digits",
)
CIFAR10 = PictureSet(
    "uoft-cs/cifar10",
    classes=10,
    side=32,
    channels=3,
    mean=(125.3 / 255, 123.0 / 255, 113.9 / 255),
    std=(63.0 / 255, 62.1 / 255, 66.7 / 255),
    revision="0b2714987fa478483af9968de7c934580d0bb9a2",
    below="plain_text",
    image="img",
)
NOTMNIST = PictureSet(  # no split of it is the one that papers share
    "anubhavmaity/notMNIST",
    classes=10,
    side=28,
    channels=1,
    mean=(0.4254,),
    std=(0.4501,),
    folder="notmnist",
    padding=2,
)
FASHION_MNIST = PictureSet(
    "zalando-datasets/fashion_mnist",
    classes=10,
    side=28,
    channels=1,
    mean=(0.2190,),
    std=(0.3318,),
    revision="531be5e2ccc9dba0c201ad3ae567a4f3d16ecdd2",
    below="fashion_mnist",
    padding=2,
)
MNIST = PictureSet(
    "ylecun/mnist",
    classes=10,
    side=28,
    channels=1,
    mean=(0.1,),
    std=(0.2752,),
    revision="77f3279092a1c1579b2250db8eafed0ad422088c",
    below="mnist",
    padding=2,
)
SETS = {"svhn": SVHN, "cifar10": CIFAR10, "notmnist": NOTMNIST, "fashion-mnist": FASHION_MNIST, "mnist": MNIST}


def five_datasets(choices: Choices | None = None) -> Scenario:
    """A data set a task; none is augmented, as digits and letters do not bear being mirrored."""
    choices = choices or Choices()
    check_order("five-datasets", choices, "consecutive")
    given_first = sorted(SETS, key=lambda name: SETS[name].revision is not None)  # one that lacks stops no download
    loaded = {name: load_set(SETS[name], choices) for name in given_first}
    tasks = [loaded[name].task(name, range(10)) for name in SETS]
    network = loaded["mnist"].network  # every set is 32 x 32 in colour
    facts = facts_of(choices, network, None, {SETS[name].name: loaded[name].facts for name in SETS})
    facts["classes"] = {task.name: list(task.classes) for task in tasks}
    return Scenario("five-datasets", tasks, network.backbone, network.head, facts)
