//! The plan of a generated log: sessions, their actions, and the settings that it is written with.
//!
//! # What no reader can distinguish
//!
//! A log is not escaped, so some names and values are ambiguous in it. The generator makes none of
//! the following, but everything else:
//!
//! - A name in a line prefix that contains what follows it there, unless an earlier line of the
//!   session contained the name (`connection authorized`), the session's id precedes the names, and
//!   nothing else in the prefix may be empty or any text. Even then not a name that begins or ends
//!   with it, which reads like an empty one. Nor a newline, a severity's label or, if the prefix
//!   pads the name, spaces at its ends.
//! - An application that begins like a label, such as `LOG:  `: after `%q` it looks like the end of
//!   the prefix.
//! - A user or database containing ` database=` or ` application_name=`, or an application that
//!   ends like the note about encryption: `connection authorized` separates by these.
//! - In csvlog, a name that consists of quotes: a row that begins inside a text would look the
//!   same.
//! - A statement's name with `: ` before what may begin a statement; with `/` unless its Parse was
//!   logged with its text; one that begins with `fetch from `; and one called `<unnamed>`.
//! - A value that ends in `...`, unless the server cut it.
//! - An error message that ends in ` at character 7`.
//! - If the log shows statements only at their end: a failed simple query with `$1` in it, which
//!   reads like a bound one.
//! - A session, if neither its id nor its process is in the prefix.

use proptest::{collection::vec, option, prelude::*, sample::select};

/// A log.
#[derive(Clone, Debug)]
pub(super) struct LogPlan {
    pub(super) form: PlannedFormat,
    pub(super) style: LoggingStyle,
    /// `log_error_verbosity = verbose`.
    pub(super) is_verbose: bool,
    /// PostgreSQL 17 and later: `Parameters:`.
    pub(super) is_capital: bool,
    /// `log_parameter_max_length`.
    pub(super) limit: Option<usize>,
    pub(super) sessions: Vec<SessionPlan>,
    /// The session of the next record, and the milliseconds before it.
    pub(super) order: Vec<(prop::sample::Index, u16)>,
}

#[derive(Clone, Debug)]
pub(super) enum PlannedFormat {
    Stderr(Vec<PlannedPrefixItem>),
    Csv,
    Json,
}

/// The settings that decide what is logged of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoggingStyle {
    /// `log_statement = all`.
    Starts,
    /// The same with `log_duration = on`.
    StartsAndDurations,
    /// `log_min_duration_statement = 0`.
    Ends,
    /// Both.
    StartsAndEnds,
    /// `log_statement = mod` with `log_duration = on`.
    ChangesAndDurations,
}

impl LoggingStyle {
    pub(super) fn logs_starts(self) -> bool {
        self != Self::Ends
    }

    pub(super) fn logs_durations(self) -> bool {
        self != Self::Starts && self != Self::Ends
    }

    /// Whether each step that is not logged with its text leaves a bare duration.
    pub(super) fn logs_bare_durations(self) -> bool {
        matches!(self, Self::StartsAndDurations | Self::ChangesAndDurations)
    }

    /// Whether the start of a statement that changes data, or of one that does not, is logged.
    pub(super) fn logs_start(self, is_change: bool) -> bool {
        self.logs_starts() && (is_change || self != Self::ChangesAndDurations)
    }

    pub(super) fn logs_ends(self) -> bool {
        matches!(self, Self::Ends | Self::StartsAndEnds)
    }
}

/// An item of a prefix.
#[derive(Clone, Debug)]
pub(super) enum PlannedPrefixItem {
    /// In the syntax of the setting, with `%%`.
    Literal(String),
    /// An escape and its padding.
    Field(Escape, i32),
    /// `%q`.
    Quit,
}

