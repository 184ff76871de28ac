"""A worker's process: `codinet` with the given words, for as long as the sweep that started it lives.

The sweep holds the other end of stdin. When that closes, because the sweep stops or was killed, the worker ends at
once, which a training survives like any kill. So two processes never write the same run folder.
"""

import os
import sys
import threading


def _end_with_the_sweep() -> None:
    # Not through sys.stdin: Python would report its lock, which is held here, as an error at exit.
    while os.read(0, 1):
        pass
    os._exit(130)


if __name__ == "__main__":
    threading.Thread(target=_end_with_the_sweep, daemon=True).start()
    from codinet.cli import main

    sys.exit(main(sys.argv[1:]))
