//! Tests of sessions: statements of a client, and their routes.

use crate::shard::{KeyType, ShardMap};

use super::*;
use crate::{
    FanOut, HintNames, RoutedTable, RoutedTables,
    role::RouteRole::{Primary, Replica},
    settings::DefaultShard,
};

mod extended;
mod keys;
mod roles;
mod unkeyed;

/// A routing session and its router.
struct RoutedClient {
    router: Router,
    session: RouteSession,
}

impl RoutedClient {
    fn new(settings: RouteSettings) -> Self {
        settings.check().expect("the settings fit together");
        let mut session = RouteSession::new(PinScope::Transaction, 1);
        session.parameter_status(b"client_encoding", b"UTF8");
        session.parameter_status(b"server_encoding", b"UTF8");
        Self { router: Router::new(Arc::new(settings), 1 << 20), session }
    }

    /// Routes the statement twice: the cached plan must equal the computed one.
    fn route(&mut self, sql: &str) -> Result<Route, Refusal> {
        let one = self.request(sql);
        let other = self.request(sql);
        assert_eq!(one, other, "{sql}");
        match one? {
            RoutedRequest::Route(route) => Ok(route),
            RoutedRequest::Command(answer) => panic!("{sql} is a command: {answer:?}"),
        }
    }

    fn request(&mut self, sql: &str) -> Result<RoutedRequest, Refusal> {
        self.session.simple(&mut self.router, sql.as_bytes())
    }

    fn role(&mut self, sql: &str) -> RouteRole {
        self.route(sql).unwrap_or_else(|refusal| panic!("{sql}: {refusal}")).role
    }

    fn shards(&mut self, sql: &str) -> Result<ShardTarget, String> {
        self.route(sql).map(|route| route.shards).map_err(|refusal| refusal.to_string())
    }

    /// Returns the reply to a command, as text.
    fn reply(&mut self, sql: &str) -> Result<String, String> {
        match self.request(sql) {
            Ok(RoutedRequest::Command(CommandAnswer { row, tag })) => {
                Ok(row.map_or(tag.to_owned(), |(name, value)| format!("{name} = {value}: {tag}")))
            }
            Ok(RoutedRequest::Route(route)) => panic!("{sql} is no command: {route:?}"),
            Err(refusal) => {
                let sqlstate = String::from_utf8_lossy(&refusal.sqlstate()).into_owned();
                Err(format!("{sqlstate} {refusal}"))
            }
        }
    }
}

/// Returns settings with three shards by the hash of an integer. The keys 1234 and 2 are on shard
/// 0, 0 and 1 on shard 2.
fn sharded() -> RouteSettings {
    let table = |name: &str, key: &[&str]| RoutedTable {
        schema: None,
        name: name.to_owned(),
        key: key.iter().map(|column| (*column).to_owned()).collect(),
    };
    let tables = [table("orders", &["id"]), table("items", &["order_id"]), table("countries", &[])];
    RouteSettings {
        shards: 3,
        map: Some(ShardMap::hash(3, vec![KeyType::Int]).expect("a map")),
        tables: tables.into_iter().collect(),
        hints: Some(HintNames::default()),
        ..RouteSettings::default()
    }
}

fn auto() -> RouteSettings {
    RouteSettings { role: RolePreference::Auto, primary_reads: false, ..RouteSettings::default() }
}

