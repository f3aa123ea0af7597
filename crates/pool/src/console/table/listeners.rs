//! SHOW LISTENERS: the dedicated connections that listen for clients.

use super::{
    super::view::View,
    Kind::{self, Int4, Int8, Text},
    Value,
};
use crate::{HubReport, Tally};

pub(super) const COLUMNS: &[(&str, Kind)] = &[
    ("database", Text),
    ("user", Text),
    ("server", Text),
    ("state", Text),
    ("remote_pid", Int4),
    ("clients", Int8),
    ("channels", Int8),
    ("received", Int8),
    ("delivered", Int8),
    ("dropped", Int8),
    ("connections_lost", Int8),
    ("error", Text),
];

pub(super) fn rows(view: &View) -> Vec<Vec<Value>> {
    let row = |hub: &HubReport| {
        let pools = view.pools.iter().filter(|pool| pool.database == hub.database);
        let mut tally = Tally::default();
        pools.for_each(|pool| tally += &pool.tally);
        let state = match (hub.process_id, hub.clients) {
            (Some(_), _) => "listening",
            (None, 0) => "idle",
            (None, _) => "connecting",
        };
        vec![
            hub.database.as_str().into(),
            hub.user.as_str().into(),
            hub.server.as_str().into(),
            state.into(),
            hub.process_id.into(),
            hub.clients.into(),
            hub.channels.into(),
            hub.received.into(),
            tally.notifications.into(),
            tally.notifications_dropped.into(),
            hub.lost.into(),
            hub.error.clone().into(),
        ]
    };
    view.listeners.iter().map(row).collect()
}
