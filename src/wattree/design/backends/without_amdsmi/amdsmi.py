"""Stands in for AMD's package where that fails on import, so that Ray sees that it is absent.

The package raises `KeyError` on machines without AMD's driver, while Ray, which asks every vendor
for devices, expects `ImportError`.
"""

raise ImportError("the library of AMD's driver is not on this machine")
