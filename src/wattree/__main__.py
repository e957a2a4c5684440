"""`python -m wattree`, and the command `wattree`."""

import gc
import signal


def run() -> None:
    """Run the command line; an interrupt while it is imported ends the process without a word."""
    handler = signal.getsignal(signal.SIGINT)
    is_usual = handler is signal.default_int_handler
    if is_usual:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # A command makes what it keeps: the collector finds nothing, and most often while importing.
    gc.set_threshold(1_000_000, 50, 100)
    from wattree.cli import main

    if is_usual:
        signal.signal(signal.SIGINT, handler)
    try:
        main()
    finally:
        # The interpreter looks for garbage as it ends, a tenth of the time of `wattree check`.
        gc.freeze()


if __name__ == "__main__":
    run()
