//! [`Show`]: the tables of the console. Each is a list of columns with name, type, and sometimes a
//! getter. In tables that PgBouncer has too, names, order and types of the columns are the same,
//! for compatibility with its tools.

mod capture;
mod config;
mod listeners;
mod lists;
mod members;
mod mirrors;
mod peers;
mod pools;
mod statistics;

pub(crate) use self::config::value as setting_value;
use super::snapshot::PoolerSnapshot;

/// A table that SHOW can return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Show {
    ActiveSockets,
    Bans,
    Capture,
    Clients,
    Config,
    Databases,
    DnsHosts,
    DnsZones,
    Fds,
    Listeners,
    Lists,
    Mem,
    Members,
    Mirrors,
    Paused,
    PeerPools,
    Peers,
    Pinned,
    Pools,
    Servers,
    Sockets,
    State,
    Stats,
    StatsAverages,
    StatsTotals,
    Totals,
    Users,
    Version,
}

/// All tables with their names, in alphabetical order.
const NAMES: &[(&str, Show)] = &[
    ("ACTIVE_SOCKETS", Show::ActiveSockets),
    ("BANS", Show::Bans),
    ("CAPTURE", Show::Capture),
    ("CLIENTS", Show::Clients),
    ("CONFIG", Show::Config),
    ("DATABASES", Show::Databases),
    ("DNS_HOSTS", Show::DnsHosts),
    ("DNS_ZONES", Show::DnsZones),
    ("FDS", Show::Fds),
    ("LISTENERS", Show::Listeners),
    ("LISTS", Show::Lists),
    ("MEM", Show::Mem),
    ("MEMBERS", Show::Members),
    ("MIRRORS", Show::Mirrors),
    ("PAUSED", Show::Paused),
    ("PEER_POOLS", Show::PeerPools),
    ("PEERS", Show::Peers),
    ("PINNED", Show::Pinned),
    ("POOLS", Show::Pools),
    ("SERVERS", Show::Servers),
    ("SOCKETS", Show::Sockets),
    ("STATE", Show::State),
    ("STATS", Show::Stats),
    ("STATS_AVERAGES", Show::StatsAverages),
    ("STATS_TOTALS", Show::StatsTotals),
    ("TOTALS", Show::Totals),
    ("USERS", Show::Users),
    ("VERSION", Show::Version),
];

/// A column's name and type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShowColumn {
    pub(crate) name: &'static str,
    pub(crate) kind: ColumnType,
}

/// The SQL type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColumnType {
    Text,
    Int4,
    Int8,
    Numeric,
    Bytea,
}

/// A cell, before it is encoded in text or binary format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CellValue {
    Text(String),
    Int(i64),
    Null,
}

impl From<String> for CellValue {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for CellValue {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

macro_rules! from_number {
    ($($type:ty),*) => {$(
        impl From<$type> for CellValue {
            fn from(number: $type) -> Self {
                Self::Int(i64::try_from(number).unwrap_or(i64::MAX))
            }
        }
    )*};
}

from_number!(u16, u32, i32, u64, usize, u128);

impl From<bool> for CellValue {
    fn from(value: bool) -> Self {
        Self::Int(value.into())
    }
}

impl<T: Into<Self>> From<Option<T>> for CellValue {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

impl Show {
    /// Returns the table for the keywords after `SHOW`; `STATS TOTALS` is the same as
    /// `STATS_TOTALS`.
    pub(crate) fn from_keywords(keywords: &[&str]) -> Option<Self> {
        let name = keywords.join("_");
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, show)| *show)
    }

