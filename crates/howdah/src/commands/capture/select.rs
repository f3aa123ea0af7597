//! The options that choose events and hide values, for every command that passes events on.

use std::{
    fs,
    path::PathBuf,
    str::FromStr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::Context as _;
use howdah_sift::{EventFilter, Filter, Left, RedactionKey, Redactor, SampleRate};
use howdah_traffic::{Event, Timestamp};
use serde_json::{Value, json};

use crate::{context::Context, errors};

/// Which events to take. Several options narrow each other; names in one of them add up.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Only some events")]
pub(crate) struct SelectArgs {
    /// From this time on, such as 2026-11-20T12:43:00Z; without an offset it is UTC
    #[arg(long, value_name = "TIME")]
    from: Option<Moment>,
    /// Before this time
    #[arg(long, value_name = "TIME")]
    until: Option<Moment>,
    /// Of sessions that logged in as this role; repeat for more
    #[arg(long, value_name = "ROLE")]
    user: Vec<String>,
    /// Of sessions in this database; repeat for more
    #[arg(long, value_name = "NAME")]
    database: Vec<String>,
    /// Of the session of this name in the capture; repeat for more
    #[arg(long, value_name = "SESSION")]
    session: Vec<String>,
    /// Of sessions with this application_name; repeat for more
    #[arg(long, value_name = "NAME")]
    application: Vec<String>,
    /// Only what is known to change nothing, by PostgreSQL's grammar
    #[arg(long)]
    #[cfg_attr(not(feature = "grammar"), arg(value_parser = refuse_without_grammar))]
    read_only: bool,
}

impl SelectArgs {
    /// What the options describe.
    pub(crate) fn sieve(&self) -> EventFilter {
        self.sieve_of(None)
    }

    /// Whether only statements that change nothing are selected.
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// The same within a sample of sessions.
    pub(super) fn sieve_of(&self, sample: Option<SampleRate>) -> EventFilter {
        let filter = Filter {
            from: self.from.map(|moment| moment.0),
            until: self.until.map(|moment| moment.0),
            users: self.user.clone(),
            databases: self.database.clone(),
            sessions: self.session.clone(),
            applications: self.application.clone(),
            #[cfg(feature = "grammar")]
            read_only: self.read_only,
        };
        EventFilter::new(filter, sample)
    }
}

/// The value of a flag that this build cannot honour: clap passes "true" where it is given.
#[cfg(not(feature = "grammar"))]
fn refuse_without_grammar(value: &str) -> Result<bool, &'static str> {
    match value {
        "true" => Err("this build cannot read statements (build with --features grammar)"),
        _ => Ok(false),
    }
}

/// A time as people write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Moment(Timestamp);

impl FromStr for Moment {
    type Err = howdah_traffic::ParseTimestampError;

    /// Reads RFC 3339, and the same without its end: UTC, the first second, midnight.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let whole = text.parse();
        let rest = ["Z", ":00Z", "T00:00:00Z"];
        let guessed = rest.iter().find_map(|rest| format!("{text}{rest}").parse().ok());
        guessed.map_or(whole, Ok).map(Self)
    }
}

/// Whether and how values are hidden.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Values")]
pub(super) struct RedactArgs {
    /// Replace constants, bound values, comments, error messages and application names
    #[arg(long)]
    redact: bool,
    /// Make the replacements from this file, for the same ones again; without it nobody can
    #[arg(long, value_name = "FILE", requires = "redact")]
    redact_key: Option<PathBuf>,
}

impl RedactArgs {
    /// Whether values are to be hidden.
    pub(super) fn is_on(&self) -> bool {
        self.redact
    }

