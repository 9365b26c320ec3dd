"""What makes a good quick recipe? Accuracy on held-out training images against MB, many short lives at once on a GPU.

    python benchmarks/cifar.py ../shared/data carry/cifar.safetensors --tasks 5
    python benchmarks/screening.py carry/cifar.safetensors --questions cuts start --seeds 0 1 2 3 --out screening.jsonl
    python benchmarks/screening.py --table screening.jsonl

A life is five tasks of CIFAR-100 one after another. `SharedSpace`, penalties and cuts are nacre's; only the loop is
not `fit`: each step is one CUDA graph and each thread has a stream, some twenty times the steps a second on nets this
small. A seed draws the weights, the batches and which 15 % of the training images are held out (with --test nothing
is: the test images are then what accuracy is measured on, for a last confirmation).
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from statistics import fmean, stdev
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nacre
from cifar import CLASSES, MEAN, STD, Part, holdout, tasks

STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36}  # 97.5 % quantile, by number of seeds
WARM_UP = 3  # steps before a graph is captured; they count


@dataclass(frozen=True)
class Setting:
    """How a life is led. `cuts` are shares of the epochs after which the rank is cut, to `limit` or by `mid_energy`."""

    dense: bool = False
    epochs: int = 40
    batch: int = 32
    rate: float = 1e-3
    cosine: bool = False
    s_rate: float = 1.0  # times `rate`
    sparsity: float = 0.0
    sparsity_warm_up: float = 0.0  # share of the epochs over which it rises
    shrinkage: float = 0.0  # decoupled: |s| falls by rate * this in every step
    orthogonality: float = 1.0
    first_rank: float = 1.0  # share of the paper's r that the first task starts with
    later_rank: float = 1.0
    later: float = 0.3
    cuts: tuple[float, ...] = ()
    looser: float = 1.0  # each cut's budget is that of the next one times this
    restart: bool = False  # of the schedule, after the last cut but the one at the end
    taught: float = 0.0  # share of the loss that is what the network said before the last cut but the one at the end
    mid_energy: float | None = None
    first_limit: int | None = None  # bytes of factors
    later_limit: int | None = None
    energy: float = 1e-5  # of the last cut
    average: float = 0.0  # of weights: decay of the running mean
    smoothing: float = 0.0
    tasks: int = 5


class OwnDropout(nn.Module):
    """Dropout from a generator of one's own: threads that share the default one cannot capture graphs at once."""

    def __init__(self, p: float, draw: torch.Generator) -> None:
        super().__init__()
        self.p, self.draw = p, draw

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        kept = torch.rand(x.shape, device=x.device, generator=self.draw) >= self.p
        return x * kept / (1 - self.p)

    def __deepcopy__(self, _: Any) -> nn.Module:
        return nn.Identity()  # a teacher's copy drops nothing, and generators cannot be copied


