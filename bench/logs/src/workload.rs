//! A workload: the actions of the clients of a fictitious shop, as the records that its server
//! would log.
//!
//! It mixes an application with a driver that prepares (binds, executes, their durations), one that
//! sends simple queries, and reports; some sessions are short, and few statements fail. It uses
//! neither a clock nor entropy: a run is a function of its arguments.

use std::fmt::Write as _;

/// One server message.
#[derive(Debug, Default)]
pub(crate) struct GeneratedRecord {
    /// Milliseconds since the Unix epoch.
    pub(crate) time_ms: u64,
    pub(crate) user: &'static str,
    pub(crate) database: &'static str,
    pub(crate) session_start: u64,
    pub(crate) pid: u32,
    pub(crate) port: u32,
    pub(crate) line: u64,
    pub(crate) tag: &'static str,
    pub(crate) vxid: u64,
    pub(crate) severity: &'static str,
    pub(crate) sqlstate: &'static str,
    pub(crate) message: String,
    pub(crate) detail: String,
    pub(crate) statement: String,
}

/// How long statements are, which determines what the import spends time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum StatementLength {
    /// 50 to 600 bytes: records of about 190
    Mixed,
    /// Statements of 10 kB, each different
    Long,
    /// Statements of 100 MB
    Huge,
}

impl StatementLength {
    /// Length of each statement, if all are alike.
    fn statement_bytes(self) -> Option<usize> {
        match self {
            Self::Mixed => None,
            Self::Long => Some(10_000),
            Self::Huge => Some(100_000_000),
        }
    }
}

/// The clients and their state.
#[derive(Debug)]
pub(crate) struct Workload {
    shape: StatementLength,
    random: WorkloadRandom,
    now_us: u64,
    pids: u32,
    vxids: u64,
    sessions: Vec<WorkloadSession>,
    record: GeneratedRecord,
}

#[derive(Debug)]
struct WorkloadSession {
    role: ClientRole,
    start: u64,
    pid: u32,
    line: u64,
    actions: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientRole {
    /// Prepares; durations are logged without a text.
    Shop,
    /// Prepares; each step is logged with its text.
    Api,
    /// Sends simple queries.
    Report,
}

/// Number of concurrent sessions.
const SESSIONS: usize = 48;
/// 2026-03-01 10:00:00 UTC.
const BEGIN_S: u64 = 1_772_359_200;

impl Workload {
    pub(crate) fn new(shape: StatementLength) -> Self {
        Self {
            shape,
            random: WorkloadRandom(7),
            now_us: BEGIN_S * 1_000_000,
            pids: 1000,
            vxids: 0,
            sessions: Vec::new(),
            record: GeneratedRecord::default(),
        }
    }

    /// Performs one action of one client.
    pub(crate) fn step(&mut self, out: &mut dyn FnMut(&GeneratedRecord)) {
        self.now_us += 150 + self.random.next_below(400);
        let at = if self.sessions.len() < SESSIONS {
            self.connect(out);
            self.sessions.len() - 1
        } else {
            usize::try_from(self.random.next_below(SESSIONS as u64)).unwrap_or(0)
        };
        if self.sessions[at].actions == 0 {
            let ended = self.sessions.swap_remove(at);
            let text = format!(
                "disconnection: session time: 0:00:41.507 user={} database=shop host=10.0.0.{} port={}",
                ended.role.user(),
                ended.pid % 200,
                port(&ended)
            );
            self.log(&mut { ended }, "idle", text, String::new(), out);
            return;
        }
        let mut session = self.sessions.swap_remove(at);
        session.actions -= 1;
        self.perform(&mut session, out);
        self.sessions.push(session);
    }

    fn connect(&mut self, out: &mut dyn FnMut(&GeneratedRecord)) {
        self.pids = self.pids % 60_000 + 1 + 7;
        let role = match self.random.next_below(10) {
            0..5 => ClientRole::Shop,
            5..7 => ClientRole::Api,
            _ => ClientRole::Report,
        };
        let actions = 100 + u32::try_from(self.random.next_below(2000)).unwrap_or(0);
        let start = self.now_us / 1_000_000;
        let mut session = WorkloadSession { role, start, pid: self.pids, line: 0, actions };
        let text = format!(
            "connection received: host=10.0.0.{} port={}",
            session.pid % 200,
            port(&session)
        );
        self.log_as("[unknown]", &mut session, "", text, String::new(), out);
        let text = format!(
            "connection authorized: user={} database=shop application_name=web",
            role.user()
        );
        self.log(&mut session, "authentication", text, String::new(), out);
        self.sessions.push(session);
    }

