"""What runs of a user's own say: constants of their machine, and why a step is as long as it is."""
