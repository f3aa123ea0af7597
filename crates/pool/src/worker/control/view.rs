//! [`View`]: the pooler as it is at one moment, put together from what workers tell and the directory knows.

use std::{collections::HashMap, sync::Arc, time::SystemTime};

use super::{
    Control, WorkerReport,
    names::{client_name, server_name},
};
use crate::{
    ClientReport, ClientView, Counts, DatabaseView, MemberView, Peer, Place, PoolView,
    ServerReport, ServerView, Tally, View, WorkerId,
    worker::{directory::PoolEntry, mirrors, watch::Watched},
};

impl Control {
    /// The pooler as it is now; with all its clients and servers if `with_peers`.
    pub fn view(&self, with_peers: bool) -> View {
        let reports = self.reports(with_peers);
        let at = SystemTime::now();
        let entries = self.front.directory.pools();
        let mut pools: Vec<_> = entries.iter().map(|entry| pool_view(entry)).collect();
        let at_number: HashMap<_, _> =
            entries.iter().enumerate().map(|(at, entry)| (entry.id, at)).collect();
        let history = self.front.history();
        for (pool, entry) in pools.iter_mut().zip(&entries) {
            pool.last_period = history.last(entry.id);
            let home = entry.spec.member.as_ref().map(|member| member.home);
            pool.is_mirror = entry.key.is_mirror();
            pool.home = home.and_then(|home| at_number.get(&home).copied());
        }
        drop(history);
        let (mut clients, mut servers) = (Vec::new(), Vec::new());
        for WorkerReport { worker, report, places } in reports {
            let processes: HashMap<_, _> =
                report.servers.iter().map(|server| (server.id, server.process_id)).collect();
            for pool in &report.pools {
                if let Some(view) = at_number.get(&pool.pool).and_then(|at| pools.get_mut(*at)) {
                    view.tally += &pool.tally;
                    view.counts += &pool.counts;
                    view.mode = pool.mode;
                }
            }
            let place = |peer| places.get(&peer).cloned().unwrap_or_default();
            clients.extend(report.clients.iter().filter_map(|client| {
                let pool = *at_number.get(&client.pool)?;
                let process_id = client.server.and_then(|server| processes.get(&server).copied());
                let place = place(Peer::Client(client.id));
                Some(client_view(worker, client, pool, process_id.unwrap_or(0), place, at))
            }));
            servers.extend(report.servers.iter().filter_map(|server| {
                let pool = *at_number.get(&server.pool)?;
                let place = place(Peer::Server(server.id));
                Some(server_view(worker, server, pool, place, at))
            }));
        }
        add_members(&mut pools);
        clients.iter_mut().for_each(|it| it.is_replication = is_replication(&entries, it.pool));
        servers.iter_mut().for_each(|it| it.is_replication = is_replication(&entries, it.pool));
        let databases = self.front.directory.gates().into_iter().map(|(name, gate)| DatabaseView {
            name,
            is_paused: gate.is_paused(),
            paused_users: gate.paused_users(),
            is_disabled: gate.is_disabled(),
        });
        let logins = self.front.startups.count();
        let config = self.front.directory.config();
        let (databases, is_suspended) = (databases.collect(), self.front.is_suspended());
        let (past, now) = (self.front.directory.past(), self.front.now());
        let members = members(&self.front.directory.watched(), &entries, &pools);
        let mirrors = mirrors::views(&self.front.directory, &entries, &pools);
        View {
            config,
            at,
            pools,
            past,
            clients,
            servers,
            databases,
            is_suspended,
            members,
            mirrors,
            listeners: self.front.hubs.reports(),
            now,
            logins,
            refused: self.front.refusals.counts(),
            capture: self.capture(),
        }
    }
}

fn pool_view(entry: &PoolEntry) -> PoolView {
    PoolView {
        database: entry.key.database.clone(),
        user: entry.key.user.clone(),
        mode: entry.spec.mode,
        is_retired: entry.is_retired,
        home: None,
        is_mirror: false,
        settings: entry.settings.clone(),
        tally: Tally::default(),
        counts: Counts::default(),
        last_period: None,
    }
}

/// Servers of clusters, with what all their pools have.
fn members(
    watched: &[Arc<Watched>],
    entries: &[Arc<PoolEntry>],
    pools: &[PoolView],
) -> Vec<MemberView> {
    let mut views = Vec::new();
    for watched in watched {
        for (server, member) in watched.cluster.servers.iter().zip(&watched.state.members) {
            let mut view = MemberView {
                database: watched.name.clone(),
                shard: watched.shown_shard(),
                endpoint: server.endpoint.clone(),
                weight: server.weight.get(),
                report: member.report(),
                counts: Counts::default(),
                transactions: 0,
                queries: 0,
                reads_kept: 0,
            };
            for (entry, pool) in entries.iter().zip(pools) {
                let place = entry.spec.member.as_ref();
                if place.is_some_and(|place| Arc::ptr_eq(&place.state, member)) {
                    view.counts += &pool.counts;
                    view.transactions += pool.tally.transactions;
                    view.queries += pool.tally.queries;
                    view.reads_kept += pool.tally.reads_kept;
                }
            }
            views.push(view);
        }
    }
    views
}

/// Adds what members counted to what their homes did, where the clients are.
fn add_members(pools: &mut [PoolView]) {
    for index in 0..pools.len() {
        let member = &pools[index];
        let Some(home) = member.home else { continue };
        let (tally, counts, last) =
            (member.tally.clone(), member.counts, member.last_period.clone());
        let Some(home) = pools.get_mut(home) else { continue };
        home.tally += &tally;
        home.counts += &counts;
        match (&mut home.last_period, last) {
            (Some((sum, _)), Some((tally, _))) => *sum += &tally,
            (none @ None, Some(last)) => *none = Some(last),
            (_, None) => {}
        }
    }
}

fn is_replication(entries: &[Arc<PoolEntry>], pool: usize) -> bool {
    entries.get(pool).is_some_and(|entry| entry.key.replication.is_some())
}

fn client_view(
    worker: WorkerId,
    client: &ClientReport,
    pool: usize,
    process_id: i32,
    place: Place,
    at: SystemTime,
) -> ClientView {
    ClientView {
        id: client_name(worker, client.id),
        pool,
        user: client.user.clone(),
        is_replication: false,
        phase: client.phase,
        connected: at - client.age,
        since: client.since,
        server: client.server.map(|server| server_name(worker, server)),
        process_id,
        statements: client.statements,
        application_name: String::from_utf8_lossy(&client.application_name).into_owned(),
        place,
    }
}

fn server_view(
    worker: WorkerId,
    server: &ServerReport,
    pool: usize,
    place: Place,
    at: SystemTime,
) -> ServerView {
    ServerView {
        id: server_name(worker, server.id),
        pool,
        is_replication: false,
        phase: server.phase,
        connected: at - server.age,
        since: server.since,
        client: server.client.map(|client| client_name(worker, client)),
        cancels: server.cancels,
        process_id: server.process_id,
        statements: server.statements,
        application_name: String::from_utf8_lossy(&server.application_name).into_owned(),
        is_outdated: server.is_outdated,
        place,
    }
}
