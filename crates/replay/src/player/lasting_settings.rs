//! [`LastingSettings`]: the statements that restore a session's settings on a new connection.
//!
//! After a lost connection, the new one has the settings of its login, but not those that the
//! session has set since. Statements that depend on them, such as those with a `search_path`, would
//! run differently or fail. Statements prepared by a Parse are not among these: the player prepares
//! them again before their next use.

use howdah_sql::{Lexer, SqlCommand, SqlToken, TokenKind, TransactionBlock, split_statements};

use super::deallocate::deallocated_name;

/// Maximum size of all texts of a session. Beyond it, the oldest are removed.
const BYTES_MAX: usize = 64 << 10;

/// The settings of a session, its statements prepared by SQL and the channels that it listens to,
/// in the order in which they were set.
#[derive(Clone, Debug, Default)]
pub(crate) struct LastingSettings {
    statements: Vec<StateStatement>,
    /// Statements of the open transaction, which take effect when it commits.
    pending: Vec<Vec<u8>>,
    /// Whether a statement of the open transaction has failed, so that COMMIT rolls it back.
    is_pending_lost: bool,
    /// Number of changes so far.
    version: u64,
}

#[derive(Clone, Debug)]
struct StateStatement {
    entry: StateEntry,
    sql: Vec<u8>,
}

/// The entry that a statement sets. A later one with the same entry replaces it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum StateEntry {
    Setting(Vec<u8>),
    Prepared(Vec<u8>),
    Channel(Vec<u8>),
}

/// The settings that RESET ALL does not change.
const IDENTITIES: [&[u8]; 2] = [b"role", b"session_authorization"];

impl LastingSettings {
    /// Returns the statements to send on a new connection.
    pub(super) fn statements(&self) -> impl Iterator<Item = &[u8]> {
        self.statements.iter().map(|statement| &statement.sql[..])
    }

    /// Returns a number that rises with each change of the session's state.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Records a text that was executed without an error. `as_sent` returns a statement of it as it
    /// was sent.
    pub(super) fn note_done(&mut self, sql: &[u8], as_sent: impl Fn(&[u8]) -> Vec<u8>) {
        let single = sql.trim_ascii_end();
        let single = single.strip_suffix(b";").unwrap_or(single);
        if memchr::memchr(b';', single).is_none() {
            self.note_statement(single, &as_sent);
        } else if split_statements(sql).any(may_matter) {
            split_statements(sql).for_each(|statement| self.note_statement(statement, &as_sent));
        }
    }

    fn note_statement(&mut self, sql: &[u8], as_sent: &impl Fn(&[u8]) -> Vec<u8>) {
        if !may_matter(sql) {
            return;
        }
        if TransactionBlock::after(sql) == Some(TransactionBlock::Closed) {
            let commits = SqlCommand::from_sql(sql) == SqlCommand::Commit && !self.is_pending_lost;
            self.end_transaction(commits);
        } else if changes_state(sql) {
            self.pending.push(as_sent(sql));
            remove_oldest(&mut self.pending, Vec::len);
        }
    }

    /// Records that a statement failed.
    pub(super) fn note_failed(&mut self) {
        self.is_pending_lost = true;
    }

    /// Records that the connection was lost, and with it the open transaction.
    pub(super) fn note_connection_lost(&mut self) {
        self.end_transaction(false);
    }

    /// Records that no transaction block is open.
    pub(super) fn note_idle(&mut self) {
        let commits = !self.is_pending_lost;
        self.end_transaction(commits);
    }

    fn end_transaction(&mut self, commits: bool) {
        self.is_pending_lost = false;
        for sql in std::mem::take(&mut self.pending) {
            if commits {
                self.apply(sql);
            }
        }
    }

    fn apply(&mut self, sql: Vec<u8>) {
        self.version += 1;
        let words = statement_tokens(&sql);
        let word = |at: usize| words.get(at).map(|word| &word[..]).unwrap_or_default();
        let entries = &mut self.statements;
        match SqlCommand::from_sql(&sql) {
            SqlCommand::Reset if word(1) == b"all" => entries.retain(|one| match &one.entry {
                StateEntry::Setting(name) => IDENTITIES.contains(&&name[..]),
                _ => true,
            }),
            SqlCommand::Reset => {
                let entry = StateEntry::Setting(setting_name(&words));
                entries.retain(|one| one.entry != entry);
            }
            SqlCommand::Discard if word(1) == b"all" => entries.clear(),
            SqlCommand::Deallocate => {
                let name = deallocated_name(&sql);
                entries.retain(|one| match &one.entry {
                    StateEntry::Prepared(prepared) => {
                        name.as_ref().is_some_and(|name| *prepared != **name)
                    }
                    _ => true,
                });
            }
            SqlCommand::Unlisten => {
                let channel = word(1);
                entries.retain(|one| match &one.entry {
                    StateEntry::Channel(name) => channel != b"*" && *name != channel,
                    _ => true,
                });
            }
            command => {
                let entry = match command {
                    SqlCommand::Prepare => StateEntry::Prepared(word(1).to_vec()),
                    SqlCommand::Listen => StateEntry::Channel(word(1).to_vec()),
                    _ => StateEntry::Setting(setting_name(&words)),
                };
                entries.retain(|one| one.entry != entry);
                entries.push(StateStatement { entry, sql });
            }
        }
        remove_oldest(&mut self.statements, |one| one.sql.len());
    }
}

