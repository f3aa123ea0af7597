//! The items of pgreplay-go, one JSON object per line, as records of a jsonlog.
//!
//! ```json
//! {"type":"BoundExecute","item":{"timestamp":"2019-02-25T15:08:27.237Z","session_id":"5c7404eb.d6bd",
//!  "user":"alice","database":"shop","query":"select $1","parameters":["a",null]}}
//! ```
//!
//! `type` is `Connect`, `Disconnect`, `Statement` or `BoundExecute`. They lack durations, errors, the
//! names of statements and portals, and everything that failed to parse when they were made.
//!
//! Source: pgreplay-go, `pkg/pgreplay/types.go`.

use super::{
    json::{self, Objects, members},
    jsonlog::{Written, push_value},
    layer::{Found, Layer},
    stamp,
};
use crate::summary::Reason;

/// Reads items.
#[derive(Debug)]
pub(super) struct PgreplayGo {
    objects: Objects,
}

impl PgreplayGo {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { objects: Objects::new(bytes_max) }
    }
}

impl Layer for PgreplayGo {
    fn feed(&mut self, bytes: &[u8], found: &mut Found) {
        self.objects.feed(bytes, |object, line| match object {
            Ok(object) => {
                if take(object, &mut found.inside).is_none() {
                    found.problem(Reason::BadWrapping, line, object);
                }
            }
            Err(reason) => found.problem(reason, line, b""),
        });
    }

    fn finish(&mut self, found: &mut Found) {
        let rest = self.objects.rest().to_vec();
        self.objects.finish(|reason, line| {
            if let Err(reason) = reason {
                found.problem(reason, line, &rest);
            }
        });
    }
}

/// Whether an object is an item.
pub(super) fn is_item(object: &[u8]) -> bool {
    take(object, &mut Vec::new()).is_some()
}

/// Appends the record of an item.
fn take(object: &[u8], inside: &mut Vec<u8>) -> Option<()> {
    let [mut kind, mut item] = [None; 2];
    for (name, value) in members(object) {
        match name {
            b"type" => kind = Some(value),
            b"item" => item = Some(value),
            _ => {}
        }
    }
    let mut values = [None; NAMES.len()];
    for (name, value) in members(item?) {
        if let Some(at) = NAMES.iter().position(|known| known.as_bytes() == name) {
            values[at] = Some(value);
        }
    }
    let [time, session, user, database, query, parameters] = values;
    let time = stamp::iso(&json::string(time?)?, false)?.text;
    let text = |value: Option<&[u8]>| value.and_then(json::string);
    let (user, database) = (text(user)?, text(database)?);
    let message = match kind? {
        b"\"Connect\"" => connected(&user, &database),
        b"\"Disconnect\"" => disconnected(&user, &database),
        b"\"Statement\"" => [b"statement: ", text(query)?.as_slice()].concat(),
        b"\"BoundExecute\"" => [b"execute <unnamed>: ", text(query)?.as_slice()].concat(),
        _ => return None,
    };
    let record = Written {
        time: &time,
        user: &user,
        database: &database,
        session: &text(session)?,
        message: &message,
        values: Some(&parameters.map(bound).unwrap_or_default()),
        ..Written::default()
    };
    record.push(inside);
    Some(())
}

const NAMES: [&str; 6] = ["timestamp", "session_id", "user", "database", "query", "parameters"];

/// The values of an array: texts, nulls, and whatever else stands as it is.
fn bound(array: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for (number, value) in (1..).zip(json::elements(array)) {
        let text = json::string(value);
        let value = match value {
            b"null" => None,
            other => Some(text.as_deref().unwrap_or(other)),
        };
        push_value(number, value, &mut out);
    }
    out
}

/// What the server says when a session has logged in.
pub(super) fn connected(user: &[u8], database: &[u8]) -> Vec<u8> {
    [b"connection authorized: user=", user, b" database=", database].concat()
}

/// What the server says when a session has ended.
pub(super) fn disconnected(user: &[u8], database: &[u8]) -> Vec<u8> {
    let head = b"disconnection: session time: 0:00:00.000 user=";
    [&head[..], user, b" database=", database, b" host=[local]"].concat()
}

#[test]
fn what_is_no_item_is_told() {
    let mut layer = PgreplayGo::new(1000);
    let mut found = Found::default();
    let text = b"{\"type\":\"Connect\",\"item\":{\"timestamp\":\"2019-02-25T15:08:27.2Z\",\
                 \"session_id\":\"5.7\",\"user\":\"al\",\"database\":\"shop\"}}\n\
                 {\"type\":\"Other\",\"item\":{}}\n{\"type\":\"Connect\",\"item\":{\"timestamp\":1}}\nx\n";
    layer.feed(text, &mut found);
    layer.finish(&mut found);
    assert_eq!(found.problems.iter().map(|met| met.line).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(found.inside.iter().filter(|byte| **byte == b'\n').count(), 1);
}
