"""Health check of a container: `python -m infra.answers URL` ends with 0 when an HTTP GET succeeds, else with 1."""

import sys
import urllib.request

if __name__ == "__main__":
    try:
        urllib.request.urlopen(sys.argv[1], timeout=5).close()
    except OSError as error:
        raise SystemExit(f"{sys.argv[1]}: {error}") from None
