//! Options that select events and redact values, for all commands that process events.

use std::{fs, path::PathBuf, str::FromStr, sync::Arc};

use anyhow::Context as _;
use howdah_capture::{EventFilter, ExcludedCounts, Filter, RedactionKey, Redactor, SampleRate};
use howdah_traffic::{Event, Timestamp};
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};

use crate::{context::CommandContext, errors};

/// Selection of events. Different options are combined with AND, values of one option with OR.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Event selection")]
pub(crate) struct SelectArgs {
    /// Events from this time on, such as 2026-11-20T12:43:00Z; UTC without an offset
    #[arg(long, value_name = "TIME")]
    from: Option<TimeArg>,
    /// Events before this time
    #[arg(long, value_name = "TIME")]
    until: Option<TimeArg>,
    /// Events of sessions logged in as this role; repeatable
    #[arg(long, value_name = "ROLE")]
    user: Vec<String>,
    /// Events of sessions in this database; repeatable
    #[arg(long, value_name = "NAME")]
    database: Vec<String>,
    /// Events of the session with this name in the capture; repeatable
    #[arg(long, value_name = "SESSION")]
    session: Vec<String>,
    /// Events of sessions with this application_name; repeatable
    #[arg(long, value_name = "NAME")]
    application: Vec<String>,
    /// Only statements known to change nothing, according to PostgreSQL's grammar
    #[arg(long)]
    #[cfg_attr(not(feature = "grammar"), arg(value_parser = refuse_without_grammar))]
    read_only: bool,
}

impl SelectArgs {
    /// Returns the filter that the options describe.
    pub(crate) fn filter(&self) -> EventFilter {
        self.filter_with_sample(None)
    }

    /// Whether only statements without changes are selected.
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Returns the time from which events are selected, if there is one.
    pub(crate) fn start(&self) -> Option<Timestamp> {
        self.from.map(|time| time.0)
    }

    /// Whether events at the start may be excluded, so that the result starts from another state of
    /// the server.
    pub(super) fn excludes_start(&self) -> bool {
        self.from.is_some()
    }

    /// Returns the filter, restricted to a sample of the sessions.
    pub(super) fn filter_with_sample(&self, sample: Option<SampleRate>) -> EventFilter {
        let filter = Filter {
            from: self.from.map(|time| time.0),
            until: self.until.map(|time| time.0),
            users: self.user.clone(),
            databases: self.database.clone(),
            sessions: self.session.clone(),
            applications: self.application.clone(),
            read_only: self.read_only,
        };
        EventFilter::new(filter, sample)
    }
}

/// Rejects a flag that this build does not support: clap passes "true" if it is given.
#[cfg(not(feature = "grammar"))]
fn refuse_without_grammar(value: &str) -> Result<bool, &'static str> {
    match value {
        "true" => Err("this build cannot parse statements (build with --features grammar)"),
        _ => Ok(false),
    }
}

/// A point in time, whose offset, seconds and time of day are optional.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TimeArg(Timestamp);

impl FromStr for TimeArg {
    type Err = howdah_traffic::ParseTimestampError;

    /// Parses RFC 3339. A missing offset means UTC, missing seconds 0, a missing time of day
    /// midnight.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let whole = text.parse();
        let rest = ["Z", ":00Z", "T00:00:00Z"];
        let guessed = rest.iter().find_map(|rest| format!("{text}{rest}").parse().ok());
        guessed.map_or(whole, Ok).map(Self)
    }
}

/// Redaction of values.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Redaction")]
pub(super) struct RedactArgs {
    /// Replace constants, bound values, comments, error messages and application names
    #[arg(long)]
    redact: bool,
    /// Key file for reproducible replacements; without it, they are random
    #[arg(long, value_name = "FILE", requires = "redact")]
    redact_key: Option<PathBuf>,
    /// Also replace names of cursors, savepoints, prepared statements and channels
    #[arg(long, requires = "redact")]
    redact_names: bool,
}

impl RedactArgs {
    /// Whether `--redact` was given.
    pub(super) fn is_on(&self) -> bool {
        self.redact
    }

    /// Returns the redactor, if values are redacted.
    pub(super) fn redactor(&self) -> anyhow::Result<Option<Redactor>> {
        if !self.redact {
            return Ok(None);
        }
        let key = match &self.redact_key {
            None => RedactionKey::random()?,
            Some(path) => {
                let key_error = || format!("cannot use the key {}", path.display());
                let secret = fs::read(path).with_context(key_error)?;
                let key = RedactionKey::from_secret(&secret).with_context(key_error);
                key.map_err(|error| errors::wrong_usage(format!("{error:#}")))?
            }
        };
        let redactor = Redactor::new(&key);
        Ok(Some(if self.redact_names { redactor.with_names() } else { redactor }))
    }
}

