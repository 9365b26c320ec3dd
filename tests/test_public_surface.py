"""What `import nacre` offers is what the design promises, and every part of it says what it is for."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import nacre

PROMISED = {"CACL", "Factors", "Learner", "NacreError", "Recipe", "SharedSpace", "compress", "hoyer", "networks"}
PROMISED |= {"orthogonality"}
FURTHER = {"CACLFixed", "CACLST", "Result", "Single", "Start"}
# shown by the class that they belong to: by Learner, and by CACL, of which the other methods are cases
SHOWN_ELSEWHERE = {"NacreError", "Result", "CACLFixed", "CACLST", "Single"}

# what the design's lines call, name by name; more may be taken than this
CALLS: dict[Any, tuple[str, ...]] = {
    nacre.Learner: ("backbone", "method", "seed", "device"),
    nacre.Learner.learn: ("train", "test", "val", "recipe", "loss", "head", "callbacks", "checkpoint"),
    nacre.Learner.predict: ("inputs", "task"),
    nacre.Learner.evaluate: ("data", "task"),
    nacre.Learner.network: ("task",),
    nacre.Learner.save: ("path",),
    nacre.Learner.load: ("path", "backbone"),
    nacre.CACL: ("sparsity", "orthogonality", "energy"),
    nacre.Recipe: ("epochs",),
    nacre.SharedSpace: ("backbone", "base", "features", "include", "exclude"),
    nacre.SharedSpace.expand: ("head", "rank"),
    nacre.SharedSpace.append: ("name", "network"),
    nacre.SharedSpace.network: ("task",),
    nacre.SharedSpace.identifier: ("task",),
    nacre.SharedSpace.size: (),
    nacre.SharedSpace.save: ("path",),
    nacre.SharedSpace.load: ("path", "backbone"),
    nacre.compress: ("network", "energy", "rank", "budget", "exact"),
    nacre.orthogonality: ("network",),
    nacre.hoyer: ("network",),
    nacre.Factors: ("U", "s", "V"),
}


def test_the_names_are_those_that_the_design_promises_and_a_few_that_belong_to_them() -> None:
    assert set(nacre.__all__) == PROMISED | FURTHER
    assert sorted(nacre.__all__) == sorted(set(nacre.__all__))
    assert all(hasattr(nacre, name) for name in nacre.__all__)


def test_the_page_that_a_user_imports_fits_on_a_screen() -> None:
    page = Path(inspect.getfile(nacre)).read_text(encoding="utf-8")
    assert len(page.splitlines()) <= 40
    assert page.startswith('"""')


@pytest.mark.parametrize("called", CALLS, ids=lambda called: called.__qualname__)
def test_what_the_designs_lines_call_is_taken_by_those_names(called: Any) -> None:
    taken = inspect.signature(called).parameters
    assert [name for name in CALLS[called] if name not in taken] == []


@pytest.mark.parametrize("name", nacre.__all__)
def test_every_name_says_what_it_is_for_and_shows_it(name: str) -> None:
    said = inspect.getdoc(getattr(nacre, name)) or ""
    first = said.splitlines()[0] if said else ""
    assert first.endswith((".", ":")), first
    assert "(self" not in first
    if inspect.isclass(getattr(nacre, name)):
        assert not said.startswith(f"{name}("), "what dataclass makes up where nothing is said"
    if name not in SHOWN_ELSEWHERE and name != "networks":
        assert ">>> " in said


def test_every_backbone_shows_how_it_is_used() -> None:
    for name in nacre.networks.__all__:
        said = inspect.getdoc(getattr(nacre.networks, name)) or ""
        assert said, name


@pytest.mark.parametrize("kind", [nacre.Learner, nacre.SharedSpace, nacre.Factors])
def test_every_public_method_says_what_it_does(kind: type) -> None:
    for name, member in vars(kind).items():
        if not name.startswith("_") and (inspect.isroutine(member) or isinstance(member, property)):
            assert inspect.getdoc(member), f"{kind.__name__}.{name}"


def test_every_method_and_recipe_is_frozen() -> None:
    for made in (nacre.CACL(), nacre.CACLST(), nacre.CACLFixed(), nacre.Single(), nacre.Recipe(), nacre.Start()):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(made, dataclasses.fields(made)[0].name if dataclasses.fields(made) else "energy", 1)


def test_a_loop_of_ones_own_as_the_design_words_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    backbone, p = nacre.networks.conv5(), "life.nacre"
    x, y = torch.randn(4, 3, 32, 32), torch.arange(4)

    space = nacre.SharedSpace(backbone)
    network = space.expand(head=nn.Linear(1024, 5))
    loss = F.cross_entropy(network(x), y) + 1.0 * nacre.orthogonality(network) + 0.1 * nacre.hoyer(network)
    loss.backward()
    nacre.compress(network, energy=1e-5)
    space.append("animals", network)
    assert space.tasks == ("animals",)
    assert space.network("animals")(x).shape == (4, 5)
    assert list(space.identifier("animals")) == ["conv1", "conv2", "conv3", "conv4", "conv5"]
    assert space.size().megabytes > 0
    space.save(p)
    assert torch.equal(nacre.SharedSpace.load(p).network("animals")(x), space.network("animals")(x))


def test_the_factors_themselves_as_the_design_words_it() -> None:
    network = nacre.SharedSpace(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 6))).expand(
        nn.Linear(6, 2)
    )
    factors = network.factors()
    assert list(factors) == ["0", "2"]
    U, s, V = torch.randn(4, 2), torch.rand(2), torch.randn(27, 2)
    network.load_factors(
        {"0": nacre.Factors(U, s, V), "2": nacre.Factors(torch.empty(6, 0), torch.empty(0), torch.empty(16, 0))}
    )
    assert {name: layer.rank for name, layer in network.factors().items()} == {"0": 2, "2": 0}
    torch.testing.assert_close(nacre.Factors(U, s, V).weight(), U @ torch.diag(s) @ V.T)
    weight: Any = network.get_submodule("backbone.0").weight
    torch.testing.assert_close(weight.flatten(1), U @ torch.diag(s) @ V.T)
