//! Without a screen: the rows of a screen, written as often as somebody wants.

use std::{
    collections::BTreeSet,
    io::{self, Write},
    sync::mpsc::{RecvTimeoutError, channel},
    time::Duration,
};

use crate::{
    AlertEngine, Filter, Settings, Standing, Table,
    history::{History, Keeper},
    output::{Format, Output, Sample},
    rules::{Alert, Unchecked},
    run::Watch,
    sampler::{Sampler, Wanted},
    table::{Choice, Screen},
};

/// What of it and how often.
#[derive(Clone, Debug)]
pub struct Batch {
    /// In which form.
    pub format: Format,
    /// How many samples of each server; for ever if not said.
    pub count: Option<u64>,
    /// From the beginning of one reading to that of the next.
    pub interval: Duration,
    /// What is looked at.
    pub screen: Screen,
    /// Which rows.
    pub filter: Filter,
    /// Idle sessions too.
    pub with_idle: bool,
    /// From how long on a statement is slow.
    pub slow: Option<Duration>,
}

impl Batch {
    /// What [`Settings`] for a screen mean without one.
    pub fn new(settings: &Settings, format: Format, count: Option<u64>) -> Self {
        Self {
            format,
            count,
            interval: settings.interval,
            screen: settings.screen,
            filter: settings.filter.clone(),
            with_idle: settings.with_idle,
            slow: settings.slow,
        }
    }

    fn choice(&self) -> Choice {
        Choice {
            with_idle: self.with_idle,
            filter: self.filter.clone(),
            slow_seconds: self.slow.map(|slow| slow.as_secs_f64()),
            ..Choice::default()
        }
    }

    fn wanted(&self) -> Wanted {
        Wanted {
            interval: self.interval,
            idle_texts: self.with_idle,
            view: self.screen.view(),
            all_views: false,
            // What is written may be read by anybody, at any time.
            whole_texts: true,
        }
    }

    /// Rates need two readings, so the first of a view is not written.
    fn readings_before(&self) -> u64 {
        u64::from(self.screen.view().is_some())
    }
}

/// How far a server has come.
#[derive(Clone, Debug, Default)]
struct Progress {
    readings: u64,
    samples: u64,
    /// It cannot be read, with a count of samples to reach: it is not waited for.
    is_given_up: bool,
}

/// A server that was not read, or not as often as was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    /// What it is called.
    pub server: String,
    /// Why.
    pub reason: String,
}

/// How a batch ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ended {
    /// The servers that could not be read.
    pub unread: Vec<Unread>,
    /// The alerts that held while the last sample of their server was taken.
    pub alerts: Vec<Alert>,
    /// The alerts that could not be checked in the last sample of their server.
    pub unchecked: Vec<Unchecked>,
}

