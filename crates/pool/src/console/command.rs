//! [`Command`]: what an operator can say, read from text.

use std::time::Duration;

use super::table::Show;

/// What an operator says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Nothing.
    Empty,
    /// A table.
    Show(Show),
    /// What there is to say.
    Help,
    /// A setting of the console's own session, which drivers set at their start: nothing happens.
    SetOfSession,
    /// The settings are read again.
    Reload,
    /// A setting of the pooler has another value.
    Set { name: String, value: String },
    /// Servers of these databases are closed as they become free, and no client gets one.
    Pause(Databases),
    /// The same for the clients of one user.
    PauseUser { database: String, user: String },
    /// The end of that, or of all pauses and of a suspension.
    Resume(Databases),
    /// The end of a pause for one user.
    ResumeUser { database: String, user: String },
    /// Everything that is to be sent is sent, and nothing is read any more.
    Suspend,
    /// New clients of a database are let in, or not.
    Enable(String, bool),
    /// All clients and servers of these databases are ended, and they are paused.
    Kill(Databases),
    /// This client is ended.
    KillClient(u64),
    /// Servers of these databases are replaced as they become free.
    Reconnect(Databases),
    /// A server of several gets nobody for so long.
    Ban(String, Option<Duration>),
    /// It gets its part again.
    Unban(String),
    /// What is known of the servers of this database is forgotten, but for what those say that answer.
    ResetCluster(String),
    /// Traffic is captured, in a folder of this name.
    StartCapture(Option<String>),
    /// It is not any more.
    StopCapture,
    /// Waits until no server is left that was to be replaced.
    WaitClose(Databases),
    /// The pooler ends.
    Shutdown(Shutdown),
}

/// Which databases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Databases {
    All,
    One(String),
}

/// How the pooler ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shutdown {
    /// Now.
    Now,
    /// When clients have ended their transactions.
    WaitForServers,
    /// When clients have left.
    WaitForClients,
}

/// A text says nothing that is known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid command '{text}', use SHOW HELP;")]
pub(crate) struct UnknownCommand {
    text: String,
}

impl Command {
    /// Reads a text. Words are told apart by white space, and a name may stand in double quotes; all
    /// but names is taken without regard to case.
    ///
    /// # Errors
    ///
    /// [`UnknownCommand`].
    pub(crate) fn parse(text: &str) -> Result<Self, UnknownCommand> {
        let unknown = || UnknownCommand { text: text.trim().to_owned() };
        let words = words(text).ok_or_else(unknown)?;
        let upper: Vec<_> = words.iter().map(|word| word.to_ascii_uppercase()).collect();
        let upper: Vec<_> = upper.iter().map(String::as_str).collect();
        let name = |at: usize| words[at].clone();
        let databases = || match words.get(1) {
            None => Databases::All,
            Some(name) => Databases::One(name.clone()),
        };
        Ok(match upper[..] {
            [] => Self::Empty,
            ["SHOW"] | ["SHOW", "HELP"] => Self::Help,
            ["SHOW" | "SELECT", ref what @ ..] => {
                Self::Show(Show::by_words(what).ok_or_else(unknown)?)
            }
            ["SET", setting, ..] if is_of_session(setting) => Self::SetOfSession,
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
            ["ENABLE", _] => Self::Enable(name(1), true),
            ["DISABLE", _] => Self::Enable(name(1), false),
            ["KILL"] | ["KILL", _] => Self::Kill(databases()),
            ["KILL_CLIENT", id] => Self::KillClient(id.parse().map_err(|_| unknown())?),
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
            ["SHUTDOWN"] => Self::Shutdown(Shutdown::Now),
            ["SHUTDOWN", "WAIT_FOR_SERVERS"] => Self::Shutdown(Shutdown::WaitForServers),
            ["SHUTDOWN", "WAIT_FOR_CLIENTS"] => Self::Shutdown(Shutdown::WaitForClients),
            _ => return Err(unknown()),
        })
    }

    /// The word that tells that it is done.
    pub(crate) fn tag(&self) -> &'static str {
        match self {
            Self::Empty => "",
            Self::Show(_) | Self::Help => "SHOW",
            Self::SetOfSession | Self::Set { .. } => "SET",
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
        }
    }

    /// Whether it changes nothing, so that who may only look may say it.
    pub(crate) fn only_looks(&self) -> bool {
        matches!(self, Self::Empty | Self::Show(_) | Self::Help | Self::SetOfSession)
    }
}

