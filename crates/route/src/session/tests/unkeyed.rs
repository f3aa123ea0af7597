//! Tests of statements without a key: reads of all shards, refusals, and COPY.

use super::*;
use crate::{Aggregate, CopyRowFormat, SortColumn, SortKey};

fn fan_out(client: &mut RoutedClient, sql: &str) -> Result<FanOut, String> {
    match client.shards(sql)? {
        ShardTarget::Many { shards, fan_out: how } => {
            assert!(!shards.is_empty() && shards.is_sorted());
            Ok((*how).clone())
        }
        other => Err(format!("{other:?}")),
    }
}

#[test]
fn mergeable_reads_fan_out() {
    let mut client = RoutedClient::new(sharded());
    let by = |column, descending, nulls_first| SortKey { column, descending, nulls_first };
    let merge = |by: SortKey, limit| FanOut::Merge { by: vec![by], limit };
    let named = |name: &str| SortColumn::Named(name.into());
    for (sql, expected) in [
        ("select * from orders", FanOut::Concatenate),
        ("select id, lower(x) from orders where y > 7 and z like 'a%'", FanOut::Concatenate),
        ("select * from orders o join items i on i.order_id = o.id", FanOut::Concatenate),
        ("select * from orders o left join items i on i.order_id = o.id", FanOut::Concatenate),
        ("select * from orders o join countries c on c.code = o.country", FanOut::Concatenate),
        ("select id, count(*) from orders group by id having count(*) > 1", FanOut::Concatenate),
        ("select * from orders order by x", merge(by(named("x"), false, false), None)),
        (
            "select * from orders order by x desc limit 5",
            merge(by(named("x"), true, true), Some(5)),
        ),
        (
            "select id, x as y from orders order by y nulls first",
            merge(by(SortColumn::Position(1), false, true), None),
        ),
        (
            "select o.id, o.x from orders o order by o.x",
            merge(by(SortColumn::Position(1), false, false), None),
        ),
        (
            "select id, x from orders order by 2",
            merge(by(SortColumn::Position(1), false, false), None),
        ),
        (
            "select x, id from orders order by 1",
            merge(by(SortColumn::Position(0), false, false), None),
        ),
        ("select count(*) from orders", FanOut::Aggregate(vec![Aggregate::Count])),
        (
            "select sum(x), min(y), max(z), count(a) filter (where b) from orders where c",
            FanOut::Aggregate(vec![
                Aggregate::Sum,
                Aggregate::Min,
                Aggregate::Max,
                Aggregate::Count,
            ]),
        ),
        ("select * from orders where id in (1, 2)", FanOut::Concatenate),
        ("select * from orders where id = any ($1)", FanOut::Concatenate),
    ] {
        assert_eq!(fan_out(&mut client, sql), Ok(expected), "{sql}");
    }
    let some = client.shards("select * from orders where id in (0, 2, 1)");
    assert_eq!(
        some,
        Ok(ShardTarget::Many { shards: vec![0, 2], fan_out: FanOut::Concatenate.into() })
    );
    let all = client.shards("select * from orders where id > 2");
    assert_eq!(
        all,
        Ok(ShardTarget::Many { shards: vec![0, 1, 2], fan_out: FanOut::Concatenate.into() })
    );
}

