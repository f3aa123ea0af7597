//! Tests of sharding keys in statements.

use super::*;

#[test]
fn keys_are_found_in_statements() {
    let mut client = RoutedClient::new(sharded());
    // The keys 1234 and 2 are on shard 0, 0 and 1 on shard 2.
    for (sql, shard) in [
        ("select * from orders where id = 1234", 0),
        ("SELECT * FROM Orders o WHERE 0 = o.id AND x > 7", 2),
        ("select * from public.orders where orders.id = '1'", 2),
        ("select * from orders where id = -1", 2),
        ("select * from orders where id = - 1", 2),
        ("select * from orders where id = 1234::bigint and a or false and b", usize::MAX),
        ("select * from orders where id = '1234'::int", 0),
        ("select * from orders where id = int '1234'", 0),
        ("select * from orders where id = cast(1234 as smallint)", 0),
        ("select * from orders where id in (0, 1)", 2),
        ("select * from orders where id = 0 and (a = 1 or id = 1234)", 2),
        ("select max(x) from orders where id = 0 group by y order by 1 limit 3", 2),
        ("select * from orders o join items i on i.order_id = o.id where o.id = 0", 2),
        ("select * from orders o join items i on i.order_id = o.id where i.order_id = 0", 2),
        ("select * from orders o left join items i on i.order_id = o.id where o.id = 0", 2),
        ("select * from orders o left join items i on i.order_id = o.id and o.id = 0", usize::MAX),
        ("select * from orders o, items i where i.order_id = 0 and o.id = i.order_id", 2),
        ("select * from orders o join items i on i.order_id = 2 where o.id = 1234", 0),
        ("select * from orders o join items i on i.order_id = 1 where o.id = 1234", usize::MAX),
        ("select * from orders o join items i on true where o.id = 1234", usize::MAX),
        ("select * from orders join countries c on c.code = orders.country where id = 0", 2),
        ("select * from countries c left join orders o on o.id = 0", 2),
        ("select * from (select * from orders where id = 0) o", 2),
        ("with o as (select * from orders where id = 0) select * from o", 2),
        ("with orders as (select 1 as id) select * from orders where id = 0", usize::MAX),
        ("select * from orders where id = 0 union all select * from orders where id = 1", 2),
        (
            "select * from orders where id = 0 union all select * from orders where id = 2",
            usize::MAX,
        ),
        (
            "select * from orders o where id = 0 and exists (select from items i where i.order_id = o.id)",
            2,
        ),
        (
            "select * from orders o where id = 0 and exists (select from items i where i.x = o.id)",
            usize::MAX,
        ),
        (
            "select (select count(*) from items i where i.order_id = 0) from orders o where id = 0",
            2,
        ),
        ("select * from orders where id = 0 and x in (select y from items)", usize::MAX),
        ("select * from orders where id = 0 for update", 2),
        ("select f(id) from orders where id = 0", 2),
        ("explain analyze select * from orders where id = 0", 2),
        ("insert into orders (id, x) values (0, 5)", 2),
        ("insert into orders (x, id) values (5, 0), (6, 1)", 2),
        ("insert into orders (id) values (0) on conflict (id) do update set x = 1 returning *", 2),
        ("insert into orders (id) values (0) on conflict (id) do update set id = 1", usize::MAX),
        ("insert into orders (id) values (-1)", 2),
        ("insert into orders (id) values ('0')", 2),
        ("insert into orders (id) values ($$0$$)", 2),
        ("insert into orders (id) values (0 + 0)", usize::MAX),
        ("insert into orders (id) values (0.0)", usize::MAX),
        ("insert into orders (id) values (default)", usize::MAX),
        ("insert into orders (x) values (0)", usize::MAX),
        ("insert into orders values (0)", usize::MAX),
        ("insert into orders default values", usize::MAX),
        ("insert into orders (id) select 0", usize::MAX),
        ("insert into orders (id) values ((select 0))", usize::MAX),
        ("insert into orders (id, x) values (0, (select max(x) from items))", usize::MAX),
        ("insert into orders (id) values (null)", 0),
        ("update orders set x = x + 1 where id = 0", 2),
        ("update orders set id = 1 where id = 0", usize::MAX),
        ("update orders set (x, id) = (1, 1) where id = 0", usize::MAX),
        ("update orders o set x = i.x from items i where i.order_id = o.id and o.id = 0", 2),
        ("update orders set x = 1 where id = 0 or true", usize::MAX),
        ("delete from orders where id in (0, 1, -1)", 2),
        ("delete from orders where id in (0, 2)", usize::MAX),
        ("delete from orders using items i where i.order_id = orders.id and i.order_id = 0", 2),
        (
            "with d as (delete from items where order_id = 0 returning 1) delete from orders where id = 1",
            2,
        ),
        (
            "with d as (delete from items where order_id = 0 returning 1) delete from orders where id = 2",
            usize::MAX,
        ),
        (
            "begin; insert into orders (id) values (0); insert into items (order_id) values (1); commit",
            2,
        ),
        ("insert into orders (id) values (0); insert into items (order_id) values (2)", usize::MAX),
        ("select 7; select * from orders where id = 0", 2),
        ("declare c cursor for select * from orders where id = 0", 2),
        ("copy (select * from orders where id = 0) to stdout", 2),
        ("prepare p as select * from orders where id = 0", usize::MAX),
        ("merge into orders using items on orders.id = 0 when matched then delete", usize::MAX),
        ("delete from orders where id = null", usize::MAX),
        ("delete from orders where id = 1.5", usize::MAX),
        ("delete from orders where id is not distinct from 0", usize::MAX),
        ("delete from orders where id <> 0", usize::MAX),
        ("delete from orders where not id = 0", usize::MAX),
        ("delete from orders where (id = 0) is false", usize::MAX),
        ("delete from orders where id operator(app.=) 0", usize::MAX),
        ("delete from orders where id = any (array[0])", usize::MAX),
        ("delete from orders as o (a, id) where id = 0", usize::MAX),
        ("delete from orders o where p.id = 0", usize::MAX),
    ] {
        let shards = client.shards(sql);
        match shard {
            usize::MAX => {
                assert!(
                    !matches!(shards, Ok(ShardTarget::One(_) | ShardTarget::Any)),
                    "{sql}: {shards:?}"
                );
            }
            shard => assert_eq!(shards, Ok(ShardTarget::One(shard as u32)), "{sql}"),
        }
    }
}