    fn perform(&mut self, session: &mut WorkloadSession, out: &mut dyn FnMut(&GeneratedRecord)) {
        self.vxids += 1;
        if self.random.next_below(300) == 0 {
            return self.fail(session, out);
        }
        if let Some(bytes) = self.shape.statement_bytes() {
            let text = format!("statement: {}", self.long(bytes));
            self.log(session, "idle", text, String::new(), out);
            let text = self.duration();
            return self.log(session, "SELECT", text, String::new(), out);
        }
        match session.role {
            ClientRole::Report => self.simple(session, out),
            ClientRole::Shop | ClientRole::Api => self.extended(session, out),
        }
    }

    fn simple(&mut self, session: &mut WorkloadSession, out: &mut dyn FnMut(&GeneratedRecord)) {
        let (id, other) = (self.random.next_below(1_000_000), self.random.next_below(5000));
        let (tag, sql) = match self.random.next_below(6) {
            0 => ("BEGIN", "begin".to_owned()),
            1 => ("COMMIT", "commit".to_owned()),
            2 => (
                "UPDATE",
                format!("UPDATE accounts SET balance = balance + {other} WHERE account_id = {id};"),
            ),
            3 => (
                "INSERT",
                format!(
                    "insert into history(teller_id, branch_id, account_id, delta, written_at, note)\n\tvalues ({other}, {}, {id}, -{other}, current_timestamp, 'it''s due; see {id}')",
                    other % 10
                ),
            ),
            4 => ("SELECT", format!("SELECT balance FROM accounts WHERE account_id = {id};")),
            _ => (
                "SELECT",
                format!(
                    "select o.order_id, o.placed_at, o.state, sum(i.price_cents * i.quantity)\nfrom orders o\n\tjoin order_items i using (order_id)\nwhere o.customer_id = {id}\n\tand o.placed_at > now() - interval '30 days'\ngroup by 1, 2, 3\norder by o.placed_at desc\nlimit 20"
                ),
            ),
        };
        self.log(session, "idle", format!("statement: {sql}"), String::new(), out);
        let text = self.duration();
        self.log(session, tag, text, String::new(), out);
    }

    fn extended(&mut self, session: &mut WorkloadSession, out: &mut dyn FnMut(&GeneratedRecord)) {
        let number = usize::try_from(self.random.next_below(PREPARED.len() as u64)).unwrap_or(0);
        let (tag, sql) = PREPARED[number];
        let name = match number % 4 {
            3 => "<unnamed>".to_owned(),
            _ => format!("S_{}", number + 1),
        };
        let values = self.values(sql);
        let bind = match session.role {
            ClientRole::Shop => self.duration(),
            _ => format!("{}  bind {name}: {sql}", self.duration()),
        };
        if name == "<unnamed>" && session.role == ClientRole::Shop {
            let text = self.duration();
            self.log(session, "PARSE", text, String::new(), out);
        }
        let detail = if session.role == ClientRole::Shop { String::new() } else { values.clone() };
        self.log(session, "BIND", bind, detail, out);
        self.log(session, tag, format!("execute {name}: {sql}"), values, out);
        let text = self.duration();
        self.log(session, tag, text, String::new(), out);
    }

    fn values(&mut self, sql: &str) -> String {
        let count = sql.matches('$').count();
        let mut text = String::new();
        for number in 1..=count {
            let lead = if number == 1 { "parameters: " } else { ", " };
            let value = match self.random.next_below(8) {
                0 => "NULL".to_owned(),
                1 => format!("'2026-03-01 10:{:02}:07.123+00'", self.random.next_below(60)),
                2 => format!("'customer {} said \"it''s fine\"'", self.random.next_below(100_000)),
                _ => format!("'{}'", self.random.next_below(10_000_000)),
            };
            let _ = write!(text, "{lead}${number} = {value}");
        }
        text
    }

    fn fail(&mut self, session: &mut WorkloadSession, out: &mut dyn FnMut(&GeneratedRecord)) {
        let id = self.random.next_below(1000);
        let sql = format!("insert into orders(order_id, customer_id) values ({id}, 7)");
        self.log(session, "idle", format!("statement: {sql}"), String::new(), out);
        self.record.severity = "ERROR";
        self.record.sqlstate = "23505";
        self.record.statement = sql;
        let text = "duplicate key value violates unique constraint \"orders_pkey\"".to_owned();
        self.log(session, "INSERT", text, format!("Key (order_id)=({id}) already exists."), out);
    }

