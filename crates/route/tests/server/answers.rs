//! Shards answer generated statements like one server, or the statements are refused.

use howdah_route::{FanOut, Merger, ShardRequest, ShardTarget, SortColumn};

use super::{
    wire::{RawSession, merged, rows},
    *,
};

const TABLES: &str = "
    CREATE SCHEMA whole; CREATE SCHEMA s0; CREATE SCHEMA s1; CREATE SCHEMA s2;
    CREATE TABLE countries (code int, name text);
    INSERT INTO countries SELECT c, 'c' || c FROM generate_series(0, 4) c;
    CREATE TABLE whole.orders (id int8, a int, b text) PARTITION BY HASH (id);
    CREATE TABLE whole.items (order_id int8, id int, a int) PARTITION BY HASH (order_id);";

fn make(client: &mut Client) {
    let mut sql = TABLES.to_owned();
    for shard in 0..SHARDS {
        for table in ["orders", "items"] {
            sql += &format!(
                "CREATE TABLE s{shard}.{table} PARTITION OF whole.{table}
                 FOR VALUES WITH (MODULUS {SHARDS}, REMAINDER {shard});"
            );
        }
    }
    sql += "INSERT INTO whole.orders SELECT n, nullif(n % 5, 3), 'b' || n % 3 FROM generate_series(-20, 40) n;
            INSERT INTO whole.orders VALUES (NULL, 1, 'b1'), (NULL, 2, NULL);
            INSERT INTO whole.items SELECT n % 25, n, nullif(n % 4, 0) FROM generate_series(1, 90) n;
            INSERT INTO whole.items VALUES (NULL, 1, 1);";
    client.query(&sql).unwrap();
}

/// A statement over orders, items and countries; the server does not accept all of them.
fn statement(random: &mut StatementRandom) -> String {
    let key = |random: &mut StatementRandom| {
        (random.next() % 40).cast_signed().saturating_sub(10).to_string()
    };
    let from = random.pick(&[
        "orders o",
        "orders o",
        "orders o",
        "items o",
        "orders o JOIN items i ON i.order_id = o.id",
        "orders o LEFT JOIN items i ON i.order_id = o.id",
        "orders o LEFT JOIN items i ON i.order_id = o.id AND i.a = 1",
        "orders o LEFT JOIN items i ON i.order_id = {k} AND o.id = {k}",
        "orders o JOIN items i ON i.id = o.id",
        "orders o, items i",
        "orders o JOIN orders i USING (id)",
        "orders o JOIN countries i ON i.code = o.a",
        "orders o LEFT JOIN countries i ON i.code = o.a",
        "countries i LEFT JOIN orders o ON i.code = o.a",
        "countries o",
        "orders o CROSS JOIN items i LEFT JOIN countries c ON i.order_id = o.id",
        "(SELECT * FROM orders WHERE id = {k}) o",
        "(SELECT * FROM orders) o",
        "orders o RIGHT JOIN items i ON i.order_id = o.id",
    ]);
    let conditions = [
        "o.id = {k}",
        "o.id = {k}",
        "id = {k}",
        "o.id IN ({k}, {k})",
        "o.id > {k}",
        "o.a = 1",
        "o.a = 1 OR o.id = {k}",
        "i.order_id = {k}",
        "o.id = i.order_id",
        "NOT o.id = {k}",
        "o.b = 'b1'",
        "EXISTS (SELECT 1 FROM items x WHERE x.order_id = o.id)",
        "EXISTS (SELECT 1 FROM items x WHERE x.order_id = {k})",
        "o.id IN (SELECT order_id FROM items)",
        "o.id IS NULL",
        "order_id = {k}",
        "i.a = {k}",
        "true",
        "CASE WHEN o.a = 1 THEN true ELSE (SELECT count(*) > 80 FROM items) END",
    ];
    let mut sql = match random.up_to(9) {
        0 => "SELECT count(*), sum(o.a), min(o.id), max(o.a)".to_owned(),
        1 => format!(
            "SELECT {}",
            random.pick(&["avg(o.a)", "count(DISTINCT o.a)", "count(*) + 1", "o.a, count(*)"])
        ),
        2 => "SELECT *".to_owned(),
        3 => format!("SELECT o.id, {}(o.a)", random.pick(&["count", "max", "array_agg"])),
        4 => "SELECT DISTINCT o.a".to_owned(),
        _ => format!(
            "SELECT {}",
            random.pick(&["o.id, o.a", "o.a, o.b", "o.*", "o.a AS x, o.id", "o.id, o.id"])
        ),
    };
    sql += &format!(" FROM {from}");
    let clauses: Vec<_> = (0..random.up_to(3)).map(|_| random.pick(&conditions)).collect();
    if !clauses.is_empty() {
        sql += &format!(" WHERE {}", clauses.join(" AND "));
    }
    if sql.contains("o.id, ") && sql.contains("(o.a)") && !random.chance(5) {
        sql += " GROUP BY o.id";
    } else if random.chance(12) {
        sql += random.pick(&[
            " GROUP BY o.id",
            " GROUP BY o.a",
            " GROUP BY 1",
            " GROUP BY i.order_id",
            " GROUP BY ROLLUP (o.id)",
        ]);
    }
    if random.chance(3) {
        sql += random.pick(&[
            " ORDER BY o.id",
            " ORDER BY o.a, o.id",
            " ORDER BY a DESC, id",
            " ORDER BY 1",
            " ORDER BY 2 DESC, 1",
            " ORDER BY o.id DESC NULLS LAST",
            " ORDER BY x",
            " ORDER BY id NULLS FIRST",
        ]);
        if random.chance(3) {
            sql += random.pick(&[" LIMIT 3", " LIMIT 3 OFFSET 1", " LIMIT 0"]);
        }
    }
    if random.chance(12) {
        sql = format!("WITH q AS ({sql}) SELECT * FROM q");
    } else if random.chance(12) {
        let other =
            random.pick(&["SELECT id, a FROM orders WHERE id = {k}", "SELECT id, a FROM orders"]);
        sql = format!("{sql} UNION ALL {other}");
    }
    let sql = match random.up_to(8) {
        0 => {
            let set =
                random.pick(&["a = a + 1", "b = 'x'", "id = 7", "a = (SELECT max(a) FROM items)"]);
            let when = random.pick(&conditions);
            let from = random.pick(&["", "", " FROM items i"]);
            format!("UPDATE orders o SET {set}{from} WHERE {when} RETURNING o.id, o.a")
        }
        1 => {
            let using = random.pick(&["", "", " USING items i"]);
            format!("DELETE FROM orders o{using} WHERE {} RETURNING o.id", random.pick(&conditions))
        }
        2 => {
            let rows = random.pick(&[
                "({k}, 1)",
                "({k}, 1), ({k}, 2)",
                "({k}, (SELECT max(a) FROM items))",
                "({k} + 1, 1)",
            ]);
            format!("INSERT INTO orders (id, a) VALUES {rows} RETURNING id, a")
        }
        _ => sql,
    };
    let mut pieces = sql.split("{k}");
    let first = pieces.next().unwrap().to_owned();
    pieces.fold(first, |sql, piece| sql + &key(random) + piece)
}

