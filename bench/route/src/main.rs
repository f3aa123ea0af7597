//! Decides where requests go, over and over, for `bench/route/run` to count instructions.
//!
//! `howdah-bench-route CASE ROUNDS` asks ROUNDS times for the route of one request, whose shape is known after the
//! first time. `howdah-bench-route` alone lists the cases.

use std::{io::Write as _, process::ExitCode, sync::Arc, time::Instant};

use howdah_route::{Parsed, PinScope, Role, RolePreference, Router, Session, Settings, Table};
use howdah_shard::{KeyType, ShardMap};
use howdah_wire::{
    Format, Frame, Tag,
    frontend::{Message, encode},
};

/// What a case asks, and under which settings.
struct Case {
    name: &'static str,
    role: RolePreference,
    sharded: bool,
    /// `{}` is another number in each round.
    sql: &'static str,
    /// By Parse and Bind, rather than as a Query.
    bound: bool,
}

const PGBENCH: &str = "SELECT abalance FROM pgbench_accounts WHERE aid = {};";
const BOUND: &str = "SELECT abalance FROM pgbench_accounts WHERE aid = $1;";

const CASES: &[Case] = &[
    Case {
        name: "role-said",
        role: RolePreference::Any,
        sharded: false,
        sql: PGBENCH,
        bound: false,
    },
    Case { name: "begin", role: RolePreference::Auto, sharded: false, sql: "BEGIN;", bound: false },
    Case {
        name: "split-query",
        role: RolePreference::Auto,
        sharded: false,
        sql: PGBENCH,
        bound: false,
    },
    Case {
        name: "split-bind",
        role: RolePreference::Auto,
        sharded: false,
        sql: BOUND,
        bound: true,
    },
    Case {
        name: "key-query",
        role: RolePreference::Auto,
        sharded: true,
        sql: PGBENCH,
        bound: false,
    },
    Case { name: "key-bind", role: RolePreference::Auto, sharded: true, sql: BOUND, bound: true },
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

/// Tells how many went to the primary, so that nothing of it is left out.
fn run(case: &Case, rounds: u32) -> u32 {
    let mut settings = Settings { role: case.role, ..Settings::default() };
    if case.sharded {
        let key = vec!["aid".to_owned()];
        let accounts = Table { schema: None, name: "pgbench_accounts".to_owned(), key };
        settings.shards = 4;
        settings.map = ShardMap::hash(4, vec![KeyType::Int]).ok();
        settings.tables = [accounts].into_iter().collect();
    }
    let mut router = Router::new(Arc::new(settings), 16 << 20);
    let mut session = Session::new(PinScope::Transaction, 1);
    session.parameter_status(b"client_encoding", b"UTF8");
    session.parameter_status(b"server_encoding", b"UTF8");
    let count = |role: Role| u32::from(role == Role::Primary);
    if !case.bound {
        let texts: Vec<_> =
            (0..1000).map(|key| case.sql.replace("{}", &(key * 7919).to_string())).collect();
        let texts = texts.iter().cycle().take(rounds as usize);
        let route = |sql: &String| match session.simple(&mut router, sql.as_bytes()) {
            Ok(howdah_route::Request::Route(route)) => count(route.role),
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
        let is_made = encode::bind(&mut bytes, b"", b"", &[Format::Binary], values, &[]).is_ok();
        is_made.then_some(bytes)
    };
    let binds: Vec<_> = (0..1000).filter_map(bind).collect();
    let mut sum = 0;
    for bytes in binds.iter().cycle().take(rounds as usize) {
        let frame = Frame { tag: Tag(bytes[0]), body: &bytes[5..] };
        if let Ok(Message::Bind(bind)) = Message::parse(frame) {
            sum += session.bind(&router, &statement, &bind).map_or(0, |route| count(route.role));
        }
    }
    sum
}
