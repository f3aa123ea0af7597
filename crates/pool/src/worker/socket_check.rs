//! Checks that a server's unix socket and its TCP port lead to the same running server, before the
//! socket is used in place of the port.
//!
//! The check logs in both ways as the pool's user, and compares the system identifier, the time at
//! which the server was started, and its port. The identifier alone would not do: a standby has
//! that of its primary.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    cluster_monitor::ControlConnection,
    directory::{LocalSocket, PoolEntry, ServerRoute},
    shared_state::SharedState,
};

const IDENTITY_QUERY: &str = "SELECT system_identifier, \
    pg_catalog.date_part('epoch', pg_catalog.pg_postmaster_start_time())::pg_catalog.numeric, \
    pg_catalog.current_setting('port') FROM pg_catalog.pg_control_system()";

/// Maximum time for both logins and queries.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);

/// Checks a pool's socket, unless another login has just done so, and logs a result that has
/// changed. Blocks until the result is known.
pub(super) fn check(local: &LocalSocket, entry: &Arc<PoolEntry>, shared: &SharedState) {
    if local.is_usable().is_some() {
        return;
    }
    let refusal = compare(local, entry, shared).err();
    let (database, user) = (&entry.key.database, &entry.key.user);
    let (socket, server) = (local.socket.to_string(), local.tcp.to_string());
    if local.set_result(refusal.clone()) {
        match refusal {
            None => tracing::info!(
                database,
                user,
                server,
                socket,
                "server connections use the unix socket"
            ),
            Some(why) => local.report_refusal(&entry.key, &why),
        }
    }
}

fn compare(
    local: &LocalSocket,
    entry: &Arc<PoolEntry>,
    shared: &SharedState,
) -> Result<(), String> {
    let deadline = Instant::now() + CHECK_TIMEOUT;
    let identity = |name: &str, routes: Vec<ServerRoute>| {
        let found = ControlConnection::open_over(entry, routes, shared, deadline).and_then(
            |mut connection| {
                let reply = connection.query_row(IDENTITY_QUERY)?;
                connection.close();
                Ok(reply)
            },
        );
        match found {
            Ok(Ok(row)) if row.len() == 3 => Ok(row),
            Ok(Ok(_)) => Err(format!("{name}: unexpected reply to the query for its identity")),
            Ok(Err(sqlstate)) => {
                Err(format!("{name}: the server refused the query for its identity: {sqlstate}"))
            }
            Err(error) => Err(format!("{name}: {error}")),
        }
    };
    let tcp = identity("TCP", entry.routes_to(&local.tcp))?;
    let socket = identity("unix socket", entry.routes_to(&local.socket))?;
    let names = ["system identifier", "start time", "port"];
    match names.into_iter().zip(tcp.iter().zip(&socket)).find(|(_, (tcp, socket))| tcp != socket) {
        None => Ok(()),
        Some((name, _)) => Err(format!("it leads to another server: the {name} differs")),
    }
}