#[test]
fn shared_plans_use_constants_of_each_text() {
    let mut client = RoutedClient::new(sharded());
    let map = ShardMap::hash(3, vec![KeyType::Int]).expect("a map");
    for key in 0..50_i64 {
        let shard = map.shard(&[Some(ShardKey::Int(key))]).expect("a shard");
        let sql = format!("select 'a', 7 from orders where x = 'b' and id = {key} and y = 1");
        assert_eq!(client.shards(&sql), Ok(ShardTarget::One(shard)), "{sql}");
        let sql = format!("insert into orders (x, id, y) values ('a', '{key}', 1)");
        assert_eq!(client.shards(&sql), Ok(ShardTarget::One(shard)), "{sql}");
    }
    assert!(client.shards("insert into orders (x, id, y) values ('a', 'b', 1)").is_err());
    assert!(client.shards("insert into orders (x, id, y) values (1, '0', 1)").is_ok());
}

#[test]
fn default_shard_setting_applies_to_unlisted_tables() {
    let on = |default_shard| RoutedClient::new(RouteSettings { default_shard, ..sharded() });
    let [mut refused, mut one, mut any] =
        [DefaultShard::Refuse, DefaultShard::One(2), DefaultShard::Any].map(on);
    // Catalog queries prefer the default shard, if one is configured.
    let catalog = "select * from pg_class";
    assert_eq!(one.shards(catalog), Ok(ShardTarget::One(2)));
    assert!(
        [&mut refused, &mut any].iter_mut().all(|it| it.shards(catalog) == Ok(ShardTarget::Any))
    );
    for sql in ["select 1", "begin", "show all", "set x.y = 1", ""] {
        for client in [&mut refused, &mut one, &mut any] {
            assert_eq!(client.shards(sql), Ok(ShardTarget::Any), "{sql}");
        }
    }
    let unlisted = |name: &str| {
        Err(format!(
            "no shard for this statement: the table {name:?} is not listed in the pooler's sharding settings"
        ))
    };
    let read = "select * from logs";
    assert_eq!(refused.shards(read), unlisted("logs"));
    assert_eq!(one.shards(read), Ok(ShardTarget::One(2)));
    assert_eq!(any.shards(read), Ok(ShardTarget::Any));
    let write = "insert into logs (id) values (0)";
    assert_eq!(refused.shards(write), unlisted("logs"));
    assert_eq!(one.shards(write), Ok(ShardTarget::One(2)));
    assert_eq!(any.shards(write), unlisted("logs"));
    let both = "select * from orders join logs on true where orders.id = 0";
    assert_eq!(refused.shards(both), unlisted("logs"));
    assert_eq!(one.shards(both), Ok(ShardTarget::One(2)));
    assert_eq!(any.shards(both), Ok(ShardTarget::One(2)));
    let elsewhere = "select * from orders join logs on true where orders.id = 2";
    assert_eq!(one.shards(elsewhere), unlisted("logs"));
    assert_eq!(any.shards(elsewhere), Ok(ShardTarget::One(0)));
    for client in [&mut refused, &mut any] {
        assert!(client.shards("select f()").expect_err("it may do anything").contains("runs code"));
        assert!(client.shards("drop table logs").is_err());
    }
    for client in [&mut refused, &mut one, &mut any] {
        for sql in ["select * from countries", "copy countries to stdout"] {
            assert_eq!(client.shards(sql), Ok(ShardTarget::Any), "{sql}");
        }
        for sql in [
            "insert into countries (code) values ('a')",
            "alter table countries add x int",
            "truncate countries",
            "copy countries from stdin",
            "drop table countries",
            "drop table orders",
            "truncate orders",
            "create table orders (id int)",
            "lock table orders",
            "selekt",
            "insert into logs select * from orders where id = 0",
        ] {
            assert!(client.shards(sql).is_err(), "{sql}");
        }
    }
}

