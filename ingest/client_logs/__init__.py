"""Logs of benchmark clients and serving engines: one reader a format behind one record, :class:`ClientLog`.

    log = open_client_log("bench.json")
    log.requests, log.messages

Texts, ids, addresses and error messages of these files are never kept.
"""

from .open import FORMATS, open_client_log
from .records import ITERATIONS, MESSAGES, REQUESTS, ClientLog

__all__ = ["FORMATS", "ITERATIONS", "MESSAGES", "REQUESTS", "ClientLog", "open_client_log"]
