//! The same figures by SQL, where the server's memory cannot be read and nothing can be attached to it: it runs
//! on another host, or is not ours to look at.
//!
//! Every row says `source=sql` and what it lacks. What SQL cannot tell is left out.

mod counters;
mod locks;
mod samples;

use std::{
    io::{self, Write as _},
    time::{Duration, Instant, SystemTime},
};

use anyhow::Context as _;
use howdah_collect::Server;
use serde_json::{Value, json};

pub(super) use self::{
    counters::{Checkpoints, Io, Sweep, Wal},
    locks::{Extensions, Locks},
    samples::{LwLocks, from_memory as lwlocks_from_memory},
};
use super::{
    rows::{self, Format, Rows},
    target::Outside,
    watch::WatchArgs,
};
use crate::{context::Context, outcome::Outcome};

/// What is asked for again and again.
pub(super) trait Asking {
    /// The columns of its rows.
    const COLUMNS: &'static [&'static str];
    /// What its rows lack.
    const LACKS: &'static str;
    /// From one question to the next, unless that is a whole interval.
    const EVERY: Option<Duration>;

    /// Asks once.
    fn look(&mut self, server: &mut Server) -> anyhow::Result<()>;

    /// Tells of what came since the last time.
    fn tell_interval(&mut self, told: &mut Told<'_>) -> io::Result<()>;

    /// Tells of all.
    fn tell_end(&mut self, told: &mut Told<'_>) -> io::Result<()>;

    /// Whether what was waited for has come.
    fn is_done(&self) -> bool {
        false
    }
}

/// Time between two looks at sessions or locks.
const LOOK: Duration = Duration::from_millis(100);

/// Asks until the time is over or somebody wants to end.
pub(super) fn ask<A: Asking>(
    mut asking: A,
    outside: &Outside,
    args: &WatchArgs,
    ctx: &Context,
) -> anyhow::Result<Outcome> {
    let mut server = connect(outside)?;
    say(outside, A::LACKS, ctx);
    let mut told = Told::new(ctx, args.format, ("sql", A::COLUMNS), A::LACKS);
    let every = A::EVERY.map_or(args.pace.interval, |every| every.min(args.pace.interval));
    asking.look(&mut server)?;
    let mut ticks = args.pace.begin(ctx, every);
    let mut due = Instant::now() + args.pace.interval;
    let mut ended = None;
    while ended.is_none() && !asking.is_done() && ticks.tick() {
        ended = asking.look(&mut server).context("the server answers no more").err();
        if Instant::now() + every / 2 >= due {
            due += args.pace.interval;
            asking.tell_interval(&mut told)?;
        }
    }
    asking.tell_end(&mut told)?;
    ended.map_or(Ok(Outcome::Done), Err)
}

/// A session that reads statistics.
pub(super) fn connect(outside: &Outside) -> anyhow::Result<Server> {
    Server::connect(&outside.target)
        .with_context(|| format!("cannot ask {} by SQL", outside.target))
}

/// Says why, and what that means.
pub(super) fn say(outside: &Outside, lacks: &str, ctx: &Context) {
    ctx.say(format_args!("by SQL: {}; lacks {lacks}", outside.reason));
}

/// Rows of a weaker source, which say what they lack.
pub(super) struct Told<'a> {
    ctx: &'a Context,
    rows: Rows<'a>,
    format: Format,
    source: &'static str,
    lacks: &'static str,
}

impl<'a> Told<'a> {
    pub(super) fn new(
        ctx: &'a Context,
        format: Format,
        (source, columns): (&'static str, &'static [&'static str]),
        lacks: &'static str,
    ) -> Self {
        Self { ctx, rows: Rows::new(ctx, format, columns), format, source, lacks }
    }

    /// A row; for a person the cells that have something.
    pub(super) fn write(
        &mut self,
        kind: Option<&str>,
        mut cells: Vec<(&'static str, Value)>,
    ) -> io::Result<()> {
        if self.format == Format::Table {
            let has_value = |(_, value): &&(&str, Value)| !value.is_null();
            let shown = cells.iter().filter(has_value).map(|(name, value)| match value {
                Value::String(text) => format!("{name} {text}"),
                other => format!("{name} {other}"),
            });
            let shown: Vec<_> = kind.map(str::to_owned).into_iter().chain(shown).collect();
            let time = rows::time(SystemTime::now());
            return writeln!(self.ctx.stdout(), "{time}  {}", shown.join("  "));
        }
        cells.extend([("source", json!(self.source)), ("lacks", json!(self.lacks))]);
        if let Some(kind) = kind {
            cells.extend([("kind", json!(kind)), ("time", json!(rows::time(SystemTime::now())))]);
        }
        self.rows.write(&cells)
    }
}
