"""What the two servers say about themselves over HTTP, wherever they run, without importing either library."""

from __future__ import annotations

import base64
import functools
import json
import os
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime
from http.client import HTTPException
from typing import Any

from flows.services.processes import opener
from storage.errors import ServiceError
from storage.masked import parted
from storage.tracking import experiment_link
from storage.tracking.views import TAG as VIEW_TAG

TIMEOUT = 5.0                # seconds for one question


def understood(method: Callable) -> Callable:
    """What answers in a way that makes no sense here is another server: ServiceError."""

    @functools.wraps(method)
    def call(self: Page) -> Any:
        try:
            return method(self)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise ServiceError(f"what answers at {self.url} is not {self.name}: {error}") from error

    return call


class Page:
    """A server at `url`. Every method but `well` raises ServiceError when it does not answer, or not as it should.

    variable  names the address of one that runs elsewhere; a name and password in it are shown to that server alone
    """

    name, probe, variable = "", "", ""

    def __init__(self, url: str, timeout: float = TIMEOUT) -> None:
        (self.url, self._who), self.timeout = parted(url.rstrip("/")), timeout

    def well(self) -> str | None:
        """None when it answers, else why not, in a few words."""
        try:
            self._get(self.probe)
        except ServiceError as error:
            return str(error.__cause__ or error)
        return None

    def headers(self) -> dict[str, str]:
        """What proves who asks."""
        place, who = parted((os.environ.get(self.variable) or "").rstrip("/"))
        who = self._who or (who if place == self.url else None)
        return basic(who) if who else {}

    def _get(self, path: str) -> bytes:
        return self._ask(path)

    def _post(self, path: str, what: dict[str, Any]) -> Any:
        return json.loads(self._ask(path, json.dumps(what).encode()))

    def _ask(self, path: str, body: bytes | None = None) -> bytes:
        try:
            request = urllib.request.Request(self.url + path, body, self.headers())
            if body is not None:
                request.add_header("content-type", "application/json")
            with opener(self.url).open(request, timeout=self.timeout) as response:
                return response.read()
        except (HTTPException, OSError, ValueError) as error:
            raise ServiceError(f"{self.name} does not answer at {self.url}: {error}") from error


class Prefect(Page):
    """Prefect's API; `url` ends in /api."""

    name, probe, variable = "Prefect", "/health", "PREFECT_API_URL"

    def headers(self) -> dict[str, str]:
        if key := os.environ.get("PREFECT_API_KEY"):
            return {"authorization": f"Bearer {key}"}
        if pair := os.environ.get("PREFECT_API_AUTH_STRING"):
            return basic(pair)
        return super().headers()

    @understood
    def version(self) -> str:
        return json.loads(self._get("/admin/version"))

    @understood
    def queue(self) -> dict[str, Any]:
        """{running, pending, scheduled, late: counts of flow runs, next: {name, at, deployment_id} or None}."""
        counts = {"running": self._count({"type": {"any_": ["RUNNING"]}}),
                  "pending": self._count({"type": {"any_": ["PENDING"]}}),
                  "scheduled": self._count({"type": {"any_": ["SCHEDULED"]}}),
                  "late": self._count({"name": {"any_": ["Late"]}})}
        return {**counts, "next": self._next()}

    def _count(self, state: dict[str, Any]) -> int:
        return int(self._post("/flow_runs/count", {"flow_runs": {"state": state}}))

    def _next(self) -> dict[str, Any] | None:
        found = self._post("/flow_runs/filter", {
            "flow_runs": {"state": {"name": {"any_": ["Scheduled", "AwaitingRetry"]}}},
            "sort": "EXPECTED_START_TIME_ASC", "limit": 1})
        return {"name": found[0]["name"], "at": found[0]["expected_start_time"]} if found else None

    @understood
    def longest_wait(self) -> float:
        """Seconds that the first late run has been waiting; 0 without one."""
        found = self._post("/flow_runs/filter", {"flow_runs": {"state": {"name": {"any_": ["Late"]}}},
                                                 "sort": "EXPECTED_START_TIME_ASC", "limit": 1})
        return age(found[0]["expected_start_time"]) if found else 0.0

    @understood
    def deployments(self) -> list[dict[str, Any]]:
        """[{name, ready, polled: seconds since somebody asked for its runs, or None}]."""
        return [{"name": one["name"], "ready": one.get("status") == "READY",
                 "polled": age(one["last_polled"]) if one.get("last_polled") else None}
                for one in self._post("/deployments/filter", {"limit": 200})]


class MLflow(Page):
    """MLflow's server."""

    name, probe, variable = "MLflow", "/health", "MLFLOW_TRACKING_URI"

    def headers(self) -> dict[str, str]:
        if token := os.environ.get("MLFLOW_TRACKING_TOKEN"):
            return {"authorization": f"Bearer {token}"}
        name, password = os.environ.get("MLFLOW_TRACKING_USERNAME"), os.environ.get("MLFLOW_TRACKING_PASSWORD")
        if name and password:
            return basic(f"{name}:{password}")
        return super().headers()

    @understood
    def version(self) -> str:
        return self._get("/version").decode()

    @understood
    def runs_page(self) -> str:
        """The training runs of the experiment created last; of `Default` while there is no other."""
        found = json.loads(self._get("/api/2.0/mlflow/experiments/search?max_results=1&order_by=creation_time+DESC"))
        experiment = (found.get("experiments") or [{"experiment_id": "0"}])[0]
        link = experiment_link(experiment["experiment_id"])
        if not any(tag["key"].startswith(VIEW_TAG) for tag in experiment.get("tags", [])):
            link = link.split("&viewStateShareKey=")[0]          # nobody has left a view there to open
        return f"{self.url}/{link}"


def basic(pair: str) -> dict[str, str]:
    """Name and password as a header."""
    return {"authorization": "Basic " + base64.b64encode(pair.encode()).decode()}


def age(moment: str) -> float:
    """Seconds since a time as Prefect writes it."""
    then = datetime.fromisoformat(moment.replace("Z", "+00:00"))
    return (datetime.now(UTC) - (then if then.tzinfo else then.replace(tzinfo=UTC))).total_seconds()
