//! [`SimClient`]: a client that knows the replies to expect, because its reference model receives
//! the same input.

mod keyed;

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use howdah_wire::{
    Header, ValueFormat,
    frontend::{DescribeTarget, encode},
    startup::CancelKey,
};

use self::keyed::{KeyedStatement, TableCopy};
use super::{
    backend::SimBackend, random::SimRandom, sharded_table::HeldRows, simulation::shards::shard_of,
};
use crate::TargetRole;

/// A client with its reference model, and the replies that it expects.
pub(super) struct SimClient {
    pub(super) number: u32,
    pub(super) zone: String,
    /// The user that the client logs in as, if it differs from its pool's.
    pub(super) user: Option<Arc<str>>,
    /// The cancel key that the client has received.
    pub(super) cancel_key: Option<CancelKey>,
    /// Whether the client may send statements that only a CancelRequest ends.
    pub(super) may_stall: bool,
    /// Whether the client waits for such a statement, and so repeats its CancelRequest.
    pub(super) is_stalled: bool,
    /// The target role that the client requests, if its database is a cluster.
    pub(super) role: TargetRole,
    /// Number of shards of the client's database; 0 without sharding.
    pub(super) shards: u32,
    /// Whether the client does not select shards, but sends statements with keys and for all
    /// shards.
    pub(super) is_keyed: bool,
    /// Whether the pooler derives the role from the client's statements.
    pub(super) has_auto_role: bool,
    /// Whether the client's session state follows it, or pins it to its server.
    pub(super) is_adaptive: bool,
    /// The key of the current transaction.
    key: u32,
    known: HashMap<&'static str, KeyedStatement>,
    unsent_rows: Vec<String>,
    fails_copy: bool,
    /// The COPYs of rows for several shards so far.
    pub(super) copies: Vec<TableCopy>,
    reference: SimBackend,
    /// Expected replies, in order.
    expected: VecDeque<ExpectedReply>,
    received: Vec<u8>,
    is_welcomed: bool,
    /// Whether the client received a fatal error, or is giving up.
    pub(super) is_disconnected: bool,
    /// Whether the client received a fatal error that it did nothing to cause.
    pub(super) is_disconnected_without_cause: bool,
    /// Whether the client mostly sends statements that are known to only read.
    pub(super) is_mostly_reading: bool,
    pub(super) steps_left: u32,
    tokens: u32,
    is_in_block: bool,
    /// Whether the block has set a parameter that must not outlive it.
    must_roll_back: bool,
    /// Whether the client's pool has a connect query.
    pub(super) has_connect_query: bool,
    /// Whether the pooler restores a startup parameter right after a RESET in a batch. In session
    /// mode it does so at the end of the batch.
    pub(super) may_reset_in_batch: bool,
    /// Whether the unnamed statement is known to exist: nothing has failed since it was prepared.
    has_unnamed: bool,
    /// COPY rows still to send, if a COPY has started, and whether a Sync must follow.
    copying: Option<(u32, bool)>,
    /// Whether a batch has been flushed and needs its Sync.
    has_open_batch: bool,
    pub(super) is_sleeping: bool,
    pub(super) is_terminated: bool,
    /// Whether the client received an error for an outdated statement, which its reference model
    /// does not return. This is correct if it is too late for a retry; the expected replies are
    /// unknown from here on.
    pub(super) is_giving_up: bool,
}

struct ExpectedReply {
    bytes: Vec<u8>,
    is_cancellable: bool,
}

