"""Automations that tell people: `python -m infra.alerts URL` makes or changes them on the server of PREFECT_API_URL.

URL is what a chat gives for incoming messages; each message is JSON, {"text": "..."}, as Slack, Mattermost and Rocket.Chat
take it. The automations are in alerts.json, and afterwards in the Prefect UI, where each can be paused or changed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

BLOCK = "reread-alerts"


def declare(url: str) -> list[str]:
    """Names of the automations, each made or brought up to date."""
    from prefect.automations import Automation
    from prefect.blocks.webhook import Webhook

    block = Webhook(url=url, headers={"Content-Type": "application/json"}).save(BLOCK, overwrite=True)
    told = []
    for entry in json.loads((Path(__file__).parent / "alerts.json").read_text(encoding="utf-8")):
        automation = Automation(name=entry["name"], description=entry["description"], trigger=entry["trigger"],
                                actions=[{"type": "call-webhook", "block_document_id": block, "payload": message(entry["text"])}])
        known = existing(entry["name"])
        if known is None:
            automation.create()
        else:
            automation.id = known
            automation.update()
        told.append(entry["name"])
    return told


def message(text: str) -> str:
    """A template whose result is JSON whatever the names in it look like."""
    return "{% set text %}" + text + "{% endset %}{\"text\": {{ text|string|tojson }}}"


def existing(name: str):
    """Id of the automation of that name, or None."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        return next((found.id for found in client.read_automations_by_name(name)), None)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m infra.alerts URL")
    print("\n".join(declare(sys.argv[1])))      # noqa: T201 - this is its output
