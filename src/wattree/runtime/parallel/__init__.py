"""A strategy made a running model: PyTorch's parallel libraries on the parts that ranks hold."""