impl SimClient {
    pub(super) fn new(number: u32, settings: &[(&str, &str)], steps: u32) -> Self {
        Self {
            number,
            zone: settings[0].1.to_owned(),
            user: None,
            cancel_key: None,
            may_stall: false,
            is_stalled: false,
            role: TargetRole::Any,
            shards: 0,
            is_keyed: false,
            has_auto_role: false,
            is_adaptive: false,
            key: 0,
            known: HashMap::new(),
            unsent_rows: Vec::new(),
            fails_copy: false,
            copies: Vec::new(),
            reference: SimBackend::new(settings),
            expected: VecDeque::new(),
            received: Vec::new(),
            is_welcomed: false,
            is_disconnected: false,
            is_disconnected_without_cause: false,
            steps_left: steps,
            is_mostly_reading: false,
            tokens: 0,
            is_in_block: false,
            must_roll_back: false,
            has_connect_query: false,
            may_reset_in_batch: false,
            has_unnamed: false,
            copying: None,
            has_open_batch: false,
            is_sleeping: false,
            is_terminated: false,
            is_giving_up: false,
        }
    }

    /// Makes the client send statements with keys, and for all shards.
    pub(super) fn use_keys(&mut self) {
        self.is_keyed = true;
        self.reference.is_reference = true;
        self.reference.table = Some(HeldRows::All { shards: self.shards });
    }

    /// Whether the client waits for the end of its login or for a reply.
    pub(super) fn is_awaiting_reply(&self) -> bool {
        !self.is_welcomed || !self.expected.is_empty()
    }

    /// Returns the channels that the client listens to, sorted.
    pub(super) fn channels(&self) -> Vec<String> {
        self.reference.channels()
    }

    /// Returns a text that names the client and the reply that it waits for.
    pub(super) fn describe_expected(&self) -> String {
        let expected_reply = self
            .expected
            .front()
            .map(|expected_reply| expected_reply.bytes.escape_ascii().to_string());
        format!("c{} awaits {expected_reply:?}", self.number)
    }

    /// Handles bytes from the pooler.
    pub(super) fn receive(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.received.extend_from_slice(bytes);
        loop {
            let Ok(Some(header)) = Header::parse(&self.received) else { return Ok(()) };
            let end = Header::BYTES + header.body_bytes as usize;
            if self.received.len() < end {
                return Ok(());
            }
            let message: Vec<u8> = self.received.drain(..end).collect();
            self.check_message(&without_suffix(message))?;
        }
    }

    fn check_message(&mut self, message: &[u8]) -> Result<(), String> {
        let fatal = message[0] == b'E' && memchr::memmem::find(message, b"VFATAL\0").is_some();
        if fatal && self.is_welcomed && memchr::memmem::find(message, b"starting up").is_some() {
            return Err(format!("c{} was disconnected because a login failed", self.number));
        }
        if self.is_disconnected || fatal {
            // SQLSTATE 08P01 is the client's own fault: it started a transaction block in statement
            // mode.
            self.is_disconnected_without_cause |=
                fatal && memchr::memmem::find(message, b"C08P01\0").is_none();
            self.is_disconnected = true;
            return Ok(());
        }
        if message[0] == b'K'
            && let Some((id, secret)) = message[Header::BYTES..].split_first_chunk::<4>()
        {
            self.cancel_key = CancelKey::new(i32::from_be_bytes(*id), secret);
        }
        if !self.is_welcomed {
            self.is_welcomed = message[0] == b'Z';
            return Ok(());
        }
        if is_unrequested(message[0]) {
            return Ok(());
        }
        let has_code = |code: &[u8]| memchr::memmem::find(message, code).is_some();
        if self.is_keyed && message[0] == b'E' && (has_code(b"C08006\0") || has_code(b"C57P")) {
            // A shard was lost, perhaps before the client has sent all rows of a COPY.
            self.is_disconnected_without_cause = true;
            (self.is_disconnected, self.is_giving_up) = (true, true);
            return Ok(());
        }
        let unexpected = |expected_reply: Option<&ExpectedReply>| {
            let show = |bytes: &[u8]| bytes.escape_ascii().to_string();
            let expected = expected_reply.map(|expected_reply| show(&expected_reply.bytes));
            format!("c{} received {}, expected {expected:?}", self.number, show(message))
        };
        let Some(expected_reply) = self.expected.front_mut() else { return Err(unexpected(None)) };
        let is_expected = expected_reply.bytes.starts_with(message);
        if !is_expected && has_code(b"C0A000\0") {
            (self.is_disconnected, self.is_giving_up) = (true, true);
            return Ok(());
        }
        if expected_reply.is_cancellable && memchr::memmem::find(message, b"C57014\0").is_some() {
            self.has_unnamed = false;
            expected_reply.bytes = b"Z\0\0\0\x05I".to_vec();
            return Ok(());
        }
        if !is_expected {
            return Err(unexpected(Some(expected_reply)));
        }
        expected_reply.bytes.drain(..message.len());
        if expected_reply.bytes.is_empty() {
            self.expected.pop_front();
            (self.is_sleeping, self.is_stalled) = (false, false);
        }
        self.record_copy_result(message);
        Ok(())
    }

