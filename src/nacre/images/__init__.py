"""Pictures of one's own: learns a task from them into a store, and says what is on others. Knows no commands."""

from nacre.images.learning import learn
from nacre.images.opened import Opened, open_store
from nacre.images.predicting import Answer, predict
from nacre.images.wanted import Learnt, Wanted

__all__ = ["Answer", "Learnt", "Opened", "Wanted", "learn", "open_store", "predict"]
