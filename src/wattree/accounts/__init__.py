"""Accounts of an executed step: breakdown, energy, memory, money, evidence, neighbours."""
