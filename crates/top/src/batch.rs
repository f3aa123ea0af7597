//! Batch mode: writes the rows of a screen at an interval, without a terminal.

use std::{
    collections::BTreeSet,
    io::{self, Write},
    sync::mpsc::{RecvTimeoutError, channel},
    time::Duration,
};

use crate::{
    AlertEngine, ColumnChoices, RowFilter, ScreenTable, ServerHealth, ServerSnapshot, TopSettings,
    history::{HistoryWriter, SnapshotHistory},
    output::{OutputFormat, SampleWriter, TableSample},
    rules::{Alert, UncheckedRule},
    sampler::{SampleRequest, ServerSampler, WatchTarget},
    table::{ScreenKind, TableOptions},
};

/// Options of batch mode: what is written, in which format, how often and how many times.
#[derive(Clone, Debug)]
pub struct BatchOptions {
    /// Format in which samples are written.
    pub format: OutputFormat,
    /// Number of samples per server; unlimited if `None`.
    pub count: Option<u64>,
    /// Time from the start of one sample to the start of the next.
    pub interval: Duration,
    /// Screen whose rows are written.
    pub screen: ScreenKind,
    /// Only rows that match this filter, and their ancestors in a tree, are written.
    pub filter: RowFilter,
    /// Whether to include idle sessions.
    pub with_idle: bool,
    /// Duration above which a statement is slow.
    pub slow: Option<Duration>,
    /// The columns to write.
    pub columns: ColumnChoices,
}

impl BatchOptions {
    /// Creates options from the settings of the interactive mode.
    pub fn new(settings: &TopSettings, format: OutputFormat, count: Option<u64>) -> Self {
        Self {
            format,
            count,
            interval: settings.interval,
            screen: settings.screen,
            filter: settings.filter.clone(),
            with_idle: settings.with_idle,
            slow: settings.slow,
            columns: settings.columns.clone(),
        }
    }

    fn options(&self) -> TableOptions {
        TableOptions {
            with_idle: self.with_idle,
            filter: self.filter.clone(),
            slow_seconds: self.slow.map(|slow| slow.as_secs_f64()),
            full_texts: self.format != OutputFormat::Table,
            ..TableOptions::default()
        }
    }

    /// Builds the table to write.
    fn table(&self, snapshot: &ServerSnapshot) -> Option<ScreenTable> {
        let mut table = ScreenTable::new(self.screen, snapshot, &self.options())?;
        table.retain_columns(|name| self.columns.is_visible(self.screen, name));
        Some(table)
    }

    fn sample_request(&self) -> SampleRequest {
        SampleRequest {
            interval: self.interval,
            idle_texts: self.with_idle,
            view: self.screen.view(),
            all_views: false,
            // The output may be read at any later time, when complete texts can no longer be
            // requested.
            full_texts: true,
            sizes: false,
            session: None,
        }
    }

    /// Returns the number of initial samples that are not written, because rates need two samples.
    fn warm_up_samples(&self) -> u64 {
        u64::from(self.screen.view().is_some())
    }
}

/// Progress of a batch on one server, with the numbers of samples taken and written.
#[derive(Clone, Debug, Default)]
struct ServerProgress {
    sampled: u64,
    written: u64,
    /// Whether the batch no longer waits for the server, because a sample lacked the screen's data,
    /// or because it is unreachable and a sample count was requested.
    is_abandoned: bool,
}

/// A server that was not sampled as often as requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsampledServer {
    /// Name of the server.
    pub server: String,
    /// Reason why the server could not be sampled, in one sentence.
    pub reason: String,
}

/// The outcome of a batch, from which the exit code is derived.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BatchOutcome {
    /// Servers that were not sampled as often as requested.
    pub unsampled: Vec<UnsampledServer>,
    /// Alerts that were firing at the last sample of their server that was to be written, or when
    /// the server was last found unreachable.
    pub alerts: Vec<Alert>,
    /// Rules that could not be evaluated at the last sample of their server that was to be written.
    pub unchecked: Vec<UncheckedRule>,
}

