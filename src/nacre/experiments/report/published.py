"""The numbers that the paper prints, table by table, and where it has them from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nacre.experiments.report.numbers import Number

PAPER = "paper, 200 epochs"
ACL = "ACL's: no augmentation, 85 % of the training images, classes drawn at random"
UNSAID = "the paper does not say"


@dataclass(frozen=True)
class Published:
    """A row of one of the paper's tables."""

    table: str
    method: str
    acc: Number
    megabytes: Number
    bwt: Number | None = None
    protocol: str = PAPER
    source: str | None = None  # whose measurement it is, where it is not the paper's own
    sparsity: float | None = None
    repeated: bool = False  # printed in another table already

    @property
    def label(self) -> str:
        return self.method if self.sparsity is None else f"{self.method} {self.sparsity:g}"


@dataclass(frozen=True)
class Benchmark:
    """What the paper did on one scenario with one network."""

    scenario: str
    network: str
    tasks: int
    rows: tuple[Published, ...]
    images: int | Mapping[str, int] | None = None  # training images of every task, or of those named

    def whole(self, task: str) -> int | None:
        """How many training images a task has, where all who use the set have as many."""
        return self.images.get(task) if isinstance(self.images, Mapping) else self.images


def _rival(table: str, source: str, protocol: str, *rows: tuple[str, ...]) -> tuple[Published, ...]:
    """Rows of (method, ACC, MB) or (method, ACC, BWT, MB)."""
    return tuple(
        Published(
            table,
            method,
            Number.printed(acc),
            Number.printed(rest[-1]),
            Number.printed(rest[0]) if len(rest) == 2 else None,
            protocol,
            source,
        )
        for method, acc, *rest in rows
    )


def _own(
    table: str,
    method: str,
    acc: str,
    size: str,
    sparsity: float | None = None,
    *,
    bwt: bool = True,
    repeated: bool = False,
) -> Published:
    nothing = Number.printed("0.00(0.00)") if bwt else None
    return Published(
        table, method, Number.printed(acc), Number.printed(size), nothing, sparsity=sparsity, repeated=repeated
    )


BENCHMARKS = (
    Benchmark(
        "cifar100",
        "conv5",
        20,
        (
            *_rival(
                "1a",
                "ACL's paper",
                ACL,
                ("HAT", "76.96(1.23)", "0.01(0.02)", "27.2"),
                ("PNN", "75.25(0.04)", "0.00(0.00)", "93.51"),
                ("A-GEM", "54.38(3.84)", "-21.99(4.05)", "25.4"),
                ("ER-RES", "66.78(0.48)", "-15.01(1.11)", "25.4"),
                ("ACL", "78.08(1.25)", "0.00(0.01)", "25.1"),
            ),
            _own("1a", "Baseline_UB", "89.2(0.32)", "31.67"),
            _own("1a", "CACL", "83.71(0.19)", "2.58", 0.4),
            _own("1a", "CACL", "86.19(0.38)", "8.68", 0.1),
            _own("4", "Baseline_UB", "89.2(0.32)", "31.67", bwt=False, repeated=True),
            _own("4", "CACL-ST", "88.9(0.12)", "7.57", bwt=False),
            _own("4", "CACL-Fixed", "82.15(1.07)", "1.96", bwt=False),
            _own("4", "CACL", "86.19(0.38)", "8.68", 0.1, bwt=False, repeated=True),
        ),
        images=2500,
    ),
    Benchmark(
        "cifar100",
        "vgg16_bn",
        20,
        (
            *_rival("1b", UNSAID, UNSAID, ("PackNet", "67.5", "128.25"), ("PAE", "71.1", "256.5")),
            *_rival("1b", UNSAID, UNSAID, ("CPG", "80.9", "278")),
            _own("1b", "CACL", "90.5", "73", 0.01, bwt=False),
        ),
        images=2500,
    ),
    Benchmark(
        "miniimagenet",
        "conv5",
        20,
        (
            *_rival(
                "2a",
                "ACL's paper",
                ACL,
                ("HAT", "59.45(0.05)", "-0.04(0.03)", "123.6"),
                ("PNN", "58.96(3.50)", "0.00(0.00)", "588"),
                ("ER-RES", "57.32(2.56)", "-11.34(2.32)", "102.6"),
                ("A-GEM", "52.43(3.10)", "-15.23(1.45)", "102.6"),
                ("ACL", "62.07(0.51)", "0.00(0.01)", "113.1"),
            ),
            _own("2a", "Baseline_UB", "73.6(0.08)", "37.8"),
            _own("2a", "CACL", "67.84(0.02)", "8.1", 0.4),
            _own("2a", "CACL", "69.67(0.77)", "13.1", 0.1),
            _own("2b", "Baseline_UB", "73.6(0.08)", "37.8", bwt=False, repeated=True),
            _own("2b", "CACL-ST", "72.76(0.40)", "14.82", bwt=False),
            _own("2b", "CACL-Fixed", "69.2(0.83)", "8.10", bwt=False),
            _own("2b", "CACL", "69.67(0.77)", "13.14", 0.1, bwt=False, repeated=True),
        ),
        images=2500,
    ),
    Benchmark(
        "five-datasets",
        "conv5",
        5,
        (
            *_rival("3", UNSAID, UNSAID, ("UCB", "76.34(0.12)", "-1.34(0.04)", "32.8")),
            *_rival("3", UNSAID, UNSAID, ("ACL", "78.55(0.29)", "-0.00(0.15)", "16.5")),
            _own("3", "Baseline_UB", "93.05(0.23)", "8.02"),
            _own("3", "CACL", "90.84(0.13)", "1.35", 0.1),
        ),
        # notMNIST is split by everybody in another way
        images={"svhn": 73_257, "cifar10": 50_000, "fashion-mnist": 60_000, "mnist": 60_000},
    ),
)


def benchmark(scenario: str, network: str | None) -> Benchmark | None:
    """What the paper printed for a scenario; for a network that it did not use, nothing."""
    wanted = network or "conv5"
    return next((each for each in BENCHMARKS if (each.scenario, each.network) == (scenario, wanted)), None)
