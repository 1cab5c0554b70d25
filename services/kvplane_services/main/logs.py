"""Logs of a process, on standard error."""

import json
import logging
import logging.config

from kvplane_services.settings_sections import LogSection


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        line = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def set_up_logs(section: LogSection) -> None:
    """Configures logging of the whole process."""
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {
                "text": {"format": "%(asctime)s %(levelname)-7s %(name)s: %(message)s"},
                "json": {"()": JsonFormatter},
            },
            "handlers": {
                "stderr": {"class": "logging.StreamHandler", "formatter": section.format},
            },
            "root": {"level": "WARNING", "handlers": ["stderr"]},
            "loggers": {
                # The client says when a process of the plane is away, and when it is back.
                name: {"level": section.level.upper()}
                for name in ("kvplane", "kvplane_services")
            },
        }
    )
