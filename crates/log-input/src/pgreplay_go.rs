//! Converts pgreplay-go's items, one JSON object per line, to records of a jsonlog.
//!
//! ```json
//! {"type":"BoundExecute","item":{"timestamp":"2019-02-25T15:08:27.237Z",
//!  "session_id":"5c7404eb.d6bd","user":"alice","database":"shop",
//!  "query":"select $1","parameters":["a",null]}}
//! ```
//!
//! `type` is `Connect`, `Disconnect`, `Statement` or `BoundExecute`. Items lack durations, errors,
//! the names of statements and portals, and everything that pgreplay-go failed to parse.
//!
//! Source: pgreplay-go, `pkg/pgreplay/types.go`.

use super::{
    json::{self, ObjectSplitter, members},
    jsonlog::{JsonLogRecord, push_value},
    layer::{Layer, LayerOutput},
    stamp,
};
use crate::problem::InputProblem;

/// A layer that converts each item of pgreplay-go to a record.
#[derive(Debug)]
pub(super) struct PgreplayGo {
    objects: ObjectSplitter,
}

impl PgreplayGo {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { objects: ObjectSplitter::new(bytes_max) }
    }
}

impl Layer for PgreplayGo {
    fn feed(&mut self, bytes: &[u8], output: &mut LayerOutput) {
        self.objects.feed(bytes, |object, line| match object {
            Ok(object) => {
                if write_record(object, &mut output.log).is_none() {
                    output.add_problem(InputProblem::BadEnvelope, line, object);
                }
            }
            Err(reason) => output.add_problem(reason, line, b""),
        });
    }

    fn finish(&mut self, output: &mut LayerOutput) {
        let rest = self.objects.rest().to_vec();
        self.objects.finish(|reason, line| {
            if let Err(reason) = reason {
                output.add_problem(reason, line, &rest);
            }
        });
    }
}

/// Whether a JSON object is an item of pgreplay-go that can be converted.
pub(super) fn is_item(object: &[u8]) -> bool {
    write_record(object, &mut Vec::new()).is_some()
}

/// Appends the record of an item; `None` if the object is not an item that can be converted.
fn write_record(object: &[u8], out: &mut Vec<u8>) -> Option<()> {
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
    let time = stamp::iso(&json::parse_string(time?)?, false)?.text;
    let text = |value: Option<&[u8]>| value.and_then(json::parse_string);
    let (user, database) = (text(user)?, text(database)?);
    let message = match kind? {
        b"\"Connect\"" => authorized_message(&user, &database),
        b"\"Disconnect\"" => disconnection_message(&user, &database),
        b"\"Statement\"" => [b"statement: ", text(query)?.as_slice()].concat(),
        b"\"BoundExecute\"" => [b"execute <unnamed>: ", text(query)?.as_slice()].concat(),
        _ => return None,
    };
    let record = JsonLogRecord {
        time: &time,
        user: &user,
        database: &database,
        session: &text(session)?,
        message: &message,
        values: Some(&parameters.map(parameter_list).unwrap_or_default()),
        ..JsonLogRecord::default()
    };
    record.push(out);
    Some(())
}

const NAMES: [&str; 6] = ["timestamp", "session_id", "user", "database", "query", "parameters"];

/// Returns the values of an array as a parameter list: strings, nulls, and anything else verbatim.
fn parameter_list(array: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for (number, value) in (1..).zip(json::elements(array)) {
        let text = json::parse_string(value);
        let value = match value {
            b"null" => None,
            other => Some(text.as_deref().unwrap_or(other)),
        };
        push_value(number, value, &mut out);
    }
    out
}

/// Returns the server's message after a login.
pub(super) fn authorized_message(user: &[u8], database: &[u8]) -> Vec<u8> {
    [b"connection authorized: user=", user, b" database=", database].concat()
}

/// Returns the server's message at the end of a session.
pub(super) fn disconnection_message(user: &[u8], database: &[u8]) -> Vec<u8> {
    let head = b"disconnection: session time: 0:00:00.000 user=";
    [&head[..], user, b" database=", database, b" host=[local]"].concat()
}

#[test]
fn invalid_item_is_reported() {
    let mut layer = PgreplayGo::new(1000);
    let mut output = LayerOutput::default();
    let text = b"{\"type\":\"Connect\",\"item\":{\"timestamp\":\"2019-02-25T15:08:27.2Z\",\
                 \"session_id\":\"5.7\",\"user\":\"al\",\"database\":\"shop\"}}\n\
                 {\"type\":\"Other\",\"item\":{}}\n{\"type\":\"Connect\",\"item\":{\"timestamp\":1}}\nx\n";
    layer.feed(text, &mut output);
    layer.finish(&mut output);
    assert_eq!(output.problems.iter().map(|problem| problem.line).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(output.log.iter().filter(|byte| **byte == b'\n').count(), 1);
}
