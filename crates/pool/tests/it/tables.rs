//! Every table of the console under load: names and types of columns, and rows, by both protocols.
//! Values that vary between runs are masked.

use std::process::Stdio;

use howdah_lab::{Cluster, skip_without_postgres, wait_until};

use crate::support::{PoolFixture, RawClient, WAIT_TIMEOUT, checked_stdout, start_pooler_with};

/// The tables of `SHOW`.
pub(crate) const TABLES: [&str; 27] = [
    "active_sockets",
    "bans",
    "capture",
    "clients",
    "config",
    "databases",
    "dns_hosts",
    "dns_zones",
    "fds",
    "listeners",
    "lists",
    "mem",
    "members",
    "mirrors",
    "paused",
    "peer_pools",
    "peers",
    "pools",
    "servers",
    "sockets",
    "state",
    "stats",
    "stats_averages",
    "stats_totals",
    "totals",
    "users",
    "version",
];

/// A received table: columns as name and type, and rows.
#[derive(Debug, PartialEq)]
struct ShownTable {
    columns: Vec<(String, &'static str)>,
    rows: Vec<Vec<Option<String>>>,
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn number<const N: usize>(bytes: &[u8]) -> i64 {
    bytes[..N].iter().fold(0, |sum, byte| sum << 8 | i64::from(*byte))
}

/// Reads a RowDescription: the name of each column, and its type from the 18 bytes after the name.
fn columns(mut body: &[u8]) -> Vec<(String, &'static str)> {
    let count = number::<2>(body);
    body = &body[2..];
    let mut columns = Vec::new();
    for _ in 0..count {
        let end = body.iter().position(|byte| *byte == 0).unwrap();
        let (name, rest) = (text(&body[..end]), &body[end + 1..]);
        let kind = match (number::<4>(&rest[6..]), number::<2>(&rest[10..])) {
            (25, 0xffff) => "text",
            (23, 4) => "int4",
            (20, 8) => "int8",
            (1700, 0xffff) => "numeric",
            (17, 0xffff) => "bytea",
            other => panic!("{name} is of type {other:?}"),
        };
        assert_eq!(number::<2>(&rest[16..]), 0, "text format was requested");
        columns.push((name, kind));
        body = &rest[18..];
    }
    columns
}

fn row(mut body: &[u8]) -> Vec<Option<String>> {
    let count = number::<2>(body);
    body = &body[2..];
    let mut row = Vec::new();
    for _ in 0..count {
        let length = number::<4>(body);
        body = &body[4..];
        let is_null = length == 0xffff_ffff;
        let length = if is_null { 0 } else { usize::try_from(length).unwrap() };
        row.push((!is_null).then(|| text(&body[..length])));
        body = &body[length..];
    }
    row
}

fn read_table(messages: &[(u8, Vec<u8>)], tags: &str) -> ShownTable {
    let mut received: String = messages.iter().map(|(tag, _)| char::from(*tag)).collect();
    while received.contains("DD") {
        received = received.replace("DD", "D");
    }
    assert_eq!(received.replace("TC", "TDC"), tags, "{messages:?}");
    let with_tag = |wanted| messages.iter().filter(move |(tag, _)| *tag == wanted);
    ShownTable {
        columns: columns(&with_tag(b'T').next().unwrap().1),
        rows: with_tag(b'D').map(|(_, body)| row(body)).collect(),
    }
}

fn show_simple(console: &mut RawClient, name: &str) -> ShownTable {
    console.send_query(&format!("show {name}"));
    read_table(&console.read_until(b'Z'), "TDCZ")
}

fn show_extended(console: &mut RawClient, name: &str) -> ShownTable {
    console.send(b'P', format!("\0show {name}\0\0\0").as_bytes());
    console.send(b'B', b"\0\0\0\0\0\0\0\0");
    console.send(b'D', b"P\0");
    console.send(b'E', b"\0\0\0\0\0");
    console.send(b'S', b"");
    read_table(&console.read_until(b'Z'), "12TDCZ")
}

/// Columns with the same values in every run, for clients outside the load.
const EXACT: &[&str] = &[
    "application_name",
    "bind_count",
    "changeable",
    "cl_active",
    "cl_active_cancel_req",
    "cl_waiting",
    "cl_waiting_cancel_req",
    "channels",
    "client_login_count",
    "clients",
    "client_parse_count",
    "close_needed",
    "database",
    "dbname",
    "default",
    "delivered",
    "disabled",
    "force_user",
    "host",
    "items",
    "key",
    "list",
    "load_balance_hosts",
    "max_client_connections",
    "max_connections",
    "max_user_client_connections",
    "max_user_connections",
    "min_pool_size",
    "name",
    "paused",
    "pool_mode",
    "pool_size",
    "prepared_statements",
    "reads_redirected",
    "reason",
    "received",
    "query_count",
    "replication",
    "reserve_pool_size",
    "role",
    "sample_rate",
    "server_lifetime",
    "state",
    "sv_active",
    "sv_active_cancel",
    "sv_being_canceled",
    "sv_idle",
    "sv_login",
    "sv_tested",
    "sv_used",
    "tls",
    "total_bind_count",
    "total_client_login_count",
    "total_client_parse_count",
    "total_query_count",
    "total_server_assignment_count",
    "total_xact_count",
    "type",
    "user",
    "value",
    "weight",
    "xact_count",
];

/// The columns that also have the same values for clients of the load; a server connection that is
/// being opened has no application_name yet.
const NAMES: &[&str] = &["database", "name", "pool_mode", "type", "user"];

fn masked(name: &str, table: &ShownTable) -> String {
    // The counts of the console itself grow with each table.
    let varying = if name.starts_with("stats") { "pgbouncer" } else { "work" };
    let at_work = |row: &[Option<String>]| {
        row.iter().flatten().any(|value| value == "work" || value == varying)
    };
    let mut lines: Vec<String> = Vec::new();
    for row in &table.rows {
        let at_work = at_work(row);
        if at_work && name == "active_sockets" {
            continue; // Their number varies.
        }
        let varies = |column: &str| match name {
            "totals" => column == "value",
            "stats_averages" => column != "database",
            "lists" => {
                ["free_clients", "used_servers", "login_clients"]
                    .map(Some)
                    .contains(&row[0].as_deref())
                    && column == "items"
            }
            _ => false,
        };
        let cell = |(value, (column, _)): (&Option<String>, &(String, &str))| {
            let is_exact = if at_work { NAMES } else { EXACT }.contains(&&**column);
            match value {
                _ if at_work && !is_exact => "~".to_owned(),
                None => "null".to_owned(),
                Some(value) if value.is_empty() => String::new(),
                Some(value) if is_exact && !varies(column) => value.clone(),
                Some(value) if value.bytes().all(|byte| byte.is_ascii_digit()) => "#".to_owned(),
                Some(_) => "*".to_owned(),
            }
        };
        let line = row.iter().zip(&table.columns).map(cell).collect::<Vec<_>>().join("|");
        // Rows of the load have a varying number and order.
        if !at_work || !lines.contains(&line) {
            lines.push(line);
        }
    }
    if ["active_sockets", "clients", "servers", "sockets"].contains(&name) {
        lines.sort();
    }
    let columns: Vec<_> =
        table.columns.iter().map(|(name, kind)| format!("{name}:{kind}")).collect();
    format!("SHOW {}\n{}\n{}\n", name.to_uppercase(), columns.join(" "), lines.join("\n"))
}

#[test]
fn every_table_under_load() {
    let server = Cluster::builder()
        .setting("max_connections", "80")
        .setting("wal_level", "replica")
        .setting("hot_standby", "on")
        .start();
    let Some(server) = skip_without_postgres("tables", server) else { return };
    let standby = Cluster::builder().name("standby").standby_of(&server).start().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let pooler = start_pooler_with(&format!(
        "[pool]\nmode = 'transaction'\nworkers = 2\nadmin-users = ['postgres']\n\
         sizes = {{ pool = 4 }}\n[pool.listen]\nport = 0\nunix-directories = []\n\
         [pool.auth]\ntype = 'trust'\n[pool.users.postgres]\nsecret = ''\n\
         [pool.databases.still]\nhosts = ['127.0.0.1:{port}']\ndbname = 'postgres'\n\
         pool-size = 2\n\
         [pool.databases.work]\nhosts = ['127.0.0.1:{port}']\ndbname = 'postgres'\n\
         [[pool.databases.work.mirrors]]\nhost = '127.0.0.1:{port}'\ndbname = 'mirror'\n\
         [pool.databases.kin]\ndbname = 'postgres'\n\
         servers = [{{ host = '127.0.0.1', port = {port}, role = 'primary' }},\n\
         {{ host = '127.0.0.1', port = {standby}, role = 'replica', weight = 2 }}]\n\
         [pool.capture]\npath = '{capture}'\nstart = true\n",
        port = server.port(),
        standby = standby.port(),
        capture = folder.path().join("capture").display()
    ));
    let fixture = PoolFixture { server, pooler };
    fixture.query_server("create database mirror");
    checked_stdout(fixture.run_program("pgbench", &["-i", "-q", "-s", "1", "work"]));
    let mut load = fixture.command("pgbench");
    load.args(["-n", "-c", "4", "-M", "prepared", "-T", "600", "work"]);
    let mut load = load.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    for _ in 0..3 {
        checked_stdout(fixture.run_program("psql", &["-XAtq", "-d", "still", "-c", "select 1"]));
    }
    let log_in_with = |database: &str, more: &str| {
        let mut raw = RawClient::connect(fixture.address());
        raw.send_startup_for_database(database, more);
        raw.read_until(b'Z');
        raw
    };
    let log_in = |database: &str| log_in_with(database, "");
    let mut clients = [log_in("still"), log_in("still"), log_in("still")];
    for client in &mut clients[..2] {
        client.send_query("begin");
        client.read_until(b'Z');
    }
    clients[2].send_query("select 'waits'");
    let mut console = log_in("howdah");
    let mut kin = log_in_with("kin", "target_session_attrs\0read-write\0");
    console.send_query(&format!("ban 127.0.0.1:{} 3600", standby.port()));
    console.read_until(b'Z');
    kin.send_query("listen news; notify news");
    kin.read_until(b'A');
    let are_checked = |table: &ShownTable| {
        let lag = |row: &Vec<Option<String>>| row[13].is_some();
        table.rows.iter().all(|row| row[12].is_some()) && lag(&table.rows[1])
    };
    wait_until("health checks of the members", WAIT_TIMEOUT, || {
        are_checked(&show_simple(&mut console, "members"))
    });
    let is_complete = |table: &ShownTable| {
        let row = |name: &str| {
            let row = table.rows.iter().find(|row| row[0].as_deref() == Some(name))?;
            let number = |at: usize| row[at].as_deref()?.parse::<u32>().ok();
            Some((number(2)?, number(3)?, number(6)?))
        };
        let is_idle = |row: &Vec<Option<String>>| row[9].as_deref() == Some("1");
        let of_kin = |row: &&Vec<Option<String>>| row[0].as_deref() == Some("kin");
        row("still") == Some((2, 1, 2))
            && table.rows.iter().find(of_kin).is_some_and(is_idle)
            && row("work").is_some_and(|(active, waiting, _)| active + waiting == 4)
    };
    wait_until("the expected connections", WAIT_TIMEOUT, || {
        is_complete(&show_simple(&mut console, "pools"))
    });
    let mut shown = String::new();
    for name in TABLES {
        let (first, second) = (show_simple(&mut console, name), show_extended(&mut console, name));
        assert_eq!(first.columns, second.columns, "{name}");
        let (first, second) = (masked(name, &first), masked(name, &second));
        assert_eq!(first, second, "both protocols return the same");
        shown.push_str(&first);
        shown.push('\n');
    }
    load.kill().unwrap();
    load.wait().unwrap();
    insta::assert_snapshot!(shown);
}
