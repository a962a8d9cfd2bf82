"""Damaged and half-true logs: a message for the user, never a traceback, never a number out of nothing."""

import copy
import json
from random import Random

import pytest

from trace_analyze.analysis.records.errors import UsageError
from trace_analyze.fixtures.client_logs import Delivery, engine_writers, serve, watch, writers
from trace_analyze.fixtures.simulator.scheduler import poisson_like
from trace_analyze.ingest.client_logs import ClientLog, open_client_log

ALL = [(m, n) for m in (writers, engine_writers) for n in dir(m) if n.startswith("write_") and n != "write_vllm_runs"]
JUNK = (None, "x", -1, 0, 1e300, [], {}, [None], ["x"], {"value": None}, True, "1.5", [[1, 2]])


@pytest.fixture(scope="module")
def view():
    served = serve(poisson_like(4, rate_per_s=12, prompt=(200, 900), output=(4, 9), seed=11))
    return watch(served, Delivery(warmup=1))


def places(value, path=()):
    """Paths of all values inside a JSON value."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield from places(part, (*path, key))


def changed(value, path, junk, *, remove):
    """A copy with the value at ``path`` replaced, or taken out."""
    if not path:
        return junk
    value = copy.deepcopy(value)
    holder = value
    for key in path[:-1]:
        holder = holder[key]
    if remove:
        del holder[path[-1]]
    else:
        holder[path[-1]] = junk
    return value


def opens_or_refuses(path):
    try:
        log = open_client_log(path)
    except UsageError:
        return
    assert isinstance(log, ClientLog)
    counts = log.requests["message_count"].fill_null(0)
    assert counts.sum() == log.messages.height


@pytest.mark.parametrize(("module", "name"), ALL)
def test_any_value_may_be_missing_or_of_another_kind(tmp_path, view, module, name):
    path = getattr(module, name)(view, tmp_path / "log")
    text, rng = path.read_text(), Random(name)
    lines = text.splitlines()
    try:
        values = [json.loads(line) for line in lines]
    except ValueError:
        for _ in range(60):
            k = rng.randrange(len(text))
            path.write_text(text[:k] + rng.choice(["", "x", "=", "(", "\x00"]) + text[k + rng.randrange(9) :])
            opens_or_refuses(path)
        return
    where = [(k, p) for k, value in enumerate(values) for p in places(value)]
    for k, at in rng.sample(where, min(len(where), 150)):
        for junk in rng.sample(JUNK, 3):
            other = list(values)
            other[k] = changed(values[k], at, junk, remove=bool(at) and rng.random() < 0.3)
            path.write_text("\n".join(json.dumps(v) for v in other))
            opens_or_refuses(path)


@pytest.mark.parametrize(("module", "name"), ALL)
def test_a_log_cut_anywhere_is_read_or_refused(tmp_path, view, module, name):
    path = getattr(module, name)(view, tmp_path / "log")
    data, rng = path.read_bytes(), Random(name)
    for _ in range(40):
        path.write_bytes(data[: rng.randrange(len(data))])
        opens_or_refuses(path)
