//! [`ConsoleCommand`]: the commands of the console, and their parser.

use std::{borrow::Cow, time::Duration};

use howdah_pool_config::pgbouncer::KEYS;

use super::{snapshot::ConnectionNumber, table::Show};

/// A parsed command of the admin console.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ConsoleCommand {
    /// An empty query.
    Empty,
    /// Shows a table.
    Show(Show),
    /// Lists the commands.
    Help,
    /// `SET` of a session parameter, as drivers send it at login; has no effect.
    SetSessionParameter,
    /// A command about transactions or the session, as drivers send it; it has no effect except on
    /// the transaction status.
    Transaction(TransactionCommand),
    /// A value: of `SELECT` with a number, or of `SHOW` with a session parameter.
    Value {
        /// Name of the column.
        name: &'static str,
        /// The value of the only row.
        value: String,
        is_select: bool,
    },
    /// A command whose argument is missing or invalid, with the reason.
    Invalid(&'static str),
    /// Shows one setting by its name in a `pgbouncer.ini`, as a table of one row.
    ShowSetting(&'static str),
    /// Reloads the configuration.
    Reload,
    /// Changes a setting of the pooler.
    Set { name: String, value: String },
    /// Pauses databases: server connections are closed as they become idle, and no client gets one.
    Pause(DatabaseSelector),
    /// Pauses the clients of one user in a database.
    PauseUser { database: String, user: String },
    /// Resumes a database, or ends all pauses and a suspension.
    Resume(DatabaseSelector),
    /// Resumes the clients of one user in a database.
    ResumeUser { database: String, user: String },
    /// Flushes all pending output and stops reading from sockets.
    Suspend,
    /// Enables or disables logins to a database.
    Enable(String, bool),
    /// Pauses databases, disconnects their clients, and closes their servers.
    Kill(DatabaseSelector),
    /// Disconnects the client with this id, as in SHOW CLIENTS.
    KillClient(ConnectionNumber),
    /// Replaces the server connections of databases as they become idle.
    Reconnect(DatabaseSelector),
    /// Bans a server, for the given duration or the configured one.
    Ban(String, Option<Duration>),
    /// Ends the ban of a server.
    Unban(String),
    /// Discards the known topology of a database, except for what reachable servers report.
    ResetCluster(String),
    /// Starts a capture in a folder with this name, or with a generated one if `None`.
    StartCapture(Option<String>),
    /// Stops the running capture.
    StopCapture,
    /// Waits until all outdated server connections are closed.
    WaitClose(DatabaseSelector),
    /// Shuts the pooler down.
    Shutdown(ShutdownRequest),
}

/// A command about transactions or the session, which drivers send without being asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransactionCommand {
    Begin,
    Commit,
    Rollback,
    Savepoint,
    Release,
    Discard,
    Deallocate,
    Reset,
}

/// The databases that a command applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DatabaseSelector {
    All,
    One(String),
}

/// The event that a shutdown waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShutdownRequest {
    /// Nothing: all connections are closed at once.
    Now,
    /// The end of the clients' transactions.
    WaitForServers,
    /// The disconnection of all clients.
    WaitForClients,
}

/// The error for a text that is not a valid command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid command '{text}', use SHOW HELP;")]
pub(crate) struct UnknownCommand {
    text: String,
}

