"""UCB: the divergence and the prior against numpy, learning rates scaled by uncertainty, the means answer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from nacre import Learner, NacreError
from nacre.methods import UCB
from nacre.methods.ucb import Mixture, Posterior, Slowed, started
from nacre.space import Weights
from nacre.training import Epoch
from tests.methods.problems import layers, learner_of, points, short

NAMES = ("0.weight", "2.weight")


def weights_of(learner: Learner) -> Weights:
    assert isinstance(learner.knowledge, Weights)
    return learner.knowledge


def softplus(rho: Tensor) -> Any:
    return np.log1p(np.exp(rho.double().numpy()))


def density(x: Any, sigma: Any) -> Any:
    return np.exp(-(x**2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))


def posterior_of(mean: Tensor, sigma: float) -> Posterior:
    return Posterior({"w": torch.full_like(mean, math.log(math.expm1(sigma)))})


# the evidence bound


def test_the_prior_is_the_published_mixture() -> None:
    w = torch.linspace(-2, 2, 33)
    x = w.double().numpy()
    expected = np.log(0.25 * density(x, 1.0) + 0.75 * density(x, math.exp(-6)))
    np.testing.assert_allclose(Mixture(0.25, 1.0, math.exp(-6))(w).numpy(), expected, rtol=1e-5)
    for share, sigma in ((0.0, math.exp(-6)), (1.0, 1.0)):  # one Gaussian alone, far out in its tail too
        log = -((x / sigma) ** 2) / 2 - math.log(sigma * math.sqrt(2 * math.pi))
        np.testing.assert_allclose(Mixture(share, 1.0, math.exp(-6))(w).numpy(), log, rtol=1e-5)


def test_the_divergence_is_that_of_the_weights_drawn() -> None:
    draw = torch.Generator().manual_seed(0)
    mean = torch.randn(40, 30, generator=draw) / 10
    posterior = posterior_of(mean, 0.03)
    w = posterior({"w": mean})["w"].detach().double().numpy()
    q = density(w - mean.double().numpy(), 0.03)
    p = 0.25 * density(w, 1.0) + 0.75 * density(w, 0.002)
    found = float(posterior.divergence(Mixture(0.25, 1.0, 0.002)).detach())
    assert found == pytest.approx(float((np.log(q) - np.log(p)).sum()), rel=1e-4)


def test_its_mean_is_the_closed_form_where_the_prior_is_one_gaussian() -> None:
    draw = torch.Generator().manual_seed(1)
    mean, sigma, wide = torch.randn(50, 40, generator=draw), 0.2, 1.5
    posterior = posterior_of(mean, sigma)
    found = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for _ in range(50):
            posterior({"w": mean})
            found.append(float(posterior.divergence(Mixture(1.0, wide, 0.1)).detach()))
    m = mean.double().numpy()
    closed = (math.log(wide / sigma) + (sigma**2 + m**2) / (2 * wide**2) - 0.5).sum()
    assert np.mean(found) == pytest.approx(closed, rel=5e-3)


def test_weights_are_drawn_around_their_means_and_gradients_reach_means_and_deviations() -> None:
    mean = nn.Parameter(torch.tensor([[1.0, -2.0]]))
    posterior = posterior_of(mean.detach(), 0.5)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        drawn = torch.stack([posterior({"w": mean})["w"].detach()[0] for _ in range(4000)])
        w = posterior({"w": mean})["w"]
    np.testing.assert_allclose(drawn.mean(0).numpy(), [1.0, -2.0], atol=0.04)
    np.testing.assert_allclose(drawn.std(0).numpy(), [0.5, 0.5], rtol=0.05)
    w.sum().backward()
    rho = posterior.rhos[0]
    assert mean.grad is not None
    assert rho.grad is not None
    assert mean.grad.tolist() == [[1.0, 1.0]]
    noise = (w - mean).detach().double().numpy() / 0.5
    slope = 1 / (1 + np.exp(-rho.detach().double().numpy()))  # of softplus
    np.testing.assert_allclose(rho.grad.numpy(), noise * slope, rtol=1e-4)


def one_step(method: UCB, learner: Learner | None = None) -> tuple[dict[str, Tensor], dict[str, Tensor], Learner]:
    """The means' gradients and the weights drawn in a single step of descent, of a rate of 0.1."""
    gradients: dict[str, Tensor] = {}
    drawn: dict[str, Tensor] = {}

    class Once(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            for parameter in self.param_groups[0]["params"]:
                for name, shape in zip(NAMES, ((16, 6), (12, 16)), strict=True):
                    if tuple(parameter.shape) == shape and parameter.grad is not None:
                        gradients.setdefault(name, parameter.grad.clone())  # the mean's comes before its rho's
            return super().step(closure)

    def look(_: Epoch, network: nn.Module) -> None:
        posterior = network.get_submodule("through")
        assert isinstance(posterior, Posterior)
        drawn.update({name: part[0].detach() for name, part in zip(NAMES, posterior._drawn, strict=True)})

    learner = learner or learner_of(method)
    recipe = short(1, batch_size=48, optimizer=lambda parameters: Once(parameters, lr=0.1))
    learner.learn(str(len(learner.tasks)), points(0), recipe=recipe, callbacks=[look])
    return gradients, drawn, learner


def test_the_divergence_is_weighed_by_strength_over_the_number_of_examples() -> None:
    """Of a mean, -log p has the gradient w / wide^2, and log q none."""
    without, _, _ = one_step(UCB(strength=0.0, share=1.0, wide=0.3))
    found, drawn, _ = one_step(UCB(strength=6.0, share=1.0, wide=0.3))
    for name in NAMES:
        expected = 6.0 / 48 * drawn[name].double().numpy() / 0.3**2
        np.testing.assert_allclose((found[name] - without[name]).double().numpy(), expected, rtol=1e-3, atol=1e-5)


# uncertainty guides


def test_sigmas_begin_as_a_share_of_the_layers_root_mean_square() -> None:
    weight = layers().get_parameter("0.weight").detach()
    rms = math.sqrt((weight.double().numpy() ** 2).mean())
    np.testing.assert_allclose(softplus(started(weight, 0.5)), 0.5 * rms, rtol=1e-5)
    np.testing.assert_allclose(softplus(started(torch.zeros(3), 0.5)), 1e-6, rtol=1e-3)


def test_the_first_task_learns_at_the_full_rate_and_later_ones_in_proportion_to_sigma() -> None:
    method = UCB(rate=4.0)
    start = {name: layers().get_parameter(name).detach() for name in NAMES}
    gradients, _, learner = one_step(method)
    for name in NAMES:
        moved = weights_of(learner).shared[name] - start[name]
        torch.testing.assert_close(moved, -0.1 * gradients[name], rtol=1e-4, atol=1e-7)

    learner.learn("more", points(1), recipe=short(4, learning_rate=0.1))  # sigmas drift apart
    before = {name: value.clone() for name, value in weights_of(learner).shared.items()}
    sigmas = {name: softplus(weights_of(learner).state[f"rho/{name}"]) for name in NAMES}
    assert all(sigma.max() > 1.2 * sigma.min() for sigma in sigmas.values())
    gradients, _, _ = one_step(method, learner)
    for name in NAMES:
        way = (weights_of(learner).shared[name] - before[name]).double().numpy()
        slowed = -0.1 * 4.0 * sigmas[name] * gradients[name].double().numpy()
        np.testing.assert_allclose(way, slowed, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("make", [torch.optim.Adam, lambda ps, lr: torch.optim.SGD(ps, lr=lr, momentum=0.9)])
def test_a_slowed_number_moves_as_if_the_optimiser_had_its_rate_for_it(make: Any) -> None:
    """Against one optimiser for each number, on a loss whose gradients do not depend on where it is."""
    rates = torch.tensor([0.1, 0.5, 2.0])
    slowed, alone = nn.Parameter(torch.zeros(3)), [nn.Parameter(torch.zeros(1)) for _ in range(3)]
    hooks = Slowed({"w": slowed}, {"w": rates})
    optimizers = [make([slowed], lr=0.01)] + [make([p], lr=0.01 * float(r)) for p, r in zip(alone, rates, strict=True)]
    for step in range(5):
        slope = torch.tensor([1.0, -2.0, 0.5]) * (step + 1)
        slowed.grad = slope.clone()
        for parameter, one in zip(alone, slope, strict=True):
            parameter.grad = one.view(1).clone()
        hooks.before_step()
        for optimizer in optimizers:
            optimizer.step()
        hooks.after_step()
    torch.testing.assert_close(slowed, torch.cat(list(alone)))


def test_a_rate_of_0_never_moves_the_means_again() -> None:
    learner = learner_of(UCB(rate=0.0))
    learner.learn("a", points(0), recipe=short())
    before = weights_of(learner).shared
    learner.learn("b", points(1), recipe=short())
    assert all(torch.equal(weights_of(learner).shared[name], before[name]) for name in NAMES)


def test_the_deviations_are_learnt_and_kept_from_task_to_task() -> None:
    learner, seen = learner_of(UCB()), []
    for axis in range(2):
        learner.learn(str(axis), points(axis), recipe=short())
        seen.append({name: rho.clone() for name, rho in weights_of(learner).state.items()})
    assert set(seen[0]) == {f"rho/{name}" for name in NAMES}
    assert all(not torch.equal(seen[0][name], seen[1][name]) for name in seen[0])
    assert all(float((seen[1][name] - seen[0][name]).abs().max()) < 0.5 for name in seen[0])  # not begun anew


# answering


def test_a_plain_network_has_the_means_and_so_has_the_network_in_evaluation() -> None:
    x, answers = points(5)[0], []

    def look(_: Epoch, network: nn.Module) -> None:
        with torch.no_grad():
            answers.append(network.eval()(x))
            assert torch.equal(network(x), answers[-1])

    learner = learner_of(UCB())
    learner.learn("a", points(0), recipe=short(), callbacks=[look])
    network = learner.network("a")
    for name in NAMES:
        assert torch.equal(network.get_parameter(f"backbone.{name}"), weights_of(learner).shared[name])
    torch.testing.assert_close(learner.predict(x, task="a"), answers[-1])


def test_the_size_by_hand() -> None:
    learner = learner_of(UCB())
    for axis in range(3):
        learner.learn(str(axis), points(axis), recipe=short(1))
    size = learner.knowledge.size()
    assert (size.weights, size.learning) == (288, 288)  # a deviation a weight, which no answer needs
    assert size.megabytes == pytest.approx(4 * (288 + 3 * 28 + 3 * 26) / 1e6)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(zip(*points(0), strict=True))


def test_the_examples_of_a_stream_are_counted() -> None:
    learner = learner_of(UCB())
    learner.learn("a", DataLoader(Stream(), batch_size=8), recipe=short(1))
    expected = learner_of(UCB())
    expected.learn("a", DataLoader(TensorDataset(*points(0)), batch_size=8), recipe=short(1))
    for name in NAMES:
        assert torch.equal(weights_of(learner).shared[name], weights_of(expected).shared[name])


def test_a_bad_setting_is_refused() -> None:
    with pytest.raises(NacreError, match=r"^UCB\.share is a number from 0 to 1; got 2$"):
        UCB(share=2)
    with pytest.raises(NacreError, match=r"^UCB\.narrow is a number from 1e-09; got 0$"):
        UCB(narrow=0)