    fn token(&mut self) -> String {
        self.tokens += 1;
        self.last_token()
    }

    /// Returns the client's last token: client, number and, if it has selected one, the shard.
    fn last_token(&self) -> String {
        let of = format!("c{}.{}", self.number, self.tokens);
        self.reference.client_shard.map_or(of.clone(), |shard| format!("{of}.s{shard}"))
    }

    /// Returns the next bytes to send; empty while the client must wait.
    pub(super) fn next_input(&mut self, random: &mut SimRandom) -> Vec<u8> {
        let mut buf = Vec::new();
        if self.is_terminated || !self.is_welcomed || self.is_sleeping {
            return buf;
        }
        let pipelines = !self.is_mostly_reading && self.expected.len() < 3 && random.percent(30);
        if self.is_awaiting_reply() && !pipelines {
            return buf;
        }
        if self.has_open_batch || self.copying.is_some() {
            if self.is_awaiting_reply() {
                return buf;
            }
            self.continue_batch(&mut buf);
        } else if self.steps_left == 0 {
            if self.is_awaiting_reply() {
                return buf;
            }
            if self.is_in_block {
                self.end_block(&mut buf, true);
            } else {
                encode::terminate(&mut buf);
                self.is_terminated = true;
            }
        } else {
            self.steps_left -= 1;
            self.step(&mut buf, random);
        }
        self.expect_reply(&buf);
        buf
    }

    /// Feeds input to the reference model, whose replies are then expected.
    fn expect_reply(&mut self, input: &[u8]) {
        self.reference.feed(input);
        self.is_sleeping = self.reference.sleeping.is_some();
        self.is_stalled = self.reference.is_stalled;
        self.reference.wake();
        let mut bytes = Vec::new();
        let mut rest = &self.reference.output[..];
        while let Ok(Some(header)) = Header::parse(rest) {
            let (message, later) = rest.split_at(Header::BYTES + header.body_bytes as usize);
            self.has_unnamed &= message[0] != b'E';
            if !is_unrequested(message[0]) {
                bytes.extend_from_slice(message);
            }
            rest = later;
        }
        self.reference.output.clear();
        if !bytes.is_empty() {
            self.expected.push_back(ExpectedReply { bytes, is_cancellable: self.is_sleeping });
        }
    }

    fn push_query(&self, buf: &mut Vec<u8>, sql: &str) {
        encode::query(buf, sql.as_bytes()).unwrap();
    }

    fn end_block(&mut self, buf: &mut Vec<u8>, commits: bool) {
        let commits = commits && !std::mem::take(&mut self.must_roll_back);
        self.is_in_block = false;
        self.push_query(buf, if commits { "COMMIT" } else { "ROLLBACK" });
    }

    fn continue_batch(&mut self, buf: &mut Vec<u8>) {
        if self.is_keyed && self.copying.take().is_some() {
            self.send_table_rows(buf);
        } else if let Some((rows, extended)) = self.copying.take() {
            let token = self.last_token();
            for row in 0..rows {
                encode::copy_data(buf, format!("{token} row {row}").as_bytes()).unwrap();
            }
            encode::copy_done(buf);
            if extended {
                encode::sync(buf);
            }
        } else {
            self.has_open_batch = false;
            encode::sync(buf);
        }
    }