impl ConsoleCommand {
    /// Parses a command. Tokens are separated by white space; a comma is a token by itself. Names
    /// of databases, users, servers and captures are case-sensitive and may be in double quotes;
    /// keywords and names of settings are case-insensitive.
    ///
    /// # Errors
    ///
    /// [`UnknownCommand`] if the text is not a valid command.
    pub(crate) fn parse(text: &str) -> Result<Self, UnknownCommand> {
        let unknown = || UnknownCommand { text: text.trim().to_owned() };
        let tokens = tokens(text).ok_or_else(unknown)?;
        let upper: Vec<_> = tokens.iter().map(|token| token.to_ascii_uppercase()).collect();
        let upper: Vec<_> = upper.iter().map(String::as_str).collect();
        let name = |at: usize| tokens[at].clone();
        let databases = || match tokens.get(1) {
            None => DatabaseSelector::All,
            Some(name) => DatabaseSelector::One(name.clone()),
        };
        Ok(match upper[..] {
            [] => Self::Empty,
            ["SHOW"] | ["SHOW", "HELP"] => Self::Help,
            ["SELECT", number] if number.parse::<u32>().is_ok() => {
                Self::Value { name: "?column?", value: number.to_owned(), is_select: true }
            }
            ["SHOW" | "SELECT", ref what @ ..] => match Show::from_keywords(what) {
                Some(show) => Self::Show(show),
                None => Self::show_value(what).ok_or_else(unknown)?,
            },
            ["BEGIN", ..] | ["START", "TRANSACTION", ..] => {
                Self::Transaction(TransactionCommand::Begin)
            }
            ["COMMIT" | "END", ..] => Self::Transaction(TransactionCommand::Commit),
            ["ROLLBACK" | "ABORT"] | ["ROLLBACK" | "ABORT", "WORK" | "TRANSACTION"] => {
                Self::Transaction(TransactionCommand::Rollback)
            }
            ["SAVEPOINT", _] | ["ROLLBACK", "TO", ..] => {
                Self::Transaction(TransactionCommand::Savepoint)
            }
            ["RELEASE", ..] => Self::Transaction(TransactionCommand::Release),
            ["DISCARD", "ALL" | "PLANS" | "SEQUENCES" | "TEMP" | "TEMPORARY"] => {
                Self::Transaction(TransactionCommand::Discard)
            }
            ["DEALLOCATE", "ALL"] | ["DEALLOCATE", "PREPARE", "ALL"] => {
                Self::Transaction(TransactionCommand::Deallocate)
            }
            ["RESET", "ALL"] => Self::Transaction(TransactionCommand::Reset),
            ["SET", setting, ..] if is_session_parameter(setting) => Self::SetSessionParameter,
            ["SET", ..] => {
                let (name, value) = setting(text).ok_or_else(unknown)?;
                Self::Set { name, value }
            }
            ["RELOAD"] => Self::Reload,
            ["SUSPEND"] => Self::Suspend,
            ["PAUSE"] | ["PAUSE", _] => Self::Pause(databases()),
            ["RESUME"] | ["RESUME", _] => Self::Resume(databases()),
            ["PAUSE", _, ",", _] => Self::PauseUser { database: name(1), user: name(3) },
            ["RESUME", _, ",", _] => Self::ResumeUser { database: name(1), user: name(3) },
            ["ENABLE" | "DISABLE"] => Self::Invalid("a database is required"),
            ["KILL_CLIENT", ..] if upper.get(1).is_none_or(|id| id.parse::<u64>().is_err()) => {
                Self::Invalid("invalid client pointer supplied")
            }
            ["ENABLE", _] => Self::Enable(name(1), true),
            ["DISABLE", _] => Self::Enable(name(1), false),
            ["KILL"] | ["KILL", _] => Self::Kill(databases()),
            // An id that is too large is the id of no client.
            ["KILL_CLIENT", id] => Self::KillClient(id.parse().unwrap_or(0)),
            ["RECONNECT"] | ["RECONNECT", _] => Self::Reconnect(databases()),
            ["BAN", _] => Self::Ban(name(1), None),
            ["BAN", _, seconds] => {
                let seconds = seconds.parse::<u32>().map_err(|_| unknown())?;
                Self::Ban(name(1), Some(Duration::from_secs(seconds.into())))
            }
            ["UNBAN", _] => Self::Unban(name(1)),
            ["RESET", "CLUSTER", _] => Self::ResetCluster(name(2)),
            ["CAPTURE", "START"] => Self::StartCapture(None),
            ["CAPTURE", "START", _] => Self::StartCapture(Some(name(2))),
            ["CAPTURE", "STOP"] => Self::StopCapture,
            ["WAIT_CLOSE"] | ["WAIT_CLOSE", _] => Self::WaitClose(databases()),
            ["SHUTDOWN"] => Self::Shutdown(ShutdownRequest::Now),
            ["SHUTDOWN", "WAIT_FOR_SERVERS"] => Self::Shutdown(ShutdownRequest::WaitForServers),
            ["SHUTDOWN", "WAIT_FOR_CLIENTS"] => Self::Shutdown(ShutdownRequest::WaitForClients),
            _ => return Err(unknown()),
        })
    }

