//! Dialogues: what a client says, and where that goes.

use howdah_shard::{KeyType, ShardMap};

use super::*;
use crate::{
    FanOut, HintNames, Table, Tables,
    role::Role::{Primary, Replica},
    settings::DefaultShard,
};

mod extended;
mod keys;
mod split;
mod unkeyed;

/// A session with its router.
struct Client {
    router: Router,
    session: Session,
}

impl Client {
    fn new(settings: Settings) -> Self {
        settings.check().expect("the settings fit together");
        let mut session = Session::new(PinScope::Transaction, 1);
        session.parameter_status(b"client_encoding", b"UTF8");
        session.parameter_status(b"server_encoding", b"UTF8");
        Self { router: Router::new(Arc::new(settings), 1 << 20), session }
    }

    /// Twice: what is remembered is what was found.
    fn route(&mut self, sql: &str) -> Result<Route, Refusal> {
        let one = self.request(sql);
        let other = self.request(sql);
        assert_eq!(one, other, "{sql}");
        match one? {
            Request::Route(route) => Ok(route),
            Request::Command(answer) => panic!("{sql} is a command: {answer:?}"),
        }
    }

    fn request(&mut self, sql: &str) -> Result<Request, Refusal> {
        self.session.simple(&mut self.router, sql.as_bytes())
    }

    fn role(&mut self, sql: &str) -> Role {
        self.route(sql).unwrap_or_else(|refusal| panic!("{sql}: {refusal}")).role
    }

    fn shards(&mut self, sql: &str) -> Result<Shards, String> {
        self.route(sql).map(|route| route.shards).map_err(|refusal| refusal.to_string())
    }

    /// Of a command.
    fn answer(&mut self, sql: &str) -> Result<String, String> {
        match self.request(sql) {
            Ok(Request::Command(Answer { row, tag })) => {
                Ok(row.map_or(tag.to_owned(), |(name, value)| format!("{name} = {value}: {tag}")))
            }
            Ok(Request::Route(route)) => panic!("{sql} is no command: {route:?}"),
            Err(refusal) => {
                let sqlstate = String::from_utf8_lossy(&refusal.sqlstate()).into_owned();
                Err(format!("{sqlstate} {refusal}"))
            }
        }
    }
}

/// Three shards by hash of a number: 1234 is on 0, 2 on 0, 0 and 1 on 2.
fn sharded() -> Settings {
    let table = |name: &str, key: &[&str]| Table {
        schema: None,
        name: name.to_owned(),
        key: key.iter().map(|column| (*column).to_owned()).collect(),
    };
    let tables = [table("orders", &["id"]), table("items", &["order_id"]), table("countries", &[])];
    Settings {
        shards: 3,
        map: Some(ShardMap::hash(3, vec![KeyType::Int]).expect("a map")),
        tables: tables.into_iter().collect(),
        hints: Some(HintNames::default()),
        ..Settings::default()
    }
}

fn auto() -> Settings {
    Settings { role: RolePreference::Auto, primary_reads: false, ..Settings::default() }
}