    fn step(&mut self, buf: &mut Vec<u8>, random: &mut SimRandom) {
        if self.is_keyed {
            return self.keyed_step(buf, random);
        }
        if self.shards > 0 && (self.reference.client_shard.is_none() || random.percent(25)) {
            return self.command(buf, random);
        }
        let token = self.token();
        if self.is_mostly_reading && !self.is_in_block && random.percent(60) {
            let text = if random.percent(70) {
                format!("select * from {}", read_token(&token))
            } else {
                format!("echo {token}")
            };
            return self.push_query(buf, &text);
        }
        if self.is_adaptive && random.percent(30) {
            let sql = random.pick(&SESSION_STATEMENTS);
            return self.push_query(buf, &format!("{sql} -- {token}"));
        }
        if self.may_stall && self.tokens < 4 && random.percent(25) {
            return self.push_query(buf, &format!("listen x -- {token}"));
        }
        match random.below(28) {
            0..=2 => self.push_query(buf, &format!("echo {token}")),
            3 => self.push_query(buf, &format!("state {token}")),
            4 if !self.is_in_block => {
                self.is_in_block = true;
                // The pooler recognizes a bare BEGIN, and lets the next statement decide to which
                // server it goes.
                let is_bare = self.shards > 0 && random.percent(50);
                let begin = if is_bare { "BEGIN".to_owned() } else { format!("begin {token}") };
                self.push_query(buf, &begin);
            }
            4..=5 if self.is_in_block => {
                let commits = random.percent(50);
                self.end_block(buf, commits);
            }
            5 => self.push_query(buf, &format!("echo {token}; state {token}; echo {token}")),
            6 => self.push_query(buf, &format!("echo {token}; fail {token}; echo {token}")),
            7 if !self.is_in_block && !self.is_awaiting_reply() => {
                let verb = if self.may_stall && random.percent(50) { "stall" } else { "sleep" };
                self.push_query(buf, &format!("{verb} {token}"));
            }
            8 => {
                let setting = random.pick(&[
                    "TimeZone = UTC",
                    "TimeZone = CET",
                    "TimeZone = O'Zone\\",
                    "DateStyle = German",
                    "DateStyle = ISO",
                    "standard_conforming_strings = off",
                    "standard_conforming_strings = on",
                ]);
                let scope = if random.percent(20) { "local " } else { "" };
                let end =
                    if random.percent(10) { format!("; fail {token}") } else { String::new() };
                self.push_query(buf, &format!("set {scope}{setting} {token}{end}"));
                if random.percent(30) {
                    // A batch sent right after the SET must be parsed with the new time zone.
                    self.batch(buf, random, &token);
                }
            }
            9 => {
                let dirty = random.pick(&[
                    "set work_mem = 7",
                    "set search_path = own",
                    "listen x --",
                    "listen y --",
                    "unlisten x --",
                    "unlisten * --",
                    "select pg_advisory_lock(1)",
                    "create temp table t",
                    "prepare p as",
                ]);
                self.push_query(buf, &format!("{dirty} {token}"));
            }
            10 => self.push_query(buf, &format!("copyout {token}")),
            11 | 12 if !self.is_awaiting_reply() => {
                let bad = random.percent(40);
                let extended = random.percent(50);
                let sql = format!("{} {token}", if bad { "copybad" } else { "copyin" });
                if extended {
                    self.has_unnamed = false; // Later batches must not run a COPY.
                    encode::parse(buf, b"", sql.as_bytes(), &[]).unwrap();
                    bind(buf, b"", &[]);
                    encode::execute(buf, b"", 0).unwrap();
                    encode::sync(buf);
                } else {
                    self.push_query(buf, &sql);
                }
                self.copying = Some((u32::try_from(random.below(5)).unwrap(), extended));
                if self.reference_failed() {
                    self.copying = None;
                }
            }
            14 => {
                let sql = [
                    "RESET ALL",
                    "RESET TimeZone",
                    "RESET DateStyle",
                    "DISCARD ALL",
                    "DEALLOCATE ALL",
                ];
                let sql = *random.pick(&sql);
                // The comment names the client, which may be undoing a connect query.
                let is_named = self.has_connect_query && sql != "DEALLOCATE ALL";
                let sql = if is_named { format!("{sql} -- {token}") } else { sql.to_owned() };
                self.push_query(buf, &sql);
            }
            15 => {
                encode::function_call(buf, 7, &[], [Some(token.as_bytes())], ValueFormat::Text)
                    .unwrap();
            }
            16 => {
                self.has_unnamed = false; // The unnamed statement is only for this portal.
                encode::parse(buf, b"", b"echo $1", &[25]).unwrap();
                bind_portal(buf, b"held", b"", &[&token]);
                encode::sync(buf);
                encode::execute(buf, b"held", 0).unwrap();
                encode::sync(buf);
            }
            13 => {
                let name = random.pick(&["s1", "s2", "s3"]);
                self.push_query(buf, &format!("DEALLOCATE {name}"));
            }
            26..=27 if self.is_in_block => {
                // No server reports this parameter. The rollback restores it everywhere.
                self.must_roll_back = true;
                self.push_query(buf, &format!("set backslash_quote = off {token}"));
                encode::parse(buf, b"", b"literal 'literal' $1", &[25]).unwrap();
                bind(buf, b"", &[&token]);
                encode::execute(buf, b"", 0).unwrap();
                encode::sync(buf);
                self.has_unnamed = true;
                self.batch(buf, random, &token);
            }
            25 => self.change_settings_in_batches(buf, random),
            _ => self.batch(buf, random, &token),
        }
    }

