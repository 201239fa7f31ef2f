"""Where the log of the command line goes: standard error, as text, or with CUVIL_LOG_FORMAT=json as objects of JSON."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone

from cuvil_hw.errors import CuvilError
from cuvil_hw.errors.quoting import lines

FIELDS = "cuvil"  # logging's `extra={FIELDS: {…}}`: fields of a JSON line


class SafeFormatter(logging.Formatter):
    """Names of models stand in messages: nothing in them controls the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return lines(super().format(record))


class JsonFormatter(logging.Formatter):
    """`time` (UTC, ISO 8601), `level`, `logger`, `message`, the fields of the record, and `error` with a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        made = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, FIELDS, {}),
        }
        if record.exc_info:
            made["error"] = self.formatException(record.exc_info)
        return json.dumps(made, default=str)


@contextmanager
def shown(level: int) -> Iterator[None]:
    """What the loggers below `cuvil` say from this level on, on standard error. Raises CuvilError for a format that is
    none."""
    form = os.environ.get("CUVIL_LOG_FORMAT") or "text"
    if form not in ("text", "json"):
        raise CuvilError(f"CUVIL_LOG_FORMAT is {form!r}, expected text or json")
    logger, handler = logging.getLogger("cuvil"), logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else SafeFormatter("%(asctime)s %(name)s: %(message)s"))
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level if before == logging.NOTSET else min(level, before))
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
