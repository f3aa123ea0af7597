//! The advice as settings of the pooler, in TOML.

use std::{collections::BTreeMap, fmt::Write as _};

use howdah_advise::{PoolAdvice, SuitableMode};

/// Maximum number of functions and users in the settings.
const FUNCTIONS_MAX: usize = 50;
const USERS_MAX: usize = 100;

/// The settings that suit a user in all databases.
struct UserSettings {
    mode: SuitableMode,
    size: u32,
    reserve: u32,
    session_mode_size: u32,
    databases: Vec<String>,
}

/// Returns settings to copy: mode and sizes of each user, and the functions to check. A user's
/// settings override those of the database, so they need no section of the databases.
pub(super) fn settings(advice: &PoolAdvice) -> String {
    let mut users: BTreeMap<String, UserSettings> = BTreeMap::new();
    for pool in advice.pools.iter().filter(|pool| !pool.user.is_empty()) {
        let it = users.entry(pool.user.to_string()).or_insert_with(|| UserSettings {
            mode: pool.mode,
            size: 0,
            reserve: 0,
            session_mode_size: 0,
            databases: Vec::new(),
        });
        // The sizes apply to each database of the user.
        let max = (pool.size + pool.reserve).max(it.size + it.reserve);
        it.mode = it.mode.max(pool.mode);
        it.size = it.size.max(pool.size);
        it.reserve = max - it.size;
        it.session_mode_size = it.session_mode_size.max(pool.session_mode_size);
        it.databases.push(pool.database.to_string());
    }
    let mut out = String::from(
        "# If a section exists already, add its keys there. If the database has a user of its own,\n\
         # which all of its clients share, move the keys to [pool.databases.NAME].\n",
    );
    for (user, it) in users.iter().take(USERS_MAX) {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "[pool.users.{}]", quoted(user));
        let _ = writeln!(out, "mode = \"{}\"", it.mode.as_str());
        let comment = mode_comment(it.mode, it.session_mode_size);
        let in_each = if it.databases.len() > 1 { ", for each database" } else { "" };
        let _ = writeln!(out, "pool-size = {:<6} # {comment}{in_each}", it.size);
        let _ = writeln!(out, "reserve-size = {}\n", it.reserve);
    }
    if users.len() > USERS_MAX {
        let _ = writeln!(out, "# {} more users\n", users.len() - USERS_MAX);
    }
    let functions = advice.functions.iter().map(|it| &*it.name).filter(|name| *name != "do");
    let functions: Vec<_> = functions.take(FUNCTIONS_MAX).map(quoted).collect();
    if !functions.is_empty() {
        out.push_str("# Functions to check: list those that leave no state in their session.\n");
        out.push_str("# [pool.adaptive]\n");
        let _ = writeln!(out, "# stateless-functions = [{}]", functions.join(", "));
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

/// Returns the comment after the mode of a pool in the settings.
fn mode_comment(mode: SuitableMode, in_session_mode: u32) -> String {
    match mode {
        SuitableMode::Session => "as many as sessions were open at once".to_owned(),
        _ => format!("session mode would need {in_session_mode}"),
    }
}

/// Returns a TOML string.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for char in text.chars() {
        match char {
            '"' | '\\' => quoted.extend(['\\', char]),
            char if char.is_control() => {
                let _ = write!(quoted, "\\u{:04X}", u32::from(char));
            }
            char => quoted.push(char),
        }
    }
    quoted.push('"');
    quoted
}

#[test]
fn names_are_quoted_as_toml() {
    assert_eq!(quoted("app"), r#""app""#);
    assert_eq!(quoted("a\"b\\c\n"), r#""a\"b\\c\u000A""#);
}
