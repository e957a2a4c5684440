"""Steps in closed form, for one strategy or for arrays of them."""
