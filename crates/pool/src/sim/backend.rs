//! [`Backend`]: a server that speaks PostgreSQL's protocol as PostgreSQL does, with a language of a
//! few words.
//!
//! Every text and every parameter of a client carries its owner, as `c7.12`: client 7, token 12. So a
//! backend can tell when it is used by somebody while it still holds another's state.

use std::collections::{BTreeMap, HashMap, HashSet};

use howdah_wire::{
    Format, Frame,
    backend::{
        Field, Severity, TransactionStatus,
        encode::{self, Bare, CopyStart},
    },
    frontend::{Message, Target},
};

/// What a session is.
#[derive(Debug, Default)]
pub(super) struct Backend {
    input: Vec<u8>,
    /// What it has said; taken by the world.
    pub(super) output: Vec<u8>,
    failed: bool,
    in_block: bool,
    skipping: bool,
    copying: Option<Copying>,
    statements: HashMap<Vec<u8>, Vec<u8>>,
    portals: HashMap<Vec<u8>, String>,
    /// Statements whose results have other columns now.
    outdated: HashSet<Vec<u8>>,
    settings: BTreeMap<String, String>,
    at_login: BTreeMap<String, String>,
    /// Values when the transaction block began.
    before_block: Option<BTreeMap<String, String>>,
    /// Values as of the last ReadyForQuery, for those that are reported.
    reported: BTreeMap<String, String>,
    /// Locks, channels and tables that outlive transactions.
    leftovers: Vec<&'static str>,
    left_by: Option<u32>,
    /// Channels that are listened to, and what the transaction does to them: `None` ends all.
    channels: Vec<String>,
    pending: Vec<Option<String>>,
    /// Client whose statement runs or ran last.
    pub(super) owner: Option<u32>,
    /// The same, of what was fed last.
    pub(super) ran: Option<u32>,
    /// Of several shards, which this is.
    pub(super) shard: Option<u32>,
    /// Of one that answers the pooler's commands, too: which shard its client is at.
    pub(super) client_at: Option<u32>,
    /// A statement that takes its time: what it says in the end.
    pub(super) sleeping: Option<String>,
    /// Tokens of statements that nobody may run a second time; taken by the world.
    pub(super) echoed: Vec<String>,
    /// What must not have happened.
    pub(super) violations: Vec<String>,
    pub(super) terminated: bool,
}

#[derive(Debug)]
struct Copying {
    token: String,
    rows: usize,
    fails_at: usize,
    extended: bool,
}

/// What becomes the values of `TimeZone` and `backslash_quote` when a statement is parsed.
pub(super) const LITERAL: &str = "'literal'";

const REPORTED: [&str; 2] = ["TimeZone", "application_name"];

impl Backend {
    pub(super) fn new(settings: &[(&str, &str)]) -> Self {
        let at_login: BTreeMap<_, _> = settings
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        Self { settings: at_login.clone(), reported: at_login.clone(), at_login, ..Self::default() }
    }

