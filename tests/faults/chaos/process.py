"""A worker process of the laboratory: `worker.fleet`'s, which also tells when it could not run for a while.

    python process.py [--lua FOLDER] SETTINGS

With ``--lua`` it runs a weakened build: the scripts of that folder (see `mutants`).
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parent.parent.parent)  # not this folder, whose modules belong to a package

from worker import fleet

STALL_S = 0.25
"""What counts as not having run: a third of the laboratory's lease, after which a renewal may come late."""


def tell_stalls(events: fleet.Events) -> None:
    """Tell each time that this process stood still, whoever stopped it: the monkey, or a machine with too much to do."""
    while True:
        before = time.monotonic()
        time.sleep(0.02)
        stood_still = time.monotonic() - before - 0.02
        if stood_still > STALL_S:
            events.tell("stall", f"{stood_still:.3f}")


def use_scripts(folder: Path) -> None:
    """Take the Lua scripts from `folder`."""
    from streamq import _scripts

    _scripts._folder = lambda: folder
    _scripts.source.cache_clear()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lua", type=Path)
    parser.add_argument("settings")
    given = parser.parse_args()
    if given.lua is not None:
        use_scripts(given.lua)
    events = fleet.Events(json.loads(given.settings)["events"])
    threading.Thread(target=tell_stalls, args=(events,), daemon=True).start()
    fleet.main(given.settings)


if __name__ == "__main__":
    main()
