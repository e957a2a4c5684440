"""Duplicate keys of YAML as PyYAML has them: the last counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping


def last_counts(repeated: list[str]) -> Callable[..., bool]:
    """Return a `check_mapping_key` of ruamel.yaml that takes all keys and notes duplicate ones.

    Args:
        repeated: Takes their names.
    """

    def check(*read: object) -> bool:
        _, _, mapping, key, _ = read
        assert isinstance(mapping, Mapping)
        if key in mapping:
            repeated.append(str(key))
        return True

    return check
