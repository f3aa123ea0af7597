//! The exec backend: starts a program for each flush and writes the values to its standard input.
//!
//! ```text
//! counts.api.hits|30|1772359200
//! timers.api.latency.upper_90|30|1772359200
//! gauges.pool.size|-2.5|1772359200
//! sets.users|2|1772359200
//! ```
//!
//! These are the lines that statsite writes to its `stream_cmd`, with etsy's names for the
//! statistics of timers. The other format is one JSON object per line, with names and tags as sent.
//!
//! No shell is involved. The exit status decides: 0 means delivered, 65 (`EX_DATAERR` of
//! `sysexits.h`) that the values are refused and must not be sent again. After any other status, a
//! signal or the timeout they are spooled, and passed to the program again at a later flush.

mod program;

use std::{
    fmt::Write as _,
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use self::program::ExecError;
use super::{
    BackendError, BackendSpool, BackendStatus, MetricBackend, SnapshotRequirements, StopDeadline,
    metric_json::for_each_json,
    outbox::{BatchSink, Outbox, ValueBatch},
};
use crate::{
    MetricName,
    flush::{FlushSnapshot, TimedMetric, TimedType},
    js::JsNumber,
    settings::{ExecFormat, ExecSettings},
};

/// Size from which a flush is passed to several runs of the program, to limit memory.
const INPUT_BYTES: usize = 2 << 20;

/// The backend that passes snapshots to a program.
#[derive(Debug)]
pub struct ExecBackend {
    settings: ExecSettings,
    outbox: Outbox,
    status: BackendStatus,
    stop: StopDeadline,
}

impl ExecBackend {
    /// Creates the backend. The first flush starts the program.
    ///
    /// # Errors
    ///
    /// The eventfd that ends a running program at shutdown cannot be created.
    pub fn new(settings: ExecSettings) -> io::Result<Self> {
        let status = BackendStatus::default();
        status.set("flush_time", 0.0);
        status.set("flush_length", 0.0);
        let outbox = Outbox::new(settings.spool_bytes);
        Ok(Self { settings, outbox, status, stop: StopDeadline::new()? })
    }

    /// Passes the spooled batches to the program for the last time, within `timeout`.
    fn deliver_rest(&mut self, timeout: Duration) -> Result<(), BackendError> {
        let (start, mut bytes) = (Instant::now(), 0);
        let Self { settings, outbox, stop, .. } = self;
        let (settings, stop) = (&*settings, &*stop);
        stop.set(start + timeout);
        let delivery = outbox.deliver_now(start, |batch| send(settings, stop, batch, &mut bytes));
        let delivered = delivery.into_result(self.settings.program(), &self.status);
        self.record_flush(start, bytes);
        delivered
    }

    fn record_flush(&self, start: Instant, bytes: usize) {
        if bytes > 0 {
            self.status.set("flush_time", start.elapsed().as_millis() as f64);
            self.status.set("flush_length", bytes as f64);
        }
        self.outbox.report(&self.status);
    }
}

/// Runs the program once with a batch as its input.
fn send(
    settings: &ExecSettings,
    stop: &StopDeadline,
    batch: &ValueBatch,
    bytes: &mut usize,
) -> Result<(), ExecError> {
    let output = program::run(&settings.command, &batch.bytes, settings.timeout, stop)?;
    *bytes += batch.bytes.len();
    if !output.is_empty() {
        tracing::info!(program = settings.program(), output, "the program wrote to standard error");
    }
    Ok(())
}

impl MetricBackend for ExecBackend {
    fn name(&self) -> &'static str {
        "exec"
    }

    fn requirements(&self) -> SnapshotRequirements {
        let names_as_sent = self.settings.format == ExecFormat::Json;
        SnapshotRequirements { names_as_sent, ..SnapshotRequirements::default() }
    }

    /// Returns false, because each interval has its own timestamp.
    fn joins_intervals(&self) -> bool {
        false
    }

    fn status(&self) -> BackendStatus {
        self.status.clone()
    }

    fn stop_deadline(&self) -> Option<StopDeadline> {
        Some(self.stop.clone())
    }

    fn flush(&mut self, snapshot: &Arc<FlushSnapshot>) -> Result<(), BackendError> {
        let (start, mut bytes) = (Instant::now(), 0);
        let Self { settings, outbox, stop, .. } = self;
        let (settings, stop) = (&*settings, &*stop);
        let delivery = outbox.flush(
            start,
            |sink| match settings.format {
                ExecFormat::Lines => write_lines(snapshot, sink),
                ExecFormat::Json => write_json(snapshot, sink),
            },
            |batch| send(settings, stop, batch, &mut bytes),
        );
        self.record_flush(start, bytes);
        delivery.into_result(self.settings.program(), &self.status)
    }

    fn finish(&mut self, timeout: Duration) -> Result<(), BackendError> {
        let delivered = self.deliver_rest(timeout);
        let abandoned = self.outbox.abandon(self.settings.program());
        self.outbox.report(&self.status);
        delivered.and(abandoned)
    }

    fn hand_over(
        &mut self,
        timeout: Duration,
        spool: &mut BackendSpool,
    ) -> Result<(), BackendError> {
        let delivered = self.deliver_rest(timeout);
        spool.batches = self.outbox.take_batches();
        delivered
    }

    fn adopt(&mut self, spool: BackendSpool) {
        self.outbox.adopt(spool.batches, true);
        self.outbox.report(&self.status);
    }
}

