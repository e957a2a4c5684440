"""Mutual authentication of launchers by a shared secret.

Each side sends two short lines, none of which is parsed beyond its fixed form:

    wattree-launch/3 NUMBER NONCE
    PROOF

The number is that of the launcher; the first launcher, 0, proves itself second. A proof is the
HMAC [1] of the job, the first line of the side that gives it and that of the other, so that it
holds for one connection and one side alone, and the secret itself is never sent.

References:
    [1] H. Krawczyk, M. Bellare, R. Canetti, "HMAC: Keyed-Hashing for Message Authentication",
        RFC 2104, 1997.
"""

from __future__ import annotations

import hmac
import re
import secrets
import socket
import time
from dataclasses import dataclass, field

from wattree.errors import HandshakeError
from wattree.runtime.launch.secret import SECRET

PROTOCOL = 3
#: Longer lines are refused before anything looks at them. [B]
LINE_BYTES = 128
#: Whoever connected has so long for the whole handshake. [s]
HANDSHAKE_S = 5.0
#: What the first launcher says to one whose proof does not hold.
_REFUSED = b"refused"
_GREETING = re.compile(rb"wattree-launch/([0-9]{1,4}) ([0-9]{1,7}) [0-9a-f]{32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Credentials shared by the launchers of a job.

    Attributes:
        job: What tells this job from others with the same secret.
        world: How many launchers there are.
    """

    secret: bytes = field(repr=False)
    job: str
    world: int

    def proof(self, mine: bytes, theirs: bytes) -> bytes:
        """Return a proof that only a side with the secret can compute, from both first lines."""
        content = b"\0".join((self.job.encode(), mine, theirs))
        return hmac.new(self.secret, content, "sha256").hexdigest().encode()


def greeting(number: int) -> bytes:
    """Return the first line of a launcher, which is never the same again."""
    return f"wattree-launch/{PROTOCOL} {number} {secrets.token_hex(16)}".encode()


def shake_hands(link: socket.socket, credentials: Credentials, number: int) -> int:
    """Return the number of the launcher at the other end, which knows the secret.

    Args:
        number: Of this launcher; the first one, 0, talks to all others and they to it.

    Raises:
        HandshakeError: It is no launcher of this job, or refuses this one.
        OSError: The connection is lost, or nothing came in time.
    """
    until_s, mine = time.monotonic() + HANDSHAKE_S, greeting(number)
    link.sendall(mine + b"\n")
    theirs = _line(link, until_s)
    found = _GREETING.fullmatch(theirs)
    if found is None:
        raise HandshakeError("it is no launcher of Wattree")
    if int(found[1]) != PROTOCOL:
        raise HandshakeError(
            f"it speaks version {int(found[1])} of the protocol and this launcher {PROTOCOL}; "
            "install the same Wattree on all hosts"
        )
    if number:
        link.sendall(credentials.proof(mine, theirs) + b"\n")
    answer, other = _line(link, until_s), int(found[2])
    if number and answer == _REFUSED:
        raise HandshakeError(
            f"a launcher of another job listens, or {SECRET} is not the same on all hosts"
        )
    reason = ""
    if not hmac.compare_digest(answer, credentials.proof(theirs, mine)):
        reason = "its secret or its job is another"
    elif not (other == 0 if number else 0 < other < credentials.world):
        reason = "no launcher of this job has its number"
    if not number:
        link.sendall((_REFUSED if reason else credentials.proof(mine, theirs)) + b"\n")
    if reason:
        raise HandshakeError(reason)
    return other


def _line(link: socket.socket, until_s: float) -> bytes:
    """Return one line, and read no byte after it."""
    found = b""
    while not found.endswith(b"\n"):
        if len(found) > LINE_BYTES:
            raise HandshakeError("it is no launcher of Wattree")
        link.settimeout(max(until_s - time.monotonic(), 1e-3))
        part = link.recv(1)
        if not part:
            raise HandshakeError("it left")
        found += part
    return found[:-1]