/// Merges the replies of shards as the pooler does.
fn together<'s>(
    how: &Arc<FanOut>,
    shards: impl Iterator<Item = &'s mut RawSession>,
    sql: &str,
    random: &mut StatementRandom,
) -> Result<ResultRows, String> {
    let answers: Vec<_> = shards.map(|shard| shard.query(sql)).collect();
    let mut merger = Merger::new(answers.len(), true, 1 << 20);
    merger.expect_replies(ShardRequest::Query(Arc::clone(how)));
    rows(&merged(&mut merger, &answers, random))
}

#[test]
fn sharded_results_match_one_server_or_are_refused() {
    const STATEMENTS: usize = 4000;
    let Some((cluster, mut client)) = server("answers of shards") else { return };
    make(&mut client);
    let mut wires = [0, 1, 2].map(|shard| RawSession::new(&cluster, &format!("s{shard}")));
    let tables: &[(&str, &[&str])] =
        &[("orders", &["id"]), ("items", &["order_id"]), ("countries", &[])];
    let mut router = TestRouter::new(&[KeyType::Int], tables);
    let mut random = StatementRandom(6);
    let (mut one, mut many, mut refused) = (0, 0, 0);
    for _ in 0..STATEMENTS {
        let sql = statement(&mut random);
        let Ok((_, whole)) = run(&mut client, "whole", &sql) else { continue };
        let mut on =
            |shard: u32| run(&mut client, &format!("s{shard}"), &sql).map(|(_, rows)| rows);
        let route = router.route(&sql);
        let mut answer = match &route {
            Err(_) => {
                refused += 1;
                continue;
            }
            Ok(route) => match &route.shards {
                ShardTarget::One(shard) => {
                    one += 1;
                    on(*shard).unwrap_or_else(|error| panic!("{sql}: {error}"))
                }
                // Then every shard has the rows.
                ShardTarget::Any => on(random.up_to(3) as u32).unwrap(),
                ShardTarget::Many { shards, fan_out: how } => {
                    let meant = wires.iter_mut().zip(0..).filter(|(_, at)| shards.contains(at));
                    match together(how, meant.map(|(wire, _)| wire), &sql, &mut random) {
                        Ok(rows) => {
                            many += 1;
                            rows
                        }
                        // Types are known only from the reply.
                        Err(error) if error.contains("cannot be merged") => {
                            refused += 1;
                            continue;
                        }
                        Err(error) => panic!("{sql}: {error}"),
                    }
                }
                ShardTarget::Copy(_) => panic!("{sql} is no COPY"),
            },
        };
        let mut whole = whole;
        if let Ok(Route { shards: ShardTarget::Many { fan_out: how, .. }, .. }) = &route
            && let FanOut::Merge { by, limit } = &**how
        {
            for by in by {
                if let SortColumn::Position(place) = by.column {
                    let column = |rows: &ResultRows| -> Vec<_> {
                        rows.iter().map(|row| row[place].clone()).collect()
                    };
                    assert_eq!(column(&answer), column(&whole), "{sql}");
                }
            }
            // Where the order leaves several rows equal, any of them may be beyond a limit.
            if limit.is_some() {
                assert_eq!(answer.len(), whole.len(), "{sql}");
                continue;
            }
        }
        answer.sort();
        whole.sort();
        assert_eq!(answer, whole, "{sql}: {route:?}");
    }
    assert!(
        one > 300 && many > 300 && refused > 300,
        "{one} by key, {many} of all, {refused} refused"
    );
}
