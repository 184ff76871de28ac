"""A worker's process: `codinet` with the words it is given, for as long as the sweep that started it lives.

The sweep holds the other end of stdin. When that closes, because it was told to stop or was killed, the
worker ends at once, which a training survives like any kill; so no two processes ever write one run folder.
"""

import os
import sys
import threading


def _end_with_the_sweep() -> None:
    # Not through sys.stdin: its lock, held here for ever, would be an error when the process ends.
    while os.read(0, 1):
        pass
    os._exit(130)


if __name__ == "__main__":
    threading.Thread(target=_end_with_the_sweep, daemon=True).start()
    from codinet.cli import main

    sys.exit(main(sys.argv[1:]))
