//! [`SimClient`]: a client that knows what it must be told, because a backend of its own hears
//! everything it says.

use std::collections::VecDeque;

use howdah_wire::{
    Format, Header,
    frontend::{Target, encode},
};

use super::{backend::Backend, random::Random, world::shards::shard_of};
use crate::ServerRole;

/// A client, its script and its expectations.
pub(super) struct SimClient {
    pub(super) number: u32,
    pub(super) zone: String,
    /// Which servers would do, of a database with several.
    pub(super) role: ServerRole,
    /// How many shards its database has, if it has any.
    pub(super) shards: u32,
    shadow: Backend,
    /// What it was promised, in order.
    promised: VecDeque<Promise>,
    received: Vec<u8>,
    greeted: bool,
    /// It was told that its connection ends.
    pub(super) dismissed: bool,
    /// And that was not for what it did.
    pub(super) is_wronged: bool,
    /// Whether it says what is known to only read.
    pub(super) reads: bool,
    pub(super) steps_left: u32,
    tokens: u32,
    in_block: bool,
    /// Its unnamed statement is known to exist: nothing has failed since it was prepared.
    has_unnamed: bool,
    /// COPY rows still to send, if a COPY has begun; whether a Sync has to follow.
    copying: Option<(u32, bool)>,
    /// The batch has been flushed and needs its Sync.
    batch_open: bool,
    pub(super) sleeps: bool,
    pub(super) terminated: bool,
    /// It was told that a statement is outdated, which its own server would not have said. That is
    /// right where it is too late to do anything about it; it knows no further.
    pub(super) gives_up: bool,
}

struct Promise {
    bytes: Vec<u8>,
    cancellable: bool,
}

impl SimClient {
    pub(super) fn new(number: u32, settings: &[(&str, &str)], steps: u32) -> Self {
        Self {
            number,
            zone: settings[0].1.to_owned(),
            role: ServerRole::Any,
            shards: 0,
            shadow: Backend::new(settings),
            promised: VecDeque::new(),
            received: Vec::new(),
            greeted: false,
            dismissed: false,
            is_wronged: false,
            steps_left: steps,
            reads: false,
            tokens: 0,
            in_block: false,
            has_unnamed: false,
            copying: None,
            batch_open: false,
            sleeps: false,
            terminated: false,
            gives_up: false,
        }
    }

    /// Whether it is owed something.
    pub(super) fn waits(&self) -> bool {
        !self.greeted || !self.promised.is_empty()
    }

    /// What it waits for, in words.
    pub(super) fn owed(&self) -> String {
        let promise = self.promised.front().map(|promise| promise.bytes.escape_ascii().to_string());
        format!("c{} is owed {promise:?}", self.number)
    }

    /// Takes what the pooler sent.
    pub(super) fn hear(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.received.extend_from_slice(bytes);
        loop {
            let Ok(Some(header)) = Header::parse(&self.received) else { return Ok(()) };
            let end = Header::BYTES + header.body_bytes as usize;
            if self.received.len() < end {
                return Ok(());
            }
            let message: Vec<u8> = self.received.drain(..end).collect();
            self.message(&without_mark(message))?;
        }
    }

    fn message(&mut self, message: &[u8]) -> Result<(), String> {
        let fatal = message[0] == b'E' && memchr::memmem::find(message, b"VFATAL\0").is_some();
        if fatal && self.greeted && memchr::memmem::find(message, b"starting up").is_some() {
            return Err(format!("c{} was sent away because a login failed", self.number));
        }
        if self.dismissed || fatal {
            // A transaction block where there may be none.
            self.is_wronged |= fatal && memchr::memmem::find(message, b"C08P01\0").is_none();
            self.dismissed = true;
            return Ok(());
        }
        if !self.greeted {
            self.greeted = message[0] == b'Z';
            return Ok(());
        }
        if is_chatter(message[0]) {
            return Ok(());
        }
        let unexpected = |promise: Option<&Promise>| {
            let show = |bytes: &[u8]| bytes.escape_ascii().to_string();
            let promised = promise.map(|promise| show(&promise.bytes));
            format!("c{} was told {}, and promised {promised:?}", self.number, show(message))
        };
        let Some(promise) = self.promised.front_mut() else { return Err(unexpected(None)) };
        if memchr::memmem::find(message, b"C0A000\0").is_some() {
            (self.dismissed, self.gives_up) = (true, true);
            return Ok(());
        }
        if promise.cancellable && memchr::memmem::find(message, b"C57014\0").is_some() {
            self.has_unnamed = false;
            promise.bytes = b"Z\0\0\0\x05I".to_vec();
            return Ok(());
        }
        if !promise.bytes.starts_with(message) {
            return Err(unexpected(Some(promise)));
        }
        promise.bytes.drain(..message.len());
        if promise.bytes.is_empty() {
            self.promised.pop_front();
            self.sleeps = false;
        }
        Ok(())
    }

