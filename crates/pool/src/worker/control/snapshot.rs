//! [`PoolerSnapshot`]: a snapshot of the pooler, combined from worker reports and the directory.

use std::{collections::HashMap, sync::Arc, time::SystemTime};

use howdah_pool_core::{ClientReport, PeerId, PoolCounts, PoolStats, ServerReport, WorkerId};

use super::{
    PoolerHandle, WorkerReport,
    ids::{client_pointer, server_pointer},
};
use crate::{
    ClientView, DatabaseView, MemberView, PoolView, PoolerSnapshot, ServerView, SocketAddresses,
    worker::{
        cluster_monitor::ClusterMonitor,
        console_clients::{ConnectionNumbers, NumberedKind},
        directory::PoolEntry,
        mirrors,
    },
};

impl PoolerHandle {
    /// Returns a snapshot of the pooler; includes all clients and servers if `with_peers`.
    pub fn snapshot(&self, with_peers: bool) -> PoolerSnapshot {
        let reports = self.reports(with_peers);
        let at = SystemTime::now();
        let entries = self.shared.directory.pools();
        let mut pools: Vec<_> = entries.iter().map(|entry| pool_view(entry)).collect();
        let at_number: HashMap<_, _> =
            entries.iter().enumerate().map(|(at, entry)| (entry.id, at)).collect();
        let history = self.shared.history();
        for (pool, entry) in pools.iter_mut().zip(&entries) {
            pool.last_period = history.last_period(entry.id);
            let home = entry.spec.member.as_ref().map(|member| member.owner);
            pool.is_mirror = entry.key.is_mirror();
            pool.owner = home.and_then(|home| at_number.get(&home).copied());
        }
        drop(history);
        let (mut clients, mut servers) = (Vec::new(), Vec::new());
        for WorkerReport { worker, report, addresses } in reports {
            let processes: HashMap<_, _> =
                report.servers.iter().map(|server| (server.id, server.process_id)).collect();
            for pool in &report.pools {
                if let Some(view) = at_number.get(&pool.pool).and_then(|at| pools.get_mut(*at)) {
                    view.tally += &pool.stats;
                    view.counts += &pool.counts;
                    view.mode = pool.mode;
                }
            }
            let place = |peer| addresses.get(&peer).cloned().unwrap_or_default();
            clients.extend(report.clients.iter().filter_map(|client| {
                let pool = *at_number.get(&client.pool)?;
                let process_id = client.server.and_then(|server| processes.get(&server).copied());
                let place = place(PeerId::Client(client.id));
                Some(client_view(worker, client, pool, process_id.unwrap_or(0), place, at))
            }));
            servers.extend(report.servers.iter().filter_map(|server| {
                let pool = *at_number.get(&server.pool)?;
                let place = place(PeerId::Server(server.id));
                Some(server_view(worker, server, pool, place, at))
            }));
        }
        if with_peers {
            number(&mut clients, &mut servers, &self.shared.console.numbers);
        }
        add_member_totals(&mut pools);
        clients.iter_mut().for_each(|it| it.is_replication = is_replication(&entries, it.pool));
        servers.iter_mut().for_each(|it| it.is_replication = is_replication(&entries, it.pool));
        let databases =
            self.shared.directory.admin_states().into_iter().map(|(name, state)| DatabaseView {
                name,
                is_paused: state.is_paused(),
                paused_users: state.paused_users(),
                is_disabled: state.is_disabled(),
            });
        let logins = self.shared.startups.count();
        let config = self.shared.directory.config();
        let (databases, is_suspended) = (databases.collect(), self.shared.is_suspended());
        let (past, now) = (self.shared.directory.past_totals(), self.shared.now());
        let members = members(&self.shared.directory.monitors(), &entries, &pools);
        let mirrors = mirrors::views(&self.shared.directory, &entries, &pools);
        PoolerSnapshot {
            config,
            at,
            pools,
            removed: past,
            clients,
            servers,
            admins: self.shared.console.views(),
            admin_commands: self.shared.console.commands(),
            databases,
            is_suspended,
            members,
            mirrors,
            listeners: self.shared.multiplexers.reports(),
            now,
            logins,
            refused: self.shared.refusals.counts(),
            cancel_peers: self.shared.cancel_peers.report(),
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
        owner: None,
        is_mirror: false,
        settings: entry.settings.clone(),
        tally: PoolStats::default(),
        counts: PoolCounts::default(),
        last_period: None,
    }
}

/// Returns the servers of all clusters, with the totals over their pools.
fn members(
    monitors: &[Arc<ClusterMonitor>],
    entries: &[Arc<PoolEntry>],
    pools: &[PoolView],
) -> Vec<MemberView> {
    let mut views = Vec::new();
    for monitors in monitors {
        for (server, member) in monitors.cluster.servers.iter().zip(&monitors.state.members) {
            let mut view = MemberView {
                database: monitors.name.clone(),
                shard: monitors.shard_label(),
                endpoint: server.endpoint.clone(),
                weight: server.weight.get(),
                report: member.report(),
                counts: PoolCounts::default(),
                transactions: 0,
                queries: 0,
                reads_redirected: 0,
            };
            for (entry, pool) in entries.iter().zip(pools) {
                let place = entry.spec.member.as_ref();
                if place.is_some_and(|place| Arc::ptr_eq(&place.state, member)) {
                    view.counts += &pool.counts;
                    view.transactions += pool.tally.transactions;
                    view.queries += pool.tally.queries;
                    view.reads_redirected += pool.tally.reads_redirected;
                }
            }
            views.push(view);
        }
    }
    views
}

/// Adds the totals of member pools to their owner pools, which have the clients.
fn add_member_totals(pools: &mut [PoolView]) {
    for index in 0..pools.len() {
        let member = &pools[index];
        let Some(home) = member.owner else { continue };
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

/// Sets the ids of all connections, and orders them by id.
fn number(clients: &mut [ClientView], servers: &mut [ServerView], numbers: &ConnectionNumbers) {
    let all_clients = clients.iter().map(|client| (NumberedKind::Client, client.pointer));
    let all_servers = servers.iter().map(|server| (NumberedKind::Server, server.pointer));
    let assigned = numbers.assign(all_clients.chain(all_servers));
    for client in &mut *clients {
        client.id = assigned[&(NumberedKind::Client, client.pointer)];
    }
    for server in &mut *servers {
        server.id = assigned[&(NumberedKind::Server, server.pointer)];
    }
    clients.sort_by_key(|client| client.id);
    servers.sort_by_key(|server| server.id);
}

fn is_replication(entries: &[Arc<PoolEntry>], pool: usize) -> bool {
    entries.get(pool).is_some_and(|entry| entry.key.replication.is_some())
}

fn client_view(
    worker: WorkerId,
    client: &ClientReport,
    pool: usize,
    process_id: i32,
    place: SocketAddresses,
    at: SystemTime,
) -> ClientView {
    ClientView {
        id: 0,
        pointer: client_pointer(worker, client.id),
        pool,
        user: client.user.clone(),
        is_replication: false,
        phase: client.phase,
        connected: at - client.age,
        since: client.since,
        server: client.server.map(|server| server_pointer(worker, server)),
        process_id,
        statements: client.statements,
        application_name: String::from_utf8_lossy(&client.application_name).into_owned(),
        addresses: place,
    }
}

fn server_view(
    worker: WorkerId,
    server: &ServerReport,
    pool: usize,
    place: SocketAddresses,
    at: SystemTime,
) -> ServerView {
    ServerView {
        id: 0,
        pointer: server_pointer(worker, server.id),
        pool,
        is_replication: false,
        phase: server.phase,
        connected: at - server.age,
        since: server.since,
        client: server.client.map(|client| client_pointer(worker, client)),
        cancels: server.cancels,
        process_id: server.process_id,
        statements: server.statements,
        application_name: String::from_utf8_lossy(&server.application_name).into_owned(),
        is_outdated: server.is_outdated,
        pin: server.pin.clone(),
        addresses: place,
    }
}
