"""When nights are due: REREAD_NIGHTLY_CRON (default 02:00; `off` = never by itself) in REREAD_NIGHTLY_TIMEZONE (UTC)."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from storage.errors import SpecError

CRON, TIMEZONE = "REREAD_NIGHTLY_CRON", "REREAD_NIGHTLY_TIMEZONE"
DEFAULT_CRON, OFF = "0 2 * * *", "off"
LOOK_BACK = tuple(timedelta(hours=hours) for hours in (1, 26, 200, 800, 9000, 36000))   # the last one: leap days


@dataclass(frozen=True)
class Clock:
    """A cron expression and its time zone; `cron` None: no night is ever due by itself."""

    cron: str | None
    timezone: str

    @classmethod
    def from_settings(cls) -> Clock:
        """:raises SpecError: a setting cannot be read"""
        zone = os.environ.get(TIMEZONE) or "UTC"
        try:
            ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise SpecError(f"{TIMEZONE} is {zone!r}: expected the name of a time zone, for example Europe/Zurich or UTC"
                            ) from error
        cron = (os.environ.get(CRON) or DEFAULT_CRON).strip()
        if cron.lower() == OFF:
            return cls(None, zone)
        clock = cls(cron, zone)
        try:
            if len(cron.split()) != 5:
                raise ValueError(cron)
            clock._schedule()
        except ValueError as error:         # pydantic's refusal is one too
            raise SpecError(f"{CRON} is {cron!r}: expected five fields (minute hour day month weekday), for example "
                            f"{DEFAULT_CRON!r} for 02:00 every night, or {OFF!r}") from error
        return clock

    def last_due(self, now: datetime) -> datetime | None:
        """The latest due time that is not after `now`; None with the schedule off."""
        if self.cron is None:
            return None
        for span in LOOK_BACK:
            found, start = None, now - span
            while dates := self._dates(start=start, end=now):       # a call looks no further than 1,000 dates
                found, start = dates[-1], dates[-1] + timedelta(seconds=1)
            if found is not None:
                return found
        return None

    def next_due(self, now: datetime, n: int = 3) -> list[datetime]:
        """The next n due times after `now`; none with the schedule off."""
        return [] if self.cron is None else self._dates(n=n, start=now + timedelta(seconds=1))

    def night(self, due: datetime) -> str:
        """The date of a due time, where the clock hangs: 2026-11-30."""
        return due.astimezone(ZoneInfo(self.timezone)).date().isoformat()

    def _dates(self, **bounds: Any) -> list[datetime]:
        return [date.astimezone(UTC) for date in asyncio.run(self._schedule().get_dates(**bounds))]

    def _schedule(self) -> Any:
        """Prefect's own, so that this says what its scheduler does, also on the days when clocks change."""
        from prefect.server.schemas.schedules import CronSchedule

        return CronSchedule(cron=self.cron, timezone=self.timezone)