    fn token(&mut self) -> String {
        self.tokens += 1;
        self.last_token()
    }

    /// Client, number, and the shard that it is for.
    fn last_token(&self) -> String {
        let of = format!("c{}.{}", self.number, self.tokens);
        self.shadow.client_at.map_or(of.clone(), |shard| format!("{of}.{shard}"))
    }

    /// What it has to say next: nothing while it is in the middle of something.
    pub(super) fn speak(&mut self, random: &mut Random) -> Vec<u8> {
        let mut buf = Vec::new();
        if self.terminated || !self.greeted || self.sleeps {
            return buf;
        }
        let pipelines = !self.reads && self.promised.len() < 3 && random.percent(30);
        if self.waits() && !pipelines {
            return buf;
        }
        if self.batch_open || self.copying.is_some() {
            if self.waits() {
                return buf;
            }
            self.go_on(&mut buf);
        } else if self.steps_left == 0 {
            if self.waits() {
                return buf;
            }
            if self.in_block {
                self.say(&mut buf, "COMMIT");
                self.in_block = false;
            } else {
                encode::terminate(&mut buf);
                self.terminated = true;
            }
        } else {
            self.steps_left -= 1;
            self.step(&mut buf, random);
        }
        self.promise(&buf);
        buf
    }

    /// Has the shadow hear it too, whose answer is the promise.
    fn promise(&mut self, said: &[u8]) {
        self.shadow.feed(said);
        self.sleeps = self.shadow.sleeping.is_some();
        self.shadow.wake();
        let mut bytes = Vec::new();
        let mut rest = &self.shadow.output[..];
        while let Ok(Some(header)) = Header::parse(rest) {
            let (message, later) = rest.split_at(Header::BYTES + header.body_bytes as usize);
            self.has_unnamed &= message[0] != b'E';
            if !is_chatter(message[0]) {
                bytes.extend_from_slice(message);
            }
            rest = later;
        }
        self.shadow.output.clear();
        if !bytes.is_empty() {
            self.promised.push_back(Promise { bytes, cancellable: self.sleeps });
        }
    }

    fn say(&self, buf: &mut Vec<u8>, sql: &str) {
        encode::query(buf, sql.as_bytes()).unwrap();
    }

    fn go_on(&mut self, buf: &mut Vec<u8>) {
        if let Some((rows, extended)) = self.copying.take() {
            let token = self.last_token();
            for row in 0..rows {
                encode::copy_data(buf, format!("{token} row {row}").as_bytes()).unwrap();
            }
            encode::copy_done(buf);
            if extended {
                encode::sync(buf);
            }
        } else {
            self.batch_open = false;
            encode::sync(buf);
        }
    }

    fn step(&mut self, buf: &mut Vec<u8>, random: &mut Random) {
        if self.shards > 0 && (self.shadow.client_at.is_none() || random.percent(25)) {
            return self.command(buf, random);
        }
        let token = self.token();
        if self.reads && !self.in_block && random.percent(60) {
            let text = match random.percent(70) {
                true => format!("select * from {}", read_token(&token)),
                false => format!("echo {token}"),
            };
            return self.say(buf, &text);
        }
        match random.below(26) {
            0..=2 => self.say(buf, &format!("echo {token}")),
            3 => self.say(buf, &format!("state {token}")),
            4 if !self.in_block => {
                self.in_block = true;
                // Of a bare one the pooler knows what it is: where it goes depends on what comes behind it.
                let is_bare = self.shards > 0 && random.percent(50);
                let begin = if is_bare { "BEGIN".to_owned() } else { format!("begin {token}") };
                self.say(buf, &begin);
            }
            4..=5 if self.in_block => {
                self.in_block = false;
                self.say(buf, if random.percent(50) { "COMMIT" } else { "ROLLBACK" });
            }
            5 => self.say(buf, &format!("echo {token}; state {token}; echo {token}")),
            6 => self.say(buf, &format!("echo {token}; fail {token}; echo {token}")),
            7 if !self.in_block && !self.waits() => self.say(buf, &format!("sleep {token}")),
            8 => {
                let zone = random.pick(&["UTC", "CET", "O'Zone\\"]);
                self.say(buf, &format!("set TimeZone = {zone} {token}"));
                if random.percent(30) {
                    // What follows at once is parsed in the new zone.
                    self.batch(buf, random, &token);
                }
            }
            9 => {
                let dirty = random.pick(&[
                    "set work_mem = 7",
                    "listen x --",
                    "unlisten x --",
                    "select pg_advisory_lock(1)",
                    "create temp table t",
                    "prepare p as",
                ]);
                self.say(buf, &format!("{dirty} {token}"));
            }
            10 => self.say(buf, &format!("copyout {token}")),
            11 | 12 if !self.waits() => {
                let bad = random.percent(40);
                let extended = random.percent(50);
                let sql = format!("{} {token}", if bad { "copybad" } else { "copyin" });
                if extended {
                    self.has_unnamed = false; // The batches are not to run a COPY.
                    encode::parse(buf, b"", sql.as_bytes(), &[]).unwrap();
                    bind(buf, b"", &[]);
                    encode::execute(buf, b"", 0).unwrap();
                    encode::sync(buf);
                } else {
                    self.say(buf, &sql);
                }
                self.copying = Some((u32::try_from(random.below(5)).unwrap(), extended));
                if self.shadow_failed() {
                    self.copying = None;
                }
            }
            14 => {
                let sql = ["RESET ALL", "RESET TimeZone", "DISCARD ALL", "DEALLOCATE ALL"];
                self.say(buf, random.pick::<&str>(&sql));
            }
            15 => {
                encode::function_call(buf, 7, &[], [Some(token.as_bytes())], Format::Text).unwrap();
            }
            16 => {
                self.has_unnamed = false; // What it is now is for this only.
                encode::parse(buf, b"", b"echo $1", &[25]).unwrap();
                bind_portal(buf, b"held", b"", &[&token]);
                encode::sync(buf);
                encode::execute(buf, b"held", 0).unwrap();
                encode::sync(buf);
            }
            13 => {
                let name = random.pick(&["s1", "s2", "s3"]);
                self.say(buf, &format!("DEALLOCATE {name}"));
            }
            _ => self.batch(buf, random, &token),
        }
    }

