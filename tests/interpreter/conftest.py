"""Triton kernels in Triton's interpreter: TRITON_INTERPRET=1 python -m pytest tests/interpreter

Whether kernels are interpreted or compiled is fixed when Triton is imported, so these tests need a process of their own:
in any other they are not collected.
"""

import os

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]
