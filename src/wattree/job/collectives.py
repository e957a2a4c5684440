"""The `collectives` of a job file → requests: algorithms and protocols by kind of collective."""

from __future__ import annotations

from collections.abc import Mapping

from wattree.cost.algorithms import ALGORITHMS, Protocol
from wattree.cost.algorithms.registry import KINDS
from wattree.cost.requests import (
    AUTO_COLLECTIVES,
    SHARP,
    CollectiveRequests,
    Request,
    algorithm_names,
    crosses,
    kinds_of,
)
from wattree.errors import UnknownNameError
from wattree.hardware import Cluster
from wattree.job.problems import Problems, shown

_PLACE = "collectives"
_EXPECTED = (
    f"expected 'auto', 'nccl', the name of an algorithm, or a mapping of {', '.join(KINDS)} to one"
)


def collective_requests(
    value: object, *, cluster: Cluster | None, problems: Problems
) -> CollectiveRequests:
    """Return what a job asks of its collectives; faults go to `problems`.

    Args:
        value: A name, or a mapping of kinds to a name or a mapping of algorithm and protocol.
        cluster: To check requests against; None if it is at fault itself.
    """
    if isinstance(value, str):
        by_kind = _for_all(value, problems=problems)
    elif isinstance(value, Mapping):
        by_kind = _by_kind(value, problems=problems)
    else:
        problems.add(_PLACE, f"found {shown(value)}, {_EXPECTED}")
        by_kind = {}
    requests = CollectiveRequests(by_kind=by_kind)
    if cluster is not None:
        for kind, fault in requests.misfits(cluster):
            problems.add(_PLACE if isinstance(value, str) else f"{_PLACE}.{kind}", fault)
            if isinstance(value, str):
                break  # one name, one fault
        if by_kind and not crosses(cluster) and {r.algorithm for r in by_kind.values()} == {SHARP}:
            one = "all devices are in one scale-up domain, which the fabric does not join"
            problems.warn(_PLACE, f"'sharp' has no effect: {one}; leave it out")
    return requests


def _for_all(name: str, *, problems: Problems) -> dict[str, Request]:
    """Return one algorithm for all the kinds that it has."""
    algorithm = _algorithm(name, _PLACE, problems=problems)
    kinds = () if algorithm is None else kinds_of(algorithm)
    return {kind: Request(algorithm=name) for kind in kinds}


def _by_kind(value: Mapping[object, object], *, problems: Problems) -> dict[str, Request]:
    problems.unknown_keys(value, KINDS, _PLACE)
    requests = {}
    for kind in KINDS:
        if kind not in value:
            continue
        request = _request(value[kind], f"{_PLACE}.{kind}", problems=problems)
        if request is not None:
            requests[kind] = request
    return requests


def _request(value: object, place: str, *, problems: Problems) -> Request | None:
    if isinstance(value, str):
        value = {"algorithm": value}
    if not isinstance(value, Mapping):
        problems.add(
            place,
            f"found {shown(value)}, expected the name of an algorithm or a mapping with algorithm "
            "and protocol",
        )
        return None
    problems.unknown_keys(value, ("algorithm", "protocol"), place)
    algorithm = _algorithm(
        value.get("algorithm", AUTO_COLLECTIVES), f"{place}.algorithm", problems=problems
    )
    protocol = value.get("protocol")
    if protocol is not None and protocol not in tuple(Protocol):
        problems.add(
            f"{place}.protocol",
            f"found {shown(protocol)}, expected one of {', '.join(Protocol)}",
        )
        return None
    if algorithm is None:
        return None
    return Request(algorithm=algorithm, protocol=None if protocol is None else Protocol(protocol))


def _algorithm(value: object, place: str, *, problems: Problems) -> str | None:
    names = algorithm_names()
    if not isinstance(value, str):
        problems.add(place, f"found {shown(value)}, expected one of {', '.join(names)}")
        return None
    if value in names or value in ALGORITHMS:
        return value
    with problems.at(place):
        raise UnknownNameError(kind="collective algorithm", name=value, known=names)
    return None
