//! Every table of the console while clients are at work: names and types of columns, and rows, by both
//! protocols. What varies from run to run is masked.

use std::{process::Stdio, thread};

use howdah_lab::{Cluster, or_say_why_not};

use crate::support::{Raw, Stage, pooler_of, said};

/// What `SHOW` has tables of.
pub(crate) const TABLES: [&str; 26] = [
    "active_sockets",
    "bans",
    "capture",
    "clients",
    "config",
    "databases",
    "dns_hosts",
    "dns_zones",
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

/// A table as it came: columns as `name:type`, and rows.
#[derive(Debug, PartialEq)]
struct Table {
    columns: Vec<(String, &'static str)>,
    rows: Vec<Vec<Option<String>>>,
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn number<const N: usize>(bytes: &[u8]) -> i64 {
    bytes[..N].iter().fold(0, |sum, byte| sum << 8 | i64::from(*byte))
}

/// Reads RowDescription: of each column the name, and by 18 bytes behind it what its type is.
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
            other => panic!("{name} is of type {other:?}"),
        };
        assert_eq!(number::<2>(&rest[16..]), 0, "text format was asked for");
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

fn table(messages: &[(u8, Vec<u8>)], tags: &str) -> Table {
    let mut got: String = messages.iter().map(|(tag, _)| char::from(*tag)).collect();
    while got.contains("DD") {
        got = got.replace("DD", "D");
    }
    assert_eq!(got.replace("TC", "TDC"), tags, "{messages:?}");
    let of = |wanted| messages.iter().filter(move |(tag, _)| *tag == wanted);
    Table {
        columns: columns(&of(b'T').next().unwrap().1),
        rows: of(b'D').map(|(_, body)| row(body)).collect(),
    }
}

fn simple(console: &mut Raw, name: &str) -> Table {
    console.query(&format!("show {name}"));
    table(&console.until(b'Z'), "TDCZ")
}

fn extended(console: &mut Raw, name: &str) -> Table {
    console.send(b'P', format!("\0show {name}\0\0\0").as_bytes());
    console.send(b'B', b"\0\0\0\0\0\0\0\0");
    console.send(b'D', b"P\0");
    console.send(b'E', b"\0\0\0\0\0");
    console.send(b'S', b"");
    table(&console.until(b'Z'), "12TDCZ")
}

/// Columns whose values are the same in each run, for the clients that do nothing by chance.
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

/// Of those, what is the same also for clients at work; a server that is being opened has no
/// application_name yet.
const NAMES: &[&str] = &["database", "name", "pool_mode", "type", "user"];

fn masked(name: &str, table: &Table) -> String {
    let at_work = |row: &[Option<String>]| row.iter().flatten().any(|value| value == "work");
    let mut lines: Vec<String> = Vec::new();
    for row in &table.rows {
        let at_work = at_work(row);
        if at_work && name == "active_sockets" {
            continue; // There may be one, or none, at any moment.
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
        // As many as there are at work, in the order of chance.
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
    let Some(server) = or_say_why_not("tables", server) else { return };
    let standby = Cluster::builder().name("standby").standby_of(&server).start().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let pooler = pooler_of(&format!(
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
    let stage = Stage { server, pooler };
    stage.direct("create database mirror");
    said(stage.run("pgbench", &["-i", "-q", "-s", "1", "work"]));
    let mut load = stage.command("pgbench");
    load.args(["-n", "-c", "4", "-M", "prepared", "-T", "600", "work"]);
    let mut load = load.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    for _ in 0..3 {
        said(stage.run("psql", &["-XAtq", "-d", "still", "-c", "select 1"]));
    }
    let enter_with = |database: &str, more: &str| {
        let mut raw = Raw::connect(stage.address());
        raw.start_in(database, more);
        raw.until(b'Z');
        raw
    };
    let enter = |database: &str| enter_with(database, "");
    let mut clients = [enter("still"), enter("still"), enter("still")];
    for client in &mut clients[..2] {
        client.query("begin");
        client.until(b'Z');
    }
    clients[2].query("select 'waits'");
    let mut console = enter("howdah");
    let mut kin = enter_with("kin", "target_session_attrs\0read-write\0");
    console.query(&format!("ban 127.0.0.1:{} 3600", standby.port()));
    console.until(b'Z');
    kin.query("listen news; notify news");
    kin.until(b'A');
    let are_asked = |table: &Table| {
        let lag = |row: &Vec<Option<String>>| row[13].is_some();
        table.rows.iter().all(|row| row[12].is_some()) && lag(&table.rows[1])
    };
    while !are_asked(&simple(&mut console, "members")) {
        thread::yield_now();
    }
    let is_there = |table: &Table| {
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
    while !is_there(&simple(&mut console, "pools")) {
        thread::yield_now();
    }
    let mut shown = String::new();
    for name in TABLES {
        let (first, second) = (simple(&mut console, name), extended(&mut console, name));
        assert_eq!(first.columns, second.columns, "{name}");
        let (first, second) = (masked(name, &first), masked(name, &second));
        assert_eq!(first, second, "both protocols say the same");
        shown.push_str(&first);
        shown.push('\n');
    }
    load.kill().unwrap();
    load.wait().unwrap();
    insta::assert_snapshot!(shown);
}
