//! Converts pgreplay's replay file to records of a jsonlog.
//!
//! ```text
//! item:    seconds u32, microseconds u32, session u64, type u8, fields, newline
//! types:   0 connect (user, database)   1 disconnect   2 execute (statement)
//!          3 prepare (statement, name)  4 execute prepared (name, count u16, values)   5 cancel
//! string:  length u32, bytes; length 0x80000000 is NULL
//! ```
//!
//! Numbers are big-endian. Seconds count from 2000-01-01 00:00:00 in the zone of the machine that
//! wrote the file, which the file does not contain. A session is its start and process id, as in
//! `%c`. The file lacks durations, errors, portals, rows fetched later, and application names.
//!
//! The format has neither a header nor checksums: after an item that cannot be parsed, the rest of
//! the file is lost.
//!
//! Source: pgreplay, `replayfile.c`.

use std::collections::HashMap;

use super::{
    jsonlog::{JsonLogRecord, push_value},
    layer::{Layer, LayerOutput},
    pgreplay_go::{authorized_message, disconnection_message},
    stamp::{self, UNKNOWN_ZONE},
};
use crate::problem::InputProblem;

/// A layer that converts the items of a replay file to records of a jsonlog.
#[derive(Debug)]
pub(super) struct Pgreplay {
    bytes_max: usize,
    pending: Vec<u8>,
    sessions: HashMap<u64, PgreplaySession>,
    /// Number of items read.
    items: u64,
    is_broken: bool,
}

/// State of a session that later items refer to.
#[derive(Debug, Default)]
struct PgreplaySession {
    user: Vec<u8>,
    database: Vec<u8>,
    /// Prepared statements by name.
    statements: HashMap<Vec<u8>, Vec<u8>>,
}

/// Maximum number of known sessions. When a further one begins, all are removed.
const SESSIONS_MAX: usize = 65_536;
/// Maximum number of known statements of a session. Further ones are not stored.
const STATEMENTS_MAX: usize = 10_000;

impl Pgreplay {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            pending: Vec::new(),
            sessions: HashMap::new(),
            items: 0,
            is_broken: false,
        }
    }

    /// Appends the record of an item, unless it is a Prepare, which is only stored. Returns `None`
    /// if the item executes a statement that is not known to be prepared.
    fn write_record(&mut self, item: &PgreplayItem<'_>, out: &mut Vec<u8>) -> Option<()> {
        let id = format!("{:x}.{:x}", item.session >> 32, item.session & 0xffff_ffff);
        if self.sessions.len() >= SESSIONS_MAX && !self.sessions.contains_key(&item.session) {
            self.sessions.clear();
        }
        let session = self.sessions.entry(item.session).or_default();
        let mut record =
            JsonLogRecord { time: &item.time, session: id.as_bytes(), ..JsonLogRecord::default() };
        let mut values = Vec::new();
        let message = match &item.action {
            PgreplayAction::Connect { user, database } => {
                session.user = user.unwrap_or_default().to_vec();
                session.database = database.unwrap_or_default().to_vec();
                authorized_message(&session.user, &session.database)
            }
            PgreplayAction::Disconnect => disconnection_message(&session.user, &session.database),
            PgreplayAction::Execute { sql } => [b"statement: ", sql.unwrap_or_default()].concat(),
            PgreplayAction::Prepare { sql, name } => {
                if session.statements.len() < STATEMENTS_MAX {
                    let (name, sql) = (name.unwrap_or_default(), sql.unwrap_or_default());
                    session.statements.insert(name.to_vec(), sql.to_vec());
                }
                return Some(());
            }
            PgreplayAction::ExecutePrepared { name, values: bound } => {
                let name = name.unwrap_or_default();
                let sql = session.statements.get(name)?;
                for (number, value) in (1..).zip(bound) {
                    push_value(number, *value, &mut values);
                }
                let name = if name.is_empty() { b"<unnamed>" } else { name };
                [b"execute ", name, b": ", sql].concat()
            }
            PgreplayAction::Cancel => {
                (record.severity, record.sqlstate) = (Some("ERROR"), Some("57014"));
                b"canceling statement due to user request".to_vec()
            }
        };
        (record.user, record.database) = (&session.user, &session.database);
        (record.message, record.values) = (&message, Some(values.as_slice()));
        record.push(out);
        if matches!(item.action, PgreplayAction::Disconnect) {
            self.sessions.remove(&item.session);
        }
        Some(())
    }
}

impl Layer for Pgreplay {
    fn feed(&mut self, bytes: &[u8], output: &mut LayerOutput) {
        if self.is_broken {
            return;
        }
        let mut pending = std::mem::take(&mut self.pending);
        pending.extend_from_slice(bytes);
        let mut rest = pending.as_slice();
        loop {
            let before = rest;
            match PgreplayItem::parse(&mut rest) {
                Ok(Some(item)) => {
                    self.items += 1;
                    if self.write_record(&item, &mut output.log).is_none() {
                        output.add_problem(
                            InputProblem::BadEnvelope,
                            self.items,
                            b"a statement that was never prepared",
                        );
                    }
                }
                Ok(None) if before.len() <= self.bytes_max => {
                    rest = before;
                    break;
                }
                Ok(None) => {
                    output.add_problem(InputProblem::TooLong, self.items + 1, b"a pgreplay item");
                    self.is_broken = true;
                    return;
                }
                Err(InvalidItem) => {
                    output.add_problem(
                        InputProblem::Damaged,
                        self.items + 1,
                        b"not a pgreplay item",
                    );
                    self.is_broken = true;
                    return;
                }
            }
        }
        let done = pending.len() - rest.len();
        pending.drain(..done);
        self.pending = pending;
    }

