//! Tests of the extended protocol: statements that are parsed first and bound later.

use howdah_wire::{
    Frame, Tag, ValueFormat,
    frontend::{FrontendMessage, encode},
};

use super::*;

impl RoutedClient {
    fn parse(&mut self, sql: &str, types: &[u32]) -> RoutedStatement {
        let parsed = self.session.parse(&mut self.router, sql.as_bytes(), types.iter().copied());
        match parsed.unwrap_or_else(|refusal| panic!("{sql}: {refusal}")) {
            Parsed::Statement(statement) => statement,
            Parsed::Command(command) => panic!("{sql} is a command: {command:?}"),
        }
    }

    fn bind(
        &mut self,
        statement: &RoutedStatement,
        format: ValueFormat,
        values: &[Option<&[u8]>],
    ) -> Result<ShardTarget, String> {
        let mut bytes = Vec::new();
        let values = values.iter().copied();
        encode::bind(&mut bytes, b"", b"", &[format], values, &[]).expect("a message");
        let frame = Frame { tag: Tag(bytes[0]), body: &bytes[5..] };
        let Ok(FrontendMessage::Bind(bind)) = FrontendMessage::parse(frame) else {
            panic!("no Bind")
        };
        let route = self.session.bind(&self.router, statement, &bind);
        route.map(|route| route.shards).map_err(|refusal| refusal.to_string())
    }
}

const INT8: u32 = 20;
const TEXT: u32 = 25;
const NUMERIC: u32 = 1700;
const UNSAID: u32 = 0;

#[test]
fn parameter_keys_depend_on_format_and_type() {
    let mut client = RoutedClient::new(sharded());
    let [text, binary] = [ValueFormat::Text, ValueFormat::Binary];
    let one = Ok(ShardTarget::One(2));
    // The key 0 is on shard 2.
    let zero: &[Option<&[u8]>] = &[Some(b"0")];
    for (sql, types) in [
        ("select * from orders where id = $1", &[INT8][..]),
        ("select * from orders where id = $1", &[]),
        ("select * from orders where id = $1", &[UNSAID]),
        ("select * from orders where id = $1::bigint", &[]),
        ("select * from orders where id = $1::bigint", &[TEXT]),
        ("insert into orders (x, id) values (7, $1)", &[]),
        ("update orders set x = 1 where id in ($1, 0)", &[]),
        ("select * from orders o, items i where o.id = $1 and i.order_id = $1", &[]),
    ] {
        let statement = client.parse(sql, types);
        assert_eq!(client.bind(&statement, text, zero), one, "{sql} {types:?}");
        let is_text = types == [TEXT];
        let bytes: &[u8] = if is_text { b"0" } else { &[0; 8] };
        assert_eq!(client.bind(&statement, binary, &[Some(bytes)]), one, "{sql} {types:?}");
        // The same statement with a different key.
        let other = client.bind(&statement, text, &[Some(b"2")]);
        assert_ne!(other, one, "{sql} {types:?}");
    }
    for (sql, types) in [
        ("delete from orders where id = $1", &[NUMERIC][..]),
        ("delete from orders where id = $1", &[TEXT]),
        ("delete from orders where id = $1::numeric", &[]),
        // The parameter's other use may imply a different type.
        ("delete from orders where id = $1 and x > $1", &[]),
        ("delete from orders where id = $1 + 0", &[]),
        ("delete from orders where id = $2", &[INT8, INT8]),
    ] {
        let statement = client.parse(sql, types);
        assert!(client.bind(&statement, text, zero).is_err(), "{sql} {types:?}");
    }
    let statement = client.parse("delete from orders where id = $1 and x > $1", &[INT8]);
    assert_eq!(client.bind(&statement, text, zero), one);
    for value in [Some(&b""[..]), Some(b"x"), Some(b"0.0")] {
        assert!(client.bind(&statement, text, &[value]).is_err(), "{value:?}");
    }
    assert!(client.bind(&statement, binary, &[Some(&[0; 3])]).is_err());
    assert!(client.bind(&statement, text, &[]).is_err());
    assert_eq!(client.bind(&statement, text, &[None]), Ok(ShardTarget::Any), "no row matches");
    let list = client.parse("delete from orders where id in (0, $1)", &[]);
    assert_eq!(client.bind(&list, text, &[None]), one);
    let insert = client.parse("insert into orders (id) values ($1)", &[]);
    assert_eq!(client.bind(&insert, text, &[None]), Ok(ShardTarget::One(0)), "NULL has a shard");
}

#[test]
fn prepared_statement_retains_its_own_constants() {
    let mut client = RoutedClient::new(sharded());
    let sql = |id: i32| format!("insert into orders (id, x) values ({id}, $1)");
    let (zero, two) = (client.parse(&sql(0), &[]), client.parse(&sql(2), &[]));
    let value: &[Option<&[u8]>] = &[Some(b"9")];
    assert_eq!(client.bind(&zero, ValueFormat::Text, value), Ok(ShardTarget::One(2)));
    assert_eq!(client.bind(&two, ValueFormat::Text, value), Ok(ShardTarget::One(0)));
}

#[test]
fn unbound_statement_may_go_to_any_shard() {
    let mut client = RoutedClient::new(RouteSettings {
        role: RolePreference::Auto,
        primary_reads: false,
        ..sharded()
    });
    let statement = client.parse("delete from orders where id = $1", &[]);
    let route = client.session.parse_or_describe(&client.router, &statement).expect("anywhere");
    assert_eq!((route.shards, route.role), (ShardTarget::Any, Primary));
    let statement = client.parse("select * from orders where id = $1", &[]);
    let route = client.session.parse_or_describe(&client.router, &statement).expect("anywhere");
    assert_eq!((route.shards, route.role), (ShardTarget::Any, Replica));
    let statement = client.parse("select * from logs where id = $1", &[]);
    assert!(
        client.session.parse_or_describe(&client.router, &statement).is_err(),
        "the table is unlisted"
    );
    let statement = client.parse("select * from orders where id = $1", &[]);
    client.session.link(1);
    let route = client.session.parse_or_describe(&client.router, &statement).expect("there");
    assert_eq!(route.shards, ShardTarget::One(1));
    assert!(client.bind(&statement, ValueFormat::Text, &[Some(b"0")]).is_err(), "it is on 2");
}

#[test]
fn parsed_hints_and_commands_are_recognized() {
    let mut client = RoutedClient::new(sharded());
    let statement = client.parse("/* shard_id: 1 */ delete from orders where id = $1", &[]);
    assert_eq!(client.bind(&statement, ValueFormat::Text, &[Some(b"0")]), Ok(ShardTarget::One(1)));
    let parsed = client.session.parse(&mut client.router, b"SET SHARD TO '1'", []);
    let Ok(Parsed::Command(command)) = parsed else { panic!("{parsed:?}") };
    let answer = client.session.execute(&client.router, &command).expect("there is one");
    assert_eq!(answer, CommandAnswer { row: None, tag: "SET SHARD" });
    assert_eq!(client.shards("selekt"), Ok(ShardTarget::One(1)));
    assert!(client.session.parse(&mut client.router, b"SET SHARD TO 'x'", []).is_err());
    assert!(client.session.parse(&mut client.router, b"/* shard_id: x */ select 1", []).is_err());
}