#[test]
fn other_unkeyed_statements_are_refused_with_reason() {
    let mut client = RoutedClient::new(sharded());
    for (sql, why) in [
        ("select avg(x) from orders", "plain count"),
        ("select count(distinct x) from orders", "plain count"),
        ("select count(*) + 1 from orders", "plain count"),
        ("select count(*), 1 from orders", "plain count"),
        ("select count(*), x from orders group by x", "groups span several shards"),
        ("select count(*) from orders having count(*) > 1", "groups"),
        ("select count(*) from orders group by rollup (id)", "groups"),
        (
            "select i.order_id, count(*) from orders o left join items i on i.order_id = o.id group by 1",
            "groups",
        ),
        (
            "select count(*) from orders o left join items i on i.order_id = o.id group by i.order_id",
            "groups",
        ),
        ("select max(x) from orders order by 1", "aggregates with ORDER BY"),
        ("select distinct x from orders", "DISTINCT"),
        ("select * from orders limit 5", "LIMIT without ORDER BY"),
        ("select * from orders order by x offset 5", "OFFSET"),
        ("select * from orders order by x limit $1", "LIMIT is a number"),
        ("select * from orders order by x fetch first 2 rows with ties", "WITH TIES"),
        ("select id from orders order by x", "outside the select list"),
        ("select * from orders order by lower(x)", "outside the select list"),
        ("select x, y as x from orders order by x", "outside the select list"),
        ("select *, y as x from orders order by x", "outside the select list"),
        ("select * from orders order by 1", "outside the select list"),
        ("select row_number() over (order by x) from orders", "window functions"),
        ("select percentile_cont(0.5) within group (order by x) from orders", "window functions"),
        ("select f(x) from orders", "user-defined functions"),
        ("select * from orders o join items i on true", "across shards"),
        ("select * from orders o left join items i on i.x = o.id", "across shards"),
        (
            "select * from orders o cross join items i left join countries c on i.order_id = o.id",
            "across shards",
        ),
        ("select * from countries c left join orders o on o.country = c.code", "repeat rows"),
        ("select * from orders where x in (select x from items)", "subqueries"),
        ("select * from (select * from orders) o", "nested"),
        ("with o as (select * from orders) select * from o", "WITH or UNION"),
        ("select * from orders union all select * from orders", "WITH or UNION"),
        ("select * from orders o full join items i on i.order_id = o.id", "nested"),
        ("select * from orders tablesample bernoulli (10)", "TABLESAMPLE"),
        ("select * from orders for update", "does not give the key"),
        ("select * from orders; select 1", "several statements"),
        ("explain select * from orders", "EXPLAIN"),
        ("declare c cursor for select * from orders", "cursor"),
        ("copy (select * from orders) to stdout", "COPY"),
        ("select * from orders join logs on true", "not listed"),
        ("update orders set x = 1", "does not give the key"),
        ("insert into orders values (1)", "columns are not named"),
        ("update orders set id = 2 where id = 1", "changes the sharding key"),
        ("insert into orders (id) values (0), (2)", "several shards: [0, 2]"),
        ("select * from orders where id in (0, 2) for update", "several shards"),
    ] {
        let refusal = client.route(sql).expect_err(sql);
        assert!(refusal.to_string().contains(why), "{sql}: {refusal}");
        assert_eq!(refusal.sqlstate(), *b"0A000", "{sql}");
        assert!(refusal.hint().is_some(), "{sql}");
    }
}

#[test]
fn copy_from_stdin_is_split_by_key() {
    let mut client = RoutedClient::new(sharded());
    let mut copy = |sql: &str| match client.shards(sql)? {
        ShardTarget::Copy(copy) => Ok((*copy).clone()),
        other => Err(format!("{other:?}")),
    };
    let text = copy("copy orders (x, id) from stdin").expect("text");
    let tab = CopyRowFormat::Text { delimiter: b'\t', null: "\\N".into() };
    assert_eq!(
        (&*text.table, &text.key[..], text.format, text.header),
        ("orders", &[1][..], tab, false)
    );
    let csv = copy("copy orders (id) from stdin (format csv, header, delimiter ';', escape '\\')");
    let csv = csv.expect("csv");
    let format =
        CopyRowFormat::Csv { delimiter: b';', null: "".into(), quote: b'"', escape: b'\\' };
    assert_eq!((&csv.key[..], csv.format, csv.header), (&[0][..], format, true));
    assert_eq!(
        copy("copy orders (id) from stdin binary").expect("binary").format,
        CopyRowFormat::Binary
    );
    for (sql, why) in [
        ("copy orders from stdin", "columns are not named"),
        ("copy orders (x) from stdin", "does not give the key"),
        ("copy orders (id) from stdin (encoding 'latin1')", "of this kind"),
        ("copy orders (id) from '/tmp/x'", "of this kind"),
        ("copy orders (id) from program 'cat'", "of this kind"),
        ("copy orders to stdout", "of this kind"),
        ("copy logs from stdin", "of this kind"),
    ] {
        assert!(copy(sql).expect_err(sql).contains(why), "{sql}");
    }
}
