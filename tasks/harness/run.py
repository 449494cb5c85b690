"""lm_eval's own command line with the model `reread` in its list: `python -m tasks.harness.run --model reread ...`.

lm_eval 0.4.13 finds models in its registry alone, and `--include_path` reads tasks only; so the list is filled in the
process that then runs its command line. All of its commands and options stay its own.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tasks.harness import register


def main(arguments: Sequence[str]) -> int:
    """Run `lm_eval <arguments>` and return its exit status. Raises ConfigError where lm_eval is not installed."""
    register()
    from lm_eval.__main__ import cli_evaluate

    before = sys.argv
    sys.argv = ["lm_eval", *arguments]
    try:
        cli_evaluate()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        sys.argv = before
    return 0


if __name__ == "__main__":
    from storage.errors import RereadError

    try:
        sys.exit(main(sys.argv[1:]))
    except RereadError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