#[test]
fn commands_are_answered_and_obeyed() {
    let mut client = Client::new(Settings { tables: Tables::default(), ..sharded() });
    let ok = |text: &str| Ok(text.to_owned());
    assert_eq!(client.answer("SHOW SHARD"), ok("shard = unset: SELECT 1"));
    assert_eq!(client.answer("SET SHARD TO '1'"), ok("SET SHARD"));
    assert_eq!(client.answer("SHOW SHARD"), ok("shard = 1: SELECT 1"));
    assert_eq!(client.shards("select 1"), Ok(Shards::One(1)));
    let error = client.answer("SET SHARD TO '7'").expect_err("there are three");
    assert_eq!(
        error,
        "58000 shard 7 is not configured 3, staying on shard 1 (shard numbers start at 0)"
    );
    assert_eq!(client.answer("SET SHARDING KEY TO '0'"), ok("SET SHARDING KEY"));
    assert_eq!(client.answer("SHOW SHARD"), ok("shard = 2: SELECT 1"));
    assert_eq!(
        client.answer("SET SHARDING KEY TO 'x'").expect_err("no number").get(..5),
        Some("22P02")
    );
    assert_eq!(
        client.answer("SET SHARDING KEY TO '1', '2'").expect_err("two").get(..5),
        Some("22023")
    );
    assert_eq!(client.answer("SHOW SHARD"), ok("shard = 2: SELECT 1"));
    assert_eq!(client.answer("SET SHARD TO ANY"), ok("SET SHARD"));
    let any = client.answer("SHOW SHARD").expect("it stays where the dice fell");
    assert!(["shard = 0: SELECT 1", "shard = 1: SELECT 1", "shard = 2: SELECT 1"].contains(&&*any));
    assert_eq!(client.answer("SHOW SERVER ROLE"), ok("server role = any: SELECT 1"));
    for (wish, shown) in
        [("primary", "primary"), ("REPLICA", "replica"), ("auto", "auto"), ("default", "any")]
    {
        let set = format!("set server role to '{wish}'");
        assert_eq!(client.answer(&set), ok("SET SERVER ROLE"));
        assert_eq!(
            client.answer("SHOW SERVER ROLE"),
            Ok(format!("server role = {shown}: SELECT 1"))
        );
    }
    assert_eq!(client.answer("SET PRIMARY READS TO OFF"), ok("SET PRIMARY READS"));
    assert_eq!(client.answer("show primary reads;"), ok("primary reads = off: SELECT 1"));
    assert_eq!(client.answer("SET PRIMARY READS TO 'default'"), ok("SET PRIMARY READS"));
    assert_eq!(client.answer("show primary reads"), ok("primary reads = on: SELECT 1"));
}

/// Which shards keys are on, as they have been there for years.
#[test]
fn keys_are_where_they_have_always_been() {
    let map = ShardMap::hash(5, vec![KeyType::Int]).ok();
    let mut client =
        Client::new(Settings { shards: 5, map, tables: Tables::default(), ..sharded() });
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
            assert_eq!(client.answer(&set).as_deref(), Ok("SET SHARDING KEY"));
            assert_eq!(client.answer("SHOW SHARD"), Ok(format!("shard = {shard}: SELECT 1")));
            let hint = format!("/* sharding_key: {key} */ select 1");
            assert_eq!(client.shards(&hint), Ok(Shards::One(shard as u32)));
        }
    }
}

#[test]
fn a_transaction_is_on_one_shard() {
    let mut client = Client::new(sharded());
    assert_eq!(client.shards("select * from orders where id = 1234"), Ok(Shards::One(0)));
    client.session.linked(0);
    assert_eq!(client.shards("select * from orders where id = 2"), Ok(Shards::One(0)));
    assert_eq!(client.shards("select now()"), Ok(Shards::One(0)));
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
    assert_eq!(client.shards("/* shard_id: 0 */ select * from orders"), Ok(Shards::One(0)));
    let error = client.answer("SET SHARD TO '1'").expect_err("too late");
    assert_eq!(error, "25001 SET SHARD is not possible inside a transaction");
    assert_eq!(client.answer("SHOW SHARD"), Ok("shard = 0: SELECT 1".to_owned()));
    client.session.released();
    assert_eq!(client.shards("delete from orders where id = 1"), Ok(Shards::One(2)));
    assert_eq!(client.answer("SHOW SHARD"), Ok("shard = unset: SELECT 1".to_owned()));
}

#[test]
fn what_the_client_says_is_not_doubted() {
    let mut client = Client::new(sharded());
    assert!(client.answer("SET SHARD TO '1'").is_ok());
    for linked in [false, true] {
        if linked {
            client.session.linked(1);
        }
        for sql in [
            "select * from orders where id = 1234",
            "delete from orders",
            "selekt",
            "truncate orders",
        ] {
            assert_eq!(client.shards(sql), Ok(Shards::One(1)), "{sql}");
        }
    }
}

