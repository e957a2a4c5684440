"""One calibration of the emulated network and of the machine under it, kept in one file.

The constants hold for every scenario; none comes from the scenario that is predicted alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from wattree.errors import JobError
from wattree.files import read_yaml

MACHINE_FILE = Path(__file__).parent / "machine.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Constants of the emulation; their file says where each comes from.

    Attributes:
        payload_fraction: Payload in what a link carries, `(0, 1]`.
        acknowledgement_fraction: Bytes that go back per byte of payload.
        message_latency_s: From both ends being ready to the first byte on its way. [s]
        message_link_s: Time that a message costs its links besides its bytes: what a link saves up
            while it waits for the next message is not all made use of. [s]
        collective_slack: Part by which messages of collectives take longer than single ones,
            because hosts that wait for each other run unevenly.
        credit_bytes: What a rested link passes at once. [B]
        send_buffer_bytes: A sender is rid of a message this much before its end. [B]
        wake_s: How late a sleeping thread comes back. [s]
        copy_s_per_byte: Copying what torch copies before a call, per byte. [s/B]
        product_s_per_flop: Matmuls on one thread. [s/FLOP]
        processors: Of the machine; more hosts that multiply share them.
        busy_s_per_byte: Processor time that traffic takes from a host's products, per byte that
            its link carries in one direction. [s/B]
        waiting_s_per_byte: How much later each byte gets through while a host at either end
            multiplies: what moves it has to wait for a processor. [s/B]
    """

    payload_fraction: float
    acknowledgement_fraction: float
    message_latency_s: float
    message_link_s: float
    collective_slack: float
    credit_bytes: float
    send_buffer_bytes: float
    wake_s: float
    copy_s_per_byte: float
    product_s_per_flop: float
    processors: float
    busy_s_per_byte: float
    waiting_s_per_byte: float


def load_machine(path: str | Path = MACHINE_FILE) -> Machine:
    """Return the constants in a file.

    Raises:
        JobError: A constant is missing, unknown, or no number.
    """
    try:
        constants = read_yaml(path)["constants"]
        return Machine(**{name: float(entry["value"]) for name, entry in constants.items()})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise JobError(str(path), [f"holds no constants of a machine: {error!r}"]) from error
