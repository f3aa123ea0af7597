//! [`SimBackend`]: a server that speaks PostgreSQL's protocol and understands a few commands.
//!
//! Most statements of a client, and all of its parameters, end with a token such as `c7.12`: the
//! client is 7, and the token 12. So a backend notices when it serves one client while it still
//! holds session state of another.

mod table;
mod token;

use std::collections::{BTreeMap, HashMap, HashSet};

use howdah_wire::{
    Frame, ValueFormat,
    backend::{
        FieldDescription, Severity, TransactionStatus,
        encode::{self, Bare, CopyStart},
    },
    frontend::{DescribeTarget, FrontendMessage},
};

use self::token::{StatementToken, TokenShard};
use crate::pinning::check_query;

use super::{
    connect_query::{ConnectQueryEffect, TENANT, TENANT_TABLE},
    coverage::Situation,
    sharded_table::{HeldRows, TableRead},
};

/// A simulated server session, with the session state that PostgreSQL would keep.
#[derive(Debug, Default)]
pub(super) struct SimBackend {
    input: Vec<u8>,
    /// Bytes to send to the pooler; taken by the simulation.
    pub(super) output: Vec<u8>,
    is_failed: bool,
    is_in_block: bool,
    is_skipping: bool,
    copying: Option<SimCopy>,
    statements: HashMap<Vec<u8>, Vec<u8>>,
    portals: HashMap<Vec<u8>, String>,
    /// Statements whose result columns have changed.
    outdated: HashSet<Vec<u8>>,
    settings: BTreeMap<String, String>,
    at_login: BTreeMap<String, String>,
    /// Parameters at the start of the transaction block, or before the first change in an implicit
    /// transaction.
    before_transaction: Option<BTreeMap<String, String>>,
    /// The values to which parameters return at the end of the transaction.
    before_local: BTreeMap<String, Option<String>>,
    /// Reported parameters, as of the last ReadyForQuery.
    reported: BTreeMap<String, String>,
    /// The kinds of session state left after the end of a transaction, such as locks and tables.
    leftovers: Vec<&'static str>,
    leftover_owner: Option<u32>,
    /// Whether a LOAD was received, which the pooler must expect to have succeeded.
    may_have_library: bool,
    /// Channels that the session listens to.
    channels: Vec<String>,
    /// Changes of `channels` that are pending until commit.
    pending: Vec<ChannelChange>,
    /// The client whose statement ran last, if known.
    pub(super) last_client: Option<u32>,
    /// The client named in the last statement of the current input, if any.
    pub(super) fed_client: Option<u32>,
    /// Whether this is the reference model of a client with a sharded table.
    pub(super) is_reference: bool,
    /// The rows of the sharded table, if the backend has any.
    pub(super) table: Option<HeldRows>,
    /// Rows of the sharded table that the current transaction has copied.
    uncommitted_rows: Vec<String>,
    /// Rows of the sharded table that were copied; taken by the simulation.
    pub(super) committed_rows: Vec<String>,
    /// Whether the last statement with a token writes.
    pub(super) fed_write: bool,
    /// The read whose rows a sleeping statement returns; `None` for one row with the token.
    sleeping_read: Option<TableRead>,
    /// The backend's shard, if there are several.
    pub(super) shard: Option<u32>,
    /// In a reference model, the shard that the client has selected. Only a model with such a shard
    /// answers the pooler's own commands.
    pub(super) client_shard: Option<u32>,
    /// The reply of a statement that is still sleeping.
    pub(super) sleeping: Option<String>,
    /// Whether only a CancelRequest ends the sleep.
    pub(super) is_stalled: bool,
    /// Tokens of statements that may run only once; taken by the simulation.
    pub(super) executed_once: Vec<String>,
    /// The connect query's effect on the session, which only the current client may have undone.
    connect_query: ConnectQueryEffect,
    /// Situations that were reached; taken by the simulation.
    pub(super) situations: Vec<Situation>,
    /// Violations of guarantees found so far.
    pub(super) violations: Vec<String>,
    pub(super) is_terminated: bool,
}

