//! Neither a screen nor rows: servers are read, and what somebody wants to be told of is told. For a service.

use std::{
    io,
    sync::mpsc::{RecvTimeoutError, channel},
    time::Duration,
};

use crate::{
    AlertEngine, Standing,
    history::Keeper,
    run::Watch,
    sampler::{Sampler, Wanted},
};

/// Watches until `is_over` says so. A server that is away, or that comes back, is a line of the log.
///
/// # Errors
///
/// There is no thread to be had.
pub fn run(
    servers: &[Watch],
    interval: Duration,
    lookout: &AlertEngine,
    keeper: Option<&Keeper>,
    is_over: impl Fn() -> bool,
) -> io::Result<()> {
    let (sender, standings) = channel();
    let start = |(at, watch): (usize, &Watch)| {
        let sender = sender.clone();
        let target = watch.target.with_application_name(crate::kill::APPLICATION);
        let mut sentry = lookout.for_server(&watch.name);
        let mut keep = keeper.map(|keeper| keeper.for_server(at));
        let all_views = keeper.is_some_and(Keeper::wants_all_views);
        let whole_texts = lookout.wants_whole_texts();
        let wanted = Wanted { interval, idle_texts: false, view: None, all_views, whole_texts };
        Sampler::start(target, watch.poolers.clone(), wanted, move |standing| {
            sentry.look(&standing);
            keep.as_mut().and_then(|keep| keep(&standing));
            let away = match standing {
                Standing::Away { reason, .. } => Some(reason),
                Standing::Connecting | Standing::Read(_) => None,
            };
            // Nobody listens any more when it is over.
            let _ = sender.send((at, away));
        })
    };
    let samplers = servers.iter().enumerate().map(start).collect::<io::Result<Vec<_>>>()?;
    // Nothing is known of any at first.
    let mut is_away: Vec<Option<bool>> = vec![None; servers.len()];
    while !is_over() {
        let (at, away) = match standings.recv_timeout(Duration::from_millis(200)) {
            Ok(told) => told,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => break,
        };
        let server = servers[at].name.as_str();
        if is_away[at].replace(away.is_some()) == Some(away.is_some()) {
            continue;
        }
        match away {
            Some(reason) => tracing::warn!(server, reason, "cannot be read"),
            None => tracing::info!(server, "is read"),
        }
    }
    drop(samplers);
    Ok(())
}