#[test]
fn a_session_with_a_server_of_its_own_is_fixed_by_its_first_statement() {
    let mut client = Client::new(Settings { role: RolePreference::Auto, ..sharded() });
    client.session.hold = PinScope::Session;
    assert!(client.answer("SET SHARDING KEY TO '1234'").is_ok());
    let route = client.route("select 1").expect("to the shard of the key");
    // It may write later.
    assert_eq!((route.shards, route.role), (Shards::One(0), Primary));
    client.session.linked(0);
    let error = client.answer("SET SHARDING KEY TO '1'").expect_err("too late");
    assert!(error.contains("in session mode the first statement fixes"), "{error}");
    assert_eq!(client.shards("delete from orders"), Ok(Shards::One(0)));

    let mut client = Client::new(sharded());
    client.session.hold = PinScope::Session;
    assert!(client.shards("select * from orders").expect_err("all").contains("in session mode"));
    assert_eq!(client.shards("select * from orders where id = 1"), Ok(Shards::One(2)));
    client.session.linked(2);
    assert!(client.shards("select * from orders where id = 2").is_err());
    assert!(client.answer("SET SERVER ROLE TO 'primary'").is_err());
}

#[test]
fn a_begin_may_wait_for_the_statement_that_tells_the_shard() {
    let mut client =
        Client::new(Settings { role: RolePreference::Auto, primary_reads: false, ..sharded() });
    let begin = client.route("BEGIN").expect("it goes anywhere");
    assert_eq!((&begin.shards, begin.role, begin.is_begin), (&Shards::Any, Primary, true));
    client.session.begun(&begin);
    let route = client.route("select * from orders where id = 1").expect("it has a key");
    assert_eq!((route.shards, route.role), (Shards::One(2), Primary));
    assert!(client.shards("select * from orders").expect_err("all").contains("in a transaction"));
    assert!(client.answer("SET SHARD TO '0'").is_err());
    client.session.linked(2);
    client.session.released();
    let begin = client.route("start transaction read only").expect("it goes anywhere");
    assert_eq!((begin.role, begin.is_begin), (Replica, true));
    client.session.begun(&begin);
    assert_eq!(client.role("select * from orders where id = 1"), Replica);
}

#[test]
fn without_tables_the_default_counts() {
    let unlisted = "no shard for this statement: the table \"orders\" is not among the pooler's sharded tables";
    for (default_shard, expected) in [
        (DefaultShard::One(1), Ok(Shards::One(1))),
        (DefaultShard::Any, Ok(Shards::Any)),
        (DefaultShard::Refuse, Err(unlisted.to_owned())),
    ] {
        for role in [RolePreference::Any, RolePreference::Auto] {
            let tables = Tables::default();
            let mut client = Client::new(Settings { default_shard, role, tables, ..sharded() });
            assert_eq!(client.shards("select * from orders where id = 1234"), expected);
            // What drivers say first has a place all the same.
            assert!(client.shards("set extra_float_digits = 3").is_ok());
            assert!(client.shards("select version()").is_ok());
        }
    }
}

#[test]
fn only_who_asks_for_a_replica_has_to_have_one() {
    let settings =
        Settings { role: RolePreference::Auto, primary_reads: false, ..Settings::default() };
    let mut client = Client::new(settings.clone());
    let read = client.route("select 1").expect("it goes somewhere");
    assert_eq!((read.role, read.may_lead), (Replica, true));
    client.answer("SET SERVER ROLE TO 'replica'").expect("a command");
    let read = client.route("select 1").expect("it goes somewhere");
    assert_eq!((read.role, read.may_lead), (Replica, false));
    // Whether it minds is its own business, or that of the settings.
    let shown = |client: &mut Client| client.answer("SHOW READ YOUR WRITES").expect("a command");
    assert_eq!(shown(&mut client), "read your writes = off: SELECT 1");
    let mut client = Client::new(Settings { read_your_writes: true, ..settings });
    assert_eq!(shown(&mut client), "read your writes = on: SELECT 1");
    let set = client.answer("set read your writes to off").expect("a command");
    assert_eq!(set, "SET READ YOUR WRITES");
    assert_eq!(shown(&mut client), "read your writes = off: SELECT 1");
    assert_eq!(client.session.said().read_your_writes, Some(false));
}
