"""What a shard counts and tells: Prometheus metrics and the status reply."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import psutil
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..embedding.store import Push, PushReport
from . import parameter_server_pb2 as pb
from .shard import Shard

_STALENESS_BUCKETS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 1024)


class ShardMetrics:
    """Counters of one shard.

    Thread safety: any thread. Cost: a few microseconds a call; rows, memory and processor time are read when asked for.
    """

    def __init__(self, shard: Shard, log_bytes: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        self._shard = shard
        self._log_bytes = log_bytes
        self._process = psutil.Process()
        self._started = time.monotonic()
        self._pulls = self._counter("pulls", "Pulls answered")
        self._pulled_keys = self._counter("pulled_keys", "Keys pulled")
        self._pushes = self._counter("pushes", "Pushes answered")
        self._pushed_keys = self._counter("pushed_keys", "Keys pushed")
        self._parts = self._counter("push_parts", "Tablet parts of pushes by what became of them", "outcome")
        self._duplicates = self._counter("duplicate_pushes", "Pushes that every tablet had already")
        self._non_finite = self._counter("non_finite_rows", "Gradient rows refused as not finite", "table")
        self._received = self._counter("received_bytes", "Bytes of requests")
        self._sent = self._counter("sent_bytes", "Bytes of replies")
        self._refusals = self._counter("refusals", "Calls refused, by error", "kind")
        self._staleness = Histogram(
            "embershard_shard_staleness",
            "Pushes a tablet applied between a pull and its push (largest over tablets)",
            buckets=_STALENESS_BUCKETS,
            registry=self.registry,
        )
        self.registry.register(_Resources(self))

    def count_push(self, report: PushReport, push: Push) -> None:
        """A push was answered."""
        self._pushes.inc()
        self._pushed_keys.inc(len(push.keys.keys))
        for outcome in ("applied", "duplicate", "fenced", "stale"):
            if count := getattr(report, outcome):
                self._parts.labels(outcome).inc(count)
        if report.duplicate and not report.applied:
            self._duplicates.inc()
        for table, update in report.tables.items():
            if update.non_finite:
                self._non_finite.labels(table).inc(update.non_finite)
        if push.seen_pushes is not None:
            age = (self._shard.push_counts() - push.seen_pushes).astype(np.int64)
            self._staleness.observe(max(int(age[self._shard.owned].max(initial=0)) - 1, 0))

    def count_pull(self, keys: int) -> None:
        """A pull was answered."""
        self._pulls.inc()
        self._pulled_keys.inc(keys)

    def count_bytes(self, received: int, sent: int) -> None:
        """A call's messages had these sizes."""
        self._received.inc(received)
        self._sent.inc(sent)

    def count_refusal(self, kind: str) -> None:
        """A call was refused."""
        self._refusals.labels(kind).inc()

    def status(self) -> pb.StatusReply:
        """Everything as one message; cluster, shard and map are the caller's to fill in."""
        load, stats = self._shard.load(), self._shard.stats()
        times = self._process.cpu_times()
        return pb.StatusReply(
            uptime_seconds=time.monotonic() - self._started,
            rows=sum(table.rows for table in stats.values()),
            row_bytes=sum(sum(table.bytes_by_part.values()) for table in stats.values()),
            resident_bytes=self._process.memory_info().rss,
            cpu_seconds=times.user + times.system,
            received_bytes=int(_value(self._received)),
            sent_bytes=int(_value(self._sent)),
            pulls=int(_value(self._pulls)),
            pushes=int(_value(self._pushes)),
            duplicates=int(_value(self._duplicates)),
            log_bytes=self._log_bytes(),
            pushes_by_tablet=load.pushes.tobytes(),
            pulled_keys_by_tablet=load.pulled_keys.tobytes(),
            pushed_keys_by_tablet=load.pushed_keys.tobytes(),
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"embershard_shard_{name}", text, labels, registry=self.registry)

    def resources(self) -> Iterator[Metric]:
        """Figures that are read at scrape time, and the load of each tablet."""
        status = self.status()
        for name, text, value in (
            ("rows", "Rows held", status.rows),
            ("row_bytes", "Bytes of rows", status.row_bytes),
            ("resident_bytes", "Resident memory of the process", status.resident_bytes),
            ("log_bytes", "Bytes of the push log", status.log_bytes),
        ):
            yield GaugeMetricFamily(f"embershard_shard_{name}", text, value=value)
        yield CounterMetricFamily("embershard_shard_cpu_seconds", "Processor time", value=status.cpu_seconds)
        load = self._shard.load()
        for name, text, values in (
            ("pushes", "Pushes applied by each tablet", load.pushes),
            ("pulled_keys", "Keys pulled from each tablet, estimated from sampled calls", load.pulled_keys),
            ("pushed_keys", "Keys pushed to each tablet, estimated from sampled calls", load.pushed_keys),
        ):
            family = CounterMetricFamily(f"embershard_tablet_{name}", text, labels=["tablet"])
            for tablet in np.flatnonzero(self._shard.owned).tolist():
                family.add_metric([str(tablet)], float(values[tablet]))
            yield family


class _Resources(Collector):
    def __init__(self, metrics: ShardMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return self._metrics.resources()

    def describe(self) -> list[Metric]:
        return []  # or the registry would collect once to learn the names


def _value(counter: Counter) -> float:
    return next(
        sample.value for metric in counter.collect() for sample in metric.samples if sample.name.endswith("_total")
    )
