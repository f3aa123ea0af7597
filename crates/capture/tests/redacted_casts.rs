//! Casts redacted values on a real server: a replacement must be valid for the type of its value.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails, helpers included")]

use std::borrow::Cow;

use howdah_capture::{RedactionKey, Redactor};
use howdah_connect::{Client, ConnParams, ConnectTarget, Environment};
use howdah_lab::{Cluster, skip_without_postgres};
use howdah_traffic::{Action, Bound, CapturedOutcome, Event, Parameter, Source, Timestamp};

/// Types, each with an expression for a random value that may use `n`, the number of the value.
const TYPES: [(&str, &str); 50] = [
    ("int2", "(random() * 60000)::int - 30000"),
    ("int4", "(10 ^ (random() * 9))::int4 * (n % 3 - 1)"),
    ("int8", "(10 ^ (random() * 18))::int8 * (n % 3 - 1)"),
    ("oid", "(random() * 4294967295)::int8::oid"),
    (
        "numeric",
        "case n % 20 when 0 then 'NaN' else round((random() * 10 ^ (n % 15))::numeric, n % 8) end",
    ),
    (
        "float8",
        "case n % 20 when 0 then '-Infinity'::float8 else random() * 10 ^ (n % 300 - 150) end",
    ),
    ("bool", "n % 2 = 0"),
    ("bool", "(array['yes', 'no', 'on', 'off', '1', '0', 't', 'f', 'TRUE'])[n % 9 + 1]"),
    ("money", "(random() * 1000000)::numeric::money"),
    ("uuid", "md5(n::text)::uuid"),
    ("uuid", "md5(n::text)"),
    ("bytea", "decode(md5(n::text), 'hex')"),
    ("date", "case n % 50 when 0 then 'infinity' else date '1900-01-01' + n * 37 end"),
    (
        "date",
        "to_char(date '1950-01-01' + n * 37, (array['MM/DD/YYYY', 'YYYYMMDD', 'YYYY/MM/DD', 'FMMM/FMDD/YYYY'])[n % 4 + 1])",
    ),
    ("time", "time '00:00' + random() * interval '23:59:59'"),
    (
        "time",
        "to_char(time '00:00' + random() * interval '23:59:59', (array['HH24:MI', 'HH12:MI AM', 'FMHH12:MI:SS PM'])[n % 3 + 1])",
    ),
    ("timetz", "timetz '00:00+05:30' + random() * interval '23:59:59'"),
    ("timestamp", "timestamp '1980-01-01' + random() * interval '40 years'"),
    ("timestamptz", "timestamptz '1980-01-01' + random() * interval '40 years'"),
    (
        "timestamptz",
        "to_char(timestamp '1980-01-01' + random() * interval '40 years', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS') || (array['Z', '+05:30', ' Europe/Vienna', ' CET', '-0330', ' BC'])[n % 6 + 1]",
    ),
    ("interval", "random() * interval '900 days 100 hours' + n % 4 * interval '7 months'"),
    (
        "interval",
        "(array['1 day', '3 weeks ago', '@ 2 hours 5 mins', '90s', 'P1Y2M3DT4H5M6.5S', '-1 mon +2 days -03:04:05', '1 century', '36:15:07.25', '1.5 hours'])[n % 9 + 1]",
    ),
    ("inet", "inet '1.2.3.4' + (random() * 3000000000)::int8"),
    ("inet", "(host(inet '1.2.3.4' + (random() * 3000000000)::int8) || '/' || n % 33)"),
    ("inet", "(inet '2001:db8::1' + (random() * 1e15)::int8) "),
    (
        "cidr",
        "network((host(inet '10.2.3.4' + (random() * 3000000000)::int8) || '/' || n % 33)::inet)",
    ),
    (
        "cidr",
        "network((host(inet '2001:db8:85a3::8a2e:370:7334' + (random() * 1e15)::int8) || '/' || n % 129)::inet)",
    ),
    ("cidr", "(array['10.1/16', '192.168.4/24', '10.0/8', '172.16.0.0/12'])[n % 4 + 1]"),
    ("macaddr", "substr(md5(n::text), 1, 12)::macaddr"),
    (
        "macaddr",
        "(array['08002b:010203', '08-00-2b-01-02-03', '0800.2b01.0203', '08002b010203', '0800-2b01-0203'])[n % 5 + 1]",
    ),
    ("macaddr8", "substr(md5(n::text), 1, 16)::macaddr8"),
    ("bit(8)", "(n % 256)::bit(8)"),
    ("varbit", "substr((n * 977)::bit(32)::text, 1, n % 31 + 1)"),
    ("pg_lsn", "pg_lsn '16/B374D848' + n * 1234567"),
    (
        "int4range",
        "int4range(least(a, b), greatest(a, b), (array['[)', '(]', '()', '[]'])[n % 4 + 1])::text",
    ),
    (
        "int4range",
        "format('%s%s,%s%s', (array['[', '('])[n % 2 + 1], nullif(least(a, b), 1), greatest(a, b), (array[']', ')'])[n % 2 + 1])",
    ),
    ("int8range", "int8range(least(a, b)::int8 * 1000000, null)"),
    ("numrange", "numrange(least(a, b) / 7.0, greatest(a, b) / 7.0)"),
    ("daterange", "daterange(date '1990-01-01' + least(a, b) % 9000, date '2026-01-01' + n, '[]')"),
    (
        "tsrange",
        "tsrange(timestamp '2020-01-01' + n * interval '1 hour', timestamp '2020-01-01' + (n + n % 5) * interval '61 minutes')",
    ),
    (
        "tstzrange",
        "tstzrange('1990-01-01 00:00+00', case when n % 2 = 0 then timestamptz '1990-01-01' + n * interval '1 hour' end)",
    ),
    ("int4[]", "array[a, null, b]"),
    ("int4[]", "('[0:1]={' || a || ',' || b || '}')"),
    ("int4[][]", "array[[a, b], [b, n]]"),
    (
        "text[]",
        "array[md5(a::text), 'a \"b\" \\ {c}', '', 'NULL', null, 'Jane, Roe', 'ab', '10.2.3.4']",
    ),
    ("date[]", "array[date '1990-01-01' + n, null]"),
    ("inet[]", "array[inet '10.1.2.3' + n, '2001:db8::7/64']"),
    ("int4range[]", "array[int4range(least(a, b), greatest(a, b)), 'empty', int4range(null, n)]"),
    (
        "jsonb",
        "jsonb_build_object('name', E'J\\u00e4ne \"R\" \\\\ \\n' || n, 'n', a / 7.0, 'at', now(), 'tags', array['x', 'true'], 'deep', array[array[1, b]], 'none', null, 'yes', true)",
    ),
    (
        "json",
        "(array['[1,2]', '\"a\\nb\\u0041\"', '[5e3, -2.5E-10, 0.0]', '{\"a\" : [] , \"b\":{}}', '[\"2026-01-01\",\"2026-02-01\"]', '{\"a\\\\b\": \"\\ud83d\\ude00\"}'])[n % 6 + 1]",
    ),
];