#[test]
fn commands_are_answered_and_take_effect() {
    let mut client =
        RoutedClient::new(RouteSettings { tables: RoutedTables::default(), ..sharded() });
    let ok = |text: &str| Ok(text.to_owned());
    assert_eq!(client.reply("SHOW SHARD"), ok("shard = unset: SELECT 1"));
    assert_eq!(client.reply("SET SHARD TO '1'"), ok("SET SHARD"));
    assert_eq!(client.reply("SHOW SHARD"), ok("shard = 1: SELECT 1"));
    assert_eq!(client.shards("select 1"), Ok(ShardTarget::One(1)));
    let error = client.reply("SET SHARD TO '7'").expect_err("there are three shards");
    assert_eq!(
        error,
        "58000 shard 7 does not exist: shard numbers start at 0, and the number of shards is 3; \
         the session's shard is still 1"
    );
    assert_eq!(client.reply("SET SHARDING KEY TO '0'"), ok("SET SHARDING KEY"));
    assert_eq!(client.reply("SHOW SHARD"), ok("shard = 2: SELECT 1"));
    assert_eq!(
        client.reply("SET SHARDING KEY TO 'x'").expect_err("no number").get(..5),
        Some("22P02")
    );
    assert_eq!(
        client.reply("SET SHARDING KEY TO '1', '2'").expect_err("two").get(..5),
        Some("22023")
    );
    assert_eq!(client.reply("SHOW SHARD"), ok("shard = 2: SELECT 1"));
    assert_eq!(client.reply("SET SHARD TO ANY"), ok("SET SHARD"));
    let any = client.reply("SHOW SHARD").expect("the random shard is kept");
    assert!(["shard = 0: SELECT 1", "shard = 1: SELECT 1", "shard = 2: SELECT 1"].contains(&&*any));
    assert_eq!(client.reply("SHOW SERVER ROLE"), ok("server role = any: SELECT 1"));
    for (role, shown) in
        [("primary", "primary"), ("REPLICA", "replica"), ("auto", "auto"), ("default", "any")]
    {
        let set = format!("set server role to '{role}'");
        assert_eq!(client.reply(&set), ok("SET SERVER ROLE"));
        assert_eq!(
            client.reply("SHOW SERVER ROLE"),
            Ok(format!("server role = {shown}: SELECT 1"))
        );
    }
    assert_eq!(client.reply("SET PRIMARY READS TO OFF"), ok("SET PRIMARY READS"));
    assert_eq!(client.reply("show primary reads;"), ok("primary reads = off: SELECT 1"));
    assert_eq!(client.reply("SET PRIMARY READS TO 'default'"), ok("SET PRIMARY READS"));
    assert_eq!(client.reply("show primary reads"), ok("primary reads = on: SELECT 1"));
}

/// Protects existing installations: the shards of keys must never change.
#[test]
fn keys_map_to_historical_shards() {
    let map = ShardMap::hash(5, vec![KeyType::Int]).ok();
    let mut client = RoutedClient::new(RouteSettings {
        shards: 5,
        map,
        tables: RoutedTables::default(),
        ..sharded()
    });
    for (shard, keys) in [
        [1, 4, 5, 14, 19, 39, 40, 46, 47, 53],
        [2, 3, 11, 17, 21, 23, 30, 49, 51, 54],
        [6, 7, 15, 16, 18, 20, 25, 28, 34, 35],
        [8, 12, 13, 22, 29, 31, 33, 36, 41, 43],
        [9, 10, 24, 26, 27, 32, 37, 38, 42, 45],
    ]
    .into_iter()
    .enumerate()
    {
        for key in keys {
            let set = format!("SET SHARDING KEY TO '{key}'");
            assert_eq!(client.reply(&set).as_deref(), Ok("SET SHARDING KEY"));
            assert_eq!(client.reply("SHOW SHARD"), Ok(format!("shard = {shard}: SELECT 1")));
            let hint = format!("/* sharding_key: {key} */ select 1");
            assert_eq!(client.shards(&hint), Ok(ShardTarget::One(shard as u32)));
        }
    }
}

#[test]
fn transaction_stays_on_one_shard() {
    let mut client = RoutedClient::new(sharded());
    assert_eq!(client.shards("select * from orders where id = 1234"), Ok(ShardTarget::One(0)));
    client.session.link(0);
    assert_eq!(client.shards("select * from orders where id = 2"), Ok(ShardTarget::One(0)));
    assert_eq!(client.shards("select now()"), Ok(ShardTarget::One(0)));
    let refusal = client.route("delete from orders where id = 1").expect_err("it is on 2");
    assert_eq!(
        refusal.to_string(),
        "the statement is for shard 2, and the transaction is on shard 0"
    );
    assert_eq!(refusal.sqlstate(), *b"0A000");
    assert!(client.shards("select * from orders").expect_err("all").contains("in a transaction"));
    assert!(
        client.shards("delete from orders").expect_err("all").contains("does not give the key")
    );
    assert!(client.shards("/* shard_id: 1 */ select 1").is_err());
    assert_eq!(client.shards("/* shard_id: 0 */ select * from orders"), Ok(ShardTarget::One(0)));
    let error = client.reply("SET SHARD TO '1'").expect_err("too late");
    assert_eq!(error, "25001 SET SHARD is not possible inside a transaction");
    assert_eq!(client.reply("SHOW SHARD"), Ok("shard = 0: SELECT 1".to_owned()));
    client.session.release();
    assert_eq!(client.shards("delete from orders where id = 1"), Ok(ShardTarget::One(2)));
    assert_eq!(client.reply("SHOW SHARD"), Ok("shard = unset: SELECT 1".to_owned()));
}

#[test]
fn explicit_shard_overrides_statement_keys() {
    let mut client = RoutedClient::new(sharded());
    assert!(client.reply("SET SHARD TO '1'").is_ok());
    for linked in [false, true] {
        if linked {
            client.session.link(1);
        }
        for sql in [
            "select * from orders where id = 1234",
            "delete from orders",
            "selekt",
            "truncate orders",
        ] {
            assert_eq!(client.shards(sql), Ok(ShardTarget::One(1)), "{sql}");
        }
    }
}