macro_rules! escapes {
    ($($variant:ident = $letter:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Escape { $($variant,)* }

        impl Escape {
            pub(super) const ALL: &[Self] = &[$(Self::$variant,)*];

            fn letter(self) -> char {
                match self { $(Self::$variant => $letter,)* }
            }
        }
    };
}

escapes! {
    Application = 'a', User = 'u', Database = 'd', Remote = 'r', Host = 'h', LocalAddress = 'L',
    BackendType = 'b', Pid = 'p', Leader = 'P', Seconds = 't', Millis = 'm', Epoch = 'n', Tag = 'i',
    SqlState = 'e', SessionId = 'c', Line = 'l', Start = 's', Vxid = 'v', Txid = 'x', QueryId = 'Q',
}

impl Escape {
    pub(super) fn is_name(self) -> bool {
        matches!(self, Self::Application | Self::User | Self::Database)
    }

    pub(super) fn identifies_session(self) -> bool {
        matches!(self, Self::SessionId | Self::Pid)
    }

    /// Whether it may be empty or any text, and is not a known name of the session.
    fn may_be_any_text(self) -> bool {
        use Escape::{BackendType, Host, Leader, LocalAddress, Remote, Tag, Vxid};
        matches!(self, BackendType | Host | Leader | LocalAddress | Remote | Tag | Vxid)
    }

    /// Whether the value itself shows where it ends, whatever follows.
    fn has_shape(self) -> bool {
        use Escape::{Line, Pid, QueryId, SessionId, SqlState, Start, Txid};
        matches!(self, Line | Pid | QueryId | SessionId | SqlState | Start | Txid)
    }

    fn has_time(self) -> bool {
        matches!(self, Self::Seconds | Self::Millis | Self::Epoch)
    }
}

/// `log_line_prefix` as it is set.
pub(super) fn source(prefix: &[PlannedPrefixItem]) -> String {
    let item = |item: &PlannedPrefixItem| match item {
        PlannedPrefixItem::Literal(text) => text.clone(),
        PlannedPrefixItem::Field(escape, 0) => format!("%{}", escape.letter()),
        PlannedPrefixItem::Field(escape, width) => format!("%{width}{}", escape.letter()),
        PlannedPrefixItem::Quit => "%q".to_owned(),
    };
    prefix.iter().map(item).collect()
}

#[derive(Clone, Debug)]
pub(super) struct SessionPlan {
    pub(super) pid: u32,
    pub(super) start: i64,
    pub(super) user: Vec<u8>,
    pub(super) database: Vec<u8>,
    pub(super) application: Vec<u8>,
    pub(super) remote: Remote,
    /// `log_connections` and `log_disconnections` are on, and the log contains the session's start.
    pub(super) is_connected: bool,
    pub(super) steps: Vec<PlannedStep>,
}

impl SessionPlan {
    pub(super) fn vxid(&self, transaction: u32) -> String {
        format!("{}/{transaction}", self.pid)
    }
}

#[derive(Clone, Debug)]
pub(super) enum Remote {
    Local,
    Address(&'static str, u16),
}

impl Remote {
    pub(super) fn host(&self) -> &'static str {
        match self {
            Self::Local => "[local]",
            Self::Address(host, _) => host,
        }
    }

    pub(super) fn port(&self) -> Option<Vec<u8>> {
        match self {
            Self::Local => None,
            Self::Address(_, port) => Some(port.to_string().into()),
        }
    }

    /// In the form of `%r`.
    pub(super) fn prefixed(&self) -> Vec<u8> {
        match self {
            Self::Local => b"[local]".to_vec(),
            Self::Address(host, port) => format!("{host}({port})").into(),
        }
    }

    /// In the form of csvlog.
    pub(super) fn joined(&self) -> Vec<u8> {
        match self {
            Self::Local => b"[local]".to_vec(),
            Self::Address(host, port) => format!("{host}:{port}").into(),
        }
    }
}

/// One action of a client.
#[derive(Clone, Debug)]
pub(super) struct PlannedStep {
    pub(super) action: PlannedAction,
    pub(super) micros: u32,
    pub(super) query_id: i64,
    pub(super) failure: Option<PlannedFailure>,
    /// A warning is logged in between.
    pub(super) is_noisy: bool,
}

#[derive(Clone, Debug)]
pub(super) enum PlannedAction {
    Simple(Vec<u8>),
    /// A statement that only `log_statement = all` logs at its start.
    Plain(&'static str),
    /// `begin`, some queries, `commit`.
    Block(Vec<ExtendedQuery>),
    /// Extended queries under one Sync.
    Pipeline(Vec<ExtendedQuery>),
    Call(Vec<u8>),
    /// `SET application_name`, which the prefix of later records shows.
    Rename(Vec<u8>),
}

#[derive(Clone, Debug)]
pub(super) struct ExtendedQuery {
    pub(super) name: Vec<u8>,
    pub(super) portal: Vec<u8>,
    pub(super) sql: Vec<u8>,
    pub(super) values: Vec<Option<Vec<u8>>>,
    pub(super) fetches: usize,
}

#[derive(Clone, Debug)]
pub(super) struct PlannedFailure {
    pub(super) kind: FailureKind,
    pub(super) message: Vec<u8>,
    pub(super) hint: Option<Vec<u8>>,
    pub(super) position: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailureKind {
    Error,
    Cancel,
    Timeout,
}

pub(super) fn any_plan() -> impl Strategy<Value = LogPlan> {
    let settings = (any_style(), any::<bool>(), any::<bool>(), option::weighted(0.2, 4_usize..40));
    let form = prop_oneof![3 => any_prefix().prop_map(PlannedFormat::Stderr), 1 => Just(PlannedFormat::Csv), 1 => Just(PlannedFormat::Json)];
    (form, settings).prop_flat_map(|(form, (style, is_verbose, is_capital, limit))| {
        let sessions = vec(any_session(&form, style), 1..4);
        let order = vec((any::<prop::sample::Index>(), 1_u16..3000), 64);
        (Just(form), sessions, order).prop_map(move |(form, mut sessions, order)| {
            for (number, session) in (0_u32..).zip(&mut sessions) {
                session.pid = 100 + number;
            }
            LogPlan { form, style, is_verbose, is_capital, limit, sessions, order }
        })
    })
}

fn any_style() -> impl Strategy<Value = LoggingStyle> {
    select(vec![
        LoggingStyle::Starts,
        LoggingStyle::StartsAndDurations,
        LoggingStyle::Ends,
        LoggingStyle::StartsAndEnds,
        LoggingStyle::ChangesAndDurations,
    ])
}

/// The separator of a prefix: every field is followed by a literal that begins with it.
pub(super) const SEPARATORS: [char; 5] = ['|', ';', '~', '#', ','];

fn any_prefix() -> impl Strategy<Value = Vec<PlannedPrefixItem>> {
    let time = select(vec![Escape::Millis, Escape::Epoch, Escape::Seconds]);
    let id = select(vec![Escape::SessionId, Escape::Pid]);
    let rest: Vec<_> = Escape::ALL
        .iter()
        .copied()
        .filter(|one| !one.has_time() && *one != Escape::SessionId)
        .collect();
    let field = (select(rest), prop_oneof![3 => Just(0), 1 => -14..14_i32], any_literal());
    let quit = option::of(0_usize..6);
    (time, id, vec(field, 0..8), quit, select(SEPARATORS.to_vec()), any::<bool>()).prop_map(
        |(time, id, fields, quit, separator, time_first)| {
            let mut seen = vec![id];
            let mut items = Vec::new();
            let first = if time_first { [time, id] } else { [id, time] };
            for escape in first {
                items.extend([
                    PlannedPrefixItem::Field(escape, 0),
                    PlannedPrefixItem::Literal(separator.to_string()),
                ]);
            }
            for (number, (escape, width, literal)) in fields.into_iter().enumerate() {
                if quit == Some(number) {
                    items.push(PlannedPrefixItem::Quit);
                }
                if !seen.contains(&escape) {
                    seen.push(escape);
                    items.push(PlannedPrefixItem::Field(escape, width));
                    items.push(PlannedPrefixItem::Literal(match (escape.has_shape(), literal) {
                        (true, "" | "user=" | "LOG ") | (false, _) => {
                            format!("{separator}{literal}")
                        }
                        (true, literal) => literal.to_owned(),
                    }));
                }
            }
            items
        },
    )
}

fn any_literal() -> impl Strategy<Value = &'static str> {
    select(vec!["", " ", "user=", "[", "] ", "%%", "-1] ", "LOG "])
}

/// Which names can be distinguished from their surroundings.
#[derive(Clone, Copy, Debug)]
struct NameRules {
    /// The character that no name may contain.
    separator: Option<char>,
    /// Names of a session that was seen connecting may contain it.
    connected_may: bool,
    /// Names may contain newlines.
    any_bytes: bool,
    /// Spaces at the ends of names are lost in the padding of the prefix.
    is_padded: bool,
}

impl NameRules {
    fn from_format(form: &PlannedFormat) -> Self {
        let PlannedFormat::Stderr(prefix) = form else {
            return Self {
                separator: None,
                connected_may: true,
                any_bytes: true,
                is_padded: false,
            };
        };
        let fields = || {
            prefix.iter().filter_map(|item| match item {
                PlannedPrefixItem::Field(escape, _) => Some(*escape),
                _ => None,
            })
        };
        let separator = prefix.iter().find_map(|item| match item {
            PlannedPrefixItem::Literal(text) => text.chars().next(),
            _ => None,
        });
        let name = fields().position(Escape::is_name).unwrap_or(usize::MAX);
        let id = fields().position(Escape::identifies_session).unwrap_or(usize::MAX);
        let is_padded = prefix
            .iter()
            .any(|item| matches!(item, PlannedPrefixItem::Field(_, width) if *width != 0));
        let connected_may = id < name && !fields().any(Escape::may_be_any_text);
        Self { separator, connected_may, any_bytes: false, is_padded }
    }
}

fn any_session(
    form: &PlannedFormat,
    style: LoggingStyle,
) -> impl Strategy<Value = SessionPlan> + use<> {
    let names = NameRules::from_format(form);
    any::<bool>().prop_flat_map(move |is_connected| {
        let may_hold = is_connected && names.connected_may;
        let separator = names.separator.filter(|_| !may_hold);
        let name = || any_name(separator, names);
        let application = || any_application(separator, names);
        let later = any_application(names.separator, names);
        let remote = select(vec![
            Remote::Local,
            Remote::Address("10.0.0.7", 53472),
            Remote::Address("::1", 7),
        ]);
        let steps = vec(any_step(style, later.boxed()), 0..8);
        (name(), name(), application(), remote, 0_i64..100_000, steps).prop_map(
            move |(user, database, application, remote, start, steps)| SessionPlan {
                pid: 0,
                // A session whose connection is not in the log was there before the others.
                start: if is_connected { 1_795_100_000 } else { 1_795_000_000 } + start % 70_000,
                user,
                database,
                application,
                remote,
                is_connected,
                steps,
            },
        )
    })
}

/// Texts that look like something else.
fn any_token() -> impl Strategy<Value = &'static [u8]> {
    const TOKENS: &[&[u8]] = &[
        b"x",
        b"yz",
        b"\"",
        b"'",
        b"''",
        b"/",
        b" ",
        b"  ",
        b"\t",
        b"caf\xe9",
        b"\xf0\x9f\x90\x98",
        b"\\",
        b"[",
        b"]",
        b"(",
        b")",
        b"<",
        b">",
        b"=",
        b"-",
        b"@",
        b"%m",
        b"|",
        b",",
        b"~",
        b"#",
        b"\x01",
    ];
    select(TOKENS)
}

fn any_name(separator: Option<char>, names: NameRules) -> BoxedStrategy<Vec<u8>> {
    let token = prop_oneof![
        4 => any_token(),
        1 => select(vec![&b";"[..], if names.any_bytes { b"\n" } else { b"q" }]),
    ];
    vec(token, 0..6)
        .prop_map(move |tokens| {
            let mut name = tokens.concat();
            if let Some(separator) = separator {
                name.retain(|byte| char::from(*byte) != separator);
            }
            if names.is_padded {
                name = name.trim_ascii().to_vec();
            }
            let begins =
                |name: &[u8]| names.separator.is_some_and(|s| name.first() == Some(&(s as u8)));
            while begins(&name) {
                name.remove(0);
            }
            while names.separator.is_some_and(|s| name.last() == Some(&(s as u8))) {
                name.pop();
            }
            if name.iter().all(|byte| *byte == b'"') { b"n".to_vec() } else { name }
        })
        .boxed()
}

/// An application's name is ASCII without control characters: `pg_clean_ascii`.
fn any_application(separator: Option<char>, names: NameRules) -> BoxedStrategy<Vec<u8>> {
    let clean = |byte: &u8| (b' '..=b'~').contains(byte);
    (any_name(separator, names), any::<bool>())
        .prop_map(move |(name, has_label)| {
            let mut name: Vec<u8> = name.into_iter().filter(clean).collect();
            if has_label && separator.is_none() {
                name.extend_from_slice(b"a LOG:  statement: y");
            }
            if names.is_padded { name.trim_ascii().to_vec() } else { name }
        })
        .boxed()
}

fn any_text() -> impl Strategy<Value = Vec<u8>> {
    let tricky = select(vec![
        &b"\n"[..],
        b"\n\t",
        b"\n\n",
        b"\r",
        b"\r\n",
        b"statement: ",
        b"duration: 1.000 ms",
        b"LOG:  ",
        b"\n2026-11-20 12:00:00.000 UTC [7] LOG:  statement: select 1",
        b"\n2026-11-20 12:00:00.000 UTC,\"\"a\"\",",
        b"{\"message\":\"\"}",
        b", $2 = ''x''",
        b": select",
        b"...x",
    ]);
    vec(prop_oneof![2 => any_token(), 1 => tricky], 0..8).prop_map(|tokens| tokens.concat())
}

fn any_sql() -> impl Strategy<Value = Vec<u8>> {
    let verb = select(vec!["insert into ", "UPDATE ", "delete from ", "values (", "with ", "-- "]);
    (verb, any_text()).prop_map(|(verb, text)| [verb.as_bytes(), &text].concat())
}

fn any_value() -> impl Strategy<Value = Option<Vec<u8>>> {
    option::weighted(0.8, any_text().prop_map(|text| [&text[..], b"|"].concat()))
}

fn any_extended(style: LoggingStyle) -> impl Strategy<Value = ExtendedQuery> {
    let name = prop_oneof![
        1 => Just(Vec::new()),
        2 => vec(prop_oneof![3 => any_token(), 1 => Just(&b": x"[..])], 1..4).prop_map(move |tokens| {
            let mut name = [&b"S"[..], &tokens.concat()].concat();
            // Only its own Parse shows where a name with a slash ends.
            name.retain(|byte| style.logs_ends() || *byte != b'/');
            name
        }),
    ];
    let portal = prop_oneof![2 => Just(Vec::new()), 1 => vec(any_token(), 0..3).prop_map(|t| [&b"C"[..], &t.concat()].concat())];
    (
        name,
        portal,
        any_sql(),
        vec(any_value(), 0..4),
        prop_oneof![3 => Just(0_usize), 1 => 1_usize..3],
    )
        .prop_map(|(name, portal, mut sql, values, fetches)| {
            // Without values the text must not have placeholders, and vice versa.
            sql.retain(|byte| *byte != b'$');
            if !values.is_empty() {
                sql = [&b"values ($1) /* "[..], &sql, b" */"].concat();
            }
            ExtendedQuery { name, portal, sql, values, fetches }
        })
}

fn any_step(
    style: LoggingStyle,
    application: BoxedStrategy<Vec<u8>>,
) -> impl Strategy<Value = PlannedStep> {
    let action = prop_oneof![
        3 => any_sql().prop_map(move |mut sql| {
            sql.retain(|byte| style.logs_starts() || *byte != b'$');
            PlannedAction::Simple(sql)
        }),
        1 => Just(PlannedAction::Simple(Vec::new())),
        1 => select(vec!["show all", "set a = b", "SELECT 1;"]).prop_map(PlannedAction::Plain),
        3 => vec(any_extended(style), 1..4).prop_map(PlannedAction::Pipeline),
        1 => vec(any_extended(style), 1..3).prop_map(PlannedAction::Block),
        1 => any_text().prop_map(|text| PlannedAction::Call([&b"f"[..], &text].concat())),
        1 => application.prop_map(PlannedAction::Rename),
    ];
    let failure = (
        select(vec![
            FailureKind::Error,
            FailureKind::Error,
            FailureKind::Cancel,
            FailureKind::Timeout,
        ]),
        any_text(),
        option::of(any_text()),
        option::of(1_u32..50),
    )
        .prop_map(|(kind, text, hint, position)| PlannedFailure {
            kind,
            message: [&b"e"[..], &text, b"."].concat(),
            hint,
            position,
        });
    (action, 0_u32..3_000_000, any::<i64>(), option::weighted(0.2, failure), any::<bool>())
        .prop_map(|(action, micros, query_id, failure, is_noisy)| PlannedStep {
            action,
            micros,
            query_id,
            failure,
            is_noisy,
        })
}
