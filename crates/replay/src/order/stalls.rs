//! The stall monitor: finds out whether the transaction that must end next waits for a session that
//! is held back, and releases that session.

use std::{
    collections::BTreeSet,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use howdah_connect::{Client, ConnectTarget};
use howdah_net::Waker;
use howdah_traffic::Timestamp;

use super::{CommitOrder, OrderState, WaitingSession};
use crate::capacity::is_through_pooler;

/// Time without progress after which the server is asked for which locks the transaction waits that
/// must end next, and between two such questions.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Time without progress after which all sessions that are held back are released, if the server
/// cannot be asked.
const BLIND_TIMEOUT: Duration = Duration::from_secs(5);

/// Time after which sessions are released that only wait for further input: a log that is being
/// written may have none for now.
const INPUT_TIMEOUT: Duration = Duration::from_millis(500);

/// Maximum number of sessions in a chain of sessions that wait for each other's locks.
const CHAIN_MAX: usize = 64;

/// Returns the pairs of a backend and one that it waits for, for a list of backends.
fn blocking_sql(backends: &BTreeSet<i32>) -> String {
    let list: Vec<String> = backends.iter().map(ToString::to_string).collect();
    format!(
        "select pid, pg_catalog.unnest(pg_catalog.pg_blocking_pids(pid)) \
         from pg_catalog.unnest('{{{}}}'::pg_catalog.int4[]) pid",
        list.join(",")
    )
}

/// Watches the commit order until the replay ends. Connects to the target only when it must.
pub(crate) fn watch(order: &CommitOrder, target: &ConnectTarget) {
    let mut server = LockObserver { target, client: None, is_blind: false };
    let mut last = None;
    while let Some(stall) = order.wait_for_stall(&mut last) {
        if stall.awaits_input {
            if stall.time > INPUT_TIMEOUT {
                order.release(false, |_| true);
            }
        } else if let Some(blockers) = server.blockers(stall.backend) {
            order.release(true, |backend| backend.is_some_and(|it| blockers.contains(&it)));
        } else if stall.time > BLIND_TIMEOUT {
            order.release(true, |_| true);
        }
    }
}

/// A time in which no transaction ends, although sessions wait for one.
struct Stall {
    /// How long it has lasted.
    time: Duration,
    /// The backend of the session whose transaction must end next, if known.
    backend: Option<i32>,
    /// Whether no transaction is missing: the events that follow have not been read yet.
    awaits_input: bool,
}

impl CommitOrder {
    /// Waits until sessions have been waiting without progress for [`CHECK_INTERVAL`] more than
    /// `last`, the previous stall, if that still lasts; `None` when the replay is over.
    fn wait_for_stall(&self, last: &mut Option<(Timestamp, Instant)>) -> Option<Stall> {
        let mut state = self.state.lock();
        loop {
            while !state.is_over && state.waiting.values().all(|waiting| waiting.is_released) {
                *last = None;
                self.changed.wait(&mut state);
            }
            if state.is_over {
                return None;
            }
            let clear = self.clear_until();
            let since = match last {
                Some((at, since)) if *at == clear => *since,
                _ => last.insert((clear, Instant::now())).1,
            };
            let deadline = Instant::now() + CHECK_INTERVAL;
            while !self.changed.wait_until(&mut state, deadline).timed_out() {}
            let waits = |waiting: &WaitingSession| !waiting.is_released && waiting.needs > clear;
            if clear == self.clear_until() && state.waiting.values().any(waits) {
                let next = state.pending.first_key_value();
                let session = next.map(|(_, session)| session);
                return Some(Stall {
                    time: since.elapsed(),
                    backend: session.and_then(|session| state.backends.get(session).copied()),
                    awaits_input: next.is_none_or(|(next, _)| next.time > clear),
                });
            }
        }
    }

    /// Ends the wait of sessions, given their backends if known. They are counted as inversions if
    /// transactions are missing that they need.
    fn release(&self, is_inversion: bool, chosen: impl Fn(Option<i32>) -> bool) {
        let mut state = self.state.lock();
        let OrderState { waiting, backends, pending, .. } = &mut *state;
        let mut count = 0;
        for (session, waiting) in waiting.iter_mut().filter(|(_, waiting)| !waiting.is_released) {
            if chosen(backends.get(session).copied()) {
                waiting.is_released = true;
                count += 1;
                let next = pending.first_key_value();
                tracing::debug!(session = %session, needs = %waiting.needs, ?next, "released");
            }
        }
        if count > 0 {
            state.inversions += if is_inversion { count } else { 0 };
            self.releases.fetch_add(1, Ordering::Release);
            state.wakers.iter().for_each(Waker::wake);
        }
    }
}

/// A connection that asks the server which sessions wait for locks of which.
struct LockObserver<'a> {
    target: &'a ConnectTarget,
    client: Option<Client>,
    /// Whether the server cannot be asked: connecting failed, or there is a pooler, whose process
    /// ids are not those of backends.
    is_blind: bool,
}

impl LockObserver<'_> {
    /// Returns the backends whose locks `backend` waits for, directly or through others; `None` if
    /// that cannot be found out.
    fn blockers(&mut self, backend: Option<i32>) -> Option<BTreeSet<i32>> {
        let first = backend.filter(|_| !self.is_blind)?;
        let mut found = BTreeSet::new();
        let mut asked = BTreeSet::from([first]);
        for _ in 0..CHAIN_MAX {
            let pairs = match self.blocking_pairs(&asked) {
                Ok(pairs) => pairs,
                Err(error) => {
                    tracing::warn!(
                        %error,
                        "cannot see which sessions wait for locks; statements that are held back \
                         are released after {} s without progress",
                        BLIND_TIMEOUT.as_secs()
                    );
                    self.is_blind = true;
                    return None;
                }
            };
            asked = pairs.into_iter().filter(|pid| *pid > 0 && found.insert(*pid)).collect();
            if asked.is_empty() {
                break;
            }
        }
        Some(found)
    }

    /// Returns the backends whose locks one of `backends` waits for.
    fn blocking_pairs(&mut self, backends: &BTreeSet<i32>) -> Result<Vec<i32>, String> {
        if self.client.is_none() {
            let mut client = Client::connect(self.target).map_err(|error| error.to_string())?;
            let own = client.one_value("select pg_catalog.pg_backend_pid()");
            let own = own.map_err(|error| error.to_string())?;
            if is_through_pooler(&client, own.as_deref()) {
                return Err("the connection goes through a pooler".to_owned());
            }
            self.client = Some(client);
        }
        let client = self.client.as_mut().expect("set above");
        let results = client.query(&blocking_sql(backends)).map_err(|error| error.to_string())?;
        let rows = results.first().map(|result| &result.rows[..]).unwrap_or_default();
        Ok(rows.iter().filter_map(|row| row.text(1)?.parse().ok()).collect())
    }
}
