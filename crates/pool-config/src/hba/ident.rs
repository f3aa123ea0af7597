//! `pg_ident.conf`: maps certificate names and OS users to the users that they may log in as.
//!
//! ```text
//! map  system-name        user
//! m    /^(.*)@example\.com$  \1
//! m    root               "postgres"
//! ```

use std::collections::BTreeMap;

use super::{
    names::{NamePattern, UserName},
    tokenizer::HbaToken,
};

/// The lines of each user name map, by the map's name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct IdentMaps(BTreeMap<String, Vec<IdentMapLine>>);

#[derive(Clone, Debug, PartialEq)]
struct IdentMapLine {
    system: IdentName,
    user: UserName,
    /// Template of the user name, if it contains `\1` for the pattern's first group.
    template: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
enum IdentName {
    Name(String),
    Pattern(NamePattern),
}

impl IdentMaps {
    pub(super) fn add(&mut self, fields: &[Vec<HbaToken>]) -> Result<(), String> {
        let [map, system, user] = fields else {
            return Err(
                "a line must have a map name, a system user name and a user name".to_owned()
            );
        };
        let one = |field: &[HbaToken]| match field {
            [token] => Ok(token.clone()),
            _ => Err("one name is expected in each field".to_owned()),
        };
        let (map, system, user) = (one(map)?, one(system)?, one(user)?);
        let system = match NamePattern::from_token(&system) {
            Some(pattern) => IdentName::Pattern(pattern?),
            None => IdentName::Name(system.text),
        };
        // In a regular expression, `\1` is not a placeholder.
        let is_template = user.text.contains("\\1") && !user.text.starts_with('/');
        let template = is_template.then(|| user.text.clone());
        if let (Some(text), IdentName::Pattern(pattern)) = (&template, &system)
            && pattern.0.captures_len() < 2
        {
            return Err(format!(
                "{text:?} refers to a group, and the pattern has none in parentheses"
            ));
        }
        let line = IdentMapLine { system, user: UserName::parse(&user)?, template };
        self.0.entry(map.text).or_default().push(line);
        Ok(())
    }

    /// Whether a system user may log in as `user`. Without a map, the two names must be equal.
    pub(super) fn allows(&self, map: Option<&str>, name: &str, user: &str) -> bool {
        let Some(map) = map else { return name == user };
        self.0.get(map).is_some_and(|lines| lines.iter().any(|line| line.allows(name, user)))
    }
}

impl IdentMapLine {
    fn allows(&self, name: &str, user: &str) -> bool {
        match (&self.system, &self.template) {
            (IdentName::Name(system), _) => system == name && self.user.matches(user),
            (IdentName::Pattern(pattern), None) => {
                pattern.0.is_match(name) && self.user.matches(user)
            }
            (IdentName::Pattern(pattern), Some(template)) => {
                let group = pattern.0.captures(name).and_then(|found| found.get(1));
                // The substituted name is compared literally, never as a keyword or expression.
                // Only the first `\1` is replaced, as in PostgreSQL.
                group.is_some_and(|group| template.replacen("\\1", group.as_str(), 1) == user)
            }
        }
    }
}