/// Writes samples until each server has provided the requested number or cannot be sampled, or
/// until `should_stop` returns true.
///
/// # Errors
///
/// The writer failed, or a thread could not be started.
pub fn run(
    servers: &[WatchTarget],
    batch: &BatchOptions,
    engine: &AlertEngine,
    history_writer: Option<&HistoryWriter>,
    writer: impl Write,
    should_stop: impl Fn() -> bool,
) -> io::Result<BatchOutcome> {
    let (sender, updates) = channel();
    let start = |(at, watch): (usize, &WatchTarget)| {
        let sender = sender.clone();
        let mut monitor = engine.for_server(&watch.name);
        let mut store = history_writer.map(|history_writer| history_writer.for_server(at));
        let all_views = history_writer.is_some_and(HistoryWriter::needs_all_views);
        let request = SampleRequest { all_views, sizes: all_views, ..batch.sample_request() };
        ServerSampler::start(watch, request, move |health| {
            store.as_mut().and_then(|store| store(&health));
            let alert_view = monitor.observe(&health);
            // Sending fails only once the receiver is gone, at the end.
            let _ = sender.send((at, health, alert_view));
        })
    };
    let samplers = servers.iter().enumerate().map(start).collect::<io::Result<Vec<_>>>()?;
    let mut output = SampleWriter::new(writer, batch.format);
    let mut progress = vec![ServerProgress::default(); servers.len()];
    let mut unread: Vec<UnsampledServer> = Vec::new();
    let mut alerts: Vec<Vec<Alert>> = vec![Vec::new(); servers.len()];
    let mut unchecked: Vec<Vec<UncheckedRule>> = vec![Vec::new(); servers.len()];
    // Each problem is reported once.
    let mut problems: BTreeSet<String> = BTreeSet::new();
    let is_done = |progress: &[ServerProgress]| {
        let has_all = |one: &ServerProgress| {
            one.is_abandoned || batch.count.is_some_and(|count| one.written >= count)
        };
        progress.iter().all(has_all)
    };
    while !is_done(&progress) && !should_stop() {
        let (at, health, alert_view) = match updates.recv_timeout(Duration::from_millis(200)) {
            Ok(update) => update,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => break,
        };
        let name = servers[at].name.as_str();
        match health {
            ServerHealth::Connecting => {}
            ServerHealth::Unreachable { reason, .. } => {
                alerts[at] = alert_view.alerts;
                if batch.count.is_none() {
                    tracing::warn!(server = name, reason, "server unreachable");
                } else if !progress[at].is_abandoned {
                    progress[at].is_abandoned = true;
                    unread.push(UnsampledServer { server: name.to_owned(), reason });
                }
            }
            ServerHealth::Read(snapshot) => {
                progress[at].sampled += 1;
                let is_full = batch.count.is_some_and(|count| progress[at].written >= count);
                if progress[at].sampled <= batch.warm_up_samples() || is_full {
                    continue;
                }
                alerts[at] = alert_view.alerts;
                unchecked[at] = alert_view.unchecked;
                for problem in snapshot.pooled_clients.iter().flat_map(|pooled| &pooled.problems) {
                    if problems.insert(problem.clone()) {
                        tracing::warn!(problem, "sessions are shown without their pooler clients");
                    }
                }
                match batch.table(&snapshot) {
                    Some(table) => {
                        let taken_us = snapshot.activity.taken_us;
                        output.write(&TableSample {
                            server: name,
                            taken_us,
                            screen: batch.screen,
                            table: &table,
                        })?;
                        progress[at].written += 1;
                    }
                    None => {
                        let reason = batch.screen.unavailable_reason(&snapshot);
                        let reason = reason
                            .unwrap_or_else(|| format!("{} was not sampled", batch.screen.name()));
                        progress[at].is_abandoned = true;
                        unread.push(UnsampledServer { server: name.to_owned(), reason });
                    }
                }
            }
        }
    }
    drop(samplers);
    output.finish()?;
    Ok(BatchOutcome {
        unsampled: unread,
        alerts: alerts.into_iter().flatten().collect(),
        unchecked: unchecked.into_iter().flatten().collect(),
    })
}

/// Writes the samples of a recording: for each server, those whose time is in `moments_us` (in
/// microseconds since 1970 by the recording host's clock), but at most as many as the batch
/// requests. Samples without the screen's view are skipped.
///
/// # Errors
///
/// The writer failed, or the recording is corrupt.
pub fn replay(
    history: &SnapshotHistory,
    batch: &BatchOptions,
    moments_us: std::ops::RangeInclusive<i64>,
    writer: impl Write,
) -> io::Result<()> {
    let mut output = SampleWriter::new(writer, batch.format);
    let view = batch.screen.view().map(|view| view.name);
    for (server, name) in history.names().iter().enumerate() {
        let mut samples = 0;
        let mut written = Ok(());
        let played = history.play(server, view, |at_us, health| {
            if at_us < *moments_us.start() {
                return true;
            }
            let is_full = batch.count.is_some_and(|count| samples >= count);
            if is_full || at_us > *moments_us.end() || written.is_err() {
                return false;
            }
            let ServerHealth::Read(snapshot) = health else { return true };
            if let Some(table) = batch.table(&snapshot) {
                let taken_us = snapshot.activity.taken_us;
                let (screen, server) = (batch.screen, name.as_str());
                written = output.write(&TableSample { server, taken_us, screen, table: &table });
                samples += 1;
            }
            true
        });
        written?;
        played.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    }
    output.finish()
}
