//! Routing of a client's request to a role and shard.

use std::sync::Arc;

use howdah_route::shard::{KeyType, ShardMap};
use howdah_route::{
    DefaultShard, HintNames, PinScope, Refusal, RolePreference, RouteRole, RouteSession,
    RouteSettings, RoutedRequest, RoutedTable, Router, ShardTarget,
};

use super::{Shape, grammar::upper_case_and_commented};

/// Fragments of statements with shard keys, and constructs that hide the keys.
pub const WORDS: &[&[u8]] = &[
    b"select ",
    b"* from orders o",
    b" join items i on i.order_id = o.id",
    b" left join ",
    b" using (id)",
    b", items",
    b" where ",
    b"id = 0",
    b"o.id = 1234",
    b"order_id in (0, 1)",
    b" = '0'::bigint",
    b" = $1",
    b" and ",
    b" or ",
    b"not ",
    b"exists (select 1 from items where order_id = 0)",
    b"insert into orders (id) values (0)",
    b", (1)",
    b"update orders set x = 1",
    b"delete from orders",
    b"with orders as (",
    b"(select * from orders) x",
    b"count(*)",
    b" group by id",
    b" order by id desc",
    b" limit 3",
    b" for update",
    b" union all ",
    b"explain ",
    b"copy orders (id) from stdin",
    b"begin",
    b"set shard to '1'",
    b"set sharding key to '",
    b"show server role",
    b"/* shard_id: 1 */",
    b"/* role: replica */",
    b";",
    b"--",
    b"/*",
    b"*/",
    b"'",
    b"$$",
    b"E'\\'",
    b"(",
    b")",
    b"-",
    b"\xc3\xa9",
];

/// The parse tree, also as nested maps, for several calls.
pub const MEMORY: (usize, usize) = (4 << 20, 160_000);

/// Routes a text alone, then rewritten, and next to other statements.
pub fn run(sql: &[u8]) -> Shape {
    let mut router = router();
    let alone = route(&mut router, sql);
    assert_eq!(route(&mut router, sql), alone, "with a memory");
    let Ok(RoutedRequest::Route(here)) = &alone else {
        // A command, or a refusal, whose message must have a bounded length.
        let told = alone.as_ref().map_err(|refusal| {
            assert!(refusal.to_string().len() < 4096);
            (refusal.sqlstate(), std::mem::discriminant(refusal))
        });
        return Shape::of(format!("{:.40}", format!("{told:?}")));
    };
    if let ShardTarget::One(shard) = here.shards {
        assert!(shard < 3);
    }
    if !has_hint(sql) {
        let other = route(&mut router, &upper_case_and_commented(sql));
        assert_eq!(other, alone, "in upper case, with comments");
        beside(&mut router, sql, &here.shards);
    }
    Shape::of((here.role, here.primary_reason, here.is_begin))
        .and(format!("{:.60}", format!("{:?}", here.shards)))
}

/// Checks that other statements in the same text influence its route.
fn beside(router: &mut Router, sql: &[u8], shards: &ShardTarget) {
    let mut with = |behind: &[u8]| route(router, &[sql, b"\n;", behind].concat());
    let keyless = with(b"delete from orders");
    assert!(keyless.is_err(), "a write of every shard goes {keyless:?}");
    // Key 0 belongs to shard 2.
    let Ok(both) = with(b"insert into orders (id) values (0)") else { return };
    let RoutedRequest::Route(both) = both else { unreachable!("two statements are no command") };
    assert_eq!((both.shards, both.role), (ShardTarget::One(2), RouteRole::Primary));
    assert!(matches!(shards, ShardTarget::Any | ShardTarget::One(2)), "{shards:?} and 2 are not 2");
}

/// A router for three shards, with two sharded tables and one that is whole on each shard.
fn router() -> Router {
    let table = |(name, key): (&str, &[&str])| RoutedTable {
        schema: None,
        name: name.to_owned(),
        key: key.iter().map(|column| (*column).to_owned()).collect(),
    };
    let tables: [(&str, &[&str]); 3] =
        [("orders", &["id"]), ("items", &["order_id"]), ("countries", &[])];
    let settings = RouteSettings {
        role: RolePreference::Auto,
        shards: 3,
        map: ShardMap::hash(3, vec![KeyType::Int]).ok(),
        tables: tables.into_iter().map(table).collect(),
        default_shard: DefaultShard::One(1),
        hints: Some(HintNames::default()),
        ..RouteSettings::default()
    };
    Router::new(Arc::new(settings), 1 << 20)
}

/// Routes for a session without overrides.
fn route(router: &mut Router, sql: &[u8]) -> Result<RoutedRequest, Refusal> {
    let mut session = RouteSession::new(PinScope::Transaction, 1);
    session.parameter_status(b"client_encoding", b"UTF8");
    session.parameter_status(b"server_encoding", b"UTF8");
    session.simple(router, sql)
}

fn has_hint(sql: &[u8]) -> bool {
    [&b"shard_id"[..], b"sharding_key", b"role"]
        .iter()
        .any(|name| sql.windows(name.len()).any(|part| part == *name))
}
