"""Models as the loop trains them, every one built by the strategy's own linear layers."""

from wattree.runtime.models.linears import Linears

__all__ = ["Linears"]
