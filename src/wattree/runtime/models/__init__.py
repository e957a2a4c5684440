"""Models as the loop trains them, every one built by the strategy's own linear layers."""

from wattree.runtime.models.build import build_trainable
from wattree.runtime.models.linears import Linears
from wattree.runtime.models.trainable import Trainable

__all__ = ["Linears", "Trainable", "build_trainable"]