/// Removes the oldest texts beyond [`BYTES_MAX`].
fn remove_oldest<T>(texts: &mut Vec<T>, bytes: impl Fn(&T) -> usize) {
    while texts.iter().map(&bytes).sum::<usize>() > BYTES_MAX {
        texts.remove(0);
    }
}

/// Whether a statement may change a session's state or end a transaction, judging by its first
/// bytes. This saves reading most statements.
fn may_matter(sql: &[u8]) -> bool {
    match *sql.trim_ascii_start() {
        [first, second, third, ..] if first.is_ascii_alphabetic() => {
            let start = [first, second, third].map(|byte| byte.to_ascii_lowercase());
            let is_select = &start == b"sel";
            matches!(
                &start,
                b"set"
                    | b"res"
                    | b"rol"
                    | b"dis"
                    | b"dea"
                    | b"pre"
                    | b"lis"
                    | b"unl"
                    | b"com"
                    | b"end"
                    | b"abo"
            ) || is_select && is_set_config(sql)
        }
        // A comment may precede the first keyword.
        [_, _, _, ..] => true,
        _ => false,
    }
}

/// Whether a SELECT is a short call of `set_config`.
fn is_set_config(sql: &[u8]) -> bool {
    sql.len() < 1024 && memchr::memmem::find(sql, b"set_config").is_some()
}

/// Whether a text may change what its session has, beyond its transaction.
pub(super) fn may_change_state(sql: &[u8]) -> bool {
    may_matter(sql) && changes_state(sql)
        || sql.contains(&b';') && split_statements(sql).any(changes_state)
}

/// Whether a statement changes what its session has, beyond its transaction.
fn changes_state(sql: &[u8]) -> bool {
    match SqlCommand::from_sql(sql) {
        SqlCommand::Set => {
            let words = statement_tokens(sql);
            let second = words.get(1).map(|word| &word[..]).unwrap_or_default();
            !matches!(second, b"local" | b"transaction" | b"constraints")
        }
        SqlCommand::Select => is_lasting_set_config(sql),
        SqlCommand::Prepare => {
            statement_tokens(sql).get(1).is_some_and(|word| word != b"transaction")
        }
        SqlCommand::Reset
        | SqlCommand::Discard
        | SqlCommand::Deallocate
        | SqlCommand::Listen
        | SqlCommand::Unlisten => true,
        _ => false,
    }
}

/// Whether a statement is `select [pg_catalog.]set_config('name', 'value', false)`.
fn is_lasting_set_config(sql: &[u8]) -> bool {
    let words = statement_tokens(sql);
    // The values of parameters are not known here.
    if Lexer::new(sql).any(|token| token.kind == TokenKind::Placeholder) {
        return false;
    }
    let calls = words.iter().filter(|word| word.ends_with(b"set_config")).count();
    calls == 1 && words.last().is_some_and(|word| word == b"false")
}

/// Returns the first words, names and strings of a statement: words in lower case, the others
/// without their quotes. A name of several words has their dots.
fn statement_tokens(sql: &[u8]) -> Vec<Vec<u8>> {
    let word = |token: SqlToken<'_>| match token.kind {
        TokenKind::Word => Some(token.text.to_ascii_lowercase()),
        TokenKind::QuotedName | TokenKind::String => {
            let inner = token.text.get(1..token.text.len().saturating_sub(1));
            Some(inner.unwrap_or_default().to_vec())
        }
        TokenKind::Operator if token.text == b"*" => Some(token.text.to_vec()),
        TokenKind::Punctuation if token.text == b"." => Some(token.text.to_vec()),
        _ => None,
    };
    let mut words: Vec<Vec<u8>> = Vec::new();
    // Values can be long and are not needed.
    for next in Lexer::new(sql).filter_map(word).take(16) {
        match words.last_mut() {
            Some(last) if next == b"." || last.ends_with(b".") => last.extend(next),
            _ => words.push(next),
        }
    }
    words
}