/// Settings that drivers set or that end with their session, and that mean nothing here.
fn is_of_session(setting: &str) -> bool {
    const NAMES: [&str; 7] = [
        "APPLICATION_NAME",
        "CLIENT_ENCODING",
        "CLIENT_MIN_MESSAGES",
        "DATESTYLE",
        "EXTRA_FLOAT_DIGITS",
        "STANDARD_CONFORMING_STRINGS",
        "TIMEZONE",
    ];
    let name = setting.split('=').next().unwrap_or(setting);
    NAMES.contains(&name) || name == "SESSION"
}

/// Name and value of `SET name = value` or `SET name TO value`. A value may stand in single quotes, one
/// within them is doubled.
fn setting(text: &str) -> Option<(String, String)> {
    let text = without_end(text);
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

/// A text without the blanks and semicolons at its end.
fn without_end(text: &str) -> &str {
    text.trim_start().trim_end_matches(|letter: char| letter == ';' || letter.is_whitespace())
}

/// The words of a text, without the semicolon at its end; `None` if a quote is never closed. A comma outside of
/// quotes is a word.
fn words(text: &str) -> Option<Vec<String>> {
    let text = without_end(text);
    let (mut words, mut word, mut quoted, mut any) = (Vec::new(), String::new(), false, false);
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' if quoted && letters.peek() == Some(&'"') => word.extend(letters.next()),
            '"' => (quoted, any) = (!quoted, true),
            end if (end == ',' || end.is_whitespace()) && !quoted => {
                if std::mem::take(&mut any) {
                    words.push(std::mem::take(&mut word));
                }
                if end == ',' {
                    words.push(end.to_string());
                }
            }
            other => {
                word.push(other);
                any = true;
            }
        }
    }
    if any {
        words.push(word);
    }
    (!quoted).then_some(words)
}

#[test]
fn commands_are_read_as_people_write_them() {
    let one = |name: &str| Databases::One(name.to_owned());
    let shop = || "shop".to_owned();
    let set =
        |name: &str, value: &str| Command::Set { name: name.to_owned(), value: value.to_owned() };
    for (text, command) in [
        ("", Command::Empty),
        (" ; ", Command::Empty),
        ("; ;", Command::Empty),
        ("show version;", Command::Show(Show::Version)),
        ("SHOW  STATS_TOTALS ;", Command::Show(Show::StatsTotals)),
        ("show stats totals", Command::Show(Show::StatsTotals)),
        ("show help", Command::Help),
        ("set extra_float_digits = 3", Command::SetOfSession),
        ("PAUSE", Command::Pause(Databases::All)),
        ("pause \"My \"\"Shop\"", Command::Pause(one("My \"Shop"))),
        ("pause \"a,b\"", Command::Pause(one("a,b"))),
        ("pause shop,ann", Command::PauseUser { database: shop(), user: "ann".to_owned() }),
        (
            "Resume shop , \"A,nn\";",
            Command::ResumeUser { database: shop(), user: "A,nn".to_owned() },
        ),
        ("suspend;", Command::Suspend),
        ("Resume shop;", Command::Resume(one("shop"))),
        ("DISABLE shop", Command::Enable("shop".to_owned(), false)),
        ("kill_client 42", Command::KillClient(42)),
        ("reload;", Command::Reload),
        ("ban db1:5432 90", Command::Ban("db1:5432".to_owned(), Some(Duration::from_secs(90)))),
        ("BAN db1", Command::Ban("db1".to_owned(), None)),
        ("reset cluster shop", Command::ResetCluster("shop".to_owned())),
        ("capture start", Command::StartCapture(None)),
        ("CAPTURE START before-18;", Command::StartCapture(Some("before-18".to_owned()))),
        ("Capture Stop;", Command::StopCapture),
        ("unban db1;", Command::Unban("db1".to_owned())),
        ("set default_pool_size=5", set("default_pool_size", "5")),
        ("SET sizes.pool = '5';", set("sizes.pool", "5")),
        ("set server_reset_query to 'select ''a'''", set("server_reset_query", "select 'a'")),
        ("set server_check_query = ''", set("server_check_query", "")),
        ("set Pool_Mode TO transaction", set("pool_mode", "transaction")),
        ("set admin_users = a, b ;", set("admin_users", "a, b")),
        ("SHUTDOWN wait_for_clients", Command::Shutdown(Shutdown::WaitForClients)),
    ] {
        assert_eq!(Command::parse(text), Ok(command), "{text}");
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
        "kill_client x",
        "ban",
        "reset",
        "reset cluster",
        "capture",
        "capture start a b",
        "capture stop a",
        "ban db1 soon",
        "pause \"a",
        "drop table x",
        "enable",
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
        let parsed = Command::parse(text);
        assert!(text == "show" || parsed.is_err(), "{text}: {parsed:?}");
    }
}
