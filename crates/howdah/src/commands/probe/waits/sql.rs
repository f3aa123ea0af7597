//! The same by SQL: `pg_stat_activity`, some times a second.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use howdah_collect::Backend;
use howdah_probe::waits::{Kind, Names, Profile, QueryId, Texts, WaitEvent};

use super::{Args, Printer, query_options};
use crate::{
    commands::probe::{by_sql, target::Outside},
    context::Context,
    outcome::Outcome,
};

/// Each look is a statement, which the server has to answer.
const FREQUENCY_MAX: u32 = 10;

const LACKS: &str = "waits shorter than the time between two looks, 10 a second at most; sessions \
    of other roles without pg_monitor";

pub(super) fn run(outside: &Outside, args: &Args, ctx: &Context) -> anyhow::Result<Outcome> {
    let mut server = by_sql::connect(outside)?;
    by_sql::say(outside, LACKS, ctx);
    let version = server.identity().version;
    let names = Names::of(version.major())
        .with_context(|| format!("the wait events of PostgreSQL {version} are not known"))?;
    let own = server.identity().backend.pid;
    let mut texts = Texts::new(query_options());
    if args.queries {
        server.want_whole_texts();
    }
    let (mut profile, mut report) =
        (Profile::default(), Printer::new(ctx, args, ("sql", Some(LACKS))));
    let pace = &args.watch.pace;
    let every = Duration::from_secs(1) / args.frequency.min(FREQUENCY_MAX);
    let mut ticks = pace.begin(ctx, every.min(pace.interval));
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
                let seen = readable.into_iter().map(|backend| {
                    let texts = args.queries.then_some(&mut texts);
                    seen(backend, &names, texts)
                });
                profile.add_seen(elapsed, seen);
            }
            Err(error) => {
                ended = Some(anyhow::Error::from(error).context("the server answers no more"));
            }
        }
        if Instant::now() >= due {
            due += pace.interval;
            report.interval(&profile.interval(), &|id| texts.text(id))?;
        }
    }
    report.end(&profile.total(), &|id| texts.text(id))?;
    if unreadable > 0 {
        ctx.say(format_args!("{unreadable} sessions may not be read: grant pg_monitor"));
    }
    ended.map_or(Ok(Outcome::Done), Err)
}

/// What a session is at.
fn seen(
    backend: &Backend,
    names: &Names,
    texts: Option<&mut Texts>,
) -> (Kind, WaitEvent, Option<QueryId>) {
    let kind =
        backend.kind.as_ref().map_or(Kind::BackgroundWorker, |kind| Kind::named(kind.as_str()));
    let event = match &backend.wait {
        Some(wait) => names.named(&wait.class, &wait.event),
        None => names.decode(0),
    };
    let is_active = kind.is_foreground() && !event.class().is_idle();
    let query = backend.query.as_ref().zip(texts).filter(|_| is_active);
    (kind, event, query.map(|(query, texts)| texts.id(query.as_str())))
}
