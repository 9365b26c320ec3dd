"""UCB: weights are drawn from Gaussians around means, and the surer a weight is, the slower later tasks move it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nacre.methods.checks import check_number, check_share
from nacre.methods.method import WeightsMethod
from nacre.space import Weights
from nacre.training import Task, fit
from nacre.trees import leaves

SUREST = 1e-6  # no sigma begins below it, not even that of a layer whose weights are all 0


@dataclass(frozen=True)
class UCB(WeightsMethod):
    """Uncertainty-guided continual learning with Bayesian networks (Ebrahimi et al., 2020), without pruning.

    noise: a weight's sigma at first, as a share of the root mean square of its layer's weights.
    strength: the weight of the divergence from the prior; 1 is the evidence bound's own.
    share, wide, narrow: the prior is a Gaussian of deviation `wide` with this share, one of `narrow` with the rest.
    rate: from the second task on, a mean's learning rate is multiplied by this and by its sigma.
    """

    noise: float = 0.5
    strength: float = 0.02
    share: float = 0.25
    wide: float = 1.0
    narrow: float = math.exp(-6)
    rate: float = 10.0

    name: ClassVar[str] = "ucb"
    title: ClassVar[str] = "UCB"

    def learn(self, weights: Weights, task: Task) -> None:
        posterior = Posterior(self.rhos(weights))
        network = weights.expand(task.head, through=posterior)
        prior, examples = Mixture(self.share, self.wide, self.narrow), count_examples(task)
        rates = {name: self.rate * sigma.detach() for name, sigma in posterior.sigmas().items()}
        slowed = Slowed(network.shared(), rates if weights.tasks else {})
        fit(
            network,
            task,
            penalty=lambda: self.strength / examples * posterior.divergence(prior),
            after_backward=slowed.before_step,
            after_step=slowed.after_step,
        )
        weights.append(task.name, network, classes=task.classes, state=posterior.state())

    def rhos(self, weights: Weights) -> dict[str, Tensor]:
        """What says every weight's sigma as the task begins."""
        if weights.tasks:
            return {name: weights.state[f"rho/{name}"] for name in weights.trained}
        return {name: started(weights.shared[name], self.noise) for name in weights.trained}

    def __post_init__(self) -> None:
        for setting in ("noise", "strength", "rate"):
            check_number(self, setting)
        check_share(self, "share")
        check_number(self, "wide", least=1e-9)
        check_number(self, "narrow", least=1e-9)


def started(weight: Tensor, noise: float) -> Tensor:
    """The rho whose sigma, log(1 + e^rho), is this share of the weights' root mean square."""
    sigma = max(noise * float(weight.double().square().mean().sqrt()), SUREST)
    return torch.full_like(weight, math.log(math.expm1(sigma)))


class Posterior(nn.Module):
    """A Gaussian around every shared weight, drawn from anew in every step; in evaluation the means answer."""

    def __init__(self, rhos: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.names = tuple(rhos)
        self.rhos = nn.ParameterList([rho.clone() for rho in rhos.values()])
        self._drawn: list[tuple[Tensor, Tensor, Tensor]] = []  # weights, means, sigmas

    def sigmas(self) -> dict[str, Tensor]:
        return {name: F.softplus(rho) for name, rho in zip(self.names, self.rhos, strict=True)}

    def state(self) -> dict[str, Tensor]:
        return {f"rho/{name}": rho for name, rho in zip(self.names, self.rhos, strict=True)}

    def forward(self, shared: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if not self.training:
            return {}
        sigmas = self.sigmas()
        drawn = {name: shared[name] + sigma * torch.randn_like(sigma) for name, sigma in sigmas.items()}
        self._drawn = [(drawn[name], shared[name], sigmas[name]) for name in self.names]
        return drawn

    def divergence(self, prior: Mixture) -> Tensor:
        """log q(w) - log p(w) at the weights drawn last; its mean over draws is the divergence of q from p."""
        return torch.stack([(normal(w - mean, sigma) - prior(w)).sum() for w, mean, sigma in self._drawn]).sum()


@dataclass(frozen=True)
class Mixture:
    """The logarithm of the prior: two Gaussians around 0.

    >>> Mixture(1.0, 1.0, 0.1)(torch.zeros(1))  # -log(2 pi) / 2
    tensor([-0.9189])
    """

    share: float
    wide: float
    narrow: float

    def __call__(self, w: Tensor) -> Tensor:
        parts = [(self.share, self.wide), (1 - self.share, self.narrow)]
        logs = [math.log(share) + normal(w, torch.full_like(w, sigma)) for share, sigma in parts if share > 0]
        return torch.stack(logs).logsumexp(0)


def normal(distance: Tensor, sigma: Tensor) -> Tensor:
    """The logarithm of a Gaussian's density."""
    return -0.5 * math.log(2 * math.pi) - sigma.log() - (distance / sigma).square() / 2


class Slowed:
    """Gives every number of some weights a learning rate of its own: a step goes this share of its way.

    As optimisers move a number by its learning rate times something, this is that rate times the share, whatever the
    optimiser.
    """

    def __init__(self, weights: Mapping[str, nn.Parameter], rates: Mapping[str, Tensor]) -> None:
        self._slowed = [(weight, rates[name].to(weight.device)) for name, weight in weights.items() if name in rates]
        self._before: list[Tensor] = []

    def before_step(self) -> None:
        self._before = [weight.detach().clone() for weight, _ in self._slowed]

    @torch.no_grad()
    def after_step(self) -> None:
        for (weight, rate), before in zip(self._slowed, self._before, strict=True):
            weight.copy_(before + rate * (weight - before))


def count_examples(task: Task) -> int:
    """How many examples an epoch has; a stream that does not say is gone through."""
    return task.train.examples or sum(len(next(leaves(inputs))) for inputs, _ in task.train.in_order())
