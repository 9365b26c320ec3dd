"""How a folder of pictures is learnt by default: sizes between some hundred and some ten thousand pictures."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nacre.lowrank import Start
from nacre.methods import CACL
from nacre.scenarios import CropFlip
from nacre.scenarios.preprocessing import Preprocessing
from nacre.training import Recipe

# of a new store; few steps leave ranks that an energy of 1e-5 would all keep
METHOD = CACL(sparsity=0.1, energy=1e-3)
# on a pretrained base: a residual of nothing, so that training begins at the network that came
METHOD_ON_A_BASE = replace(METHOD, start=Start(later=0.0))
_STEPS = 2000
_FEWEST, _MOST = 20, 100  # epochs
_SMALL, _SMALL_BATCH, _BATCH = 1000, 16, 64


@dataclass(frozen=True)
class Chosen:
    """A recipe, and in words what it is."""

    recipe: Recipe
    words: str


def choose(pictures: int, preprocessing: Preprocessing, *, epochs: int | None, flip: bool) -> Chosen:
    """About 2,000 steps of Adam, in 20 to 100 epochs: low ranks come with steps, and few pictures are soon known by
    heart. Pictures are moved by up to an eighth of their side; mirrored only if asked, as letters do not bear it.

    >>> choose(288, Preprocessing(32, (0.5,) * 3, (0.25,) * 3), epochs=None, flip=False).words
    '100 epochs of 288 pictures in batches of 16, Adam at 0.001 falling as a cosine, moved by up to 4 pixels'
    """
    batch = _SMALL_BATCH if pictures < _SMALL else _BATCH
    count = epochs if epochs is not None else min(_MOST, max(_FEWEST, round(_STEPS * batch / pictures)))
    black = preprocessing.pictures().black()
    augment = CropFlip(preprocessing.side // 8, flip=flip, fill=black)
    recipe = Recipe(epochs=count, batch_size=batch, schedule="cosine", augment=augment)
    often = f"{count} epoch{'s' if count > 1 else ''} of {pictures:,} pictures in batches of {batch}"
    moved = f"moved by up to {augment.padding} pixels{' and mirrored' if flip else ''}"
    words = f"{often}, Adam at {recipe.learning_rate:g} falling as a cosine, {moved}"
    return Chosen(recipe, words)