    /// Writes batches that change parameters, between statements that depend on them.
    fn change_settings_in_batches(&mut self, buf: &mut Vec<u8>, random: &mut SimRandom) {
        for _ in 0..2 + random.below(3) {
            let token = self.token();
            if random.percent(60) {
                let sql = random.pick(&[
                    "set TimeZone = CET $1",
                    "set TimeZone = UTC $1",
                    "set local TimeZone = CET $1",
                    "set local DateStyle = German $1",
                ]);
                run_unnamed(buf, sql.as_bytes(), &token);
            }
            let name: &[u8] = random.pick::<&[u8]>(&[b"s1", b"s2"]);
            if random.percent(60) {
                encode::close(buf, DescribeTarget::Statement(name)).unwrap();
                encode::parse(buf, name, b"literal 'literal' $1", &[25]).unwrap();
            }
            if random.percent(60) {
                bind(buf, name, &[&token]);
                encode::execute(buf, b"", 0).unwrap();
            }
            match random.below(10) {
                0 => run_unnamed(buf, b"fail $1", &token),
                1 => self.push_query(buf, &format!("state {token}")),
                2..=5 => encode::sync(buf),
                _ => {}
            }
        }
        self.has_unnamed = false;
        encode::sync(buf);
    }

    /// Writes a command that selects a shard or queries the selected one.
    fn command(&mut self, buf: &mut Vec<u8>, random: &mut SimRandom) {
        let is_new = self.reference.client_shard.is_none();
        if self.is_in_block || !is_new && random.percent(30) {
            return self.push_query(buf, "SHOW SHARD");
        }
        let sql = if random.percent(50) {
            let shard = u32::try_from(random.below(self.shards.into())).unwrap();
            self.reference.client_shard = Some(shard);
            format!("SET SHARD TO '{shard}'")
        } else {
            let key = u32::try_from(random.below(1000)).unwrap();
            self.reference.client_shard = Some(shard_of(key, self.shards));
            format!("SET SHARDING KEY TO '{key}'")
        };
        if random.percent(60) {
            return self.push_query(buf, &sql);
        }
        self.has_unnamed = false;
        encode::parse(buf, b"", sql.as_bytes(), &[]).unwrap();
        bind(buf, b"", &[]);
        encode::execute(buf, b"", 0).unwrap();
        encode::sync(buf);
    }

