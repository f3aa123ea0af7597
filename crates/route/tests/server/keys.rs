//! Rows are routed to the shard where the server puts them.

use super::*;

/// Creates a table with these key columns, and partitions as shards.
pub(crate) fn make(client: &mut Client, columns: &[KeyType]) {
    let named: Vec<_> = columns.iter().enumerate().map(|(at, of)| format!("k{at} {of}")).collect();
    let names: Vec<_> = (0..columns.len()).map(|at| format!("k{at}")).collect();
    let mut sql = format!(
        "DROP SCHEMA IF EXISTS whole, s0, s1, s2 CASCADE; CREATE SCHEMA whole; CREATE SCHEMA s0;
         CREATE SCHEMA s1; CREATE SCHEMA s2;
         CREATE TABLE whole.t (x int, {}) PARTITION BY HASH ({});",
        named.join(", "),
        names.join(", ")
    );
    for shard in 0..SHARDS {
        sql += &format!(
            "CREATE TABLE s{shard}.t PARTITION OF whole.t
             FOR VALUES WITH (MODULUS {SHARDS}, REMAINDER {shard});"
        );
    }
    client.query(&sql).unwrap();
}

/// A random spelling of a random key, which the server may reject.
fn written(random: &mut StatementRandom, of: KeyType) -> String {
    match of {
        KeyType::Int => {
            let shift = random.up_to(64);
            let number = random.next().cast_signed() >> shift;
            let forms = [
                "{}",
                "{}",
                "'{}'",
                "'{}'::bigint",
                "' {}'",
                "$${}$$",
                "E'{}'",
                "cast({} as int8)",
            ];
            let odd =
                ["{}.0", "{}.4", "({})", "+{}", "{}e0", "'{}'::numeric", "{} + 0", "'0{}'", "0{}"];
            let form = if random.chance(4) { random.pick(&odd) } else { random.pick(&forms) };
            form.replace("{}", &number.to_string())
        }
        KeyType::Text => {
            let letters: Vec<_> = "aZ09 -äß漢🐘'\\$".chars().collect();
            let length = random.up_to(16);
            let letter = |_| letters[random.up_to(letters.len())];
            let text: String = (0..length).map(letter).collect();
            let quoted = format!("'{}'", text.replace('\'', "''"));
            match random.up_to(9) {
                0 => format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "\\'")),
                1 => format!("$q${text}$q$"),
                2 => format!("{quoted}::text"),
                3 => format!("varchar {quoted}"),
                4 => format!("{quoted}::varchar(3)"),
                5 => format!("N{quoted}"),
                6 => random
                    .pick(&[
                        "7",
                        "007",
                        "lower('A')",
                        "'a'\n'b'",
                        "E'\\x41'",
                        "U&'\\0041'",
                        "'a'::char(3)",
                    ])
                    .to_owned(),
                _ => quoted,
            }
        }
        KeyType::Uuid => {
            let digits = format!("{:016x}{:016x}", random.next(), random.next());
            let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]);
            let text = if random.chance(2) { parts.join("-") } else { digits.to_uppercase() };
            let form = random.pick(&[
                "'{}'",
                "'{}'",
                "uuid '{}'",
                "'{{}}'",
                "'{}'::uuid",
                "'{}'::text::uuid",
            ]);
            form.replacen("{}", &text, 1)
        }
        KeyType::Bytea => {
            let length = random.up_to(20);
            let hex: String = (0..length).map(|_| format!("{:02x}", random.next() as u8)).collect();
            let form = [
                "'\\x{}'",
                "E'\\\\x{}'",
                "'\\x{}'::bytea",
                "'{}'",
                "'a\\\\{}\\001'",
                "x'{}'",
                "decode('{}', 'hex')",
            ];
            random.pick(&form).replace("{}", &hex)
        }
    }
}