/// Collects lines into batches.
struct InputWriter<'s> {
    sink: BatchSink<'s>,
    text: String,
    values: u64,
}

impl<'s> InputWriter<'s> {
    fn new(sink: BatchSink<'s>) -> Self {
        Self { sink, text: String::new(), values: 0 }
    }

    /// Counts the values of the line that was appended to the text.
    fn line_finished(&mut self, values: u64) {
        self.values += values;
        if self.text.len() >= INPUT_BYTES {
            self.flush_batch();
        }
    }

    fn flush_batch(&mut self) {
        if !self.text.is_empty() {
            let bytes = std::mem::take(&mut self.text).into_bytes();
            (self.sink)(ValueBatch::new(bytes, std::mem::take(&mut self.values)));
        }
    }
}

fn write_lines(snapshot: &FlushSnapshot, sink: BatchSink<'_>) {
    let mut writer = InputWriter::new(sink);
    let mut line_at = |timestamp: i64, kind: &str, name: &MetricName, field: &str, value: f64| {
        let dot = if field.is_empty() { "" } else { "." };
        let (base, tags, value) = (name.base(), name.tag_text(), JsNumber(value));
        // Writing into a String cannot fail.
        let _ = writeln!(writer.text, "{kind}.{base}{dot}{field}{tags}|{value}|{timestamp}");
        writer.line_finished(1);
    };
    for TimedMetric { kind, name, time, value, .. } in snapshot.timed_by_key() {
        let kind = if kind == TimedType::Counter { "counts" } else { "gauges" };
        line_at(time, kind, &name, "", value);
    }
    let mut line = |kind: &str, name: &MetricName, field: &str, value: f64| {
        line_at(snapshot.timestamp, kind, name, field, value);
    };
    for counter in &snapshot.counters {
        line("counts", &counter.name, "", counter.value);
    }
    for timer in &snapshot.timers {
        for (field, value) in &timer.fields {
            line("timers", &timer.name, field, *value);
        }
    }
    for gauge in &snapshot.gauges {
        line("gauges", &gauge.name, "", gauge.value);
    }
    for set in &snapshot.sets {
        line("sets", &set.name, "", set.count as f64);
    }
    let own = MetricName::new(&snapshot.self_metrics.prefix);
    for (field, value) in snapshot.self_metrics.values() {
        line("gauges", &own, field, value);
    }
    writer.flush_batch();
}

fn write_json(snapshot: &FlushSnapshot, sink: BatchSink<'_>) {
    let mut writer = InputWriter::new(sink);
    for_each_json(snapshot, |metric| {
        writer.text += metric.text;
        writer.text.push('\n');
        writer.line_finished(metric.values);
    });
    writer.flush_batch();
}

#[cfg(test)]
mod tests;