def crop_flip(images: Tensor, black: Tensor, draw: torch.Generator) -> Tensor:
    """CropFlip with what it draws drawn on the device."""
    count, _, height, width = images.shape
    padded = F.pad(images - black, (4, 4, 4, 4)) + black
    rows = torch.randint(0, 9, (count, 1), device=images.device, generator=draw) + torch.arange(height, device="cuda")
    columns = torch.randint(0, 9, (count, 1), device=images.device, generator=draw) + torch.arange(width, device="cuda")
    mirrored = torch.rand((count, 1), device=images.device, generator=draw) < 0.5
    columns = torch.where(mirrored, columns.flip(1), columns)
    which = torch.arange(count, device=images.device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[which, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


class Steps:
    """Training steps on one network: a few as they are, the rest as replays of a graph."""

    def __init__(self, network: nn.Module, part: Part, setting: Setting, draw: torch.Generator) -> None:
        self.network, self.setting, self.draw = network, setting, draw
        self.images, self.labels = part
        black = torch.tensor([-mean / std for mean, std in zip(MEAN, STD, strict=True)])
        self.black = black.view(3, 1, 1).cuda()
        self.teacher: nn.Module | None = None
        self.rate, self.sparsity = (torch.zeros((), device="cuda") for _ in range(2))
        self.position = torch.zeros(1, dtype=torch.long, device="cuda")
        self.count = len(self.labels) // setting.batch
        self.order = torch.zeros(self.count, setting.batch, dtype=torch.long, device="cuda")
        self.renew()

    def renew(self) -> None:
        """A new optimiser, for factors that are new parameters."""
        named = [(name, p) for name, p in self.network.named_parameters() if p.requires_grad and p.numel()]
        self.singular = [p for name, p in named if name.endswith(".s")]
        others = [p for name, p in named if not name.endswith(".s")]
        self.s_rate = torch.zeros((), device="cuda")
        groups = [{"params": others, "lr": self.rate}]
        groups += [{"params": self.singular, "lr": self.s_rate}] if self.singular else []
        self.optimizer = torch.optim.Adam(groups, lr=self.rate, fused=True, capturable=True)
        self.parameters = [p for _, p in named]
        self.mean = [p.detach().clone() for p in self.parameters]
        self.graph: torch.cuda.CUDAGraph | None = None
        self.eager = 0

    def epoch(self, number: int) -> None:
        setting = self.setting
        begun = max((cut_at(share, setting) for share in setting.cuts), default=0) if setting.restart else 0
        begun = begun if number >= begun else 0
        until = setting.epochs if begun or not setting.restart else cut_at(max(setting.cuts), setting)
        share = (number - begun) / (until - begun)
        passed = sum(share >= milestone for milestone in (0.4, 0.6, 0.9))
        scale = (1 + math.cos(math.pi * share)) / 2 if setting.cosine else 0.1**passed
        self.rate.fill_(setting.rate * scale)
        self.s_rate.fill_(setting.rate * scale * setting.s_rate)
        rise = min(1.0, share / setting.sparsity_warm_up) if setting.sparsity_warm_up else 1.0
        self.sparsity.fill_(setting.sparsity * rise)
        order = torch.randperm(len(self.labels), device="cuda", generator=self.draw)
        self.order.copy_(order[: self.order.numel()].view_as(self.order))
        self.position.zero_()
        for _ in range(self.count):
            self.step()

    def step(self) -> None:
        if self.graph is not None:
            self.graph.replay()
        elif self.eager < WARM_UP:
            self.eager += 1
            self._step()
        else:
            torch.cuda.current_stream().synchronize()
            graph = torch.cuda.CUDAGraph()
            graph.register_generator_state(self.draw)
            graph.capture_begin(capture_error_mode="thread_local")
            self._step()
            graph.capture_end()
            self.graph = graph
            graph.replay()

    def _step(self) -> None:
        setting = self.setting
        chosen = self.order.index_select(0, self.position).view(-1)
        self.position += 1
        images = crop_flip(self.images[chosen], self.black, self.draw).contiguous(memory_format=torch.channels_last)
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            outputs = self.network(images)
        loss = F.cross_entropy(outputs.float(), self.labels[chosen], label_smoothing=setting.smoothing)
        if self.teacher is not None:
            with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
                said = self.teacher(images)
            loss = (1 - setting.taught) * loss + setting.taught * _distance(outputs.float(), said.float())
        if not setting.dense:
            if setting.orthogonality:
                loss = loss + setting.orthogonality * nacre.orthogonality(self.network)
            if setting.sparsity:
                loss = loss + self.sparsity * nacre.hoyer(self.network)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            if setting.shrinkage:
                for s in self.singular:
                    s.copy_(F.relu(s.abs() - self.s_rate * setting.shrinkage) * s.sign())
            if setting.average:
                torch._foreach_lerp_(self.mean, [p.detach() for p in self.parameters], 1 - setting.average)

    def take_mean(self) -> None:
        if self.setting.average:
            with torch.no_grad():
                torch._foreach_copy_([p.detach() for p in self.parameters], self.mean)


def _distance(outputs: Tensor, said: Tensor, temperature: float = 2.0) -> Tensor:
    given, wanted = (F.log_softmax(logits / temperature, 1) for logits in (outputs, said))
    return temperature**2 * F.kl_div(given, wanted, reduction="batchmean", log_target=True)


def cut_at(share: float, setting: Setting) -> int:
    return max(1, round(share * setting.epochs))


def live(setting: Setting, seed: int, data: list[tuple[Part, Part]], lock: Any) -> Iterator[dict[str, Any]]:
    """Learns the tasks of a life in order."""
    draw = torch.Generator("cuda").manual_seed(seed)
    with lock:
        torch.manual_seed(seed)
        space = nacre.SharedSpace(nacre.networks.conv5().cuda())
    for number, (train, judge) in enumerate(data[: setting.tasks]):
        with lock:
            torch.manual_seed(1000 * seed + number)
            network = expand(space, setting, number)
        for name, module in list(network.backbone.named_children()):
            if isinstance(module, nn.Dropout):
                setattr(network.backbone, name, OwnDropout(module.p, draw))
        network.to(memory_format=torch.channels_last).train()
        steps = Steps(network, train, setting, draw)
        cuts = [cut_at(share, setting) for share in setting.cuts]
        limit = setting.later_limit if number else setting.first_limit
        for epoch in range(setting.epochs):
            if epoch in cuts:
                left = len(cuts) - 1 - cuts.index(epoch)
                if setting.taught and not left:
                    steps.teacher = copy.deepcopy(network).eval()
                cut(network, None if limit is None else int(limit * setting.looser**left), setting.mid_energy)
                network.to(memory_format=torch.channels_last)
                steps.renew()
            steps.epoch(epoch)
        steps.take_mean()
        before = accuracy(network.eval(), judge)
        if not setting.dense:
            cut(network, limit, None)
            if any(f.rank for f in network.factors().values()):
                nacre.compress(network, energy=setting.energy)
        name = f"task {number}"
        space.append(name, network)
        ranks = list(space.ranks(name).values())
        after, megabytes = accuracy(space.network(name), judge), space.size(name).megabytes
        yield {"before": before, "accuracy": after, "megabytes": megabytes, "ranks": ranks}


def expand(space: nacre.SharedSpace, setting: Setting, number: int) -> Any:
    head = nn.Linear(1024, CLASSES)
    if setting.dense:
        return space.expand(head, dense=True)
    share = setting.later_rank if number else setting.first_rank
    ranks = {name: max(1, round(share * full)) for name, full in space.full_ranks.items()}
    return space.expand(head, rank=ranks, start=nacre.Start("svd", later=setting.later))


def cut(network: nn.Module, limit: int | None, energy: float | None) -> None:
    if limit is not None:
        nacre.compress(network, budget=limit)
    elif energy is not None:
        nacre.compress(network, energy=energy)


def accuracy(network: nn.Module, judge: Part) -> float:
    with torch.inference_mode():
        return 100 * float((network(judge[0]).argmax(1) == judge[1]).float().mean())


# the questions

K = 1000
BASE = Setting(sparsity=0.0, cuts=(0.25,), first_limit=250 * K, later_limit=160 * K)
SMALL = replace(BASE, first_limit=120 * K, later_limit=68 * K)
QUESTIONS: dict[str, dict[str, Setting]] = {
    "dense": {
        "dense": Setting(dense=True),
        "dense, batch 64": Setting(dense=True, batch=64),
        "dense, cosine": Setting(dense=True, cosine=True),
        "dense, averaged": Setting(dense=True, average=0.995),
        "dense, cosine, averaged": Setting(dense=True, cosine=True, average=0.995),
    },
    "penalty alone": {
        "Hoyer 0.1": Setting(sparsity=0.1),
        "Hoyer 0.4": Setting(sparsity=0.4),
        "Hoyer 0.4, rising over half": Setting(sparsity=0.4, sparsity_warm_up=0.5),
        "Hoyer 0.4, s ten times faster": Setting(sparsity=0.4, s_rate=10.0),
        "decoupled shrinkage 0.3": Setting(shrinkage=0.3),
    },
    "cuts": {
        "none before the end": replace(BASE, cuts=()),
        "at a tenth": replace(BASE, cuts=(0.1,)),
        "at a quarter": BASE,
        "at a half": replace(BASE, cuts=(0.5,)),
        "at the start": replace(BASE, cuts=(), first_rank=0.16, later_rank=0.1),
        "at a quarter, Hoyer 0.1 too": replace(BASE, sparsity=0.1),
        "at a quarter by energy 0.1": replace(BASE, mid_energy=0.1, first_limit=None, later_limit=None),
        "at a quarter by energy 0.03": replace(BASE, mid_energy=0.03, first_limit=None, later_limit=None),
    },
    "start": {
        "x 0.1": replace(BASE, later=0.1),
        "x 0.5": replace(BASE, later=0.5),
        "x 1.0": replace(BASE, later=1.0),
    },
    "rates": {
        "s three times faster": replace(BASE, s_rate=3.0),
        "s ten times faster": replace(BASE, s_rate=10.0),
        "rate 2e-3": replace(BASE, rate=2e-3),
        "cosine": replace(BASE, cosine=True),
        "averaged": replace(BASE, average=0.995),
        "cosine, averaged": replace(BASE, cosine=True, average=0.995),
        "no orthogonality": replace(BASE, orthogonality=0.0),
        "batch 64": replace(BASE, batch=64),
    },
    "small": {
        "at a quarter": SMALL,
        "at a quarter, x 0.1": replace(SMALL, later=0.1),
        "at a quarter, x 1.0": replace(SMALL, later=1.0),
        "at a half": replace(SMALL, cuts=(0.5,)),
        "at a tenth, a quarter and 0.4": replace(SMALL, cuts=(0.4,)),
        "cosine, averaged": replace(SMALL, cosine=True, average=0.995),
        "larger first task": replace(SMALL, first_limit=200 * K, later_limit=48 * K),
    },
}


for name, base in (("eighth", BASE), ("sixteenth", SMALL)):
    best = replace(base, later=1.0, cuts=(0.5,), s_rate=3.0, cosine=True)
    QUESTIONS[name] = {
        "at a half, x 1, s x 3, cosine": best,
        "milestones": replace(best, cosine=False),
        "s x 1": replace(best, s_rate=1.0),
        "s x 10": replace(best, s_rate=10.0),
        "at a third": replace(best, cuts=(0.35,)),
        "at 0.7": replace(best, cuts=(0.7,)),
        "in three steps": replace(best, cuts=(0.25, 0.4, 0.55), looser=2.0),
        "in three steps, s x 10": replace(best, cuts=(0.25, 0.4, 0.55), looser=2.0, s_rate=10.0),
        "rate 2e-3": replace(best, rate=2e-3),
        "x 2": replace(best, later=2.0),
        "smoothed": replace(best, smoothing=0.1),
        "schedule again after the cut": replace(best, restart=True),
        "taught": replace(best, taught=0.7),
        "taught, schedule again": replace(best, taught=0.7, restart=True),
        "no orthogonality": replace(best, orthogonality=0.0),
        "averaged": replace(best, average=0.998),
        "x 0.5": replace(best, later=0.5),
        "larger first task": replace(
            best, first_limit=int(1.4 * (base.first_limit or 0)), later_limit=int(0.85 * (base.later_limit or 0))
        ),
    }


def work(
    todo: SimpleQueue[tuple[str, str, Setting, int]], data: Callable[[int], Any], out: Any, lock: Any, end: float
) -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        while time.monotonic() < end:
            try:
                question, label, setting, seed = todo.get_nowait()
            except Empty:
                return
            begun = time.perf_counter()
            try:
                found = list(live(setting, seed, data(seed), lock))
            except Exception as error:  # one life that fails must not take the others along
                print("failed:", question, label, seed, repr(error)[:300], flush=True)
                continue
            line = {"question": question, "label": label, "seed": seed, "setting": asdict(setting), "tasks": found}
            with lock:
                out.write(json.dumps({**line, "seconds": time.perf_counter() - begun}) + "\n")
                out.flush()


def table(path: Path, against: str) -> str:
    """Means over seeds; the difference is to the setting `against` on the same images, with half the width of its 95 %
    interval (Student's, for as few seeds as there are)."""
    lives = [json.loads(line) for line in path.read_text().splitlines()]
    dense = {life["seed"]: _mean(life, "accuracy") for life in lives if life["label"] == against}
    lines = [f"| question | setting | accuracy | less than {against!r} | before the cut | MB of five tasks | seeds |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for question, label in dict.fromkeys((life["question"], life["label"]) for life in lives):
        chosen = [life for life in lives if (life["question"], life["label"]) == (question, label)]
        gaps = [dense[life["seed"]] - _mean(life, "accuracy") for life in chosen if life["seed"] in dense]
        width = STUDENT[len(gaps)] * stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) in STUDENT else math.nan
        size = fmean(sum(task["megabytes"] for task in life["tasks"]) for life in chosen)
        lines.append(
            f"| {question} | {label} | {fmean(_mean(life, 'accuracy') for life in chosen):.2f} "
            f"| {fmean(gaps) if gaps else math.nan:.2f} ± {width:.2f} "
            f"| {fmean(_mean(life, 'before') for life in chosen):.2f} | {size:.3f} | {len(chosen)} |"
        )
    return "\n".join(lines)


def _mean(life: dict[str, Any], key: str) -> float:
    return fmean(task[key] for task in life["tasks"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", help="a file made by cifar.py")
    parser.add_argument("--questions", nargs="+", default=list(QUESTIONS), choices=list(QUESTIONS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--threads", type=int, default=12)
    parser.add_argument("--epochs", type=int, help="other than the settings' own")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no life after so long")
    parser.add_argument("--test", action="store_true", help="train on everything, measure on the test images")
    parser.add_argument("--out", type=Path, default=Path("runs/screening.jsonl"))
    parser.add_argument("--table", type=Path, help="only print what such a file holds")
    parser.add_argument("--against", default="dense, cosine", help="the setting that others are compared with")
    given = parser.parse_args()
    if given.table:
        print(table(given.table, given.against))
        return
    torch.set_num_threads(1)
    loaded = tasks(given.data, 5)

    def data(seed: int) -> list[tuple[Part, Part]]:
        split = [pair if given.test else holdout(pair[0], seed=seed) for pair in loaded]
        return [tuple((x.cuda(), y.cuda()) for x, y in pair) for pair in split]  # type: ignore[misc]

    given.out.parent.mkdir(parents=True, exist_ok=True)
    kept = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    done = {(life["question"], life["label"], life["seed"]) for life in kept}
    todo: SimpleQueue[tuple[str, str, Setting, int]] = SimpleQueue()
    for seed in given.seeds:
        for question in given.questions:
            for label, setting in QUESTIONS[question].items():
                if (question, label, seed) not in done:
                    setting = replace(setting, epochs=given.epochs or setting.epochs)
                    todo.put((question, label, setting, seed))
    lock, end = threading.Lock(), time.monotonic() + given.seconds
    with given.out.open("a") as out:
        threads = [threading.Thread(target=work, args=(todo, data, out, lock, end)) for _ in range(given.threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print(table(given.out, given.against))


if __name__ == "__main__":
    main()