    /// Returns the command tag for CommandComplete.
    pub(crate) fn tag(&self) -> Cow<'static, str> {
        let tag = match self {
            Self::Empty | Self::Invalid(_) => "",
            Self::Show(_) | Self::Help => "SHOW",
            Self::ShowSetting(_) | Self::Value { is_select: false, .. } => "SHOW",
            Self::Value { is_select: true, .. } => "SELECT 1",
            Self::SetSessionParameter => "SET",
            // As in PgBouncer, which repeats the setting.
            Self::Set { name, value } => return format!("SET {name}={value}").into(),
            Self::Transaction(command) => command.tag(),
            Self::Reload => "RELOAD",
            Self::Pause(_) | Self::PauseUser { .. } => "PAUSE",
            Self::Resume(_) | Self::ResumeUser { .. } => "RESUME",
            Self::Suspend => "SUSPEND",
            Self::Enable(_, true) => "ENABLE",
            Self::Enable(_, false) => "DISABLE",
            Self::Kill(_) => "KILL",
            Self::KillClient(_) => "KILL_CLIENT",
            Self::Reconnect(_) => "RECONNECT",
            Self::Ban(..) => "BAN",
            Self::Unban(_) => "UNBAN",
            Self::ResetCluster(_) => "RESET CLUSTER",
            Self::StartCapture(_) => "CAPTURE START",
            Self::StopCapture => "CAPTURE STOP",
            Self::WaitClose(_) => "WAIT_CLOSE",
            Self::Shutdown(_) => "SHUTDOWN",
        };
        tag.into()
    }

    /// Returns the command for `SHOW` with a session parameter or the name of a setting.
    fn show_value(keywords: &[&str]) -> Option<Self> {
        const PARAMETERS: [(&str, &str, &str); 8] = [
            ("CLIENT_ENCODING", "client_encoding", "UTF-8"),
            ("DEFAULT_TRANSACTION_ISOLATION", "default_transaction_isolation", "read committed"),
            ("TRANSACTION_ISOLATION", "transaction_isolation", "read committed"),
            ("TRANSACTION ISOLATION LEVEL", "transaction_isolation", "read committed"),
            ("STANDARD_CONFORMING_STRINGS", "standard_conforming_strings", "on"),
            ("DATESTYLE", "datestyle", "ISO"),
            ("TIMEZONE", "timezone", "GMT"),
            ("SERVER_VERSION", "server_version", super::SERVER_VERSION),
        ];
        let all = keywords.join(" ");
        if let Some((_, name, value)) = PARAMETERS.iter().find(|(keyword, ..)| *keyword == all) {
            return Some(Self::Value { name, value: (*value).to_owned(), is_select: false });
        }
        let name = all.to_ascii_lowercase();
        let key = KEYS.iter().find(|key| key.name == name)?;
        Some(Self::ShowSetting(key.name))
    }

    /// Whether the command changes nothing, so that users in `stats-users` may run it.
    pub(crate) fn is_read_only(&self) -> bool {
        match self {
            // In PgBouncer, this table has secrets.
            Self::Show(show) => *show != Show::Fds,
            Self::Empty
            | Self::Help
            | Self::SetSessionParameter
            | Self::Transaction(_)
            | Self::Value { .. }
            | Self::ShowSetting(_) => true,
            _ => false,
        }
    }
}

impl TransactionCommand {
    fn tag(self) -> &'static str {
        match self {
            Self::Begin => "BEGIN",
            Self::Commit => "COMMIT",
            Self::Rollback => "ROLLBACK",
            Self::Savepoint => "SAVEPOINT",
            Self::Release => "RELEASE",
            Self::Discard => "DISCARD ALL",
            Self::Deallocate => "DEALLOCATE ALL",
            Self::Reset => "RESET",
        }
    }
}

