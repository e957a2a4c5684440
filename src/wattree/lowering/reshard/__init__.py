"""From one placement of a tensor to another: the cheapest sequence of collectives and messages."""
