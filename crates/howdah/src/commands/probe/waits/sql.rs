//! Samples waits by SQL, from `pg_stat_activity`.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use howdah_collect::BackendActivity;
use howdah_probe::waits::{ProcessKind, Profile, QueryId, QueryTexts, WaitEvent, WaitEventNames};

use super::{Args, WaitsPrinter, query_options};
use crate::{
    commands::probe::{by_sql, target::SqlTarget},
    context::CommandContext,
    outcome::CommandOutcome,
};

/// Maximum samples per second: each one is a query for the server.
const FREQUENCY_MAX: u32 = 10;

const LIMITATION: &str = "misses waits shorter than the time between two samples, at most 10 per second; \
without pg_monitor, no sessions of other roles";

pub(super) fn run(
    outside: &SqlTarget,
    args: &Args,
    ctx: &CommandContext,
) -> anyhow::Result<CommandOutcome> {
    let mut server = by_sql::connect(outside)?;
    by_sql::report_limitation(outside, LIMITATION, ctx);
    let version = server.info().version;
    let names = WaitEventNames::for_major(version.major())
        .with_context(|| format!("the wait events of PostgreSQL {version} are unknown"))?;
    let own = server.info().backend.pid;
    let mut texts = QueryTexts::new(query_options());
    if args.queries {
        server.request_full_texts();
    }
    let (mut profile, mut report) =
        (Profile::default(), WaitsPrinter::new(ctx, args, ("sql", Some(LIMITATION))));
    let pace = &args.watch.pace;
    let every = Duration::from_secs(1) / args.frequency.min(FREQUENCY_MAX);
    let mut ticks = pace.start(ctx, every.min(pace.interval));
    let mut due = Instant::now() + pace.interval;
    let (mut last, mut unreadable, mut ended) = (None::<Instant>, 0, None);
    while ended.is_none() && ticks.tick() {
        match server.activity(false) {
            Ok(activity) => {
                let now = Instant::now();
                let elapsed = last.map_or(Duration::ZERO, |last| now - last);
                last = Some(now);
                let others = activity.backends.iter().filter(|backend| backend.pid != own);
                let (readable, hidden): (Vec<_>, Vec<_>) =
                    others.partition(|backend| backend.is_readable);
                unreadable = unreadable.max(hidden.len());
                let observations = readable.into_iter().map(|backend| {
                    let texts = args.queries.then_some(&mut texts);
                    observation(backend, &names, texts)
                });
                profile.add_observations(elapsed, observations);
            }
            Err(error) => {
                ended = Some(anyhow::Error::from(error).context("the server no longer responds"));
            }
        }
        if Instant::now() >= due {
            due += pace.interval;
            report.interval(&profile.take_interval(), &|id| texts.text(id))?;
        }
    }
    report.end(&profile.total(), &|id| texts.text(id))?;
    if unreadable > 0 {
        ctx.report(format_args!(
            "{unreadable} sessions are not visible to this role: grant it pg_monitor"
        ));
    }
    ended.map_or(Ok(CommandOutcome::Done), Err)
}

/// The current wait and statement of a session.
fn observation(
    backend: &BackendActivity,
    names: &WaitEventNames,
    texts: Option<&mut QueryTexts>,
) -> (ProcessKind, WaitEvent, Option<QueryId>) {
    let kind = backend
        .kind
        .as_ref()
        .map_or(ProcessKind::BackgroundWorker, |kind| ProcessKind::from_name(kind.as_str()));
    let event = match &backend.wait {
        Some(wait) => names.lookup(&wait.class, &wait.event),
        None => names.decode(0),
    };
    let is_active = kind.is_foreground() && !event.class().is_idle();
    let query = backend.query.as_ref().zip(texts).filter(|_| is_active);
    (kind, event, query.map(|(query, texts)| texts.intern(query.as_str())))
}