/// Whether `SET` of this name sets a session parameter, which has no effect on the console. This
/// applies to the parameters that drivers set, and to all of `SET SESSION`.
fn is_session_parameter(setting: &str) -> bool {
    const NAMES: [&str; 10] = [
        "APPLICATION_NAME",
        "CLIENT_ENCODING",
        "CLIENT_MIN_MESSAGES",
        "DATESTYLE",
        "DEFAULT_TRANSACTION_ISOLATION",
        "DEFAULT_TRANSACTION_READ_ONLY",
        "TRANSACTION",
        "EXTRA_FLOAT_DIGITS",
        "STANDARD_CONFORMING_STRINGS",
        "TIMEZONE",
    ];
    let name = setting.split('=').next().unwrap_or(setting);
    NAMES.contains(&name) || name == "SESSION"
}

/// Parses `SET name = value` or `SET name TO value` into name and value. The value may be in single
/// quotes, in which single quotes are doubled.
fn setting(text: &str) -> Option<(String, String)> {
    let text = trim_command(text);
    let rest = text.get(3..)?.trim_start();
    let (name, rest) = rest.split_at(rest.find(|c: char| c == '=' || c.is_whitespace())?);
    let rest = rest.trim_start();
    let value = match (rest.strip_prefix('='), rest.split_at_checked(2)) {
        (Some(value), _) => value,
        (None, Some((to, value))) if to.eq_ignore_ascii_case("to") => {
            value.strip_prefix(char::is_whitespace)?
        }
        _ => return None,
    };
    let value = value.trim();
    let value = match value.strip_prefix('\'') {
        Some(quoted) => {
            let pairs = quoted.strip_suffix('\'')?.replace("''", "\0");
            (!pairs.contains('\'')).then(|| pairs.replace('\0', "'"))?
        }
        None if value.is_empty() || value.contains('\'') => return None,
        None => value.to_owned(),
    };
    Some((name.to_ascii_lowercase(), value))
}

/// Returns the text without surrounding white space and trailing semicolons.
fn trim_command(text: &str) -> &str {
    text.trim_start().trim_end_matches(|char: char| char == ';' || char.is_whitespace())
}

/// Splits a text into tokens, without trailing semicolons; `None` if a quote is not closed. A comma
/// outside quotes is a token.
fn tokens(text: &str) -> Option<Vec<String>> {
    let text = trim_command(text);
    let (mut tokens, mut token) = (Vec::new(), String::new());
    let (mut in_quotes, mut in_token) = (false, false);
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            '"' if in_quotes && chars.peek() == Some(&'"') => token.extend(chars.next()),
            '"' => (in_quotes, in_token) = (!in_quotes, true),
            end if (end == ',' || end.is_whitespace()) && !in_quotes => {
                if std::mem::take(&mut in_token) {
                    tokens.push(std::mem::take(&mut token));
                }
                if end == ',' {
                    tokens.push(end.to_string());
                }
            }
            other => {
                token.push(other);
                in_token = true;
            }
        }
    }
    if in_token {
        tokens.push(token);
    }
    (!in_quotes).then_some(tokens)
}

