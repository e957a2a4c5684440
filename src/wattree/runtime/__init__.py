"""Training for real, with the strategy that was planned."""