    fn long(&mut self, bytes: usize) -> String {
        let mut sql = String::from("insert into documents(id, body) values");
        while sql.len() < bytes {
            let _ = write!(
                sql,
                "\n\t({}, 'the quick brown fox jumps over the lazy dog'),",
                self.random.next_below(1 << 40)
            );
        }
        sql
    }

    fn duration(&mut self) -> String {
        let micros = self.random.next_below(3000);
        self.now_us += micros / 8;
        format!("duration: {}.{:03} ms", micros / 1000, micros % 1000)
    }

    fn log(
        &mut self,
        session: &mut WorkloadSession,
        tag: &'static str,
        message: String,
        detail: String,
        out: &mut dyn FnMut(&GeneratedRecord),
    ) {
        self.log_as(session.role.user(), session, tag, message, detail, out);
    }

    fn log_as(
        &mut self,
        user: &'static str,
        session: &mut WorkloadSession,
        tag: &'static str,
        message: String,
        detail: String,
        out: &mut dyn FnMut(&GeneratedRecord),
    ) {
        session.line += 1;
        let failed = std::mem::take(&mut self.record.statement);
        let is_failure = !failed.is_empty();
        self.record = GeneratedRecord {
            time_ms: self.now_us / 1000,
            user,
            database: if user == "[unknown]" { user } else { "shop" },
            session_start: session.start,
            pid: session.pid,
            port: port(session),
            line: session.line,
            tag,
            vxid: self.vxids,
            severity: if is_failure { "ERROR" } else { "LOG" },
            sqlstate: if is_failure { "23505" } else { "00000" },
            message,
            detail,
            statement: failed,
        };
        out(&self.record);
        self.record.statement.clear();
    }
}

impl ClientRole {
    fn user(self) -> &'static str {
        match self {
            Self::Shop => "shop",
            Self::Api => "api",
            Self::Report => "report",
        }
    }
}

fn port(session: &WorkloadSession) -> u32 {
    32_768 + session.pid % 28_000
}

/// Statements that drivers prepare, with their command tags.
const PREPARED: &[(&str, &str)] = &[
    ("SELECT", "SELECT balance FROM accounts WHERE account_id = $1"),
    ("UPDATE", "UPDATE accounts SET balance = balance + $1 WHERE account_id = $2"),
    (
        "SELECT",
        "select c.customer_id, c.name, c.email, c.created_at from customers c where c.email = $1 and c.deleted_at is null",
    ),
    (
        "INSERT",
        "INSERT INTO orders (customer_id, state, placed_at, note) VALUES ($1, $2, $3, $4) RETURNING order_id",
    ),
    ("BEGIN", "BEGIN"),
    (
        "SELECT",
        "select p.product_id, p.title, p.price_cents, s.in_stock\nfrom products p\n\tjoin stock s using (product_id)\nwhere p.category_id = $1 and s.in_stock > $2\norder by p.title\nlimit 50",
    ),
    (
        "INSERT",
        "insert into order_items (order_id, product_id, quantity, price_cents) values ($1, $2, $3, $4)",
    ),
    ("COMMIT", "COMMIT"),
    (
        "SELECT",
        "SELECT \"orders\".\"order_id\" AS \"order_id\", \"orders\".\"customer_id\" AS \"customer_id\", \"orders\".\"state\" AS \"state\", \"orders\".\"placed_at\" AS \"placed_at\", \"orders\".\"shipped_at\" AS \"shipped_at\", \"orders\".\"note\" AS \"note\" FROM \"orders\" WHERE \"orders\".\"customer_id\" = $1 AND \"orders\".\"state\" <> $2 ORDER BY \"orders\".\"placed_at\" DESC LIMIT $3",
    ),
    (
        "SELECT",
        "with recent as (\n\tselect order_id, customer_id, placed_at\n\tfrom orders\n\twhere placed_at > now() - make_interval(days => $1)\n)\nselect r.customer_id, count(*) as orders, sum(i.quantity * i.price_cents) as spent_cents,\n\tmax(r.placed_at) as last_placed_at\nfrom recent r\n\tjoin order_items i using (order_id)\n\tjoin products p using (product_id)\nwhere p.category_id = any(array[$2, $3]::int[])\ngroup by r.customer_id\nhaving sum(i.quantity * i.price_cents) > $4\norder by spent_cents desc\nlimit 100",
    ),
];

/// The splitmix64 generator.
#[derive(Debug)]
struct WorkloadRandom(u64);

impl WorkloadRandom {
    fn next_below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}
