"""The space of strategies and clusters, screened, simulated and ranked."""
