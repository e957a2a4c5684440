"""What a worker process runs: it takes points from its pipe until the pipe ends."""

from __future__ import annotations

import sys
import traceback
from multiprocessing.connection import Connection


def serve(descriptor: int) -> None:
    """Evaluate points that come through a pipe: first the work, then a point each time.

    Ends when the other side of the pipe is gone, however it went. Who starts it ignores SIGINT.
    """
    try:
        with Connection(descriptor) as pipe:
            evaluator = pipe.recv().evaluator()
            while True:
                point = pipe.recv()
                try:
                    pipe.send(evaluator.outcome(point))
                except (BrokenPipeError, ConnectionError):
                    raise
                except Exception:  # noqa: BLE001 - a defect of ours, which the run tells
                    pipe.send(traceback.format_exc())
    except (EOFError, OSError):
        sys.exit(0)
