"""Automations that tell people: `python -m infra.alerts URL` makes or changes them on the server of PREFECT_API_URL.

URL is what a chat gives for incoming messages; each message is JSON, {"text": "..."}, as Slack, Mattermost and Rocket.Chat
take it. The automations are in alerts.json, and afterwards in the Prefect UI, where each can be paused; one that is paused
stays so.
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
            automation.id, automation.enabled = known.id, known.enabled
            automation.update()
        told.append(entry["name"])
    return told


def message(text: str) -> str:
    """A template whose result is JSON whatever the names in it look like."""
    return "{% set text %}" + text + "{% endset %}{\"text\": {{ text|string|tojson }}}"


def existing(name: str):
    """The automation of that name, or None."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        return next(iter(client.read_automations_by_name(name)), None)


def check(arguments: list[str]) -> None:
    """SystemExit with a sentence for what could not work."""
    from prefect.settings import PREFECT_API_URL

    if len(arguments) != 1:
        raise SystemExit("usage: python -m infra.alerts URL")
    if not arguments[0].startswith(("http://", "https://")):
        raise SystemExit("error: the URL of a chat begins with http:// or https://, and this one does not")
    if not PREFECT_API_URL.value():
        raise SystemExit("error: PREFECT_API_URL is not set; set it to the server whose runs shall be told about, such as "
                         "http://127.0.0.1:4200/api")


if __name__ == "__main__":
    check(sys.argv[1:])
    print("\n".join(declare(sys.argv[1])))      # noqa: T201 - this is its output