    /// Returns the names of all tables, in alphabetical order.
    pub(crate) fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|(name, _)| *name)
    }

    /// Whether the snapshot must include the lists of clients and server connections.
    pub(crate) fn needs_connections(self) -> bool {
        !matches!(
            self,
            Self::Bans
                | Self::Capture
                | Self::Config
                | Self::DnsHosts
                | Self::DnsZones
                | Self::Fds
                | Self::Listeners
                | Self::Mem
                | Self::Members
                | Self::Mirrors
                | Self::Paused
                | Self::PeerPools
                | Self::Peers
                | Self::State
                | Self::Stats
                | Self::StatsAverages
                | Self::StatsTotals
                | Self::Totals
                | Self::Version
        )
    }

    /// Returns the columns, in order.
    pub(crate) fn columns(self) -> Vec<ShowColumn> {
        let of = |names: &[(&'static str, ColumnType)]| -> Vec<ShowColumn> {
            names.iter().map(|(name, kind)| ShowColumn { name, kind: *kind }).collect()
        };
        match self {
            Self::ActiveSockets | Self::Sockets => [peers::columns(), of(peers::SOCKET)].concat(),
            Self::Bans => of(members::BANS),
            Self::Capture => of(capture::COLUMNS),
            Self::Clients | Self::Servers => peers::columns(),
            Self::Config => of(config::COLUMNS),
            Self::Databases => of(pools::DATABASES),
            Self::DnsHosts => of(lists::DNS_HOSTS),
            Self::DnsZones => of(lists::DNS_ZONES),
            Self::Fds => of(lists::FDS),
            Self::Listeners => of(listeners::COLUMNS),
            Self::Lists => of(lists::LISTS),
            Self::Mem => of(lists::MEM),
            Self::Members => of(members::MEMBERS),
            Self::Mirrors => of(mirrors::COLUMNS),
            Self::Paused => of(pools::PAUSED),
            Self::PeerPools => of(lists::PEER_POOLS),
            Self::Peers => of(lists::PEERS),
            Self::Pinned => of(peers::PINNED),
            Self::Pools => of(pools::POOLS),
            Self::State => of(lists::STATE),
            Self::Stats => statistics::columns(statistics::StatColumns::Both),
            Self::StatsAverages => statistics::columns(statistics::StatColumns::Averages),
            Self::StatsTotals => statistics::columns(statistics::StatColumns::Totals),
            Self::Totals => of(statistics::TOTALS),
            Self::Users => of(pools::USERS),
            Self::Version => of(lists::VERSION),
        }
    }

    /// Returns the rows, with one cell per column.
    pub(crate) fn rows(self, view: &PoolerSnapshot) -> Vec<Vec<CellValue>> {
        match self {
            Self::ActiveSockets => peers::sockets(view, true),
            Self::Sockets => peers::sockets(view, false),
            Self::Bans => members::bans(view),
            Self::Capture => capture::rows(view),
            Self::Clients => peers::clients(view),
            Self::Servers => peers::servers(view),
            Self::Config => config::rows(&view.config),
            Self::Databases => pools::databases(view),
            Self::Paused => pools::paused(view),
            // Always empty: the system resolves names, there are no memory pools to report, and
            // sockets are passed to another process by a takeover only.
            Self::DnsHosts | Self::DnsZones | Self::Fds | Self::Mem => Vec::new(),
            Self::PeerPools => lists::peer_pools(view),
            Self::Peers => lists::peers(view),
            Self::Listeners => listeners::rows(view),
            Self::Lists => lists::lists(view),
            Self::Members => members::members(view),
            Self::Mirrors => mirrors::rows(view),
            Self::Pinned => peers::pinned(view),
            Self::Pools => pools::pools(view),
            Self::State => lists::state(view),
            Self::Stats => statistics::rows(view, statistics::StatColumns::Both),
            Self::StatsAverages => statistics::rows(view, statistics::StatColumns::Averages),
            Self::StatsTotals => statistics::rows(view, statistics::StatColumns::Totals),
            Self::Totals => statistics::totals(view),
            Self::Users => pools::users(view),
            Self::Version => vec![vec![lists::version().into()]],
        }
    }
}

#[test]
fn columns_match_pgbouncer() {
    let names = |show: Show| -> String {
        let columns: Vec<_> = show.columns().iter().map(|column| column.name).collect();
        columns.join(" ")
    };
    const PEERS: &str = "type user database replication state addr port local_addr local_port \
        connect_time request_time wait wait_us close_needed ptr link remote_pid tls \
        application_name prepared_statements id";
    const SOCKET: &str = " recv_pos pkt_pos pkt_remain send_pos send_remain pkt_avail send_avail";
    for (show, columns) in [
        (Show::Clients, PEERS.to_owned()),
        (Show::Servers, PEERS.to_owned()),
        (Show::Sockets, format!("{PEERS}{SOCKET}")),
        (Show::ActiveSockets, format!("{PEERS}{SOCKET}")),
        (Show::Config, "key value default changeable".to_owned()),
        (
            Show::Stats,
            "database total_server_assignment_count total_xact_count total_query_count \
             total_received total_sent total_xact_time total_query_time total_wait_time \
             total_client_parse_count total_server_parse_count total_bind_count \
             total_client_login_count avg_server_assignment_count avg_xact_count avg_query_count \
             avg_recv avg_sent avg_xact_time avg_query_time avg_wait_time avg_client_parse_count \
             avg_server_parse_count avg_bind_count avg_client_login_count"
                .to_owned(),
        ),
        (
            Show::StatsTotals,
            "database server_assignment_count xact_count query_count bytes_received bytes_sent \
             xact_time query_time wait_time client_parse_count server_parse_count bind_count \
             client_login_count"
                .to_owned(),
        ),
        (
            Show::StatsAverages,
            "database server_assignment_count xact_count query_count bytes_received bytes_sent \
             xact_time query_time wait_time avg_client_parse_count avg_server_parse_count \
             avg_bind_count avg_client_login_count"
                .to_owned(),
        ),
        (
            Show::Pools,
            "database user cl_active cl_waiting cl_active_cancel_req cl_waiting_cancel_req \
             sv_active sv_active_cancel sv_being_canceled sv_idle sv_used sv_tested sv_login \
             maxwait maxwait_us pool_mode load_balance_hosts"
                .to_owned(),
        ),
        (
            Show::Databases,
            "name host port database force_user pool_size min_pool_size reserve_pool_size \
             server_lifetime pool_mode load_balance_hosts max_connections current_connections \
             max_client_connections current_client_connections paused disabled"
                .to_owned(),
        ),
        (
            Show::Users,
            "name pool_size reserve_pool_size pool_mode max_user_connections current_connections \
             max_user_client_connections current_client_connections"
                .to_owned(),
        ),
        (Show::Lists, "list items".to_owned()),
        (Show::Mem, "name size used free memtotal".to_owned()),
        (Show::DnsHosts, "hostname ttl addrs".to_owned()),
        (Show::DnsZones, "zonename serial count".to_owned()),
        (
            Show::Fds,
            "fd task user database addr port cancel link client_encoding std_strings datestyle \
             timezone password scram_client_key scram_server_key"
                .to_owned(),
        ),
        (Show::Peers, "peer_id host port pool_size".to_owned()),
        (
            Show::PeerPools,
            "peer_id cl_active_cancel_req cl_waiting_cancel_req sv_active_cancel sv_login"
                .to_owned(),
        ),
        (Show::State, "key value".to_owned()),
        (Show::Totals, "name value".to_owned()),
        (Show::Version, "version".to_owned()),
    ] {
        assert_eq!(names(show), columns);
    }
}
