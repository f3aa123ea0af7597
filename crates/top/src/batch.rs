//! Without a screen: the rows of a screen, written as often as somebody wants.

use std::{
    io::{self, Write},
    sync::mpsc::{RecvTimeoutError, channel},
    time::Duration,
};

use crate::{
    Filter, Settings, Standing, Table,
    output::{Format, Output, Sample},
    run::{Announcer, Watch},
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
        Wanted { interval: self.interval, idle_texts: self.with_idle, view: self.screen.view() }
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

/// Writes samples until all servers have given as many as were asked for, or `is_over` says so. Gives the
/// servers that could not be read in the end.
///
/// # Errors
///
/// The writer's; or there is no thread to be had.
pub fn run(
    servers: &[Watch],
    batch: &Batch,
    announcer: Option<&Announcer>,
    writer: impl Write,
    is_over: impl Fn() -> bool,
) -> io::Result<Vec<Unread>> {
    let (sender, standings) = channel();
    let start = |(at, watch): (usize, &Watch)| {
        let sender = sender.clone();
        let target = watch.target.with_application_name(crate::kill::APPLICATION);
        let mut announce = announcer.map(|announcer| announcer.for_server(&watch.name));
        // Nobody listens any more when it is over.
        Sampler::start(target, batch.wanted(), move |standing| {
            announce.as_mut().and_then(|announce| announce(&standing));
            let _ = sender.send((at, standing));
        })
    };
    let samplers = servers.iter().enumerate().map(start).collect::<io::Result<Vec<_>>>()?;
    let mut output = Output::new(writer, batch.format);
    let mut progress = vec![Progress::default(); servers.len()];
    let mut unread: Vec<Unread> = Vec::new();
    let is_done = |progress: &[Progress]| {
        let has_all = |one: &Progress| {
            one.is_given_up || batch.count.is_some_and(|count| one.samples >= count)
        };
        progress.iter().all(has_all)
    };
    while !is_done(&progress) && !is_over() {
        let (at, standing) = match standings.recv_timeout(Duration::from_millis(200)) {
            Ok(told) => told,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => break,
        };
        let name = servers[at].name.as_str();
        match standing {
            Standing::Connecting => {}
            Standing::Away { reason, .. } => {
                tracing::warn!(server = name, reason, "cannot be read");
                if batch.count.is_some() && !progress[at].is_given_up {
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
                        let version = snapshot.identity.version;
                        let reason = snapshot.view_error.clone();
                        let reason = reason.unwrap_or_else(|| {
                            format!("PostgreSQL {version} has no {}", batch.screen.name())
                        });
                        progress[at].is_given_up = true;
                        unread.push(Unread { server: name.to_owned(), reason });
                    }
                }
            }
        }
    }
    drop(samplers);
    output.finish()?;
    Ok(unread)
}
