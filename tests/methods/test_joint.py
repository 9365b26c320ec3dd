"""Joint: all tasks at once, from the beginning, at least as good as finetuning."""

from __future__ import annotations

import torch

from nacre.methods import Finetune, Joint
from nacre.methods.joint import Together
from nacre.space import OfTask, Weights
from nacre.training.batches import as_batches
from nacre.training.held import Held
from nacre.training.processes import Processes
from tests.methods.problems import learner_of, normed, pictures, points, short

ONE = Processes(torch.device("cpu"))


def test_an_epoch_goes_once_over_every_task_in_a_mixed_order() -> None:
    counts = (20, 33, 9)
    parts = [(torch.arange(n)[:, None] + 100.0 * at, torch.full((n,), at)) for at, n in enumerate(counts)]
    earlier = [Held(x, y, short(), ONE) for x, y in parts[:2]]
    together = Together(as_batches(parts[2], short(), ONE), earlier)
    assert together.examples == 62
    orders = []
    for epoch in range(2):
        batches = list(together.epoch(0, epoch))
        seen = []
        for batch in batches:
            inputs, at = batch.inputs, 2
            if isinstance(inputs, OfTask):
                inputs, at = inputs.inputs, int(inputs.task)
            assert (batch.targets == at).all()  # one task a batch
            seen += inputs[:, 0].tolist()
        assert sorted(seen) == sorted(x for part, _ in parts for x in part[:, 0].tolist())
        orders.append(seen)
    assert orders[0] != orders[1]
    again = [b.targets.tolist() for b in together.epoch(0, 1)]
    assert again == [b.targets.tolist() for b in together.epoch(0, 1)]
    assert sorted(again) != again or len({y for part in again for y in part}) == 1


def test_it_is_at_least_as_good_as_finetuning_on_every_task() -> None:
    accuracy = {}
    for method in (Joint(), Finetune()):
        learner = learner_of(method)
        for axis, task in enumerate("abc"):
            result = learner.learn(task, points(axis, 150), recipe=short(10))
        accuracy[method.name] = [learner.evaluate(points(axis, 150), task=task) for axis, task in enumerate("abc")]
        assert sum(epoch.images for epoch in result.history) == 10 * 150 * (3 if method.name == "joint" else 1)
    assert sum(accuracy["joint"]) > sum(accuracy["finetune"])
    assert min(accuracy["joint"]) > 90


def test_every_task_begins_anew_and_trains_all_heads() -> None:
    learner = learner_of(Joint())
    learner.learn("a", points(0), recipe=short())
    before = learner.network("a").state_dict()
    learner.learn("b", points(1), recipe=short(1, learning_rate=1e-12))
    assert isinstance(learner.knowledge, Weights)
    drawn = learner.network("a").get_parameter("backbone.2.weight")
    assert not torch.equal(drawn, before["backbone.2.weight"])
    assert drawn.abs().max() <= 1 / 16**0.5  # as torch draws it, not where the first task left it
    learner.learn("c", points(2), recipe=short())
    assert not torch.equal(learner.network("a").get_parameter("head.weight"), before["head.weight"])


def test_all_examples_are_kept_and_counted_apart() -> None:
    learner = learner_of(Joint(), normed())
    for axis, task in enumerate("ab"):
        learner.learn(task, pictures(axis), recipe=short(1))
    size = learner.knowledge.size()
    assert size.images == 48
    levels = 3 * 256 * 4
    assert size.image_bytes == 2 * (24 * (3 * 8 * 8 + 8) + levels)  # a byte a pixel, eight a class number
    assert size.numbers == (8 * 27 + 12 * 72) + 2 * (4 * 8 + 4 * 12) + 2 * 26


def test_norm_statistics_of_every_task_are_learnt_together() -> None:
    learner = learner_of(Joint(), normed())
    for axis, task in enumerate("ab"):
        learner.learn(task, pictures(axis), recipe=short())
    statistics = [learner.network(task).get_buffer("backbone.1.running_mean") for task in "ab"]
    assert all(values.any() for values in statistics)
    assert not torch.equal(*statistics)