/// Types of later versions, and of rows.
const FURTHER_TYPES: [(&str, &str); 5] = [
    (
        "int4multirange",
        "int4multirange(int4range(least(a, b), greatest(a, b)), int4range(n, n + 10))",
    ),
    (
        "tsmultirange",
        "tsmultirange(tsrange('2020-01-01', '2020-01-02'), tsrange('2021-01-01', timestamp '2021-01-01' + n * interval '1 hour'))",
    ),
    (
        "visit",
        "row(n, 'Roe, \"Jane\"', date '2026-01-01' + n, inet '10.1.2.3', null, array[a, b])::visit",
    ),
    (
        "visit[]",
        "array[row(n, 'x', date '2026-01-01' + n, inet '10.1.2.3', null, array[a, b])::visit]",
    ),
    ("point", "point(a, b / 7.0)"),
];

/// Number of values of each type.
const VALUES: u32 = 400;

#[test]
fn replacements_are_valid_for_the_types_of_their_values() {
    let Some(cluster) = skip_without_postgres("redacted_casts", Cluster::builder().start()) else {
        return;
    };
    let params = ConnParams::from_conninfo(cluster.uri("postgres"));
    let target = ConnectTarget::resolve(&params, &Environment::empty()).unwrap();
    let mut client = Client::connect(&target).unwrap();
    client
        .query(
            "create type visit as (id int, name text, day date, host inet, x int, list int[]);
             create function problem(statement text) returns text language plpgsql as $$
             begin execute statement; return null;
             exception when others then return sqlerrm; end $$;
             select setseed(0.5)",
        )
        .unwrap();
    let further = if cluster.major() >= 14 { &FURTHER_TYPES[..] } else { &FURTHER_TYPES[2..] };
    let key = RedactionKey::from_secret(b"sixteen bytes or more").unwrap();
    let mut redactor = Redactor::new(&key);
    let (mut problems, mut equal, mut count) = (Vec::new(), 0, 0);
    for (kind, expression) in TYPES.iter().chain(further) {
        let sql = format!(
            "select ({expression})::text from (select n, (random() * 10 ^ (n % 9))::int a, \
             (random() * 10 ^ (n % 9))::int b from generate_series(1, {VALUES}) n) s"
        );
        let values = client.query(&sql).unwrap_or_else(|error| panic!("{kind}: {error}"));
        let column = values[0].rows.iter().filter_map(|row| row.text(0).map(Cow::into_owned));
        let values: Vec<String> = column.collect();
        let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
        let mut statements = Vec::new();
        for value in &values {
            let bound = redacted_value(&mut redactor, value);
            equal += usize::from(bound == *value);
            count += 1;
            statements.push(format!("select {}::{kind}", quoted(&bound)));
            let sql = format!("select {}::{kind}", quoted(value));
            let simple = event(Action::Simple { sql: sql.as_str().into() });
            let redacted = redactor.redact(simple).action.sql().unwrap().to_string();
            assert!(redacted.starts_with("select '"), "{sql} became {redacted}");
            statements.push(redacted);
        }
        let list: Vec<_> = statements.iter().map(|statement| quoted(statement)).collect();
        let sql = format!(
            "select s || ': ' || p from (select s, problem(s) p from unnest(array[{}]) s) x \
             where p is not null limit 5",
            list.join(",")
        );
        let found = client.query(&sql).unwrap();
        problems.extend(found[0].rows.iter().filter_map(|row| row.text(0).map(Cow::into_owned)));
    }
    assert!(problems.is_empty(), "{problems:#?}");
    // Only words such as `true` and short numbers keep their value.
    assert!(equal * 10 < count, "{equal} of {count} values are not replaced");
}

fn redacted_value(redactor: &mut Redactor, value: &str) -> String {
    let parameters = Some(vec![Parameter::Value(value.into())]);
    let bound = Bound { statement: "".into(), portal: "".into(), sql: "".into(), parameters };
    let action = redactor.redact(event(Action::Execute(bound))).action;
    let values = match action {
        Action::Execute(bound) => bound.parameters.unwrap(),
        _ => Vec::new(),
    };
    let value = values.into_iter().find_map(|value| match value {
        Parameter::Value(value) => Some(value.to_string()),
        _ => None,
    });
    value.unwrap()
}

fn event(action: Action) -> Event {
    Event {
        time: Timestamp::from_micros(0),
        session: "s".into(),
        user: "u".into(),
        database: "d".into(),
        application: "".into(),
        action,
        outcome: CapturedOutcome::default(),
        source: Source::Statement,
        vxid: None,
        query_id: None,
        pipeline: None,
        wire: None,
    }
}