    /// Whether the client's transaction has failed, so that no COPY starts.
    fn reference_failed(&self) -> bool {
        self.reference.has_failed()
    }

    /// Writes a batch of random messages of the extended protocol, in an order that the protocol
    /// allows.
    fn batch(&mut self, buf: &mut Vec<u8>, random: &mut SimRandom, token: &str) {
        for _ in 0..1 + random.below(4) {
            let name: &[u8] = random.pick::<&[u8]>(&[b"", b"s1", b"s2", b"s3", b"howdah_1"]);
            let missing = name.is_empty() && !self.has_unnamed;
            match random.below(if missing { 5 } else { 8 }) {
                1 if missing => {}
                0 => encode::close(buf, DescribeTarget::Statement(name)).unwrap(),
                1 => encode::describe(buf, DescribeTarget::Statement(name)).unwrap(),
                2 => {
                    encode::parse(buf, name, b"wrong", &[]).unwrap();
                    self.has_unnamed &= !name.is_empty();
                }
                3 | 4 => {
                    let sql = random.pick(&[
                        "echo $1",
                        "state $1",
                        "fail $1",
                        "literal 'literal' $1",
                        "literal 'literal' $1",
                    ]);
                    encode::parse(buf, name, sql.as_bytes(), &[25]).unwrap();
                    self.has_unnamed |= name.is_empty();
                }
                _ => {
                    bind(buf, name, &[token]);
                    encode::describe(buf, DescribeTarget::Portal(b"")).unwrap();
                    encode::execute(buf, b"", 0).unwrap();
                }
            }
        }
        if random.percent(20) && !self.is_awaiting_reply() {
            encode::flush(buf);
            self.has_open_batch = true;
        } else {
            encode::sync(buf);
        }
    }
}

/// Statements that change or show session state, which clients must find unchanged in adaptive
/// mode. PostgreSQL's grammar can read them.
const SESSION_STATEMENTS: [&str; 15] = [
    "set work_mem = 7",
    "set work_mem = 8",
    "set local work_mem = 9",
    "reset work_mem",
    "reset all",
    "show work_mem",
    "show work_mem",
    "create temp table if not exists t ()",
    "drop table if exists t",
    "select to_regclass('pg_temp.t')",
    "select pg_advisory_lock(1)",
    "select pg_advisory_unlock_all()",
    "select count(*) from pg_locks",
    "discard all",
    "load 'library'",
];

/// Marks a token as part of a statement that is known to only read.
fn read_token(token: &str) -> String {
    token.replacen('.', ".t", 1)
}

/// Returns an error without the suffix that the pooler adds to names that look like its own.
fn without_suffix(mut message: Vec<u8>) -> Vec<u8> {
    if message[0] == b'E'
        && let Some(at) = memchr::memmem::find(&message, b"?\" does not exist")
    {
        message.remove(at);
        message[4] -= 1;
    }
    message
}

/// Whether a pooler may send or omit a message of this kind at any time.
fn is_unrequested(tag: u8) -> bool {
    matches!(tag, b'S' | b'N' | b'A' | b'K')
}

fn bind(buf: &mut Vec<u8>, statement: &[u8], values: &[&str]) {
    bind_portal(buf, b"", statement, values);
}

/// Writes a statement without a name, and runs it.
fn run_unnamed(buf: &mut Vec<u8>, sql: &[u8], token: &str) {
    encode::parse(buf, b"", sql, &[25]).unwrap();
    bind(buf, b"", &[token]);
    encode::execute(buf, b"", 0).unwrap();
}

fn bind_portal(buf: &mut Vec<u8>, portal: &[u8], statement: &[u8], values: &[&str]) {
    let values = values.iter().map(|value| Some(value.as_bytes()));
    encode::bind(buf, portal, statement, &[ValueFormat::Text], values, &[]).unwrap();
}