#[test]
fn session_mode_shard_is_fixed_by_first_statement() {
    let mut client = RoutedClient::new(RouteSettings { role: RolePreference::Auto, ..sharded() });
    client.session.pin_scope = PinScope::Session;
    assert!(client.reply("SET SHARDING KEY TO '1234'").is_ok());
    let route = client.route("select 1").expect("to the shard of the key");
    // A session that has only read may write later.
    assert_eq!((route.shards, route.role), (ShardTarget::One(0), Primary));
    client.session.link(0);
    let error = client.reply("SET SHARDING KEY TO '1'").expect_err("too late");
    assert!(error.contains("in session mode the first statement fixes"), "{error}");
    assert_eq!(client.shards("delete from orders"), Ok(ShardTarget::One(0)));

    let mut client = RoutedClient::new(sharded());
    client.session.pin_scope = PinScope::Session;
    assert!(client.shards("select * from orders").expect_err("all").contains("in session mode"));
    assert_eq!(client.shards("select * from orders where id = 1"), Ok(ShardTarget::One(2)));
    client.session.link(2);
    assert!(client.shards("select * from orders where id = 2").is_err());
    assert!(client.reply("SET SERVER ROLE TO 'primary'").is_err());
}

#[test]
fn begin_is_deferred_until_shard_is_known() {
    let mut client = RoutedClient::new(RouteSettings {
        role: RolePreference::Auto,
        primary_reads: false,
        ..sharded()
    });
    let begin = client.route("BEGIN").expect("it goes anywhere");
    assert_eq!((&begin.shards, begin.role, begin.is_begin), (&ShardTarget::Any, Primary, true));
    client.session.defer_begin(&begin);
    let route = client.route("select * from orders where id = 1").expect("it has a key");
    assert_eq!((route.shards, route.role), (ShardTarget::One(2), Primary));
    assert!(client.shards("select * from orders").expect_err("all").contains("in a transaction"));
    assert!(client.reply("SET SHARD TO '0'").is_err());
    client.session.link(2);
    client.session.release();
    let begin = client.route("start transaction read only").expect("it goes anywhere");
    assert_eq!((begin.role, begin.is_begin), (Replica, true));
    client.session.defer_begin(&begin);
    assert_eq!(client.role("select * from orders where id = 1"), Replica);
}

#[test]
fn default_shard_applies_without_tables() {
    let unlisted = "no shard for this statement: the table \"orders\" is not listed in the pooler's sharding settings";
    for (default_shard, expected) in [
        (DefaultShard::One(1), Ok(ShardTarget::One(1))),
        (DefaultShard::Any, Ok(ShardTarget::Any)),
        (DefaultShard::Refuse, Err(unlisted.to_owned())),
    ] {
        for role in [RolePreference::Any, RolePreference::Auto] {
            let tables = RoutedTables::default();
            let mut client =
                RoutedClient::new(RouteSettings { default_shard, role, tables, ..sharded() });
            assert_eq!(client.shards("select * from orders where id = 1234"), expected);
            // Statements that drivers send after login must be routed with any settings.
            assert!(client.shards("set extra_float_digits = 3").is_ok());
            assert!(client.shards("select version()").is_ok());
        }
    }
}

#[test]
fn primary_may_serve_reads_unless_replica_is_required() {
    let settings = RouteSettings {
        role: RolePreference::Auto,
        primary_reads: false,
        ..RouteSettings::default()
    };
    let mut client = RoutedClient::new(settings.clone());
    let read = client.route("select 1").expect("it goes somewhere");
    assert_eq!((read.role, read.may_use_primary), (Replica, true));
    client.reply("SET SERVER ROLE TO 'replica'").expect("a command");
    let read = client.route("select 1").expect("it goes somewhere");
    assert_eq!((read.role, read.may_use_primary), (Replica, false));
    // Read-your-writes can be set by the session or by the settings.
    let shown =
        |client: &mut RoutedClient| client.reply("SHOW READ YOUR WRITES").expect("a command");
    assert_eq!(shown(&mut client), "read your writes = off: SELECT 1");
    let mut client = RoutedClient::new(RouteSettings { read_your_writes: true, ..settings });
    assert_eq!(shown(&mut client), "read your writes = on: SELECT 1");
    let set = client.reply("set read your writes to off").expect("a command");
    assert_eq!(set, "SET READ YOUR WRITES");
    assert_eq!(shown(&mut client), "read your writes = off: SELECT 1");
    assert_eq!(client.session.overrides().read_your_writes, Some(false));
}
