"""Folds ranks with the same work into classes, and makes arrays of classes and links."""
