//! Service mode: samples servers and sends notifications, without a screen or rows.

use std::{
    io,
    sync::mpsc::{RecvTimeoutError, channel},
    time::Duration,
};

use crate::{
    AlertEngine, ServerHealth,
    history::HistoryWriter,
    sampler::{SampleRequest, ServerSampler, WatchTarget},
};

/// Monitors the servers until `should_stop` returns true. Logs for each server whether it is
/// reachable, after the first sample and whenever that changes.
///
/// # Errors
///
/// A thread could not be started.
pub fn run(
    servers: &[WatchTarget],
    interval: Duration,
    engine: &AlertEngine,
    history_writer: Option<&HistoryWriter>,
    should_stop: impl Fn() -> bool,
) -> io::Result<()> {
    let (sender, updates) = channel();
    let start = |(at, watch): (usize, &WatchTarget)| {
        let sender = sender.clone();
        let mut monitor = engine.for_server(&watch.name);
        let mut store = history_writer.map(|history_writer| history_writer.for_server(at));
        let all_views = history_writer.is_some_and(HistoryWriter::needs_all_views);
        let whole_texts = engine.needs_full_texts();
        let request = SampleRequest {
            interval,
            idle_texts: false,
            view: None,
            all_views,
            full_texts: whole_texts,
            sizes: all_views,
            session: None,
        };
        ServerSampler::start(watch, request, move |health| {
            monitor.observe(&health);
            store.as_mut().and_then(|store| store(&health));
            let reason_unreachable = match health {
                ServerHealth::Unreachable { reason, .. } => Some(reason),
                ServerHealth::Connecting | ServerHealth::Read(_) => None,
            };
            // Sending fails only once the receiver is gone, at the end.
            let _ = sender.send((at, reason_unreachable));
        })
    };
    let samplers = servers.iter().enumerate().map(start).collect::<io::Result<Vec<_>>>()?;
    // Unknown until the first sample.
    let mut is_unreachable: Vec<Option<bool>> = vec![None; servers.len()];
    while !should_stop() {
        let (at, reason_unreachable) = match updates.recv_timeout(Duration::from_millis(200)) {
            Ok(update) => update,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => break,
        };
        let server = servers[at].name.as_str();
        if is_unreachable[at].replace(reason_unreachable.is_some())
            == Some(reason_unreachable.is_some())
        {
            continue;
        }
        match reason_unreachable {
            Some(reason) => tracing::warn!(server, reason, "server unreachable"),
            None => tracing::info!(server, "server reachable"),
        }
    }
    drop(samplers);
    Ok(())
}