/// Returns the name of the setting that SET, RESET or `set_config` changes.
fn setting_name(words: &[Vec<u8>]) -> Vec<u8> {
    let mut words = words.iter().map(|word| &word[..]).peekable();
    if words.next() == Some(b"select") {
        // The word after `set_config` is the string with the name.
        let name = words.skip_while(|word| !word.ends_with(b"set_config")).nth(1);
        return name.unwrap_or_default().to_ascii_lowercase();
    }
    let has_session = words.next_if_eq(&&b"session"[..]).is_some();
    let name = match (words.next().unwrap_or_default(), words.next()) {
        (b"authorization", _) if has_session => &b"session_authorization"[..],
        (b"time", Some(b"zone")) => b"timezone",
        (b"names", _) => b"client_encoding",
        (name, _) => name,
    };
    name.to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Executes texts, each in a transaction of its own unless it opens one, and returns what a
    /// new connection gets. A text that starts with `!` fails.
    fn restored(texts: &[&str]) -> Vec<String> {
        let mut state = LastingSettings::default();
        let mut is_open = false;
        for text in texts {
            match text.strip_prefix('!') {
                Some(_) => state.note_failed(),
                None => state.note_done(text.as_bytes(), <[u8]>::to_vec),
            }
            if let Some(block) = TransactionBlock::after(text.as_bytes()) {
                is_open = block == TransactionBlock::Opened;
            }
            if !is_open {
                state.note_idle();
            }
        }
        state.statements().map(|sql| String::from_utf8_lossy(sql).into_owned()).collect()
    }

    #[test]
    fn latest_settings_are_restored_in_order() {
        let set = restored(&[
            "SET search_path TO app, public",
            "set TimeZone = 'UTC';",
            "/* orm */ set session work_mem = '1MB'",
            "set time zone 'Europe/Berlin'",
            "select set_config('App.Tenant', '7', false)",
            "select set_config('app.user', '8', true)",
            "select set_config('app.user', $1, false)",
            "set local work_mem = '2MB'",
            "set transaction read only",
            "select 1",
        ]);
        assert_eq!(
            set,
            [
                "SET search_path TO app, public",
                "/* orm */ set session work_mem = '1MB'",
                "set time zone 'Europe/Berlin'",
                "select set_config('App.Tenant', '7', false)"
            ]
        );
        assert_eq!(
            restored(&["set a.b = 1; set a.c = 2; select 1"]),
            ["set a.b = 1", "set a.c = 2"]
        );
    }

    #[test]
    fn reset_and_discard_remove_settings() {
        assert_eq!(restored(&["set role x", "set work_mem = 1", "reset all"]), ["set role x"]);
        assert_eq!(restored(&["set work_mem = 1", "RESET Work_Mem"]), [""; 0]);
        assert_eq!(restored(&["set time zone 'UTC'", "reset timezone"]), [""; 0]);
        assert_eq!(restored(&["set work_mem = 1", "listen a", "discard all"]), [""; 0]);
    }

    #[test]
    fn prepared_statements_and_channels_are_restored() {
        let texts = ["prepare P as select 1", "prepare q as select 2", "listen a", "listen b"];
        assert_eq!(restored(&texts), texts);
        let texts = ["prepare P as select 1", "deallocate p", "listen a", "unlisten *"];
        assert_eq!(restored(&texts), [""; 0]);
        assert_eq!(restored(&["prepare transaction 'x'"]), [""; 0]);
    }

    #[test]
    fn settings_of_a_rolled_back_transaction_are_not_restored() {
        assert_eq!(restored(&["begin", "set work_mem = 1", "rollback"]), [""; 0]);
        assert_eq!(restored(&["begin", "set work_mem = 1", "commit"]), ["set work_mem = 1"]);
        assert_eq!(restored(&["begin", "set work_mem = 1", "!select 1/0", "commit"]), [""; 0]);
        assert_eq!(restored(&["!set nothing = 1", "set work_mem = 1"]), ["set work_mem = 1"]);
    }

    #[test]
    fn size_is_limited() {
        let mut state = LastingSettings::default();
        for number in 0..100_000 {
            let sql = format!("set app.s{number} = '{}'", "x".repeat(100));
            state.note_done(sql.as_bytes(), <[u8]>::to_vec);
            state.note_idle();
        }
        let bytes: usize = state.statements().map(<[u8]>::len).sum();
        assert!(bytes <= BYTES_MAX, "{bytes}");
        assert!(state.statements().last().unwrap().starts_with(b"set app.s99999 "));
    }
}
