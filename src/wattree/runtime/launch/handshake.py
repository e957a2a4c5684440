"""Mutual authentication of launchers by a shared secret.

Pure: bytes that came in, bytes that go out. Four short lines, none of which is parsed beyond its
fixed form:

    caller   wattree-launch/2 NONCE
    first    wattree-launch/2 NONCE
    caller   NUMBER PROOF
    first    PROOF

A proof is the HMAC of the side that gives it, the job, both nonces and the caller's number, so that
it holds for one connection alone and the secret itself is never sent.

References:
    [1] H. Krawczyk, M. Bellare, R. Canetti, "HMAC: Keyed-Hashing for Message Authentication",
        RFC 2104, 1997.
"""

from __future__ import annotations

import hmac
import re
import secrets
from dataclasses import dataclass, field

from wattree.errors import HandshakeError
from wattree.runtime.launch.secret import SECRET

PROTOCOL = 2
#: Longer lines are refused before anything looks at them. [B]
LINE_BYTES = 128
#: What the first launcher says to one whose proof does not hold.
REFUSED = b"refused"
_GREETING = re.compile(rb"wattree-launch/([0-9]{1,4}) ([0-9a-f]{32})")
_ANSWER = re.compile(rb"([0-9]{1,7}) ([0-9a-f]{64})")


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

    def proof(self, side: str, nonces: tuple[str, str], number: int) -> bytes:
        """Return a proof that only a side with the secret can compute.

        Args:
            side: `first` or `caller`.
            nonces: Of the caller and of the first launcher.
        """
        said = "\0".join((side, self.job, *nonces, str(number)))
        return hmac.new(self.secret, said.encode(), "sha256").hexdigest().encode()

    def check_welcome(self, line: bytes, nonces: tuple[str, str], number: int) -> None:
        """Check that the other side is the first launcher and takes this one.

        Raises:
            HandshakeError: It is not, or does not.
        """
        if line == REFUSED:
            raise HandshakeError(
                f"a launcher of another job listens, or {SECRET} is not the same on all hosts"
            )
        if not hmac.compare_digest(line, self.proof("first", nonces, number)):
            raise HandshakeError("it does not know the secret of this run")


def fresh_nonce() -> str:
    """Return a nonce that was never used before."""
    return secrets.token_hex(16)


def greeting(nonce: str) -> bytes:
    """Return the first line of either side."""
    return f"wattree-launch/{PROTOCOL} {nonce}\n".encode()


def greeted(line: bytes, *, reply: bytes = b"") -> str:
    """Return the nonce of the other side's first line.

    Raises:
        HandshakeError: It is no launcher, or speaks another version of the protocol.
    """
    found = _GREETING.fullmatch(line)
    if found is None:
        raise HandshakeError("it is no launcher of Wattree")
    if int(found[1]) != PROTOCOL:
        raise HandshakeError(
            f"it speaks version {int(found[1])} of the protocol and this launcher {PROTOCOL}; "
            "install the same Wattree on all hosts",
            reply=reply,
        )
    return found[2].decode()


@dataclass(slots=True)
class Reception:
    """The first launcher's side of one connection.

    Attributes:
        number: Of the launcher that connected; None until its proof held.
    """

    credentials: Credentials
    nonce: str = field(default_factory=fresh_nonce)
    number: int | None = None
    _line: bytes = b""
    _theirs: str = ""

    def take(self, part: bytes) -> bytes:
        """Return the answer to received data; empty while a line is incomplete.

        Raises:
            HandshakeError: It is no launcher of this job.
        """
        if not part:
            raise HandshakeError("it left")
        self._line += part
        line, end, rest = self._line.partition(b"\n")
        if len(line) > LINE_BYTES or rest or self.number is not None:
            raise HandshakeError("it sent more than a greeting")
        if not end:
            return b""
        self._line = b""
        if self._theirs:
            return self._welcome(line)
        reply = greeting(self.nonce)
        self._theirs = greeted(line, reply=reply)
        return reply

    def _welcome(self, line: bytes) -> bytes:
        found = _ANSWER.fullmatch(line)
        if found is None:
            raise HandshakeError("it did not answer as a launcher of Wattree does")
        number, nonces = int(found[1]), (self._theirs, self.nonce)
        expected = self.credentials.proof("caller", nonces, number)
        if not hmac.compare_digest(found[2], expected):
            raise HandshakeError("its secret or its job is another", reply=REFUSED + b"\n")
        if not 0 < number < self.credentials.world:
            raise HandshakeError("no launcher of this job has its number", reply=REFUSED + b"\n")
        self.number = number
        return self.credentials.proof("first", nonces, number) + b"\n"
