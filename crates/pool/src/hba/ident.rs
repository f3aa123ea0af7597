//! `pg_ident.conf`: which names of a certificate or of the system's users stand for which users.
//!
//! ```text
//! map  system-name        user
//! m    /^(.*)@example\.com$  \1
//! m    root               "postgres"
//! ```

use std::collections::BTreeMap;

use super::{
    names::{Pattern, UserName},
    words::Word,
};

/// Maps by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Maps(BTreeMap<String, Vec<Line>>);

#[derive(Clone, Debug, PartialEq)]
struct Line {
    system: System,
    user: UserName,
    /// The user as written, where it holds `\1`: what the first group of the pattern found.
    template: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
enum System {
    Name(String),
    Pattern(Pattern),
}

impl Maps {
    pub(super) fn add(&mut self, fields: &[Vec<Word>]) -> Result<(), String> {
        let [map, system, user] = fields else {
            return Err("a line of a map is map, system name, user".to_owned());
        };
        let one = |field: &[Word]| match field {
            [word] => Ok(word.clone()),
            _ => Err("one name is expected in each field".to_owned()),
        };
        let (map, system, user) = (one(map)?, one(system)?, one(user)?);
        let system = match Pattern::of(&system) {
            Some(pattern) => System::Pattern(pattern?),
            None => System::Name(system.text),
        };
        // An expression is one, whatever it holds.
        let is_template = user.text.contains("\\1") && !user.text.starts_with('/');
        let template = is_template.then(|| user.text.clone());
        if let (Some(text), System::Pattern(pattern)) = (&template, &system)
            && pattern.0.captures_len() < 2
        {
            return Err(format!("{text:?} names a group, and the pattern has none in parentheses"));
        }
        let line = Line { system, user: UserName::parse(&user)?, template };
        self.0.entry(map.text).or_default().push(line);
        Ok(())
    }

    /// Whether somebody of this name may be this user; without a map, who has the same name may.
    pub(super) fn allows(&self, map: Option<&str>, name: &str, user: &str) -> bool {
        let Some(map) = map else { return name == user };
        self.0.get(map).is_some_and(|lines| lines.iter().any(|line| line.allows(name, user)))
    }
}

impl Line {
    fn allows(&self, name: &str, user: &str) -> bool {
        match (&self.system, &self.template) {
            (System::Name(system), _) => system == name && self.user.is(user),
            (System::Pattern(pattern), None) => pattern.0.is_match(name) && self.user.is(user),
            (System::Pattern(pattern), Some(template)) => {
                let group = pattern.0.captures(name).and_then(|found| found.get(1));
                // What somebody is called becomes no keyword and no expression. The first only, as
                // PostgreSQL does it.
                group.is_some_and(|group| template.replacen("\\1", group.as_str(), 1) == user)
            }
        }
    }
}
