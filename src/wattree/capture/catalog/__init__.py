"""Public models by name: their configurations, sources and published parameter counts."""
