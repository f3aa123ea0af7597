//! The replay file of pgreplay, as records of a jsonlog.
//!
//! ```text
//! item:    seconds u32, microseconds u32, session u64, type u8, fields, newline
//! types:   0 connect (user, database)   1 disconnect   2 execute (statement)
//!          3 prepare (statement, name)  4 execute prepared (name, count u16, values)   5 cancel
//! string:  length u32, bytes; length 0x80000000 is NULL
//! ```
//!
//! Numbers are big-endian. Seconds count from 2000-01-01 00:00:00 in the zone of the machine that wrote
//! the file, which the file does not name. A session is its start and process id, as in `%c`. The file
//! lacks durations, errors, portals, rows fetched later, and application names.
//!
//! There is no header and no checksum: where a byte is wrong, all that follows is lost.
//!
//! Source: pgreplay, `replayfile.c`.

use std::collections::HashMap;

use super::{
    jsonlog::{Written, push_value},
    layer::{Found, Layer},
    pgreplay_go::{connected, disconnected},
    stamp::{self, UNKNOWN_ZONE},
};
use crate::summary::Reason;

/// Reads items.
#[derive(Debug)]
pub(super) struct Pgreplay {
    bytes_max: usize,
    pending: Vec<u8>,
    sessions: HashMap<u64, Session>,
    /// Items read.
    items: u64,
    broken: bool,
}

/// What later items of a session refer to.
#[derive(Debug, Default)]
struct Session {
    user: Vec<u8>,
    database: Vec<u8>,
    /// Prepared statements by name.
    statements: HashMap<Vec<u8>, Vec<u8>>,
}

/// Sessions, and statements of one, that are known at a time.
const SESSIONS_MAX: usize = 65_536;
const STATEMENTS_MAX: usize = 10_000;

impl Pgreplay {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, pending: Vec::new(), sessions: HashMap::new(), items: 0, broken: false }
    }

    /// Appends the record of an item; `None` if it refers to what was never prepared.
    fn take(&mut self, item: &Item<'_>, inside: &mut Vec<u8>) -> Option<()> {
        let id = format!("{:x}.{:x}", item.session >> 32, item.session & 0xffff_ffff);
        if self.sessions.len() >= SESSIONS_MAX && !self.sessions.contains_key(&item.session) {
            self.sessions.clear();
        }
        let session = self.sessions.entry(item.session).or_default();
        let mut record = Written { time: &item.time, session: id.as_bytes(), ..Written::default() };
        let mut values = Vec::new();
        let message = match &item.action {
            Action::Connect { user, database } => {
                session.user = user.unwrap_or_default().to_vec();
                session.database = database.unwrap_or_default().to_vec();
                connected(&session.user, &session.database)
            }
            Action::Disconnect => disconnected(&session.user, &session.database),
            Action::Execute { sql } => [b"statement: ", sql.unwrap_or_default()].concat(),
            Action::Prepare { sql, name } => {
                if session.statements.len() < STATEMENTS_MAX {
                    let (name, sql) = (name.unwrap_or_default(), sql.unwrap_or_default());
                    session.statements.insert(name.to_vec(), sql.to_vec());
                }
                return Some(());
            }
            Action::ExecutePrepared { name, values: bound } => {
                let name = name.unwrap_or_default();
                let sql = session.statements.get(name)?;
                for (number, value) in (1..).zip(bound) {
                    push_value(number, *value, &mut values);
                }
                let name = if name.is_empty() { b"<unnamed>" } else { name };
                [b"execute ", name, b": ", sql].concat()
            }
            Action::Cancel => {
                (record.severity, record.sqlstate) = (Some("ERROR"), Some("57014"));
                b"canceling statement due to user request".to_vec()
            }
        };
        (record.user, record.database) = (&session.user, &session.database);
        (record.message, record.values) = (&message, Some(values.as_slice()));
        record.push(inside);
        if matches!(item.action, Action::Disconnect) {
            self.sessions.remove(&item.session);
        }
        Some(())
    }
}

impl Layer for Pgreplay {
    fn feed(&mut self, bytes: &[u8], found: &mut Found) {
        if self.broken {
            return;
        }
        let mut pending = std::mem::take(&mut self.pending);
        pending.extend_from_slice(bytes);
        let mut rest = pending.as_slice();
        loop {
            let before = rest;
            match Item::parse(&mut rest) {
                Ok(Some(item)) => {
                    self.items += 1;
                    if self.take(&item, &mut found.inside).is_none() {
                        found.problem(
                            Reason::BadWrapping,
                            self.items,
                            b"a statement never prepared",
                        );
                    }
                }
                Ok(None) if before.len() <= self.bytes_max => {
                    rest = before;
                    break;
                }
                Ok(None) => {
                    found.problem(Reason::TooLong, self.items + 1, b"an item of pgreplay");
                    self.broken = true;
                    return;
                }
                Err(NotAnItem) => {
                    found.problem(Reason::Damaged, self.items + 1, b"no item of pgreplay");
                    self.broken = true;
                    return;
                }
            }
        }
        let done = pending.len() - rest.len();
        pending.drain(..done);
        self.pending = pending;
    }

