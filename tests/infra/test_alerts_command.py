"""`python -m infra.alerts`: what it refuses before it says anything to a server, and messages whatever stands in them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from infra.alerts import message
from tests.conftest import ROOT

HOOK = "https://chat.example.org/hooks/x"


@pytest.mark.parametrize(("arguments", "says"), [([], "usage: "), (["chat.example.org/hooks/x"], "begins with http"),
                                                 ([HOOK], "PREFECT_API_URL")])
def test_what_cannot_work_is_refused_at_once(tmp_path, arguments, says):
    """Without a server's address Prefect would start one of its own, keep the automations there, and end it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    done = subprocess.run([sys.executable, "-m", "infra.alerts", *arguments], text=True, capture_output=True, timeout=100,
                          env=environment | {"PREFECT_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}, cwd=tmp_path)
    assert done.returncode == 1 and says in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.glob("*.db"))


def test_messages_are_json_whatever_stands_in_them():
    from prefect.server.utilities.user_templates import render_user_template

    odd = 'a "q" <b>&amp; \\ {{ x }} {% endset %}\n ü 🎉 \x07'
    for entry in json.loads((ROOT / "infra" / "alerts.json").read_text()):
        for told in (odd, None):
            run = SimpleNamespace(name=odd, state=SimpleNamespace(name="Failed", message=told))
            text = json.loads(asyncio.run(render_user_template(
                message(entry["text"].replace("|ui_url", ".name")), {"flow_run": run, "flow": SimpleNamespace(name=odd)})))["text"]
            assert "None" not in text and ("flow_run" not in entry["text"] or odd in text)