#[test]
fn inserted_row_routes_to_server_partition() {
    const ALL: [KeyType; 4] = [KeyType::Int, KeyType::Text, KeyType::Uuid, KeyType::Bytea];
    const STATEMENTS: usize = 200;
    let Some((_cluster, mut client)) = server("rows on shards") else { return };
    for columns in [&ALL[..1], &ALL[1..2], &ALL[2..3], &ALL[3..], &ALL[..2]] {
        make(&mut client, columns);
        let names: Vec<_> = (0..columns.len()).map(|at| format!("k{at}")).collect();
        let key: Vec<_> = names.iter().map(String::as_str).collect();
        let mut router = TestRouter::new(columns, &[("t", &key)]);
        let mut random = StatementRandom(columns.len() as u64);
        let (mut sent, mut refused) = (0, 0);
        for _ in 0..STATEMENTS {
            let mut row =
                || -> Vec<_> { columns.iter().map(|of| written(&mut random, *of)).collect() };
            let row = row();
            let insert = format!(
                "INSERT INTO t (x, {}) VALUES (7, {}) RETURNING tableoid::oid",
                names.join(", "),
                row.join(", ")
            );
            let whole = run(&mut client, "whole", &insert);
            let here = router.route(&insert).map(|route| route.shards);
            match here {
                Ok(howdah_route::ShardTarget::One(shard)) => {
                    let there = run(&mut client, &format!("s{shard}"), &insert);
                    match whole {
                        Ok(whole) => assert_eq!(there.as_ref(), Ok(&whole), "{insert}"),
                        // Every server refuses it.
                        Err(_) => assert!(there.is_err(), "{insert}"),
                    }
                    sent += 1;
                }
                Ok(other) => panic!("{insert}: {other:?}"),
                Err(_) => refused += 1,
            }
            // An existing row is found, and is not routed by the key of another shard.
            let conditions: Vec<_> =
                names.iter().zip(&row).map(|(name, value)| format!("{name} = {value}")).collect();
            let select = format!("SELECT * FROM t WHERE {}", conditions.join(" AND "));
            if let Ok(howdah_route::ShardTarget::One(shard)) =
                router.route(&select).map(|route| route.shards)
            {
                let both = |path: &str| {
                    format!(
                        "SET LOCAL search_path = whole; {}; SET LOCAL search_path = {path}; {select}",
                        insert.split(" RETURNING").next().unwrap()
                    )
                };
                let whole = run(&mut client, "whole", &both("whole"));
                let there = run(&mut client, "whole", &both(&format!("s{shard}")));
                if let Ok(whole) = whole {
                    assert_eq!(there, Ok(whole), "{select}");
                }
            }
        }
        // Most must be supported, or the test proves nothing.
        assert!(
            sent > STATEMENTS / 3 && refused > 0,
            "{columns:?}: {sent} sent, {refused} refused"
        );
    }
}

#[test]
fn multi_row_functions_are_known_by_name() {
    let Some((_cluster, mut client)) = server("functions over rows") else { return };
    let names = client
        .query("SELECT DISTINCT proname FROM pg_proc WHERE prokind IN ('a', 'w') ORDER BY 1")
        .unwrap();
    let mut router = TestRouter::new(&[KeyType::Int], &[("t", &["k0"])]);
    for row in &names[0].rows {
        let name = row.text(0).unwrap();
        let sql = format!("SELECT k0, \"{name}\"(x) FROM t");
        let refusal = router.route(&sql).expect_err(&sql).to_string();
        assert!(refusal.contains("cannot be merged"), "{sql}: {refusal}");
    }
    assert!(names[0].rows.len() > 40);
}

/// A key as text and in binary format.
fn value(random: &mut StatementRandom, of: KeyType) -> (String, Vec<u8>) {
    match of {
        KeyType::Int => {
            let shift = random.up_to(64);
            let number = random.next().cast_signed() >> shift;
            (number.to_string(), number.to_be_bytes().to_vec())
        }
        KeyType::Text => {
            let letters: Vec<_> = "aZ09-äß漢🐘'\\$".chars().collect();
            let length = random.up_to(30);
            let letter = |_| letters[random.up_to(letters.len())];
            let text: String = (0..length).map(letter).collect();
            (text.clone(), text.into_bytes())
        }
        KeyType::Uuid | KeyType::Bytea => {
            let length = if of == KeyType::Uuid { 16 } else { random.up_to(30) };
            let bytes: Vec<_> = (0..length).map(|_| random.next() as u8).collect();
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            (if of == KeyType::Uuid { hex } else { format!("\\x{hex}") }, bytes)
        }
    }
}

#[test]
fn bound_row_routes_to_server_partition() {
    use howdah_route::{Parsed, ShardTarget};
    use howdah_wire::{
        Frame, Tag, ValueFormat,
        frontend::{FrontendMessage, encode},
    };

    const ROWS: usize = 200;
    let Some((_cluster, mut client)) = server("bound rows on shards") else { return };
    for of in [KeyType::Int, KeyType::Text, KeyType::Uuid, KeyType::Bytea] {
        make(&mut client, &[of]);
        client.query("SET search_path = whole").unwrap();
        let mut router = TestRouter::new(&[of], &[("t", &["k0"])]);
        let mut random = StatementRandom(11);
        let insert = "INSERT INTO t (x, k0) VALUES (7, $1) RETURNING tableoid::regclass";
        let parsed = router.session.parse(&mut router.router, insert.as_bytes(), []);
        let Ok(Parsed::Statement(statement)) = parsed else { panic!("{parsed:?}") };
        for _ in 0..ROWS {
            let (text, binary) = value(&mut random, of);
            let mut shard = |format: ValueFormat, value: &[u8]| {
                let mut bytes = Vec::new();
                encode::bind(&mut bytes, b"", b"", &[format], [Some(value)], &[]).unwrap();
                let frame = Frame { tag: Tag(bytes[0]), body: &bytes[5..] };
                let Ok(FrontendMessage::Bind(bind)) = FrontendMessage::parse(frame) else {
                    panic!("no Bind")
                };
                let route = router.session.bind(&router.router, &statement, &bind).unwrap();
                let ShardTarget::One(shard) = route.shards else { panic!("{route:?}") };
                format!("s{shard}.t")
            };
            let there = client.query_with(insert, &[Some(&text)]).unwrap();
            let there = there.rows[0].text(0).unwrap();
            assert_eq!(shard(ValueFormat::Text, text.as_bytes()), there, "{of}: {text}");
            assert_eq!(shard(ValueFormat::Binary, &binary), there, "{of}: {text}, binary");
        }
    }
}