    /// Says which shard it wants from now on, or asks which that is.
    fn command(&mut self, buf: &mut Vec<u8>, random: &mut Random) {
        let is_new = self.shadow.client_at.is_none();
        if self.in_block || !is_new && random.percent(30) {
            return self.say(buf, "SHOW SHARD");
        }
        let sql = if random.percent(50) {
            let shard = u32::try_from(random.below(self.shards.into())).unwrap();
            self.shadow.client_at = Some(shard);
            format!("SET SHARD TO '{shard}'")
        } else {
            let key = u32::try_from(random.below(1000)).unwrap();
            self.shadow.client_at = Some(shard_of(key, self.shards));
            format!("SET SHARDING KEY TO '{key}'")
        };
        if random.percent(60) {
            return self.say(buf, &sql);
        }
        self.has_unnamed = false;
        encode::parse(buf, b"", sql.as_bytes(), &[]).unwrap();
        bind(buf, b"", &[]);
        encode::execute(buf, b"", 0).unwrap();
        encode::sync(buf);
    }

    /// Whether its transaction has failed, so that nothing begins now.
    fn shadow_failed(&self) -> bool {
        self.shadow.has_failed()
    }

    /// Messages of the extended protocol, in any order that a client may send them.
    fn batch(&mut self, buf: &mut Vec<u8>, random: &mut Random, token: &str) {
        for _ in 0..1 + random.below(4) {
            let name: &[u8] = random.pick::<&[u8]>(&[b"", b"s1", b"s2", b"s3", b"howdah_1"]);
            let missing = name.is_empty() && !self.has_unnamed;
            match random.below(if missing { 5 } else { 8 }) {
                1 if missing => {}
                0 => encode::close(buf, Target::Statement(name)).unwrap(),
                1 => encode::describe(buf, Target::Statement(name)).unwrap(),
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
                    encode::describe(buf, Target::Portal(b"")).unwrap();
                    encode::execute(buf, b"", 0).unwrap();
                }
            }
        }
        if random.percent(20) && !self.waits() {
            encode::flush(buf);
            self.batch_open = true;
        } else {
            encode::sync(buf);
        }
    }
}

/// A token in a text that is sure to only read.
fn read_token(token: &str) -> String {
    token.replacen('.', ".t", 1)
}

/// An error without the mark that the pooler adds to a name which begins like those it gives.
fn without_mark(mut message: Vec<u8>) -> Vec<u8> {
    if message[0] == b'E'
        && let Some(at) = memchr::memmem::find(&message, b"?\" does not exist")
    {
        message.remove(at);
        message[4] -= 1;
    }
    message
}

/// What a pooler may say or leave out as it sees fit.
fn is_chatter(tag: u8) -> bool {
    matches!(tag, b'S' | b'N' | b'A' | b'K')
}

fn bind(buf: &mut Vec<u8>, statement: &[u8], values: &[&str]) {
    bind_portal(buf, b"", statement, values);
}

fn bind_portal(buf: &mut Vec<u8>, portal: &[u8], statement: &[u8], values: &[&str]) {
    let values = values.iter().map(|value| Some(value.as_bytes()));
    encode::bind(buf, portal, statement, &[Format::Text], values, &[]).unwrap();
}