#[test]
fn commands_are_parsed() {
    let one = |name: &str| DatabaseSelector::One(name.to_owned());
    let shop = || "shop".to_owned();
    let set = |name: &str, value: &str| ConsoleCommand::Set {
        name: name.to_owned(),
        value: value.to_owned(),
    };
    for (text, command) in [
        ("", ConsoleCommand::Empty),
        (" ; ", ConsoleCommand::Empty),
        ("; ;", ConsoleCommand::Empty),
        ("show version;", ConsoleCommand::Show(Show::Version)),
        ("SHOW  STATS_TOTALS ;", ConsoleCommand::Show(Show::StatsTotals)),
        ("show stats totals", ConsoleCommand::Show(Show::StatsTotals)),
        ("show help", ConsoleCommand::Help),
        ("set extra_float_digits = 3", ConsoleCommand::SetSessionParameter),
        ("PAUSE", ConsoleCommand::Pause(DatabaseSelector::All)),
        ("pause \"My \"\"Shop\"", ConsoleCommand::Pause(one("My \"Shop"))),
        ("pause \"a,b\"", ConsoleCommand::Pause(one("a,b"))),
        ("pause shop,ann", ConsoleCommand::PauseUser { database: shop(), user: "ann".to_owned() }),
        (
            "Resume shop , \"A,nn\";",
            ConsoleCommand::ResumeUser { database: shop(), user: "A,nn".to_owned() },
        ),
        ("suspend;", ConsoleCommand::Suspend),
        ("Resume shop;", ConsoleCommand::Resume(one("shop"))),
        ("DISABLE shop", ConsoleCommand::Enable("shop".to_owned(), false)),
        ("kill_client x", ConsoleCommand::Invalid("invalid client pointer supplied")),
        ("enable", ConsoleCommand::Invalid("a database is required")),
        ("kill_client 42", ConsoleCommand::KillClient(42)),
        ("reload;", ConsoleCommand::Reload),
        (
            "ban db1:5432 90",
            ConsoleCommand::Ban("db1:5432".to_owned(), Some(Duration::from_secs(90))),
        ),
        ("BAN db1", ConsoleCommand::Ban("db1".to_owned(), None)),
        (
            "select 1;",
            ConsoleCommand::Value { name: "?column?", value: "1".to_owned(), is_select: true },
        ),
        ("begin transaction;", ConsoleCommand::Transaction(TransactionCommand::Begin)),
        (
            "BEGIN ISOLATION LEVEL READ COMMITTED",
            ConsoleCommand::Transaction(TransactionCommand::Begin),
        ),
        ("commit", ConsoleCommand::Transaction(TransactionCommand::Commit)),
        ("Rollback;", ConsoleCommand::Transaction(TransactionCommand::Rollback)),
        ("discard all", ConsoleCommand::Transaction(TransactionCommand::Discard)),
        (
            "show DateStyle",
            ConsoleCommand::Value { name: "datestyle", value: "ISO".to_owned(), is_select: false },
        ),
        ("show Default_Pool_Size", ConsoleCommand::ShowSetting("default_pool_size")),
        ("show fds", ConsoleCommand::Show(Show::Fds)),
        ("reset cluster shop", ConsoleCommand::ResetCluster("shop".to_owned())),
        ("capture start", ConsoleCommand::StartCapture(None)),
        ("CAPTURE START before-18;", ConsoleCommand::StartCapture(Some("before-18".to_owned()))),
        ("Capture Stop;", ConsoleCommand::StopCapture),
        ("unban db1;", ConsoleCommand::Unban("db1".to_owned())),
        ("set default_pool_size=5", set("default_pool_size", "5")),
        ("SET sizes.pool = '5';", set("sizes.pool", "5")),
        ("set server_reset_query to 'select ''a'''", set("server_reset_query", "select 'a'")),
        ("set server_check_query = ''", set("server_check_query", "")),
        ("set Pool_Mode TO transaction", set("pool_mode", "transaction")),
        ("set admin_users = a, b ;", set("admin_users", "a, b")),
        ("SHUTDOWN wait_for_clients", ConsoleCommand::Shutdown(ShutdownRequest::WaitForClients)),
    ] {
        assert_eq!(ConsoleCommand::parse(text), Ok(command), "{text}");
    }
    for text in [
        "pause a b",
        "pause a,",
        "pause ,b",
        "pause a,b,c",
        "kill a,b",
        "suspend shop",
        "show",
        "show me",
        "ban",
        "reset",
        "reset cluster",
        "capture",
        "capture start a b",
        "capture stop a",
        "ban db1 soon",
        "pause \"a",
        "drop table x",
        "set",
        "set a",
        "set a b",
        "set a =",
        "set a = 'b",
        "set a = b'",
        "set a = 'b'c'",
        "set a tob",
        "set a t\u{e4}",
    ] {
        let parsed = ConsoleCommand::parse(text);
        assert!(text == "show" || parsed.is_err(), "{text}: {parsed:?}");
    }
}