    /// Who hides them, if they are to be hidden.
    pub(super) fn redactor(&self) -> anyhow::Result<Option<Redactor>> {
        if !self.redact {
            return Ok(None);
        }
        let key = match &self.redact_key {
            None => RedactionKey::random()?,
            Some(path) => {
                let named = || format!("cannot use the key {}", path.display());
                let secret = fs::read(path).with_context(named)?;
                let key = RedactionKey::from_secret(&secret).with_context(named);
                key.map_err(|error| errors::wrong_usage(format!("{error:#}")))?
            }
        };
        Ok(Some(Redactor::new(&key)))
    }
}

/// Times of the events that filters were given, and whether one came through.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Offered {
    span: Option<(Timestamp, Timestamp)>,
    has_taken: bool,
}

impl Offered {
    /// An event goes into the filters.
    pub(super) fn note(&mut self, time: Timestamp) {
        let (first, last) = self.span.unwrap_or((time, time));
        self.span = Some((first.min(time), last.max(time)));
    }

    /// An event came through.
    pub(super) fn note_taken(&mut self) {
        self.has_taken = true;
    }

    /// What to say when nothing came through: it may have been another day.
    pub(super) fn line(&self) -> Option<String> {
        let (first, last) = self.span.filter(|_| !self.has_taken)?;
        Some(format!("no event was asked for: those that there are run from {first} to {last}"))
    }
}

/// Counts of what filters leave out, for those who play the events elsewhere.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeftOut(Arc<Mutex<(Left, Offered)>>);

impl LeftOut {
    fn lock(&self) -> MutexGuard<'_, (Left, Offered)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says what was left out, by reason.
    pub(crate) fn say(&self, ctx: &Context) {
        let (left, offered) = &*self.lock();
        for line in lines(left).into_iter().chain(offered.line()) {
            ctx.say(line);
        }
    }
}

/// Events through a sieve.
#[derive(Debug)]
pub(crate) struct Sifted<I> {
    events: I,
    sieve: EventFilter,
    offered: Offered,
    left: LeftOut,
}

impl<I> Sifted<I> {
    pub(crate) fn new(events: I, sieve: EventFilter) -> Self {
        Self { events, sieve, offered: Offered::default(), left: LeftOut::default() }
    }

    /// Whether all events come through.
    pub(crate) fn is_whole(&self) -> bool {
        self.sieve.is_open()
    }

    /// Where the counts of what is left out will be.
    pub(crate) fn left(&self) -> LeftOut {
        self.left.clone()
    }
}

impl<I: Iterator<Item = Result<Event, E>>, E> Iterator for Sifted<I> {
    type Item = Result<Event, E>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(event) = self.sieve.poll() {
                self.offered.note_taken();
                return Some(Ok(event));
            }
            match self.events.next() {
                Some(Ok(event)) => {
                    self.offered.note(event.time);
                    self.sieve.push(event);
                }
                other => {
                    *self.left.lock() = (self.sieve.left().clone(), self.offered);
                    return other;
                }
            }
        }
    }
}

/// What was left out, by reason.
pub(super) fn lines(left: &Left) -> Vec<String> {
    left.iter()
        .filter(|(_, count)| **count > 0)
        .map(|(reason, count)| format!("left out, {}: {count}", reason.as_str()))
        .collect()
}

/// The same for a manifest.
pub(super) fn document(left: &Left) -> Value {
    let counted = left.iter().filter(|(_, count)| **count > 0);
    counted.map(|(reason, count)| json!({ "text": reason.as_str(), "count": count })).collect()
}

#[test]
fn times_may_be_written_in_part() {
    let moment = |text: &str| text.parse::<Moment>().map(|moment| moment.0.to_string());
    let expected = || Ok("2026-11-20T12:43:00.000000Z".to_owned());
    for text in [
        "2026-11-20T12:43:00Z",
        "2026-11-20T13:43:00+01:00",
        "2026-11-20 12:43:00",
        "2026-11-20 12:43",
    ] {
        assert_eq!(moment(text), expected(), "{text}");
    }
    assert_eq!(moment("2026-11-20"), Ok("2026-11-20T00:00:00.000000Z".to_owned()));
    assert!(moment("yesterday").is_err());
}