#[derive(Debug)]
enum ChannelChange {
    Listen(String),
    Unlisten(String),
    UnlistenAll,
}

#[derive(Debug)]
struct SimCopy {
    token: String,
    rows: usize,
    fails_at: usize,
    extended: bool,
    /// Whether the rows are for the sharded table, each with its key.
    is_table: bool,
}

/// A literal that Parse replaces with the current values of the parameters that affect it.
pub(super) const LITERAL: &str = "'literal'";

/// A parameter that servers do not report and whose value clients query.
const WORK_MEM: &str = "work_mem";

/// The kind of session state that a changed parameter is, until the pooler knows its value.
const SETTING: &str = "setting";

/// The parameters that servers report.
const REPORTED: [&str; 4] =
    ["TimeZone", "application_name", "DateStyle", "standard_conforming_strings"];

impl SimBackend {
    pub(super) fn new(settings: &[(&str, &str)]) -> Self {
        let at_login: BTreeMap<_, _> = settings
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        Self { settings: at_login.clone(), reported: at_login.clone(), at_login, ..Self::default() }
    }

    /// Whether the session's transaction has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.is_failed
    }

    /// Whether the session has state, or may have, that cannot follow its client to another server.
    pub(super) fn has_lasting_state(&self) -> bool {
        let lasts = |left: &&str| !matches!(*left, SETTING | "channel");
        self.may_have_library || !self.channels.is_empty() || self.leftovers.iter().any(lasts)
    }

    /// Returns the channels that the session listens to, sorted.
    pub(super) fn channels(&self) -> Vec<String> {
        let mut channels = self.channels.clone();
        channels.sort_unstable();
        channels
    }

    /// Runs a connect query, as a pooler does after the login.
    pub(super) fn run_connect_query(&mut self, sql: &str) {
        self.connect_query.require(sql);
        self.query(sql);
        self.output.clear();
    }

    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.fed_client = None;
        self.input.extend_from_slice(bytes);
        self.process_input();
    }

    /// Finishes a sleeping statement, and sends its reply.
    pub(super) fn wake(&mut self) {
        self.is_stalled = false;
        if let Some(token) = self.sleeping.take() {
            match self.sleeping_read.take() {
                Some(read) => self.return_table_rows(read, &token),
                None => {
                    self.row(&token);
                    self.complete("SELECT 1");
                }
            }
            self.ready();
            self.process_input();
        }
    }

    /// Handles a CancelRequest; `client` is the client that requested it, if any.
    pub(super) fn cancel(&mut self, client: Option<u32>) {
        if self.sleeping.take().is_none() {
            return;
        }
        self.is_stalled = false;
        if self.sleeping_read.take().is_some() {
            self.situations.push(Situation::FanOutCancelled);
        }
        if let Some(client) = client
            && self.last_client != Some(client)
        {
            let owner = self.last_client;
            self.violations.push(format!("a cancel of c{client} hit a statement of {owner:?}"));
        }
        self.fail("57014", "canceling statement due to user request");
        self.ready();
        self.process_input();
    }

    /// Sends a notice or parameter reports that no request caused.
    pub(super) fn send_unrequested(&mut self, notice: bool) {
        if notice {
            let fields = encode::essentials(Severity::Notice, b"00000", b"hello");
            encode::notice_response(&mut self.output, fields).unwrap();
        } else if REPORTED.iter().all(|name| self.reported[*name] == self.settings[*name]) {
            for name in REPORTED {
                let value = self.reported[name].clone();
                encode::parameter_status(&mut self.output, name.as_bytes(), value.as_bytes())
                    .unwrap();
            }
        }
    }

    /// Alters the tables that prepared statements read, so that their result columns change.
    pub(super) fn outdate_statements(&mut self) {
        let is_own = |name: &[u8]| {
            matches!(name, b"howdah_set" | b"howdah_restore" | b"howdah_parse_settings")
        };
        let prepared = self.statements.keys().filter(|name| !is_own(name));
        self.outdated = prepared.cloned().collect();
    }

    fn fail_if_outdated(&mut self, name: &[u8]) -> bool {
        let is = !self.is_failed && self.outdated.contains(name);
        if is {
            self.fail_extended("0A000", "cached plan must not change result type");
        }
        is
    }

    fn process_input(&mut self) {
        while self.sleeping.is_none() && !self.is_terminated {
            let input = std::mem::take(&mut self.input);
            let Some((frame, rest)) = Frame::split(&input, 1 << 30).expect("a valid header") else {
                self.input = input;
                return;
            };
            let message = FrontendMessage::parse(frame)
                .unwrap_or_else(|error| panic!("{error}: {}", frame.body.escape_ascii()));
            self.handle_message(message);
            self.input = [rest, &self.input].concat();
        }
    }

    fn handle_message(&mut self, message: FrontendMessage<'_>) {
        if let Some(copying) = self.copying.take() {
            return self.copy(copying, message);
        }
        if self.is_skipping
            && !matches!(message, FrontendMessage::Sync | FrontendMessage::Terminate)
        {
            return;
        }
        match message {
            FrontendMessage::Query { sql } => self.query(&String::from_utf8_lossy(sql)),
            FrontendMessage::Parse(parse) => self.parse(parse.statement, parse.sql),
            FrontendMessage::Bind(bind) => {
                let values: Vec<_> = bind
                    .values
                    .map(|value| String::from_utf8_lossy(value.unwrap_or(b"\\N")).into_owned())
                    .collect();
                self.bind(bind.portal, bind.statement, &values);
            }
            FrontendMessage::Describe(DescribeTarget::Statement(name)) => {
                if self.is_failed && self.statements.contains_key(name) {
                    self.fail_extended("25P02", "current transaction is aborted");
                } else if self.fail_if_outdated(name) {
                } else if self.statements.contains_key(name) {
                    encode::parameter_description(&mut self.output, &[25]).unwrap();
                    let sql = String::from_utf8_lossy(&self.statements[name]).into_owned();
                    self.describe_result(&sql);
                } else {
                    self.fail_missing_statement(name);
                }
            }
            FrontendMessage::Describe(DescribeTarget::Portal(portal)) => {
                let sql = self.portals.get(portal).cloned().unwrap_or_default();
                self.describe_result(&sql);
            }
            FrontendMessage::Execute { portal, .. } => match self.portals.get(portal).cloned() {
                Some(sql) => self.execute(&sql, true),
                None => self.fail_extended("34000", "portal does not exist"),
            },
            FrontendMessage::Close(target) => {
                match target {
                    DescribeTarget::Statement(name) => {
                        self.statements.remove(name);
                        self.outdated.remove(name);
                    }
                    DescribeTarget::Portal(name) => drop(self.portals.remove(name)),
                }
                encode::bare(&mut self.output, Bare::CloseComplete);
            }
            FrontendMessage::Sync => {
                self.is_skipping = false;
                self.ready();
            }
            FrontendMessage::Terminate => self.is_terminated = true,
            FrontendMessage::FunctionCall(call) => {
                let argument = call.arguments.flatten().next().unwrap_or_default();
                if self.is_failed {
                    self.fail("25P02", "current transaction is aborted");
                } else {
                    encode::function_call_response(&mut self.output, Some(argument)).unwrap();
                }
                self.ready();
            }
            // Flush does nothing, since replies are never held back. COPY messages outside of a
            // COPY are ignored.
            _ => {}
        }
    }

    fn query(&mut self, sql: &str) {
        self.statements.remove(&b""[..]);
        self.outdated.remove(&b""[..]);
        for part in sql.split(';').map(str::trim).filter(|part| !part.is_empty()) {
            self.execute(part, false);
            if self.sleeping.is_some() || self.copying.is_some() {
                return; // ReadyForQuery follows when the sleep or COPY ends.
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
        } else if self.is_failed && sql != b"ROLLBACK" {
            self.fail_extended("25P02", "current transaction is aborted");
        } else if !name.is_empty() && self.statements.contains_key(name) {
            let text =
                format!("prepared statement \"{}\" already exists", String::from_utf8_lossy(name));
            self.fail_extended_as("42P05", &text);
        } else {
            // A literal keeps its meaning under the current parse settings.
            let sql = String::from_utf8_lossy(sql);
            let sql = if sql.contains(LITERAL) {
                let reported = ["TimeZone", "DateStyle", "standard_conforming_strings"];
                let reported = reported.map(|name| &self.settings[name][..]).join("/");
                if reported != "UTC/ISO/on" {
                    self.situations.push(Situation::ParsedUnderChangedSettings);
                }
                if self.settings.contains_key("backslash_quote") {
                    self.situations.push(Situation::ParsedUnderUnreportedSetting);
                }
                sql.replace(LITERAL, &format!("{reported}/{}", self.quoting()))
            } else {
                sql.into_owned()
            };
            self.statements.insert(name.to_vec(), sql.into_bytes());
            encode::bare(&mut self.output, Bare::ParseComplete);
        }
    }

    fn bind(&mut self, portal: &[u8], statement: &[u8], values: &[String]) {
        let Some(sql) = self.statements.get(statement) else {
            return self.fail_missing_statement(statement);
        };
        let mut sql = String::from_utf8_lossy(sql).into_owned();
        if self.is_failed && sql != "ROLLBACK" {
            return self.fail_extended("25P02", "current transaction is aborted");
        }
        if self.fail_if_outdated(statement) {
            return;
        }
        for (at, value) in values.iter().enumerate() {
            sql = sql.replace(&format!("${}", at + 1), value);
        }
        self.portals.insert(portal.to_vec(), sql);
        encode::bare(&mut self.output, Bare::BindComplete);
    }

    /// Returns the value of `backslash_quote`, a parameter that servers do not report.
    fn quoting(&self) -> &str {
        self.settings.get("backslash_quote").map_or("safe_encoding", |value| value)
    }

    /// Returns the value of `work_mem`, a parameter that servers do not report.
    fn work_mem(&self) -> &str {
        self.settings.get(WORK_MEM).map_or("4", |value| value)
    }

    /// Replies with the values of parameters by name.
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

    fn fail_missing_statement(&mut self, name: &[u8]) {
        let name = String::from_utf8_lossy(name);
        let text = format!("prepared statement \"{name}\" does not exist");
        self.fail_extended_as("26000", &text);
    }

    fn execute(&mut self, sql: &str, extended: bool) {
        if sql.starts_with(check_query::MARK) {
            return self.session_state(sql);
        }
        self.check_owner(sql);
        let (verb, rest) = sql.split_once(' ').unwrap_or((sql, ""));
        let token = rest.rsplit(' ').next().unwrap_or("").to_owned();
        let upper = verb.to_ascii_uppercase();
        self.may_have_library |= upper == "LOAD";
        let ends = matches!(upper.as_str(), "ROLLBACK" | "COMMIT");
        // The pooler answers its own commands even in a failed transaction.
        let asks = sql == "SHOW SHARD" && self.client_shard.is_some();
        if self.is_failed && !ends && !asks {
            return self.fail_as(extended, "25P02", "current transaction is aborted");
        }
        match upper.as_str() {
            "BEGIN" => {
                if token.is_empty() && !self.is_in_block {
                    self.last_client = None; // The statement does not name its client.
                }
                self.remember_settings();
                self.is_in_block = true;
                self.complete("BEGIN");
            }
            "COMMIT" | "ROLLBACK" => {
                let before = self.before_transaction.take();
                let copied = std::mem::take(&mut self.uncommitted_rows);
                if upper == "ROLLBACK" || self.is_failed {
                    if !copied.is_empty() {
                        self.situations.push(Situation::TableCopyRolledBack);
                    }
                    self.pending.clear();
                    if let Some(before) = before {
                        self.settings = before;
                        self.before_local.clear();
                    }
                } else if !copied.is_empty() {
                    self.situations.push(Situation::TableCopyCommitted);
                    self.committed_rows.extend(copied);
                }
                (self.is_in_block, self.is_failed) = (false, false);
                self.complete(&upper);
            }
            "UPDATE" | "COPY" => self.write_table(sql, extended),
            "SELECT" if let Some(read) = TableRead::parse(sql) => {
                let token = StatementToken::parse(sql).map_or(token, |token| token.text);
                self.read_table(read, token, extended);
            }
            "SELECT" if rest.starts_with("* from") => {
                self.row(&token);
                self.complete("SELECT 1");
            }
            "ECHO" => {
                self.executed_once.push(token.clone());
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
            "SLEEP" | "STALL" => {
                self.is_stalled = upper == "STALL";
                self.sleeping = Some(token);
            }
            "SET" if rest.starts_with("SHARD") => {
                self.pooler_command(if rest.starts_with("SHARD ") {
                    "SET SHARD"
                } else {
                    "SET SHARDING KEY"
                });
            }
            "SHOW" if rest == "SHARD" => {
                let shard = self.client_shard.map(|shard| shard.to_string()).unwrap_or_default();
                let field = FieldDescription {
                    name: b"shard",
                    table: 0,
                    column: 0,
                    type_oid: 25,
                    type_bytes: -1,
                    type_modifier: -1,
                    format: ValueFormat::Text,
                };
                encode::row_description(&mut self.output, [field]).unwrap();
                self.row(&shard);
                self.pooler_command("SELECT 1");
            }
            "SET" if sql.starts_with("SET SESSION AUTHORIZATION") => self.complete("SET"),
            "SET" => {
                self.remember_settings();
                let local = rest.strip_prefix("local ");
                let mut words = local.unwrap_or(rest).split(' ');
                let name = words.next().unwrap_or("").to_owned();
                let value = words.nth(1).unwrap_or("").to_owned();
                if name == "search_path" {
                    if self.connect_query.set_path(&value, self.last_client) {
                        self.situations.push(Situation::ConnectQueryRepeated);
                    }
                    if value == TENANT {
                        return self.complete("SET");
                    }
                }
                if !REPORTED.contains(&name.as_str()) && local.is_none() {
                    self.add_leftover(SETTING);
                }
                if local.is_some() {
                    let before = self.settings.get(&name).cloned();
                    self.before_local.entry(name.clone()).or_insert(before);
                } else {
                    self.before_local.remove(&name);
                }
                self.settings.insert(name, value);
                self.complete("SET");
            }
            "SELECT" if rest.contains("current_setting(") => self.current_settings(rest),
            "SELECT" if rest.contains("set_config") => self.set_config(rest),
            "RESET" if REPORTED.contains(&without_comment(rest)) => {
                self.remember_settings();
                let name = without_comment(rest);
                self.before_local.remove(name);
                self.settings.insert(name.to_owned(), self.at_login[name].clone());
                self.complete("RESET");
            }
            "DISCARD" if without_comment(rest) == "ALL" && self.is_in_block => {
                self.fail_as(
                    extended,
                    "25001",
                    "DISCARD ALL cannot run inside a transaction block",
                );
            }
            "DISCARD" if without_comment(rest) == "ALL" => {
                self.settings = self.at_login.clone();
                self.connect_query.undo_settings(self.last_client);
                self.connect_query.undo_table(self.last_client);
                self.statements.clear();
                self.leftovers.retain(|left| *left == "library");
                self.channels.clear();
                self.complete("DISCARD ALL");
            }
            "RESET" if without_comment(rest) == WORK_MEM => {
                self.remember_settings();
                self.before_local.remove(WORK_MEM);
                self.settings.remove(WORK_MEM);
                self.complete("RESET");
            }
            "SHOW" if without_comment(rest) == WORK_MEM => {
                self.row(&format!("{WORK_MEM}={},{token}", self.work_mem()));
                self.complete("SHOW");
            }
            "LOAD" => {
                self.add_leftover("library");
                self.complete("LOAD");
            }
            "RESET" => {
                self.remember_settings();
                self.before_local.clear();
                self.settings = self.at_login.clone();
                self.connect_query.undo_settings(self.last_client);
                self.remove_leftover(SETTING);
                self.complete("RESET");
            }
            "LISTEN" => {
                self.add_leftover("channel");
                let is_marker = rest.starts_with('"');
                let name = if is_marker { rest.trim_matches('"') } else { &rest[..1] };
                self.pending.push(ChannelChange::Listen(name.to_owned()));
                self.complete("LISTEN");
            }
            "UNLISTEN" => {
                self.remove_leftover("channel");
                self.pending.push(if rest.starts_with('*') {
                    ChannelChange::UnlistenAll
                } else {
                    ChannelChange::Unlisten(rest[..1].to_owned())
                });
                self.complete("UNLISTEN");
            }
            "SELECT" if rest.contains("pg_listening_channels") => {
                for channel in self.channels.clone() {
                    self.row(&channel);
                }
                self.complete("SELECT 1");
            }
            "SELECT" if rest.contains("unlock_all") => {
                self.remove_leftover("lock");
                self.row("");
                self.complete("SELECT 1");
            }
            "SELECT" if rest.contains("to_regclass") => {
                let table = if self.leftovers.contains(&"table") { "t" } else { "" };
                self.row(&format!("{table},{token}"));
                self.complete("SELECT 1");
            }
            "SELECT" if rest.contains("from pg_locks") => {
                let locks = self.leftovers.iter().filter(|left| **left == "lock").count();
                self.row(&format!("{locks},{token}"));
                self.complete("SELECT 1");
            }
            "SELECT" if rest.contains("pg_advisory_lock") => {
                self.add_leftover("lock");
                self.row(&token);
                self.complete("SELECT 1");
            }
            "CREATE" if rest == TENANT_TABLE => {
                self.connect_query.create_table();
                self.complete("CREATE TABLE");
            }
            "CREATE" => {
                self.add_leftover("table");
                self.complete("CREATE TABLE");
            }
            "DROP" => {
                self.remove_leftover("table");
                self.complete("DROP TABLE");
            }
            "DISCARD" => {
                self.connect_query.undo_table(self.last_client);
                self.remove_leftover("table");
                self.complete("DISCARD TEMP");
            }
            "PREPARE" => {
                self.add_leftover("statement");
                self.complete("PREPARE");
            }
            "DEALLOCATE" if rest == "ALL" => {
                self.statements.clear();
                self.remove_leftover("statement");
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
                encode::copy_response(&mut self.output, CopyStart::Out, ValueFormat::Text, &[])
                    .unwrap();
                for _ in 0..3 {
                    encode::copy_data(&mut self.output, token.as_bytes()).unwrap();
                }
                encode::bare(&mut self.output, Bare::CopyDone);
                self.complete("COPY 3");
            }
            "COPYIN" | "COPYBAD" => {
                encode::copy_response(&mut self.output, CopyStart::In, ValueFormat::Text, &[])
                    .unwrap();
                let fails_at = if upper == "COPYIN" { usize::MAX } else { 2 };
                let is_table = false;
                self.copying = Some(SimCopy { token, rows: 0, fails_at, extended, is_table });
            }
            _ => self.fail_as(extended, "42601", &format!("no such thing as {sql}!")),
        }
    }

    fn copy(&mut self, mut copying: SimCopy, message: FrontendMessage<'_>) {
        let extended = copying.extended;
        match message {
            FrontendMessage::CopyData(data) if copying.is_table => {
                if self.copy_table_rows(&mut copying, data) {
                    self.copying = Some(copying);
                    return;
                }
                self.fail_as(extended, "22P02", "bad data!");
            }
            FrontendMessage::CopyData(data) => {
                if !data.starts_with(copying.token.as_bytes()) {
                    let data = String::from_utf8_lossy(data).into_owned();
                    self.violations.push(format!("{copying:?} received the data {data:?}"));
                }
                copying.rows += 1;
                if copying.rows < copying.fails_at {
                    self.copying = Some(copying);
                    return;
                }
                self.fail_as(extended, "22P02", "bad data!");
            }
            FrontendMessage::CopyDone => self.complete(&format!("COPY {}", copying.rows)),
            FrontendMessage::CopyFail { .. } => self.fail_as(extended, "57014", "COPY failed!"),
            FrontendMessage::Sync | FrontendMessage::Flush => {
                self.copying = Some(copying);
                return;
            }
            FrontendMessage::Terminate => self.is_terminated = true,
            other => {
                self.violations.push(format!("{} during COPY", other.kind()));
                self.fail_as(extended, "08P01", "unexpected message!");
            }
        }
        if !extended {
            self.ready();
        }
    }

    /// Answers the question for the session's state in adaptive mode.
    fn session_state(&mut self, sql: &str) {
        let mut rows = Vec::new();
        for (left, view, kind) in [
            ("lock", "pg_locks", "l"),
            ("table", "pg_my_temp_schema", "t"),
            ("statement", "pg_prepared_statements", "p"),
        ] {
            if sql.contains(view) && self.leftovers.contains(&left) {
                rows.push([kind, left, ""].map(str::to_owned));
            }
        }
        if sql.contains("pg_listening_channels") {
            rows.extend(self.channels.iter().map(|name| ["n", name, ""].map(str::to_owned)));
        }
        let is_named = |name: &str| sql.contains(&format!("'{name}'"));
        for (name, value) in &self.settings {
            let is_asked = sql.contains("pg_settings") || is_named(name);
            if is_asked && !REPORTED.contains(&name.as_str()) {
                rows.push(["s", name, value].map(str::to_owned));
            }
        }
        if is_named(WORK_MEM) && !self.settings.contains_key(WORK_MEM) {
            rows.push(["s", WORK_MEM, self.work_mem()].map(str::to_owned));
        }
        for row in &rows {
            encode::data_row(&mut self.output, row.each_ref().map(|cell| Some(cell.as_bytes())))
                .unwrap();
        }
        if sql.contains("current_setting(s") {
            // From now on the pooler knows the settings, which follow the client.
            self.remove_leftover(SETTING);
        }
        if !rows.is_empty() {
            self.situations.push(Situation::SessionStateFound);
        }
        self.complete("SELECT 1");
    }

    fn set_config(&mut self, rest: &str) {
        let arguments = rest.split_once('(').and_then(|(_, rest)| rest.rsplit_once(", "));
        let (both, is_local) = arguments.expect("three arguments");
        let (name, value) = both.split_once(", ").expect("name and value");
        let reported = REPORTED.into_iter().find(|reported| reported.eq_ignore_ascii_case(name));
        let name = reported.unwrap_or(name);
        self.remember_settings();
        if is_local.starts_with('t') {
            let before = self.settings.get(name).cloned();
            self.before_local.entry(name.to_owned()).or_insert(before);
        } else {
            self.before_local.remove(name);
        }
        if value == "\\N" {
            match self.at_login.get(name) {
                Some(value) => self.settings.insert(name.to_owned(), value.clone()),
                None => self.settings.remove(name),
            };
        } else {
            self.settings.insert(name.to_owned(), value.to_owned());
        }
        if reported.is_none() {
            // The pooler knows this setting: it follows its client.
            self.remove_leftover(SETTING);
        }
        self.row(value);
        self.complete("SELECT 1");
    }

    /// Records a violation if a statement runs on the wrong shard, in another client's transaction,
    /// or with another client's session state.
    fn check_owner(&mut self, sql: &str) {
        let Some(StatementToken { owner, shard, .. }) = StatementToken::parse(sql) else { return };
        let is_meant = match shard {
            TokenShard::Every => true,
            TokenShard::One(shard) => self.shard == Some(shard),
            TokenShard::Unknown => false,
        };
        if self.shard.is_some() && !is_meant {
            self.violations.push(format!("{sql} runs on shard {:?}", self.shard));
        }
        let foreign = self.last_client.is_some_and(|before| before != owner);
        if foreign && (self.is_in_block || self.is_failed) {
            self.violations.push(format!("{sql} runs in a transaction of {:?}", self.last_client));
        }
        if self.leftover_owner.is_some_and(|by| by != owner) && !self.leftovers.is_empty() {
            self.violations
                .push(format!("{sql} finds {:?} of {:?}", self.leftovers, self.leftover_owner));
        }
        if self.connect_query.is_missing_for(owner) {
            self.violations.push(format!("{sql} runs without the effect of the connect query"));
        }
        self.last_client = Some(owner);
        self.fed_client = Some(owner);
        self.fed_write = sql.starts_with("update ") || sql.starts_with("copy ");
    }

    /// Handles a command that the pooler should execute itself: a violation, except in a reference
    /// model.
    fn pooler_command(&mut self, tag: &str) {
        if self.client_shard.is_none() {
            self.violations.push(format!("a server received {tag}"));
        }
        self.complete(tag);
    }

    fn add_leftover(&mut self, what: &'static str) {
        self.leftovers.push(what);
        self.leftover_owner = self.last_client;
    }

    fn remove_leftover(&mut self, what: &str) {
        self.leftovers.retain(|left| *left != what);
    }

    fn row(&mut self, text: &str) {
        encode::data_row(&mut self.output, [Some(text.as_bytes())]).unwrap();
    }

    fn complete(&mut self, tag: &str) {
        encode::command_complete(&mut self.output, tag.as_bytes()).unwrap();
    }

    /// Remembers the parameters, which are restored if the transaction fails.
    fn remember_settings(&mut self) {
        if self.before_transaction.is_none() {
            self.before_transaction = Some(self.settings.clone());
        }
    }

    /// Handles an error: a transaction block has failed, and an implicit transaction is rolled
    /// back.
    fn abort(&mut self) {
        self.is_failed = self.is_in_block;
        self.pending.clear();
        if !self.is_in_block
            && let Some(before) = self.before_transaction.take()
        {
            self.settings = before;
            self.before_local.clear();
        }
    }

    fn ready(&mut self) {
        if !self.is_in_block {
            self.before_transaction = None;
            for (name, value) in std::mem::take(&mut self.before_local) {
                match value {
                    Some(value) => self.settings.insert(name, value),
                    None => self.settings.remove(&name),
                };
            }
        }
        for name in REPORTED {
            let value = &self.settings[name];
            if self.reported[name] != *value {
                self.reported.insert(name.to_owned(), value.clone());
                encode::parameter_status(&mut self.output, name.as_bytes(), value.as_bytes())
                    .unwrap();
            }
        }
        if !self.is_in_block {
            self.portals.clear();
            for channel in std::mem::take(&mut self.pending) {
                match channel {
                    ChannelChange::Listen(channel) if self.channels.contains(&channel) => {}
                    ChannelChange::Listen(channel) => self.channels.push(channel),
                    ChannelChange::Unlisten(channel) => self.channels.retain(|it| *it != channel),
                    ChannelChange::UnlistenAll => self.channels.clear(),
                }
            }
        }
        let status = match (self.is_failed, self.is_in_block) {
            (true, _) => TransactionStatus::Failed,
            (false, true) => TransactionStatus::InTransaction,
            (false, false) => TransactionStatus::Idle,
        };
        encode::ready_for_query(&mut self.output, status);
    }

    fn fail_as(&mut self, extended: bool, sqlstate: &str, message: &str) {
        self.fail(sqlstate, message);
        self.is_skipping |= extended;
    }

    fn fail_extended(&mut self, sqlstate: &str, message: &str) {
        self.fail_as(true, sqlstate, message);
    }

    fn fail_extended_as(&mut self, sqlstate: &str, message: &str) {
        let fields = encode::essentials(Severity::Error, sqlstate.as_bytes(), message.as_bytes());
        encode::error_response(&mut self.output, fields).unwrap();
        self.abort();
        self.is_skipping = true;
    }

    fn fail(&mut self, sqlstate: &str, message: &str) {
        let message =
            if message.ends_with('!') { message.to_owned() } else { format!("{message}!") };
        let fields = encode::essentials(Severity::Error, sqlstate.as_bytes(), message.as_bytes());
        encode::error_response(&mut self.output, fields).unwrap();
        self.abort();
    }
}

/// Returns a statement's arguments without the comment that names its client.
fn without_comment(rest: &str) -> &str {
    rest.split(" -- ").next().unwrap_or_default()
}
