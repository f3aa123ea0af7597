//! Routes the same requests repeatedly, for `bench/route/run` to count instructions.
//!
//! `howdah-bench-route CASE ROUNDS` routes one request ROUNDS times; its shape is cached after the
//! first time. `howdah-bench-route` without arguments lists the cases.

use std::{io::Write as _, process::ExitCode, sync::Arc, time::Instant};

use howdah_route::shard::{KeyType, ShardMap};
use howdah_route::{
    Parsed, PinScope, RolePreference, RouteRole, RouteSession, RouteSettings, RoutedTable, Router,
};
use howdah_wire::{
    Frame, Tag, ValueFormat,
    frontend::{FrontendMessage, encode},
};

/// A request and the settings under which it is routed.
struct RouteCase {
    name: &'static str,
    role: RolePreference,
    sharded: bool,
    /// `{}` is replaced by a different number in each round.
    sql: &'static str,
    /// Whether to send Parse and Bind instead of a Query.
    bound: bool,
}

const PGBENCH: &str = "SELECT abalance FROM pgbench_accounts WHERE aid = {};";
const BOUND: &str = "SELECT abalance FROM pgbench_accounts WHERE aid = $1;";

const CASES: &[RouteCase] = &[
    RouteCase {
        name: "role-said",
        role: RolePreference::Any,
        sharded: false,
        sql: PGBENCH,
        bound: false,
    },
    RouteCase {
        name: "begin",
        role: RolePreference::Auto,
        sharded: false,
        sql: "BEGIN;",
        bound: false,
    },
    RouteCase {
        name: "split-query",
        role: RolePreference::Auto,
        sharded: false,
        sql: PGBENCH,
        bound: false,
    },
    RouteCase {
        name: "split-bind",
        role: RolePreference::Auto,
        sharded: false,
        sql: BOUND,
        bound: true,
    },
    RouteCase {
        name: "key-query",
        role: RolePreference::Auto,
        sharded: true,
        sql: PGBENCH,
        bound: false,
    },
    RouteCase {
        name: "key-bind",
        role: RolePreference::Auto,
        sharded: true,
        sql: BOUND,
        bound: true,
    },
];

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let case = words.next().and_then(|name| CASES.iter().find(|case| case.name == name));
    let rounds = words.next().and_then(|rounds| rounds.parse::<u32>().ok());
    let mut out = std::io::stdout();
    let (Some(case), Some(rounds)) = (case, rounds) else {
        let names: Vec<_> = CASES.iter().map(|case| case.name).collect();
        return match writeln!(out, "{}", names.join("\n")) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    };
    let start = Instant::now();
    let elsewhere = run(case, rounds);
    let nanoseconds = start.elapsed().as_nanos() / u128::from(rounds.max(1));
    match writeln!(out, "{nanoseconds} ns each, {elsewhere} to the primary") {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Returns how many requests went to the primary, so that the compiler cannot optimize the work
/// away.
fn run(case: &RouteCase, rounds: u32) -> u32 {
    let mut settings = RouteSettings { role: case.role, ..RouteSettings::default() };
    if case.sharded {
        let key = vec!["aid".to_owned()];
        let accounts = RoutedTable { schema: None, name: "pgbench_accounts".to_owned(), key };
        settings.shards = 4;
        settings.map = ShardMap::hash(4, vec![KeyType::Int]).ok();
        settings.tables = [accounts].into_iter().collect();
    }
    let mut router = Router::new(Arc::new(settings), 16 << 20);
    let mut session = RouteSession::new(PinScope::Transaction, 1);
    session.parameter_status(b"client_encoding", b"UTF8");
    session.parameter_status(b"server_encoding", b"UTF8");
    let count = |role: RouteRole| u32::from(role == RouteRole::Primary);
    if !case.bound {
        let texts: Vec<_> =
            (0..1000).map(|key| case.sql.replace("{}", &(key * 7919).to_string())).collect();
        let texts = texts.iter().cycle().take(rounds as usize);
        let route = |sql: &String| match session.simple(&mut router, sql.as_bytes()) {
            Ok(howdah_route::RoutedRequest::Route(route)) => count(route.role),
            _ => 0,
        };
        return texts.map(route).sum();
    }
    let Ok(Parsed::Statement(statement)) = session.parse(&mut router, case.sql.as_bytes(), [20])
    else {
        return 0;
    };
    let bind = |key: i64| {
        let mut bytes = Vec::new();
        let values = [Some(&key.to_be_bytes()[..])];
        let is_made =
            encode::bind(&mut bytes, b"", b"", &[ValueFormat::Binary], values, &[]).is_ok();
        is_made.then_some(bytes)
    };
    let binds: Vec<_> = (0..1000).filter_map(bind).collect();
    let mut sum = 0;
    for bytes in binds.iter().cycle().take(rounds as usize) {
        let frame = Frame { tag: Tag(bytes[0]), body: &bytes[5..] };
        if let Ok(FrontendMessage::Bind(bind)) = FrontendMessage::parse(frame) {
            sum += session.bind(&router, &statement, &bind).map_or(0, |route| count(route.role));
        }
    }
    sum
}