#[test]
fn composite_keys_of_all_types_are_found() {
    let table = |key: &[&str]| RoutedTable {
        schema: Some("app".to_owned()),
        name: "t".to_owned(),
        key: key.iter().map(|column| (*column).to_owned()).collect(),
    };
    let types = [KeyType::Text, KeyType::Uuid, KeyType::Bytea];
    let map = ShardMap::hash(100, types.to_vec()).expect("a map");
    let settings = RouteSettings {
        shards: 100,
        map: Some(map.clone()),
        tables: [table(&["a", "b", "c"])].into_iter().collect(),
        ..RouteSettings::default()
    };
    let mut client = RoutedClient::new(settings);
    let uuid = "00010203-0405-0607-0809-0a0b0c0d0e0f";
    let key = |text: &str| {
        let parsed =
            [KeyType::Text.parse(text), KeyType::Uuid.parse(uuid), KeyType::Bytea.parse("\\x0a")];
        parsed.map(Result::ok)
    };
    let shard = |text: &str| Ok(ShardTarget::One(map.shard(&key(text)).expect("a shard")));
    for text in ["", "foo", "it's", "ü", "a\\b"] {
        let quoted = text.replace('\'', "''");
        for sql in [
            format!("select * from app.t where a = '{quoted}' and b = '{uuid}' and c = '\\x0a'"),
            format!("insert into t (c, b, a) values (E'\\\\x0a', '{{{uuid}}}'::uuid, '{quoted}')"),
            format!("delete from t where c = '\\012' and a = '{quoted}'::text and b = '{uuid}'"),
        ] {
            assert_eq!(client.shards(&sql), shard(text), "{sql}");
        }
    }
    assert!(client.shards("delete from t where a = 'x' and b = 'x' and c = ''").is_err());
    let with_space = format!("insert into t (a, b, c) values ('x ', '{uuid}', '')");
    assert!(client.shards(&with_space).is_err(), "a column of limited length would trim it");
    assert!(
        client.shards(&format!("delete from t where a = 7 and b = '{uuid}' and c = ''")).is_err()
    );
    assert!(client.shards(&format!("delete from t where a = 'x' and b = '{uuid}'")).is_err());
    let other = format!("delete from other.t where a = 'x' and b = '{uuid}' and c = ''");
    assert!(client.shards(&other).is_err());
    let beyond = format!("delete from t where a = 'ü' and b = '{uuid}' and c = ''");
    client.session.parameter_status(b"server_encoding", b"LATIN1");
    assert!(client.shards(&beyond).is_err(), "the server has other bytes");
}

#[test]
fn list_and_range_maps_route_keys() {
    let entries =
        [(Some(ShardKey::Int(1)), 0), (Some(ShardKey::Int(7)), 1), (None, 1)].into_iter().collect();
    let list = ShardMap::list(2, KeyType::Int, entries, None).expect("a list");
    let mut client = RoutedClient::new(RouteSettings { shards: 2, map: Some(list), ..sharded() });
    assert_eq!(client.shards("select * from orders where id = 7"), Ok(ShardTarget::One(1)));
    assert_eq!(client.shards("insert into orders (id) values (null)"), Ok(ShardTarget::One(1)));
    let refusal = client.route("insert into orders (id) values (8)").expect_err("nowhere");
    assert_eq!(refusal.sqlstate(), *b"23514");
    let range = crate::shard::Range { from: None, to: Some(ShardKey::Int(100)), shard: 1 };
    let ranges = ShardMap::ranges(2, KeyType::Int, vec![range]).expect("ranges");
    let mut client = RoutedClient::new(RouteSettings { shards: 2, map: Some(ranges), ..sharded() });
    assert_eq!(client.shards("delete from orders where id = 99"), Ok(ShardTarget::One(1)));
    assert!(client.shards("delete from orders where id = 100").is_err());
}
