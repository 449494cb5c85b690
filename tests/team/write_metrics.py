"""`python -m tests.team.write_metrics NAME POINTS PAUSE`: one run of POINTS points and a table, as a training would.

At half of them it creates `PAUSE.NAME`, waits until the file PAUSE is there, and goes on.
"""

import sys
import time
from pathlib import Path

from storage.logs import configure_logging
from storage.tracking import Tracking


def main(name: str, points: int, pause: Path) -> None:
    configure_logging()
    tracking = Tracking()
    run = tracking.start(tracking.experiment("metrics"), name, {"fingerprint": name})
    for step in range(points):
        if step == points // 2:
            tracking.flush()
            pause.with_name(f"{pause.name}.{name}").write_text(run)
            while not pause.exists():
                time.sleep(0.05)
        tracking.metrics(run, {"loss": value(step)}, step)
    tracking.table(run, [{"step": step, "loss": value(step)} for step in range(3)], "scores")
    tracking.finish(run)
    tracking.close()


def value(step: int) -> float:
    return 1.0 / (1 + step)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