    /// Whether its transaction has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.failed
    }

    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.ran = None;
        self.input.extend_from_slice(bytes);
        self.work();
    }

    /// A sleeping statement ends by itself.
    pub(super) fn wake(&mut self) {
        if let Some(token) = self.sleeping.take() {
            self.row(&token);
            self.complete("SELECT 1");
            self.ready();
            self.work();
        }
    }

    /// A CancelRequest has arrived, for a client if one wanted it.
    pub(super) fn cancel(&mut self, client: Option<u32>) {
        if self.sleeping.take().is_none() {
            return;
        }
        if let Some(client) = client
            && self.owner != Some(client)
        {
            let owner = self.owner;
            self.violations.push(format!("a cancel of c{client} hit a statement of {owner:?}"));
        }
        self.fail("57014", "canceling statement due to user request");
        self.ready();
        self.work();
    }

    /// Reports that nobody asked for.
    pub(super) fn chatter(&mut self, notice: bool) {
        if notice {
            let fields = encode::essentials(Severity::Notice, b"00000", b"hello");
            encode::notice_response(&mut self.output, fields).unwrap();
        } else {
            for name in REPORTED {
                let value = self.reported[name].clone();
                encode::parameter_status(&mut self.output, name.as_bytes(), value.as_bytes())
                    .unwrap();
            }
        }
    }

    /// Tables that its statements read are altered.
    pub(super) fn outdate(&mut self) {
        let is_own = |name: &[u8]| {
            matches!(name, b"howdah_set" | b"howdah_put_back" | b"howdah_parse_settings")
        };
        let prepared = self.statements.keys().filter(|name| !is_own(name));
        self.outdated = prepared.cloned().collect();
    }

    fn is_outdated(&mut self, name: &[u8]) -> bool {
        let is = !self.failed && self.outdated.contains(name);
        if is {
            self.fail_extended("0A000", "cached plan must not change result type");
        }
        is
    }

    fn work(&mut self) {
        while self.sleeping.is_none() && !self.terminated {
            let input = std::mem::take(&mut self.input);
            let Some((frame, rest)) = Frame::split(&input, 1 << 30).expect("a good header") else {
                self.input = input;
                return;
            };
            let message = Message::parse(frame)
                .unwrap_or_else(|error| panic!("{error}: {}", frame.body.escape_ascii()));
            self.message(message);
            self.input = [rest, &self.input].concat();
        }
    }

    fn message(&mut self, message: Message<'_>) {
        if let Some(copying) = self.copying.take() {
            return self.copy(copying, message);
        }
        if self.skipping && !matches!(message, Message::Sync | Message::Terminate) {
            return;
        }
        match message {
            Message::Query { sql } => self.query(&String::from_utf8_lossy(sql)),
            Message::Parse(parse) => self.parse(parse.statement, parse.sql),
            Message::Bind(bind) => {
                let values: Vec<_> = bind
                    .values
                    .map(|value| String::from_utf8_lossy(value.unwrap_or(b"\\N")).into_owned())
                    .collect();
                self.bind(bind.portal, bind.statement, &values);
            }
            Message::Describe(Target::Statement(name)) => {
                if self.failed && self.statements.contains_key(name) {
                    self.fail_extended("25P02", "current transaction is aborted");
                } else if self.is_outdated(name) {
                } else if self.statements.contains_key(name) {
                    encode::parameter_description(&mut self.output, &[25]).unwrap();
                    encode::bare(&mut self.output, Bare::NoData);
                } else {
                    self.missing(name);
                }
            }
            Message::Describe(Target::Portal(_)) => encode::bare(&mut self.output, Bare::NoData),
            Message::Execute { portal, .. } => match self.portals.get(portal).cloned() {
                Some(sql) => self.execute(&sql, true),
                None => self.fail_extended("34000", "portal does not exist"),
            },
            Message::Close(target) => {
                match target {
                    Target::Statement(name) => {
                        self.statements.remove(name);
                        self.outdated.remove(name);
                    }
                    Target::Portal(name) => drop(self.portals.remove(name)),
                }
                encode::bare(&mut self.output, Bare::CloseComplete);
            }
            Message::Sync => {
                self.skipping = false;
                self.ready();
            }
            Message::Terminate => self.terminated = true,
            Message::FunctionCall(call) => {
                let argument = call.arguments.flatten().next().unwrap_or_default();
                if self.failed {
                    self.fail("25P02", "current transaction is aborted");
                } else {
                    encode::function_call_response(&mut self.output, Some(argument)).unwrap();
                }
                self.ready();
            }
            // Flush: all is said at once. COPY messages outside of a COPY are not looked at.
            _ => {}
        }
    }

    fn query(&mut self, sql: &str) {
        self.statements.remove(&b""[..]);
        self.outdated.remove(&b""[..]);
        for part in sql.split(';').map(str::trim).filter(|part| !part.is_empty()) {
            self.execute(part, false);
            if self.sleeping.is_some() || self.copying.is_some() {
                return; // Both end the string, and ReadyForQuery comes with their own end.
            }
            if self.output.ends_with(b"!\0\0") {
                break;
            }
        }
        self.ready();
    }

    fn parse(&mut self, name: &[u8], sql: &[u8]) {
        if name.is_empty() {
            self.statements.remove(name);
            self.outdated.remove(name);
        }
        if sql.starts_with(b"wrong") {
            self.fail_extended("42601", "syntax error");
        } else if self.failed && sql != b"ROLLBACK" {
            self.fail_extended("25P02", "current transaction is aborted");
        } else if !name.is_empty() && self.statements.contains_key(name) {
            let text =
                format!("prepared statement \"{}\" already exists", String::from_utf8_lossy(name));
            self.fail_extended_as("42P05", &text);
        } else {
            // A literal is what it is under the settings in force now.
            let sql = String::from_utf8_lossy(sql);
            let sql = match sql.contains(LITERAL) {
                true => sql
                    .replace(LITERAL, &format!("{}/{}", self.settings["TimeZone"], self.quoting())),
                false => sql.into_owned(),
            };
            self.statements.insert(name.to_vec(), sql.into_bytes());
            encode::bare(&mut self.output, Bare::ParseComplete);
        }
    }

    fn bind(&mut self, portal: &[u8], statement: &[u8], values: &[String]) {
        let Some(sql) = self.statements.get(statement) else { return self.missing(statement) };
        let mut sql = String::from_utf8_lossy(sql).into_owned();
        if self.failed && sql != "ROLLBACK" {
            return self.fail_extended("25P02", "current transaction is aborted");
        }
        if self.is_outdated(statement) {
            return;
        }
        for (at, value) in values.iter().enumerate() {
            sql = sql.replace(&format!("${}", at + 1), value);
        }
        self.portals.insert(portal.to_vec(), sql);
        encode::bare(&mut self.output, Bare::BindComplete);
    }

    /// The value of a setting that is not reported.
    fn quoting(&self) -> &str {
        self.settings.get("backslash_quote").map_or("safe_encoding", |value| value)
    }

    /// Values of settings by name.
    fn current_settings(&mut self, sql: &str) {
        let names = sql.split("current_setting('").skip(1).filter_map(|it| it.split('\'').next());
        let values: Vec<Option<String>> = names
            .map(|name| match name {
                "backslash_quote" => Some(self.quoting().to_owned()),
                name => self.settings.get(name).cloned(),
            })
            .collect();
        let values = values.iter().map(|value| value.as_ref().map(String::as_bytes));
        encode::data_row(&mut self.output, values).unwrap();
        self.complete("SELECT 1");
    }

    fn missing(&mut self, name: &[u8]) {
        let name = String::from_utf8_lossy(name);
        let text = format!("prepared statement \"{name}\" does not exist");
        self.fail_extended_as("26000", &text);
    }

    fn execute(&mut self, sql: &str, extended: bool) {
        self.check_owner(sql);
        let (verb, rest) = sql.split_once(' ').unwrap_or((sql, ""));
        let token = rest.rsplit(' ').next().unwrap_or("").to_owned();
        let upper = verb.to_ascii_uppercase();
        let ends = matches!(upper.as_str(), "ROLLBACK" | "COMMIT");
        // The pooler answers for itself, whatever has failed.
        let asks = sql == "SHOW SHARD" && self.client_at.is_some();
        if self.failed && !ends && !asks {
            return self.fail_as(extended, "25P02", "current transaction is aborted");
        }
        match upper.as_str() {
            "BEGIN" => {
                if token.is_empty() && !self.in_block {
                    self.owner = None; // It does not say whose it is.
                }
                if !self.in_block {
                    self.before_block = Some(self.settings.clone());
                }
                self.in_block = true;
                self.complete("BEGIN");
            }
            "COMMIT" | "ROLLBACK" => {
                let before = self.before_block.take();
                if upper == "ROLLBACK" || self.failed {
                    self.pending.clear();
                    self.settings = before.unwrap_or_else(|| self.settings.clone());
                }
                (self.in_block, self.failed) = (false, false);
                self.complete(&upper);
            }
            "SELECT" if rest.starts_with("* from") => {
                self.row(&token);
                self.complete("SELECT 1");
            }
            "ECHO" => {
                self.echoed.push(token.clone());
                self.row(&token);
                self.complete("SELECT 1");
            }
            "STATE" => {
                let settings = REPORTED.map(|name| self.settings[name].clone()).join(",");
                self.row(&format!("{settings},{token}"));
                self.complete("SELECT 1");
            }
            "LITERAL" => {
                self.row(&rest.replace(' ', ","));
                self.complete("SELECT 1");
            }
            "FAIL" => self.fail_as(extended, "22012", &format!("division by zero {token}!")),
            "SLEEP" => self.sleeping = Some(token),
            "SET" if rest.starts_with("SHARD") => self.command(match rest.starts_with("SHARD ") {
                true => "SET SHARD",
                false => "SET SHARDING KEY",
            }),
            "SHOW" if rest == "SHARD" => {
                let shard = self.client_at.map(|shard| shard.to_string()).unwrap_or_default();
                let field = Field {
                    name: b"shard",
                    table: 0,
                    column: 0,
                    type_oid: 25,
                    type_bytes: -1,
                    type_modifier: -1,
                    format: Format::Text,
                };
                encode::row_description(&mut self.output, [field]).unwrap();
                self.row(&shard);
                self.command("SELECT 1");
            }
            "SET" if sql.starts_with("SET SESSION AUTHORIZATION") => self.complete("SET"),
            "SET" => {
                let mut words = rest.split(' ');
                let name = words.next().unwrap_or("").to_owned();
                let value = words.nth(1).unwrap_or("").to_owned();
                if !REPORTED.contains(&name.as_str()) {
                    self.leave("setting");
                }
                self.settings.insert(name, value);
                self.complete("SET");
            }
            "SELECT" if rest.contains("current_setting(") => self.current_settings(rest),
            "SELECT" if rest.contains("set_config") => self.set_config(rest),
            "RESET" if rest == "TimeZone" => {
                let value = self.at_login[rest].clone();
                self.settings.insert(rest.to_owned(), value);
                self.complete("RESET");
            }
            "DISCARD" if rest == "ALL" && self.in_block => {
                self.fail_as(
                    extended,
                    "25001",
                    "DISCARD ALL cannot run inside a transaction block",
                );
            }
            "DISCARD" if rest == "ALL" => {
                self.settings = self.at_login.clone();
                self.statements.clear();
                self.leftovers.clear();
                self.complete("DISCARD ALL");
            }
            "RESET" => {
                self.settings = self.at_login.clone();
                self.clean("setting");
                self.complete("RESET");
            }
            "LISTEN" => {
                self.leave("channel");
                self.pending.push(Some(rest.trim_matches('"').to_owned()));
                self.complete("LISTEN");
            }
            "UNLISTEN" => {
                self.clean("channel");
                self.pending.push(None);
                self.complete("UNLISTEN");
            }
            "SELECT" if rest.contains("pg_listening_channels") => {
                for channel in self.channels.clone() {
                    self.row(&channel);
                }
                self.complete("SELECT 1");
            }
            "SELECT" if rest.contains("unlock_all") => {
                self.clean("lock");
                self.row("");
                self.complete("SELECT 1");
            }
            "SELECT" if rest.contains("pg_advisory_lock") => {
                self.leave("lock");
                self.row(&token);
                self.complete("SELECT 1");
            }
            "CREATE" => {
                self.leave("table");
                self.complete("CREATE TABLE");
            }
            "DISCARD" => {
                self.clean("table");
                self.complete("DISCARD TEMP");
            }
            "PREPARE" => {
                self.leave("statement");
                self.complete("PREPARE");
            }
            "DEALLOCATE" if rest == "ALL" => {
                self.statements.clear();
                self.clean("statement");
                self.complete("DEALLOCATE ALL");
            }
            "DEALLOCATE" => match self.statements.remove(rest.as_bytes()) {
                Some(_) => self.complete("DEALLOCATE"),
                None => {
                    let text = format!("prepared statement \"{rest}\" does not exist!");
                    self.fail_as(extended, "26000", &text);
                }
            },
            "CLOSE" => self.complete("CLOSE CURSOR"),
            "COPYOUT" => {
                encode::copy_response(&mut self.output, CopyStart::Out, Format::Text, &[]).unwrap();
                for _ in 0..3 {
                    encode::copy_data(&mut self.output, token.as_bytes()).unwrap();
                }
                encode::bare(&mut self.output, Bare::CopyDone);
                self.complete("COPY 3");
            }
            "COPYIN" | "COPYBAD" => {
                encode::copy_response(&mut self.output, CopyStart::In, Format::Text, &[]).unwrap();
                let fails_at = if upper == "COPYIN" { usize::MAX } else { 2 };
                self.copying = Some(Copying { token, rows: 0, fails_at, extended });
            }
            _ => self.fail_as(extended, "42601", &format!("no such thing as {sql}!")),
        }
    }

    fn copy(&mut self, mut copying: Copying, message: Message<'_>) {
        let extended = copying.extended;
        match message {
            Message::CopyData(data) => {
                if !data.starts_with(copying.token.as_bytes()) {
                    let data = String::from_utf8_lossy(data).into_owned();
                    self.violations.push(format!("{copying:?} got the data {data:?}"));
                }
                copying.rows += 1;
                if copying.rows < copying.fails_at {
                    self.copying = Some(copying);
                    return;
                }
                self.fail_as(extended, "22P02", "bad data!");
            }
            Message::CopyDone => self.complete(&format!("COPY {}", copying.rows)),
            Message::CopyFail { .. } => self.fail_as(extended, "57014", "COPY failed!"),
            Message::Sync | Message::Flush => {
                self.copying = Some(copying);
                return;
            }
            Message::Terminate => self.terminated = true,
            other => {
                self.violations.push(format!("{} during COPY", other.kind()));
                self.fail_as(extended, "08P01", "unexpected message!");
            }
        }
        if !extended {
            self.ready();
        }
    }

    fn set_config(&mut self, rest: &str) {
        let arguments = rest.split_once('(').and_then(|(_, rest)| rest.rsplit_once(", "));
        let (name, value) =
            arguments.and_then(|(both, _)| both.split_once(", ")).expect("name and value");
        if value == "\\N" {
            match self.at_login.get(name) {
                Some(value) => self.settings.insert(name.to_owned(), value.clone()),
                None => self.settings.remove(name),
            };
        } else {
            self.settings.insert(name.to_owned(), value.to_owned());
        }
        self.row(value);
        self.complete("SELECT 1");
    }

    /// Notices when a statement of one client finds what another left.
    fn check_owner(&mut self, sql: &str) {
        let Some(token) = sql.rsplit(' ').next().filter(|token| token.starts_with('c')) else {
            return;
        };
        let mut parts = token[1..].split('.');
        let Some(Ok(owner)) = parts.next().map(str::parse) else { return };
        let meant = parts.nth(1).and_then(|shard| shard.parse::<u32>().ok());
        if self.shard.is_some() && meant != self.shard {
            self.violations.push(format!("{sql} runs on shard {:?}", self.shard));
        }
        let foreign = self.owner.is_some_and(|before| before != owner);
        if foreign && (self.in_block || self.failed) {
            self.violations.push(format!("{sql} runs in a transaction of {:?}", self.owner));
        }
        if self.left_by.is_some_and(|by| by != owner) && !self.leftovers.is_empty() {
            self.violations.push(format!("{sql} finds {:?} of {:?}", self.leftovers, self.left_by));
        }
        self.owner = Some(owner);
        self.ran = Some(owner);
    }

    /// One of the pooler's commands, which no server is to see.
    fn command(&mut self, tag: &str) {
        if self.client_at.is_none() {
            self.violations.push(format!("a server is told {tag}"));
        }
        self.complete(tag);
    }

    fn leave(&mut self, what: &'static str) {
        self.leftovers.push(what);
        self.left_by = self.owner;
    }

    fn clean(&mut self, what: &str) {
        self.leftovers.retain(|left| *left != what);
    }

    fn row(&mut self, text: &str) {
        encode::data_row(&mut self.output, [Some(text.as_bytes())]).unwrap();
    }

    fn complete(&mut self, tag: &str) {
        encode::command_complete(&mut self.output, tag.as_bytes()).unwrap();
    }

    fn ready(&mut self) {
        for name in REPORTED {
            let value = &self.settings[name];
            if self.reported[name] != *value {
                self.reported.insert(name.to_owned(), value.clone());
                encode::parameter_status(&mut self.output, name.as_bytes(), value.as_bytes())
                    .unwrap();
            }
        }
        if !self.in_block {
            self.portals.clear();
            for channel in std::mem::take(&mut self.pending) {
                match channel {
                    Some(channel) => self.channels.push(channel),
                    None => self.channels.clear(),
                }
            }
        }
        let status = match (self.failed, self.in_block) {
            (true, _) => TransactionStatus::Failed,
            (false, true) => TransactionStatus::InTransaction,
            (false, false) => TransactionStatus::Idle,
        };
        encode::ready_for_query(&mut self.output, status);
    }

    fn fail_as(&mut self, extended: bool, sqlstate: &str, message: &str) {
        self.fail(sqlstate, message);
        self.skipping |= extended;
    }

    fn fail_extended(&mut self, sqlstate: &str, message: &str) {
        self.fail_as(true, sqlstate, message);
    }

    fn fail_extended_as(&mut self, sqlstate: &str, message: &str) {
        let fields = encode::essentials(Severity::Error, sqlstate.as_bytes(), message.as_bytes());
        encode::error_response(&mut self.output, fields).unwrap();
        self.failed = self.in_block;
        self.pending.clear();
        self.skipping = true;
    }

    fn fail(&mut self, sqlstate: &str, message: &str) {
        let message =
            if message.ends_with('!') { message.to_owned() } else { format!("{message}!") };
        let fields = encode::essentials(Severity::Error, sqlstate.as_bytes(), message.as_bytes());
        encode::error_response(&mut self.output, fields).unwrap();
        self.failed = self.in_block;
        self.pending.clear();
    }
}