/// Writes samples until all servers have given as many as were asked for, or `is_over` says so.
///
/// # Errors
///
/// The writer's; or there is no thread to be had.
pub fn run(
    servers: &[Watch],
    batch: &Batch,
    lookout: &AlertEngine,
    keeper: Option<&Keeper>,
    writer: impl Write,
    is_over: impl Fn() -> bool,
) -> io::Result<Ended> {
    let (sender, standings) = channel();
    let start = |(at, watch): (usize, &Watch)| {
        let sender = sender.clone();
        let target = watch.target.with_application_name(crate::kill::APPLICATION);
        let mut sentry = lookout.for_server(&watch.name);
        let mut keep = keeper.map(|keeper| keeper.for_server(at));
        let all_views = keeper.is_some_and(Keeper::wants_all_views);
        let wanted = Wanted { all_views, ..batch.wanted() };
        Sampler::start(target, watch.poolers.clone(), wanted, move |standing| {
            keep.as_mut().and_then(|keep| keep(&standing));
            let sight = sentry.look(&standing);
            // Nobody listens any more when it is over.
            let _ = sender.send((at, standing, sight));
        })
    };
    let samplers = servers.iter().enumerate().map(start).collect::<io::Result<Vec<_>>>()?;
    let mut output = Output::new(writer, batch.format);
    let mut progress = vec![Progress::default(); servers.len()];
    let mut unread: Vec<Unread> = Vec::new();
    let mut alerts: Vec<Vec<Alert>> = vec![Vec::new(); servers.len()];
    let mut unchecked: Vec<Vec<Unchecked>> = vec![Vec::new(); servers.len()];
    // Each is said once.
    let mut troubles: BTreeSet<String> = BTreeSet::new();
    let is_done = |progress: &[Progress]| {
        let has_all = |one: &Progress| {
            one.is_given_up || batch.count.is_some_and(|count| one.samples >= count)
        };
        progress.iter().all(has_all)
    };
    while !is_done(&progress) && !is_over() {
        let (at, standing, sight) = match standings.recv_timeout(Duration::from_millis(200)) {
            Ok(told) => told,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => break,
        };
        let name = servers[at].name.as_str();
        match standing {
            Standing::Connecting => {}
            Standing::Away { reason, .. } => {
                alerts[at] = sight.alerts;
                if batch.count.is_none() {
                    tracing::warn!(server = name, reason, "cannot be read");
                } else if !progress[at].is_given_up {
                    progress[at].is_given_up = true;
                    unread.push(Unread { server: name.to_owned(), reason });
                }
            }
            Standing::Read(snapshot) => {
                progress[at].readings += 1;
                let is_full = batch.count.is_some_and(|count| progress[at].samples >= count);
                if progress[at].readings <= batch.readings_before() || is_full {
                    continue;
                }
                alerts[at] = sight.alerts;
                unchecked[at] = sight.unchecked;
                for trouble in snapshot.pooled.iter().flat_map(|pooled| &pooled.troubles) {
                    if troubles.insert(trouble.clone()) {
                        tracing::warn!(trouble, "sessions are shown without who is behind them");
                    }
                }
                match Table::of(batch.screen, &snapshot, &batch.choice()) {
                    Some(table) => {
                        let taken_us = snapshot.activity.taken_us;
                        output.write(&Sample {
                            server: name,
                            taken_us,
                            screen: batch.screen,
                            table: &table,
                        })?;
                        progress[at].samples += 1;
                    }
                    None => {
                        let reason = batch.screen.why_not(&snapshot);
                        let reason = reason
                            .unwrap_or_else(|| format!("{} was not read", batch.screen.name()));
                        progress[at].is_given_up = true;
                        unread.push(Unread { server: name.to_owned(), reason });
                    }
                }
            }
        }
    }
    drop(samplers);
    output.finish()?;
    Ok(Ended {
        unread,
        alerts: alerts.into_iter().flatten().collect(),
        unchecked: unchecked.into_iter().flatten().collect(),
    })
}

/// Writes the samples of a recording: of each server all that are between `from_us` and `until_us`,
/// microseconds since 1970 by the clock that recorded, at most as many as the batch wants. Readings that do
/// not have the screen's view are passed over.
///
/// # Errors
///
/// The writer's; or the recording is damaged.
pub fn replay(
    history: &History,
    batch: &Batch,
    moments_us: std::ops::RangeInclusive<i64>,
    writer: impl Write,
) -> io::Result<()> {
    let mut output = Output::new(writer, batch.format);
    let view = batch.screen.view().map(|view| view.name);
    for (server, name) in history.names().iter().enumerate() {
        let mut samples = 0;
        let mut written = Ok(());
        let played = history.play(server, view, |at_us, standing| {
            if at_us < *moments_us.start() {
                return true;
            }
            let is_full = batch.count.is_some_and(|count| samples >= count);
            if is_full || at_us > *moments_us.end() || written.is_err() {
                return false;
            }
            let Standing::Read(snapshot) = standing else { return true };
            if let Some(table) = Table::of(batch.screen, &snapshot, &batch.choice()) {
                let taken_us = snapshot.activity.taken_us;
                let (screen, server) = (batch.screen, name.as_str());
                written = output.write(&Sample { server, taken_us, screen, table: &table });
                samples += 1;
            }
            true
        });
        written?;
        played.map_err(|damage| io::Error::new(io::ErrorKind::InvalidData, damage))?;
    }
    output.finish()
}