/// Time span of a filter's input, and whether any event passed the filter.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct InputSpan {
    span: Option<(Timestamp, Timestamp)>,
    has_passed: bool,
}

impl InputSpan {
    /// Extends the time span to an event of the input.
    pub(super) fn record(&mut self, time: Timestamp) {
        let (first, last) = self.span.unwrap_or((time, time));
        self.span = Some((first.min(time), last.max(time)));
    }

    /// Records that an event passed the filter.
    pub(super) fn record_passed(&mut self) {
        self.has_passed = true;
    }

    /// Returns a line with the time span of the input if no event passed, in case the filter names
    /// the wrong day.
    pub(super) fn line(&self) -> Option<String> {
        let (first, last) = self.span.filter(|_| !self.has_passed)?;
        Some(format!("no events selected: the input covers {first} to {last}"))
    }
}

/// Counts of excluded events, shared with the thread that consumes the events, which sets them at
/// the end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Exclusions(Arc<Mutex<(ExcludedCounts, InputSpan)>>);

impl Exclusions {
    fn lock(&self) -> MutexGuard<'_, (ExcludedCounts, InputSpan)> {
        self.0.lock()
    }

    /// Returns the number of excluded events so far, which may be a thousand events old.
    pub(crate) fn count(&self) -> u64 {
        self.lock().0.values().sum()
    }

    /// Reports the excluded events by reason.
    pub(crate) fn report(&self, ctx: &CommandContext) {
        let (left, input_span) = &*self.lock();
        for line in lines(left).into_iter().chain(input_span.line()) {
            ctx.report(line);
        }
    }
}

/// An iterator over the events that pass a filter.
#[derive(Debug)]
pub(crate) struct FilteredEvents<I> {
    events: I,
    filter: EventFilter,
    input_span: InputSpan,
    left: Exclusions,
    /// Number of events passed to the filter.
    pushed: u64,
}

/// Number of events after which the counts of excluded ones are published.
const PUBLISH_INTERVAL: u64 = 1024;

impl<I> FilteredEvents<I> {
    pub(crate) fn new(events: I, filter: EventFilter) -> Self {
        Self {
            events,
            filter,
            input_span: InputSpan::default(),
            left: Exclusions::default(),
            pushed: 0,
        }
    }

    /// Whether every event passes, because no filter is set.
    pub(crate) fn is_unfiltered(&self) -> bool {
        self.filter.keeps_everything()
    }

    /// Returns a handle to the counts of excluded events.
    pub(crate) fn exclusions(&self) -> Exclusions {
        self.left.clone()
    }
}

impl<I: Iterator<Item = Result<T, E>>, T: Into<Box<Event>>, E> Iterator for FilteredEvents<I> {
    type Item = Result<Box<Event>, E>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_unfiltered() {
            return self.events.next().map(|event| event.map(Into::into));
        }
        loop {
            if let Some(event) = self.filter.poll() {
                self.input_span.record_passed();
                return Some(Ok(event.into()));
            }
            match self.events.next() {
                Some(Ok(event)) => {
                    let event: Box<Event> = event.into();
                    self.input_span.record(event.time);
                    self.filter.push(*event);
                    self.pushed += 1;
                    if self.pushed.is_multiple_of(PUBLISH_INTERVAL) {
                        *self.left.lock() = (self.filter.excluded().clone(), self.input_span);
                    }
                }
                other => {
                    *self.left.lock() = (self.filter.excluded().clone(), self.input_span);
                    return other.map(|event| event.map(Into::into));
                }
            }
        }
    }
}

/// Returns lines about excluded events by reason.
pub(super) fn lines(left: &ExcludedCounts) -> Vec<String> {
    left.iter()
        .filter(|(_, count)| **count > 0)
        .map(|(reason, count)| format!("left out, {}: {count}", reason.as_str()))
        .collect()
}

/// Returns the excluded events by reason, for a manifest.
pub(super) fn document(left: &ExcludedCounts) -> Value {
    let counted = left.iter().filter(|(_, count)| **count > 0);
    counted.map(|(reason, count)| json!({ "text": reason.as_str(), "count": count })).collect()
}

#[test]
fn partial_times_are_completed() {
    let time = |text: &str| text.parse::<TimeArg>().map(|time| time.0.to_string());
    let expected = || Ok("2026-11-20T12:43:00.000000Z".to_owned());
    for text in [
        "2026-11-20T12:43:00Z",
        "2026-11-20T13:43:00+01:00",
        "2026-11-20 12:43:00",
        "2026-11-20 12:43",
    ] {
        assert_eq!(time(text), expected(), "{text}");
    }
    assert_eq!(time("2026-11-20"), Ok("2026-11-20T00:00:00.000000Z".to_owned()));
    assert!(time("yesterday").is_err());
}