    fn finish(&mut self, found: &mut Found) {
        if !self.pending.is_empty() {
            found.problem(Reason::CutShort, self.items + 1, b"an item of pgreplay");
        }
        self.pending = Vec::new();
    }
}

/// One item.
#[derive(Debug, PartialEq, Eq)]
struct Item<'a> {
    time: String,
    session: u64,
    action: Action<'a>,
}

type Nullable<'a> = Option<&'a [u8]>;

#[derive(Debug, PartialEq, Eq)]
enum Action<'a> {
    Connect { user: Nullable<'a>, database: Nullable<'a> },
    Disconnect,
    Execute { sql: Nullable<'a> },
    Prepare { sql: Nullable<'a>, name: Nullable<'a> },
    ExecutePrepared { name: Nullable<'a>, values: Vec<Nullable<'a>> },
    Cancel,
}

/// The bytes cannot be an item, however they go on.
#[derive(Debug, PartialEq, Eq)]
struct NotAnItem;

/// Whether a file that begins with `head` is of items: the first one is whole and right.
pub(super) fn is_replay_file(mut head: &[u8]) -> bool {
    matches!(Item::parse(&mut head), Ok(Some(_)))
}

impl<'a> Item<'a> {
    /// Takes an item off the front, or nothing while it is not whole.
    fn parse(rest: &mut &'a [u8]) -> Result<Option<Self>, NotAnItem> {
        let mut at = *rest;
        match Self::parse_from(&mut at) {
            Err(Stop::Short) => Ok(None),
            Err(Stop::Wrong) => Err(NotAnItem),
            Ok(item) => {
                *rest = at;
                Ok(Some(item))
            }
        }
    }

    fn parse_from(at: &mut &'a [u8]) -> Result<Self, Stop> {
        let seconds = i64::from(u32::from_be_bytes(array(at)?));
        let micros = i64::from(u32::from_be_bytes(array(at)?));
        if micros >= 1_000_000 {
            return Err(Stop::Wrong);
        }
        let civil = stamp::civil((EPOCH_SECONDS + seconds) * 1_000_000 + micros);
        let time = format!("{} {UNKNOWN_ZONE}", civil.ok_or(Stop::Wrong)?);
        let session = u64::from_be_bytes(array(at)?);
        let action = match array::<1>(at)? {
            [0] => Action::Connect { user: string(at)?, database: string(at)? },
            [1] => Action::Disconnect,
            [2] => Action::Execute { sql: string(at)? },
            [3] => Action::Prepare { sql: string(at)?, name: string(at)? },
            [4] => {
                let name = string(at)?;
                let count = u16::from_be_bytes(array(at)?);
                let values = (0..count).map(|_| string(at)).collect::<Result<_, _>>()?;
                Action::ExecutePrepared { name, values }
            }
            [5] => Action::Cancel,
            _ => return Err(Stop::Wrong),
        };
        if array(at)? != [b'\n'] {
            return Err(Stop::Wrong);
        }
        Ok(Self { time, session, action })
    }
}

/// 2000-01-01 in seconds since 1970.
const EPOCH_SECONDS: i64 = 946_684_800;

/// Why an item cannot be read.
enum Stop {
    /// It goes on beyond what there is.
    Short,
    Wrong,
}

fn array<const N: usize>(at: &mut &[u8]) -> Result<[u8; N], Stop> {
    let (bytes, rest) = at.split_first_chunk::<N>().ok_or(Stop::Short)?;
    *at = rest;
    Ok(*bytes)
}

fn string<'a>(at: &mut &'a [u8]) -> Result<Nullable<'a>, Stop> {
    match u32::from_be_bytes(array(at)?) {
        NULL => Ok(None),
        len if len > STRING_BYTES_MAX => Err(Stop::Wrong),
        len => {
            let (bytes, rest) = at
                .split_at_checked(usize::try_from(len).map_err(|_| Stop::Wrong)?)
                .ok_or(Stop::Short)?;
            *at = rest;
            Ok(Some(bytes))
        }
    }
}

/// A length that stands for NULL.
const NULL: u32 = 0x8000_0000;

/// PostgreSQL takes no text longer than this.
const STRING_BYTES_MAX: u32 = 1 << 30;

#[cfg(test)]
mod tests;