    fn finish(&mut self, output: &mut LayerOutput) {
        if !self.pending.is_empty() {
            output.add_problem(InputProblem::CutShort, self.items + 1, b"a pgreplay item");
        }
        self.pending = Vec::new();
    }
}

/// One item of a replay file, as parsed.
#[derive(Debug, PartialEq, Eq)]
struct PgreplayItem<'a> {
    time: String,
    session: u64,
    action: PgreplayAction<'a>,
}

type Nullable<'a> = Option<&'a [u8]>;

#[derive(Debug, PartialEq, Eq)]
enum PgreplayAction<'a> {
    Connect { user: Nullable<'a>, database: Nullable<'a> },
    Disconnect,
    Execute { sql: Nullable<'a> },
    Prepare { sql: Nullable<'a>, name: Nullable<'a> },
    ExecutePrepared { name: Nullable<'a>, values: Vec<Nullable<'a>> },
    Cancel,
}

/// The error for bytes that cannot be the beginning of an item.
#[derive(Debug, PartialEq, Eq)]
struct InvalidItem;

/// Whether a file beginning with `head` is a replay file: its first item is complete and valid.
pub(super) fn is_replay_file(mut head: &[u8]) -> bool {
    matches!(PgreplayItem::parse(&mut head), Ok(Some(_)))
}

impl<'a> PgreplayItem<'a> {
    /// Parses the item at the front and advances `rest`; `None` while it is incomplete.
    fn parse(rest: &mut &'a [u8]) -> Result<Option<Self>, InvalidItem> {
        let mut at = *rest;
        match Self::parse_from(&mut at) {
            Err(ItemError::Incomplete) => Ok(None),
            Err(ItemError::Invalid) => Err(InvalidItem),
            Ok(item) => {
                *rest = at;
                Ok(Some(item))
            }
        }
    }

    fn parse_from(at: &mut &'a [u8]) -> Result<Self, ItemError> {
        let seconds = i64::from(u32::from_be_bytes(array(at)?));
        let micros = i64::from(u32::from_be_bytes(array(at)?));
        if micros >= 1_000_000 {
            return Err(ItemError::Invalid);
        }
        let civil = stamp::format_civil((EPOCH_SECONDS + seconds) * 1_000_000 + micros);
        let time = format!("{} {UNKNOWN_ZONE}", civil.ok_or(ItemError::Invalid)?);
        let session = u64::from_be_bytes(array(at)?);
        let action = match array::<1>(at)? {
            [0] => PgreplayAction::Connect { user: string(at)?, database: string(at)? },
            [1] => PgreplayAction::Disconnect,
            [2] => PgreplayAction::Execute { sql: string(at)? },
            [3] => PgreplayAction::Prepare { sql: string(at)?, name: string(at)? },
            [4] => {
                let name = string(at)?;
                let count = u16::from_be_bytes(array(at)?);
                let values = (0..count).map(|_| string(at)).collect::<Result<_, _>>()?;
                PgreplayAction::ExecutePrepared { name, values }
            }
            [5] => PgreplayAction::Cancel,
            _ => return Err(ItemError::Invalid),
        };
        if array(at)? != [b'\n'] {
            return Err(ItemError::Invalid);
        }
        Ok(Self { time, session, action })
    }
}

/// 2000-01-01 in seconds since 1970.
const EPOCH_SECONDS: i64 = 946_684_800;

/// The reason why an item cannot be parsed.
enum ItemError {
    /// The item is incomplete.
    Incomplete,
    Invalid,
}

fn array<const N: usize>(at: &mut &[u8]) -> Result<[u8; N], ItemError> {
    let (bytes, rest) = at.split_first_chunk::<N>().ok_or(ItemError::Incomplete)?;
    *at = rest;
    Ok(*bytes)
}

fn string<'a>(at: &mut &'a [u8]) -> Result<Nullable<'a>, ItemError> {
    match u32::from_be_bytes(array(at)?) {
        NULL => Ok(None),
        len if len > STRING_BYTES_MAX => Err(ItemError::Invalid),
        len => {
            let (bytes, rest) = at
                .split_at_checked(usize::try_from(len).map_err(|_| ItemError::Invalid)?)
                .ok_or(ItemError::Incomplete)?;
            *at = rest;
            Ok(Some(bytes))
        }
    }
}

/// The length field of a NULL.
const NULL: u32 = 0x8000_0000;

/// Maximum length of a text in PostgreSQL, in bytes.
const STRING_BYTES_MAX: u32 = 1 << 30;

#[cfg(test)]
mod tests;
